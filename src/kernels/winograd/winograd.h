/* Winograd's minimal filtering for 3x3 convolutions with stride 1 and padding 1, F(4x4, 3x3).
 *
 * Images are cut into tiles of 4x4 outputs, which depend on 6x6 inputs. Tiles, weights and gradients are transformed
 * to 6x6 = 36 values each. There, a convolution is 36 products of small matrices: 36 multiplications instead of 144.
 * The loops are compiled once for each instruction set, like those of vector/. They exist only for vectors as long
 * as the images' channel block: 8 for AVX2, 16 for AVX-512. */
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

/* One convolution. Weights are stored as [out_blocks][in_blocks][9][V in][V out], where V is the block. Images and
 * weights are all floats or all bf16. Gradients of weights and all intermediate values are floats. */
typedef struct car_winograd_shape {
    int64_t images, height, width;
    int64_t in_blocks, out_blocks; /* of channels */
    bool bf16;
} car_winograd_shape;

typedef struct car_winograd {
    const char *name;
    int block; /* channels per vector */
    int tiles; /* multiplied together */

    /* Floats of scratch space: the most that any pass needs. */
    size_t (*scratch)(const car_winograd_shape *shape);
    /* y = x * w. With `by_data`, x is the gradient of the output and y that of the input. With `add`, adds to y. */
    void (*convolve)(const car_winograd_shape *shape, bool by_data, bool add, const void *x, const void *w, void *y,
                     float *scratch);
    void (*by_weights)(const car_winograd_shape *shape, const void *x, const void *grad_y, float *grad_w,
                       float *scratch);
} car_winograd;

/* The loops for images of this block, or NULL if the machine lacks the instructions. */
const car_winograd *car_winograd_select(int block);

/* Whether forward and backward together are faster than direct convolution. Computed from constants measured once
 * (see model.c), so the answer is the same on all machines with the same block. `multiplies_bf16`: the machine can
 * multiply bf16. */
bool car_winograd_pays(const car_winograd_shape *shape, const car_winograd *loops, bool by_data, bool multiplies_bf16);

#endif
