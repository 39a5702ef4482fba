/* Backward by weights. Part of loops.c.
 *
 * The gradient is computed in slabs of some inputs by some outputs. If there are few tiles to sum over, all are
 * transformed once, and slabs fit the second-level cache. If there are many, some tiles at a time are transformed
 * for one slab, which is as large as possible so that this is rarely repeated. */
#ifndef CAR_WINOGRAD_BY_WEIGHTS_H
#define CAR_WINOGRAD_BY_WEIGHTS_H

#include "kernels/winograd/filters.h"
#include "kernels/winograd/products.h"
#include "kernels/winograd/tiles.h"

enum { SUM_TILES = 64, FEW_FLOATS = 1300000, FEW_SLAB_CHANNELS = 64, MANY_SLAB_CHANNELS = 128 };

typedef struct gradient_sum {
    const car_winograd_shape *shape;
    tile_grid in, out;
    int64_t tiles; /* processed together */
    int64_t slab;  /* blocks of inputs, and of outputs, processed together */
    bool few;      /* few tiles: all at once, for all channels */
} gradient_sum;

static gradient_sum gradient_sum_of(const car_winograd_shape *shape) {
    gradient_sum s = {shape, .in = grid_of(shape, shape->in_blocks), .out = grid_of(shape, shape->out_blocks)};
    s.few = s.in.tiles * (s.in.blocks + s.out.blocks) * POSITIONS * V <= FEW_FLOATS;
    s.tiles = s.few ? s.in.tiles : tiles_at_once(s.in.tiles, SUM_TILES, 1);
    s.slab = (s.few ? FEW_SLAB_CHANNELS : MANY_SLAB_CHANNELS) / V;
    return s;
}

/* A part of a gradient: first block and number of blocks of inputs and outputs. */
typedef struct slab {
    float *data; /* [36][input channel][output channel] */
    int64_t plane;
    int64_t in, in_blocks, out, out_blocks;
} slab;

static slab slab_of(const gradient_sum *s, float *data, int64_t in, int64_t out) {
    slab z = {.data = data, .in = in, .out = out};
    z.in_blocks = least(s->slab, s->in.blocks - in);
    z.out_blocks = least(s->slab, s->out.blocks - out);
    z.plane = plane_of(z.in_blocks * V, z.out_blocks);
    return z;
}

static int64_t slab_floats(const gradient_sum *s) {
    slab largest = slab_of(s, NULL, 0, 0);
    return POSITIONS * largest.plane;
}

static tile_panels panels_of(const gradient_sum *s, float *data, int64_t first, int64_t block, int64_t blocks) {
    int64_t count = least(s->tiles, s->in.tiles - first);
    return (tile_panels){data, first, count, count, block, blocks, plane_of(blocks, count)};
}

static size_t by_weights_scratch(const car_winograd_shape *shape) {
    gradient_sum s = gradient_sum_of(shape);
    int64_t in = s.few ? s.in.blocks : least(s.slab, s.in.blocks);
    int64_t out = s.few ? s.out.blocks : least(s.slab, s.out.blocks);
    return (size_t)(slab_floats(&s) + POSITIONS * (plane_of(in, s.tiles) + plane_of(out, s.tiles)));
}

/* One of the 36 products: V inputs at a time by a panel of outputs. */
static inline void multiply_panel(const tile_panels *x, const float *inputs, const float *gradients, float *z,
                                  int64_t row, bool add, const int panel) {
    for (int c = 0; c < V; c += FILTERS) {
        multiply_filters(inputs + c, gradients, x->padded * V, x->count, z + c * row, row, add, panel);
    }
}

static void multiply_slab(const slab *z, const tile_panels *x, const tile_panels *y, bool add) {
    int64_t row = z->out_blocks * V;
    for (int p = 0; p < POSITIONS; p++) {
        for (int64_t k = 0; k < z->out_blocks; k += PANEL) {
            const float *gradients = y->data + p * y->plane + (z->out - y->first_block + k) * y->padded * V;
            for (int64_t b = 0; b < z->in_blocks; b++) {
                const float *inputs = x->data + p * x->plane + (z->in - x->first_block + b) * x->padded * V;
                float *to = z->data + p * z->plane + b * V * row + k * V;
                if (k + PANEL <= z->out_blocks) {
                    multiply_panel(x, inputs, gradients, to, row, add, PANEL);
                } else {
                    multiply_panel(x, inputs, gradients, to, row, add, 1);
                }
            }
        }
    }
}

static void finish_slab(const car_winograd_shape *shape, const slab *z, float *grad_w) {
    int64_t row = z->out_blocks * V;
    for (int64_t k = 0; k < z->out_blocks; k++) {
        for (int64_t b = 0; b < z->in_blocks; b++) {
            float *to = grad_w + ((z->out + k) * shape->in_blocks + z->in + b) * TAPS * V * V;
            transform_filter_gradient_block(z->data + b * V * row + k * V, z->plane, row, to);
        }
    }
}

static void sum_few_tiles(const gradient_sum *s, const void *x, const void *grad_y, float *grad_w, float *scratch) {
    tile_panels inputs = panels_of(s, scratch + slab_floats(s), 0, 0, s->in.blocks);
    tile_panels gradients = panels_of(s, inputs.data + POSITIONS * inputs.plane, 0, 0, s->out.blocks);
    transform_input_tiles(&s->in, x, &inputs);
    transform_gradient_tiles(&s->out, grad_y, &gradients);
    for (int64_t b = 0; b < s->in.blocks; b += s->slab) {
        for (int64_t k = 0; k < s->out.blocks; k += s->slab) {
            slab z = slab_of(s, scratch, b, k);
            multiply_slab(&z, &inputs, &gradients, false);
            finish_slab(s->shape, &z, grad_w);
        }
    }
}

static void sum_many_tiles(const gradient_sum *s, const void *x, const void *grad_y, float *grad_w, float *scratch) {
    for (int64_t b = 0; b < s->in.blocks; b += s->slab) {
        for (int64_t k = 0; k < s->out.blocks; k += s->slab) {
            slab z = slab_of(s, scratch, b, k);
            for (int64_t first = 0; first < s->in.tiles; first += s->tiles) {
                tile_panels inputs = panels_of(s, scratch + slab_floats(s), first, b, z.in_blocks);
                float *behind = inputs.data + POSITIONS * inputs.plane;
                tile_panels gradients = panels_of(s, behind, first, k, z.out_blocks);
                transform_input_tiles(&s->in, x, &inputs);
                transform_gradient_tiles(&s->out, grad_y, &gradients);
                multiply_slab(&z, &inputs, &gradients, first > 0);
            }
            finish_slab(s->shape, &z, grad_w);
        }
    }
}

static void by_weights(const car_winograd_shape *shape, const void *x, const void *grad_y, float *grad_w,
                       float *scratch) {
    gradient_sum s = gradient_sum_of(shape);
    if (s.few) {
        sum_few_tiles(&s, x, grad_y, grad_w, scratch);
    } else {
        sum_many_tiles(&s, x, grad_y, grad_w, scratch);
    }
}

#endif
