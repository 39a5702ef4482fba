/* Winograd's minimal filtering for 3x3 convolutions of stride 1 and padding 1, F(4x4, 3x3).
 *
 * Images are cut into tiles of 4x4 outputs, which 6x6 inputs decide. Tiles, weights and gradients are transformed to
 * 6x6 = 36 values each; there a convolution is 36 products of small matrices, with 36 multiplications where the
 * direct form has 144. The loops are compiled once for each instruction set, like those of vector/, and exist only
 * for vectors as long as the block of the images' channels: 8 for AVX2, 16 for AVX-512. */
#ifndef CAR_WINOGRAD_H
#define CAR_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernel.h"

enum {
    CAR_WINOGRAD_TILE = 4,       /* outputs of a tile along one side */
    CAR_WINOGRAD_INPUTS = 6,     /* inputs of a tile along one side */
    CAR_WINOGRAD_POSITIONS = 36, /* values of a transformed tile */
    CAR_WINOGRAD_TAPS = 9        /* weights of a filter */
};

/* One convolution. Weights are stored as [out_blocks][in_blocks][9][V in][V out], V being the block. Images and weights
 * are floats or, all of them, bf16; gradients of weights are floats, as is everything inside. */
typedef struct car_winograd_shape {
    int64_t images, height, width;
    int64_t in_blocks, out_blocks; /* of channels */
    bool bf16;
} car_winograd_shape;

typedef struct car_winograd {
    const char *name;
    int block; /* channels in a vector */
    int tiles; /* are multiplied together */

    /* Floats of scratch space that the passes need. */
    size_t (*scratch)(const car_winograd_shape *shape);
    /* y = x * w. With `by_data`, x is the gradient of the output and y that of the input; with `add`, y is added to. */
    void (*convolve)(const car_winograd_shape *shape, bool by_data, bool add, const void *x, const void *w, void *y,
                     float *scratch);
    void (*by_weights)(const car_winograd_shape *shape, const void *x, const void *grad_y, float *grad_w,
                       float *scratch);
} car_winograd;

/* The loops for images of this block, or NULL if the machine has no such instructions. */
const car_winograd *car_winograd_select(int block);

/* Whether forward and backward together are faster than the direct convolution: by formula, from constants that were
 * measured once (see model.c), so that the answer is the same wherever the block is. `multiplies_bf16`: the machine has
 * the instructions. */
bool car_winograd_pays(const car_winograd_shape *shape, const car_winograd *loops, bool by_data, bool multiplies_bf16);

#endif
