/* The table of fast kernels. Operations that only copy or look up rows are as fast in plain C, and come from the
 * reference. */
#include "kernels/onednn/onednn.h"
#include "kernels/reference/reference.h"

const car_kernel_class *const car_kernels_onednn[CAR_OP_KINDS] = {
    [CAR_OP_CONV] = &car_onednn_conv,
    [CAR_OP_BATCHNORM] = &car_onednn_batchnorm,
    [CAR_OP_RELU] = &car_onednn_relu,
    [CAR_OP_MAXPOOL] = &car_onednn_maxpool,
    [CAR_OP_AVGPOOL] = &car_onednn_avgpool,
    [CAR_OP_GLOBAL_AVGPOOL] = &car_onednn_global_avgpool,
    [CAR_OP_SHORTCUT] = &car_onednn_shortcut,
    [CAR_OP_ADD] = &car_onednn_add,
    [CAR_OP_FLATTEN] = &car_onednn_flatten,
    [CAR_OP_LINEAR] = &car_onednn_linear,
    [CAR_OP_LAYERNORM] = &car_onednn_layernorm,
    [CAR_OP_GELU] = &car_onednn_gelu,
    [CAR_OP_ATTENTION] = &car_onednn_attention,
    [CAR_OP_EMBEDDING] = &car_reference_embedding,
    [CAR_OP_PATCH_TOKENS] = &car_onednn_patch_tokens,
    [CAR_OP_SELECT_TOKEN] = &car_reference_select_token,
    [CAR_OP_DROPOUT] = &car_onednn_dropout,
    [CAR_OP_CROSS_ENTROPY] = &car_onednn_cross_entropy,
    [CAR_OP_HEAD_LOSS] = &car_onednn_head_loss,
    [CAR_OP_CARRY] = &car_carry_kernel,
    [CAR_OP_STAGE] = &car_stage_kernel,
};
