/* The table of reference kernels. */
#include "kernels/reference/reference.h"

car_status car_reference_prepare(car_kernel *kernel) {
    kernel->name = "reference";
    return CAR_OK;
}

const car_kernel_class *const car_kernels_reference[CAR_OP_KINDS] = {
    [CAR_OP_CONV] = &car_reference_conv,
    [CAR_OP_BATCHNORM] = &car_reference_batchnorm,
    [CAR_OP_RELU] = &car_reference_relu,
    [CAR_OP_MAXPOOL] = &car_reference_maxpool,
    [CAR_OP_AVGPOOL] = &car_reference_avgpool,
    [CAR_OP_GLOBAL_AVGPOOL] = &car_reference_global_avgpool,
    [CAR_OP_SHORTCUT] = &car_reference_shortcut,
    [CAR_OP_ADD] = &car_reference_add,
    [CAR_OP_FLATTEN] = &car_reference_flatten,
    [CAR_OP_LINEAR] = &car_reference_linear,
    [CAR_OP_LAYERNORM] = &car_reference_layernorm,
    [CAR_OP_GELU] = &car_reference_gelu,
    [CAR_OP_ATTENTION] = &car_reference_attention,
    [CAR_OP_EMBEDDING] = &car_reference_embedding,
    [CAR_OP_PATCH_TOKENS] = &car_reference_patch_tokens,
    [CAR_OP_SELECT_TOKEN] = &car_reference_select_token,
    [CAR_OP_DROPOUT] = &car_reference_dropout,
    [CAR_OP_CROSS_ENTROPY] = &car_reference_cross_entropy,
    [CAR_OP_HEAD_LOSS] = &car_reference_head_loss,
    [CAR_OP_CARRY] = &car_carry_kernel,
    [CAR_OP_STAGE] = &car_stage_kernel,
};
