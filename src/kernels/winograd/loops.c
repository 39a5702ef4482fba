/* Winograd convolutions for one instruction set. This file and the headers that it includes are compiled once for
 * each, with CAR_VECTOR_ISA as its name. */
#include "kernels/winograd/by_weights.h"
#include "kernels/winograd/convolve.h"

static size_t scratch(const car_winograd_shape *shape) {
    size_t forward = convolution_scratch(shape, false), by_data = convolution_scratch(shape, true);
    size_t convolutions = forward > by_data ? forward : by_data, weights = by_weights_scratch(shape);
    return convolutions > weights ? convolutions : weights;
}

#define JOIN_NAMES(a, b) a##b
#define EXPAND_AND_JOIN(a, b) JOIN_NAMES(a, b)
#define TABLE_NAME EXPAND_AND_JOIN(car_winograd_, CAR_VECTOR_ISA)
#define TEXT_OF(a) #a
#define EXPANDED_TEXT_OF(a) TEXT_OF(a)

extern const car_winograd TABLE_NAME;
const car_winograd TABLE_NAME = {
    .name = "winograd:" EXPANDED_TEXT_OF(CAR_VECTOR_ISA),
    .block = V,
    .tiles = TILES,
    .scratch = scratch,
    .convolve = convolve,
    .by_weights = by_weights,
};
