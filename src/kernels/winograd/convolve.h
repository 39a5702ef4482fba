/* Forward and backward by data. Part of loops.c.
 *
 * For some tiles at a time, all inputs are transformed. Then, one panel of outputs after the other, weights are
 * transformed, multiplied and dropped, and the outputs are transformed back. Transformed weights are four times as
 * large as the weights: recomputing them in each call is faster than reading them from memory, and needs no memory. */
#ifndef CAR_WINOGRAD_CONVOLVE_H
#define CAR_WINOGRAD_CONVOLVE_H

#include "kernels/winograd/filters.h"
#include "kernels/winograd/products.h"
#include "kernels/winograd/tiles.h"

/* Limits of what is processed together. TILE_FLOATS of transformed inputs: enough to make the weights' transforms
 * cheap compared with the products, and few enough for the third-level cache. The weights of CHUNK_CHANNELS fit the
 * second level. */
enum { TILE_FLOATS = 800000, MOST_TILES = 256, CHUNK_CHANNELS = 128 };

typedef struct convolution {
    tile_grid in, out;
    int64_t tiles;      /* processed together, a multiple of TILES */
    int64_t chunk;      /* blocks of inputs processed together */
    int64_t row_blocks; /* blocks of inputs in the stored weights, in either direction */
    int64_t d_plane, u_plane, o_plane;
    bool by_data, bf16;
} convolution;

static convolution convolution_of(const car_winograd_shape *shape, bool by_data) {
    convolution c = {.by_data = by_data, .bf16 = shape->bf16, .row_blocks = shape->in_blocks};
    c.in = grid_of(shape, by_data ? shape->out_blocks : shape->in_blocks);
    c.out = grid_of(shape, by_data ? shape->in_blocks : shape->out_blocks);
    int64_t fit = TILE_FLOATS / (c.in.blocks * POSITIONS * V);
    c.tiles = tiles_at_once(c.in.tiles, fit < TILES ? TILES : least(fit, MOST_TILES), TILES);
    c.chunk = least(c.in.blocks, CHUNK_CHANNELS / V);
    c.d_plane = plane_of(c.in.blocks, c.tiles);
    c.u_plane = plane_of(c.chunk * PANEL, V);
    c.o_plane = plane_of(PANEL, c.tiles);
    return c;
}

static size_t convolution_scratch(const car_winograd_shape *shape, bool by_data) {
    convolution c = convolution_of(shape, by_data);
    return (size_t)(POSITIONS * (c.d_plane + c.u_plane + c.o_plane));
}

/* Transforms weights from `count` blocks of inputs to `panel` blocks of outputs, as [36][channel][panel][V]. */
static void transform_weights(const convolution *c, const void *w, int64_t in, int64_t count, int64_t out, int panel,
                              float *u) {
    for (int j = 0; j < panel; j++) {
        for (int64_t b = 0; b < count; b++) {
            float near[TAPS * V * V], *to = u + (b * V * panel + j) * V;
            if (c->by_data) {
                fetch_block(w, (in + b) * c->row_blocks + out + j, c->bf16, near);
                transform_turned_block(near, to, c->u_plane, panel * V);
            } else {
                fetch_block(w, (out + j) * c->row_blocks + in + b, c->bf16, near);
                transform_filter_block(near, to, c->u_plane, panel * V);
            }
        }
    }
}

/* Adds blocks in..in+count-1 of the inputs to the outputs; the first ones set them. */
static inline void multiply_chunk(const convolution *c, const tile_panels *inputs, int64_t in, int64_t count,
                                  const float *u, const tile_panels *outputs, const int panel) {
    int64_t step = inputs->padded * V;
    for (int p = 0; p < POSITIONS; p++) {
        const float *d = inputs->data + p * inputs->plane + in * step;
        float *o = outputs->data + p * outputs->plane;
        for (int64_t t = 0; t < step; t += TILES * V) {
            multiply_tiles(d + t, step, u + p * c->u_plane, count, o + t, step, in > 0, panel);
        }
    }
}

static void convolve(const car_winograd_shape *shape, bool by_data, bool add, const void *x, const void *w, void *y,
                     float *scratch) {
    convolution c = convolution_of(shape, by_data);
    float *u = scratch + POSITIONS * c.d_plane, *o = u + POSITIONS * c.u_plane;
    for (int64_t first = 0; first < c.in.tiles; first += c.tiles) {
        tile_panels inputs = {.data = scratch, .first = first, .blocks = c.in.blocks, .plane = c.d_plane};
        inputs.count = least(c.tiles, c.in.tiles - first);
        inputs.padded = round_up(inputs.count, TILES);
        transform_input_tiles(&c.in, x, &inputs);
        for (int64_t k = 0; k < c.out.blocks; k += PANEL) {
            int panel = (int)least(PANEL, c.out.blocks - k);
            tile_panels outputs = {o, first, inputs.count, inputs.padded, k, panel, c.o_plane};
            for (int64_t b = 0; b < c.in.blocks; b += c.chunk) {
                int64_t count = least(c.chunk, c.in.blocks - b);
                transform_weights(&c, w, b, count, k, panel, u);
                if (panel == PANEL) {
                    multiply_chunk(&c, &inputs, b, count, u, &outputs, PANEL);
                } else {
                    multiply_chunk(&c, &inputs, b, count, u, &outputs, 1);
                }
            }
            transform_output_tiles(&c.out, &outputs, y, add);
        }
    }
}

#endif
