/* Products of small matrices, summed in registers. Part of loops.c. */
#ifndef CAR_WINOGRAD_PRODUCTS_H
#define CAR_WINOGRAD_PRODUCTS_H

#include "kernels/winograd/vec.h"

/* TILES tiles by `panel` blocks of outputs, over `blocks` blocks of inputs:
 *     o[j][t] (+)= sum over c of d[c][t] * u[c][j]
 * d is [block][tile][V], with blocks d_block floats apart; u is [channel][panel][V]; o is [j][tile][V]. */
static inline void multiply_tiles(const float *d, int64_t d_block, const float *u, int64_t blocks, float *o,
                                  int64_t o_block, bool add, const int panel) {
    vec sum[TILES][PANEL];
    for (int t = 0; t < TILES; t++) {
        for (int j = 0; j < panel; j++) {
            sum[t][j] = add ? load(o + j * o_block + t * V) : (vec){0};
        }
    }
    for (int64_t b = 0; b < blocks; b++, d += d_block) {
        for (int c = 0; c < V; c++, u += panel * V) {
            vec weights[PANEL];
            for (int j = 0; j < panel; j++) {
                weights[j] = load(u + j * V);
            }
#pragma GCC unroll 8
            for (int t = 0; t < TILES; t++) {
                for (int j = 0; j < panel; j++) {
                    sum[t][j] += d[t * V + c] * weights[j];
                }
            }
        }
    }
    for (int t = 0; t < TILES; t++) {
        for (int j = 0; j < panel; j++) {
            store(o + j * o_block + t * V, sum[t][j]);
        }
    }
}

/* FILTERS channels of inputs by `panel` blocks of outputs, over tiles:
 *     z[c][j] (+)= sum over t of x[t][c] * y[j][t] */
static inline void multiply_filters(const float *x, const float *y, int64_t y_block, int64_t tiles, float *z,
                                    int64_t z_row, bool add, const int panel) {
    vec sum[FILTERS][PANEL];
    for (int c = 0; c < FILTERS; c++) {
        for (int j = 0; j < panel; j++) {
            sum[c][j] = add ? load(z + c * z_row + j * V) : (vec){0};
        }
    }
    for (int64_t t = 0; t < tiles; t++, x += V, y += V) {
        vec gradients[PANEL];
        for (int j = 0; j < panel; j++) {
            gradients[j] = load(y + j * y_block);
        }
#pragma GCC unroll 8
        for (int c = 0; c < FILTERS; c++) {
            for (int j = 0; j < panel; j++) {
                sum[c][j] += x[c] * gradients[j];
            }
        }
    }
    for (int c = 0; c < FILTERS; c++) {
        for (int j = 0; j < panel; j++) {
            store(z + c * z_row + j * V, sum[c][j]);
        }
    }
}

#endif
