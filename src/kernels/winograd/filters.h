/* Transforms between stored weights and the Winograd domain. Part of loops.c. */
#ifndef CAR_WINOGRAD_FILTERS_H
#define CAR_WINOGRAD_FILTERS_H

#include "kernels/winograd/transforms.h"

/* Transposes a block of V x V by interleaving the two halves of the rows log2(V) times. */
#if defined(__AVX512F__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#endif

static void transpose(const float *from, float *to) {
    vec rows[V], mixed[V];
    for (int i = 0; i < V; i++) {
        rows[i] = load(from + i * V);
    }
    for (int round = 1; round < V; round *= 2) {
        for (int i = 0; i < V / 2; i++) {
            mixed[2 * i] = LOW(rows[i], rows[i + V / 2]);
            mixed[2 * i + 1] = HIGH(rows[i], rows[i + V / 2]);
        }
        memcpy(rows, mixed, sizeof rows);
    }
    for (int i = 0; i < V; i++) {
        store(to + i * V, rows[i]);
    }
}

/* Transforms V x V filters, stored as [9][V][V], to [36] planes of V rows. */
static void transform_filter_block(const float *w, float *u, int64_t plane, int64_t row) {
    for (int c = 0; c < V; c++) {
        vec taps[3][3], half[SIDE][3], out[SIDE];
        for (int q = 0; q < TAPS; q++) {
            taps[q % 3][q / 3] = load(w + (q * V + c) * V);
        }
        for (int j = 0; j < 3; j++) {
            transform_filters(taps[j], &half[0][j], 3);
        }
        for (int i = 0; i < SIDE; i++) {
            transform_filters(half[i], out, 1);
            for (int j = 0; j < SIDE; j++) {
                store(u + (i * SIDE + j) * plane + c * row, out[j]);
            }
        }
    }
}

/* Reads a block in order first, because nine streams at once from memory are slower. */
static void fetch_block(const void *w, int64_t block, bool bf16, float *near) {
    const int64_t at = block * TAPS * V * V;
    if (!bf16) {
        memcpy(near, (const float *)w + at, sizeof(float) * TAPS * V * V);
        return;
    }
    for (int i = 0; i < TAPS * V * V; i += V) {
        store(near + i, load_bf16((const uint16_t *)w + at + i));
    }
}

/* Backward by data is a convolution with rotated filters, with inputs and outputs exchanged. */
static void transform_turned_block(const float *near, float *u, int64_t plane, int64_t row) {
    float turned[TAPS * V * V];
    for (int q = 0; q < TAPS; q++) {
        transpose(near + q * V * V, turned + (TAPS - 1 - q) * V * V);
    }
    transform_filter_block(turned, u, plane, row);
}

/* The reverse, for gradients: [36] planes of V rows to [9][V][V]. */
static inline void transform_filter_gradient_block(const float *z, int64_t plane, int64_t row, float *w) {
    for (int c = 0; c < V; c++) {
        vec values[SIDE], half[3][SIDE], out[3];
        for (int i = 0; i < SIDE; i++) {
            for (int j = 0; j < SIDE; j++) {
                values[j] = load(z + (i * SIDE + j) * plane + c * row);
            }
            transform_filter_gradients(values, &half[0][i], SIDE);
        }
        for (int j = 0; j < 3; j++) {
            transform_filter_gradients(half[j], out, 1);
            for (int i = 0; i < 3; i++) {
                store(w + ((i * 3 + j) * V + c) * V, out[i]);
            }
        }
    }
}

#endif
