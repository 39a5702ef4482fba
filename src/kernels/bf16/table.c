/* The table of kernels that work on bf16 directly. Some are written for it, the others handle both types. Missing
 * operations run on floats (kernels/widen.c). */
#include "kernels/bf16/bf16.h"

const car_kernel_class *const car_kernels_bf16[CAR_OP_KINDS] = {
    [CAR_OP_CONV] = &car_onednn_conv,         [CAR_OP_BATCHNORM] = &car_onednn_batchnorm,
    [CAR_OP_RELU] = &car_onednn_relu,         [CAR_OP_MAXPOOL] = &car_onednn_maxpool,
    [CAR_OP_AVGPOOL] = &car_onednn_avgpool,   [CAR_OP_ADD] = &car_onednn_add,
    [CAR_OP_LINEAR] = &car_bf16_linear,       [CAR_OP_LAYERNORM] = &car_bf16_layernorm,
    [CAR_OP_GELU] = &car_onednn_gelu,         [CAR_OP_ATTENTION] = &car_bf16_attention,
    [CAR_OP_EMBEDDING] = &car_bf16_embedding, [CAR_OP_CROSS_ENTROPY] = &car_bf16_cross_entropy,
    [CAR_OP_HEAD_LOSS] = &car_bf16_head_loss,
};
