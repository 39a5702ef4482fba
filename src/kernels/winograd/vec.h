/* Vectors of channels, and what the loops of one instruction set share. Part of loops.c.
 *
 * Everything is in panels of one vector of channels. Transformed tiles are [36][channel block][tile][V], so that
 * transforms write them, and products read them, in order. The source fixes the order of sums over channels or
 * tiles, so results do not depend on which thread computes them. */
#ifndef CAR_WINOGRAD_VEC_H
#define CAR_WINOGRAD_VEC_H

#include <string.h>

#include "kernels/winograd/winograd.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { V = 16, TILES = 8, FILTERS = 8 };
#else
enum { V = 8, TILES = 6, FILTERS = 4 };
#endif
/* TILES x PANEL and FILTERS x PANEL vectors are summed in registers. */
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

typedef uint16_t halves __attribute__((vector_size(sizeof(uint16_t) * V)));
typedef uint32_t bits __attribute__((vector_size(sizeof(uint32_t) * V)));

static inline vec load_bf16(const uint16_t *from) {
    halves upper;
    memcpy(&upper, from, sizeof upper);
    return (vec)(__builtin_convertvector(upper, bits) << 16);
}

/* Rounds as car_bf16_round does. */
static inline void store_bf16(uint16_t *to, vec value) {
    bits all = (bits)value, not_a_number = (bits)((all & 0x7fffffff) > 0x7f800000);
    bits rounded = (all + 0x7fff + ((all >> 16) & 1)) >> 16, quiet = (all >> 16) | 0x40;
    halves upper = __builtin_convertvector((not_a_number & quiet) | (~not_a_number & rounded), halves);
    memcpy(to, &upper, sizeof upper);
}

/* A vector of an image, starting at element `at`. `bf16` is a constant where these are inlined. */
ALWAYS_INLINE vec load_pixel(const void *image, int64_t at, const bool bf16) {
    return bf16 ? load_bf16((const uint16_t *)image + at) : load((const float *)image + at);
}
ALWAYS_INLINE void store_pixel(void *image, int64_t at, vec value, const bool bf16) {
    if (bf16) {
        store_bf16((uint16_t *)image + at, value);
    } else {
        store((float *)image + at, value);
    }
}

static inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t round_up(int64_t a, int64_t b) {
    return (a + b - 1) / b * b;
}

/* Floats from one of the 36 planes to the next. The extra vector avoids multiples of a large power of two, for which
 * planes would compete for the same cache lines. */
static inline int64_t plane_of(int64_t blocks, int64_t padded) {
    return (blocks * padded + 1) * V;
}

/* Splits `all` into parts of about equal size, with at most `most` tiles, in whole steps. */
static inline int64_t tiles_at_once(int64_t all, int64_t most, int64_t step) {
    int64_t parts = (all + most - 1) / most;
    return round_up((all + parts - 1) / parts, step);
}

#endif
