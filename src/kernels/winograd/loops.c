/* Winograd convolutions for one instruction set: this file is compiled once for each, with CAR_VECTOR_ISA naming it
 * and the compiler told to use it.
 *
 * Everything is in panels of one vector of channels. Transformed inputs are [36][channel block][tile][V], so that the
 * products read them, and transforms write them, in order; the 36 planes are one vector apart from multiples of large
 * powers of two, or they would fight for the same lines of the cache. Sums run over channels (or tiles) in the order
 * that the source lays down, whoever computes them. */
#include "kernels/winograd/winograd.h"

#include <string.h>

#if defined(__AVX512F__)
enum { V = 16, TILES = 8, FILTERS = 8 };
#else
enum { V = 8, TILES = 6, FILTERS = 4 };
#endif
/* TILES x PANEL and FILTERS x PANEL vectors are summed up in registers. */
enum { PANEL = 2, SIDE = CAR_WINOGRAD_INPUTS, TILE = CAR_WINOGRAD_TILE, POSITIONS = CAR_WINOGRAD_POSITIONS };
enum { TAPS = CAR_WINOGRAD_TAPS };

typedef float vec __attribute__((vector_size(sizeof(float) * V)));
typedef float vec_anywhere __attribute__((vector_size(sizeof(float) * V), aligned(sizeof(float)), may_alias));

static inline vec load(const float *from) {
    return *(const vec_anywhere *)(const void *)from;
}
static inline void store(float *to, vec value) {
    *(vec_anywhere *)(void *)to = value;
}
static inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t round_up(int64_t a, int64_t b) {
    return (a + b - 1) / b * b;
}

#include "kernels/winograd/transforms.h"
#include "kernels/winograd/tiles.h"
#include "kernels/winograd/filters.h"
#include "kernels/winograd/products.h"

#include "kernels/winograd/convolve.h"
#include "kernels/winograd/by_weights.h"

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
