/* Convolutions of bf16 with AMX, on blocked channels: 16 per block, and an even number of blocks. */
#ifndef CAR_KERNELS_BF16_AMX_CONV_H
#define CAR_KERNELS_BF16_AMX_CONV_H

#include "kernels/bf16/amx.h"

typedef struct car_amx_conv_shape {
    int64_t images, height, width, out_height, out_width;
    int64_t in_blocks, out_blocks;
    int64_t kernel, stride, pad;
} car_amx_conv_shape;

/* Weights are stored as forward's tiles: [o/16][tap][i/32][pair of i][o%16][2]. Backward by data needs inputs and
 * outputs exchanged. This returns the bytes of scratch, to be aligned to 64. */
size_t car_amx_conv_scratch(const car_amx_conv_shape *shape);
void car_amx_conv_forward(const car_amx_conv_shape *shape, const car_bf16 *in, const car_bf16 *weights, car_bf16 *out,
                          void *scratch);
void car_amx_conv_by_data(const car_amx_conv_shape *shape, const car_bf16 *grad_out, const car_bf16 *exchanged,
                          bool adds, car_bf16 *grad_in, void *scratch);
void car_amx_conv_by_weights(const car_amx_conv_shape *shape, const car_bf16 *in, const car_bf16 *grad_out,
                             float *grad_weights, void *scratch);
void car_amx_conv_exchange(const car_amx_conv_shape *shape, const car_bf16 *weights, car_bf16 *exchanged);

/* Whether a convolution in bf16 should use AMX. */
bool car_amx_conv_suits(const car_kernel *kernel);
extern const car_kernel_class car_amx_conv;

#endif
