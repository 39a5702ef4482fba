/* Attention in bf16: scores and softmax in floats, one tile of queries at a time, as for floats (onednn/matrix.c).
 *
 *   S = Q K'  floats ──softmax──► P, rounded ──► O = P V, rounded
 *   backward: recomputes P from the stored log-sum-exps; sums gradients of keys and values over tiles in floats */
#include <math.h>
#include <string.h>

#include "kernels/bf16/bf16.h"

enum { TILE = 64, PER_TILE = 6 };

/* The products of a tile with `rows` queries and as many keys as its last query attends to. */
typedef struct tile {
    int64_t rows, columns;
    car_bf16_product scores, weigh, grad_p, grad_value, grad_key, grad_query;
} tile;

typedef struct attention_state {
    int64_t batch, tokens, width, heads, depth;
    float scale;
    bool causal;
    int tile_count;
    tile *tiles;
    size_t offset; /* of the rooms below, after the products' scratch */
} attention_state;

/* Scratch of one head. */
typedef struct rooms {
    float *p, *dp;                /* TILE x tokens */
    float *grad_key, *grad_value; /* tokens x depth, sums over tiles */
    float *out, *grad_out;        /* one row each */
    car_bf16 *p16, *dp16;
    void *scratch;
} rooms;

static const car_kernel_class *choose(const car_kernel *kernel) {
    bool adds = kernel->op->grad_mode[0] == CAR_GRAD_ADD;
    return car_program_multiplies_bf16() && !adds ? &car_bf16_attention : NULL;
}

static void release(car_kernel *kernel) {
    attention_state *s = kernel->state;
    for (int t = 0; s && s->tiles && t < s->tile_count; t++) {
        car_bf16_product *products[PER_TILE] = {&s->tiles[t].scores,   &s->tiles[t].weigh,
                                                &s->tiles[t].grad_p,   &s->tiles[t].grad_value,
                                                &s->tiles[t].grad_key, &s->tiles[t].grad_query};
        for (int p = 0; p < PER_TILE; p++) {
            car_bf16_product_destroy(products[p]);
        }
    }
    if (s) {
        car_context_release(kernel->context, s->tiles, s->tiles ? (size_t)s->tile_count : 0, sizeof *s->tiles);
        car_context_release(kernel->context, s, 1, sizeof *s);
    }
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Number of keys that a query attends to. */
static int64_t columns_of(const attention_state *s, int64_t row) {
    return s->causal ? row + 1 : s->tokens;
}

static car_status prepare_tile(car_kernel *kernel, const attention_state *s, tile *t) {
    int64_t in = 3 * s->width, rows = t->rows, columns = t->columns, depth = s->depth;
    const car_bf16_matrix query = car_bf16_rows(rows, depth, in), keys = car_bf16_rows(columns, depth, in);
    const car_bf16_matrix across = car_bf16_turned(columns, depth, in), out = car_bf16_rows(rows, depth, s->width);
    const car_bf16_matrix square = car_bf16_rows(rows, columns, columns), sums = car_bf16_rows(columns, depth, depth);
    const car_bf16_matrix turned = car_bf16_turned(rows, columns, columns);
    const struct {
        car_bf16_product *product;
        car_bf16_product_config config;
    } all[PER_TILE] = {
        {&t->scores, {query, across, square, .rounds = false}}, {&t->weigh, {square, keys, out, .rounds = true}},
        {&t->grad_p, {out, across, square, .rounds = false}},   {&t->grad_value, {turned, out, sums, .adds = true}},
        {&t->grad_key, {turned, query, sums, .adds = true}},    {&t->grad_query, {square, keys, query, .rounds = true}},
    };
    car_status status = CAR_OK;
    for (int p = 0; p < PER_TILE; p++) {
        CAR_TRY(car_bf16_product_create(kernel, &all[p].config, all[p].product));
    }
done:
    return status;
}

static rooms rooms_of(const attention_state *s, void *scratch) {
    size_t tile_floats = (size_t)(smaller(TILE, s->tokens) * s->tokens), sums = (size_t)(s->tokens * s->depth);
    rooms r = {.scratch = scratch, .p = (float *)(void *)((char *)scratch + s->offset)};
    r.dp = r.p + tile_floats;
    r.grad_key = r.dp + tile_floats;
    r.grad_value = r.grad_key + sums;
    r.out = r.grad_value + sums;
    r.grad_out = r.out + s->depth;
    r.p16 = (car_bf16 *)(void *)(r.grad_out + s->depth);
    r.dp16 = r.p16 + tile_floats;
    return r;
}

static car_status prepare(car_kernel *kernel) {
    car_shape out = car_kernel_out(kernel);
    attention_state *s = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(kernel->context, 1, sizeof *s, &s));
    kernel->state = s;
    *s = (attention_state){.batch = out.dim[0], .tokens = out.dim[1], .width = out.dim[2]};
    s->heads = kernel->op->config.attention.heads;
    s->causal = kernel->op->config.attention.causal;
    s->depth = s->width / s->heads;
    s->scale = (float)(1.0 / sqrt((double)s->depth));
    s->tile_count = (int)((s->tokens + TILE - 1) / TILE);
    CAR_TRY(car_context_allocate(kernel->context, (size_t)s->tile_count, sizeof *s->tiles, &s->tiles));
    for (int t = 0; t < s->tile_count; t++) {
        s->tiles[t].rows = smaller(TILE, s->tokens - t * TILE);
        s->tiles[t].columns = columns_of(s, t * TILE + s->tiles[t].rows - 1);
        CAR_TRY(prepare_tile(kernel, s, &s->tiles[t]));
    }
    s->offset = car_round_up(kernel->scratch_bytes, 64);
    const rooms end = rooms_of(s, NULL);
    kernel->scratch_bytes = (size_t)(uintptr_t)(end.dp16 + smaller(TILE, s->tokens) * s->tokens);
    kernel->name = "bf16, tiled";
done:
    return status;
}

/* ---- forward --------------------------------------------------------------------------------- */

static car_status forward_head(const car_kernel *kernel, const car_kernel_io *io, const car_bf16 *query, car_bf16 *out,
                               float *lse) {
    const attention_state *s = kernel->state;
    const car_vector *vector = car_vector_select();
    const rooms r = rooms_of(s, io->scratch);
    const car_bf16 *key = query + s->width, *value = key + s->width;
    car_status status = CAR_OK;
    for (int n = 0; n < s->tile_count; n++) {
        const tile *t = &s->tiles[n];
        int64_t first = (int64_t)n * TILE;
        CAR_TRY(car_bf16_product_run(kernel, &t->scores, io->stream, r.scratch, query + first * 3 * s->width, key, NULL,
                                     r.p));
        for (int64_t row = 0; row < t->rows; row++) {
            int64_t used = columns_of(s, first + row);
            float sum = vector->attention_softmax(r.p + row * t->columns, used, s->scale);
            memset(r.p + row * t->columns + used, 0, (size_t)(t->columns - used) * sizeof *r.p);
            if (lse) {
                lse[first + row] = sum;
            }
        }
        vector->narrow(r.p16, r.p, t->rows * t->columns);
        CAR_TRY(
            car_bf16_product_run(kernel, &t->weigh, io->stream, r.scratch, r.p16, value, NULL, out + first * s->width));
    }
done:
    return status;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const attention_state *s = kernel->state;
    float *lse = io->training ? io->aux : NULL;
    car_status status = CAR_OK;
    for (int64_t n = 0; n < s->batch * s->heads; n++) {
        int64_t b = n / s->heads, h = n % s->heads;
        CAR_TRY(forward_head(kernel, io, (const car_bf16 *)io->in[0] + b * s->tokens * 3 * s->width + h * s->depth,
                             (car_bf16 *)io->out + b * s->tokens * s->width + h * s->depth,
                             lse ? lse + n * s->tokens : NULL));
    }
done:
    return status;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* What backward reads from a head, and where its gradients go. */
typedef struct head {
    const car_bf16 *query, *out, *grad_out;
    const float *lse;
    car_bf16 *grad_query;
} head;

/* Recomputes p and turns dp into the gradient of the scores, row by row. */
static void restore_tile(const attention_state *s, const rooms *r, const head *h, const tile *t, int64_t first) {
    const car_vector *vector = car_vector_select();
    for (int64_t row = 0; row < t->rows; row++) {
        int64_t used = columns_of(s, first + row), at = (first + row) * s->width;
        size_t left = (size_t)(t->columns - used) * sizeof(float);
        float *p = r->p + row * t->columns, *dp = r->dp + row * t->columns;
        vector->widen(r->out, h->out + at, s->depth);
        vector->widen(r->grad_out, h->grad_out + at, s->depth);
        float delta = vector->dot(r->out, r->grad_out, s->depth);
        vector->attention_restore(p, used, s->scale, h->lse[first + row]);
        vector->attention_gradient(dp, p, delta, s->scale, used);
        memset(p + used, 0, left);
        memset(dp + used, 0, left);
    }
    vector->narrow(r->p16, r->p, t->rows * t->columns);
    vector->narrow(r->dp16, r->dp, t->rows * t->columns);
}

static car_status backward_tile(const car_kernel *kernel, const car_kernel_io *io, const rooms *r, const head *h,
                                int n) {
    const attention_state *s = kernel->state;
    const tile *t = &s->tiles[n];
    int64_t first = (int64_t)n * TILE, at = first * 3 * s->width;
    const car_bf16 *key = h->query + s->width, *value = key + s->width, *g = h->grad_out + first * s->width;
    car_status status = CAR_OK;
    CAR_TRY(car_bf16_product_run(kernel, &t->scores, io->stream, r->scratch, h->query + at, key, NULL, r->p));
    CAR_TRY(car_bf16_product_run(kernel, &t->grad_p, io->stream, r->scratch, g, value, NULL, r->dp));
    restore_tile(s, r, h, t, first);
    CAR_TRY(car_bf16_product_run(kernel, &t->grad_value, io->stream, r->scratch, r->p16, g, NULL, r->grad_value));
    CAR_TRY(
        car_bf16_product_run(kernel, &t->grad_key, io->stream, r->scratch, r->dp16, h->query + at, NULL, r->grad_key));
    CAR_TRY(
        car_bf16_product_run(kernel, &t->grad_query, io->stream, r->scratch, r->dp16, key, NULL, h->grad_query + at));
done:
    return status;
}

static car_status backward_head(const car_kernel *kernel, const car_kernel_io *io, const head *h) {
    const attention_state *s = kernel->state;
    const car_vector *vector = car_vector_select();
    const rooms r = rooms_of(s, io->scratch);
    car_status status = CAR_OK;
    /* Also clears grad_value, which follows. */
    memset(r.grad_key, 0, (size_t)(2 * s->tokens * s->depth) * sizeof(float));
    for (int n = 0; n < s->tile_count; n++) {
        CAR_TRY(backward_tile(kernel, io, &r, h, n));
    }
    for (int64_t row = 0; row < s->tokens; row++) {
        car_bf16 *key = h->grad_query + row * 3 * s->width + s->width;
        vector->narrow(key, r.grad_key + row * s->depth, s->depth);
        vector->narrow(key + s->width, r.grad_value + row * s->depth, s->depth);
    }
done:
    return status;
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const attention_state *s = kernel->state;
    car_status status = CAR_OK;
    for (int64_t n = 0; io->grad_in[0] && n < s->batch * s->heads; n++) {
        int64_t in = n / s->heads * s->tokens * 3 * s->width + n % s->heads * s->depth;
        int64_t out = n / s->heads * s->tokens * s->width + n % s->heads * s->depth;
        const head h = {.query = (const car_bf16 *)io->in[0] + in,
                        .out = (const car_bf16 *)io->out + out,
                        .grad_out = (const car_bf16 *)io->grad_out + out,
                        .lse = (const float *)io->aux + n * s->tokens,
                        .grad_query = (car_bf16 *)io->grad_in[0] + in};
        CAR_TRY(backward_head(kernel, io, &h));
    }
done:
    return status;
}

const car_kernel_class car_bf16_attention = {.choose = choose,
                                             .prepare = prepare,
                                             .release = release,
                                             .forward = forward,
                                             .backward = backward,
                                             .adds_grad = true};
