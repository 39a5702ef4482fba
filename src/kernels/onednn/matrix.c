/* Linear layers and attention with oneDNN's matrix product and vectorised rows. Its sgemm is mostly faster than
 * OpenBLAS's on the shapes of our transformers (docs/kernels.md), which saves a dependency. */
#include <math.h>
#include <string.h>

#include "kernels/onednn/onednn.h"

static car_status prepare_matrix(car_kernel *kernel) {
    kernel->name = "sgemm";
    return CAR_OK;
}

/* ---- linear ---------------------------------------------------------------------------------- */

typedef struct linear_sizes {
    int64_t rows, in, out;
    bool in_by_out;
} linear_sizes;

static linear_sizes sizes_of(const car_kernel *kernel) {
    car_shape x = car_kernel_in(kernel, 0);
    linear_sizes s = {.in = x.dim[x.rank - 1], .out = kernel->op->config.linear.out_features};
    s.rows = car_shape_elements(x) / s.in;
    s.in_by_out = kernel->op->config.linear.in_by_out;
    return s;
}

static car_status forward_linear(const car_kernel *kernel, const car_kernel_io *io) {
    linear_sizes s = sizes_of(kernel);
    bool bias = kernel->op->config.linear.bias;
    if (bias) {
        car_vector_select()->fill_rows(io->out, io->param[1], s.rows, s.out);
    }
    return car_onednn_sgemm(kernel, 'N', s.in_by_out ? 'N' : 'T', s.rows, s.out, s.in, io->in[0], s.in, io->param[0],
                            s.in_by_out ? s.out : s.in, bias ? 1.0f : 0.0f, io->out, s.out);
}

static car_status backward_linear(const car_kernel *kernel, const car_kernel_io *io) {
    linear_sizes s = sizes_of(kernel);
    const float *x = io->in[0], *g = io->grad_out;
    car_status status = CAR_OK;
    if (kernel->op->config.linear.bias) {
        car_vector_select()->sum_rows(io->grad_param[1], g, s.rows, s.out);
    }
    if (s.in_by_out) {
        CAR_TRY(
            car_onednn_sgemm(kernel, 'T', 'N', s.in, s.out, s.rows, x, s.in, g, s.out, 0.0f, io->grad_param[0], s.out));
    } else {
        CAR_TRY(
            car_onednn_sgemm(kernel, 'T', 'N', s.out, s.in, s.rows, g, s.out, x, s.in, 0.0f, io->grad_param[0], s.in));
    }
    if (io->grad_in[0]) {
        float beta = kernel->op->grad_mode[0] == CAR_GRAD_ADD ? 1.0f : 0.0f;
        CAR_TRY(car_onednn_sgemm(kernel, 'N', s.in_by_out ? 'T' : 'N', s.rows, s.in, s.out, g, s.out, io->param[0],
                                 s.in_by_out ? s.out : s.in, beta, io->grad_in[0], s.in));
    }
done:
    return status;
}

const car_kernel_class car_onednn_linear = {
    .prepare = prepare_matrix, .forward = forward_linear, .backward = backward_linear, .adds_grad = true};

/* ---- attention ------------------------------------------------------------------------------- */

/* Takes TILE queries at a time. Their scores against all keys fill TILE x T floats of scratch, and are dropped after
 * use. Backward recomputes them from the stored log-sum-exp.
 *
 *            keys 0..T-1
 *   tile 0  [############]      causal: computes only the columns up to the tile's
 *   tile 1  [############]      last row; each row uses those up to itself */
enum { TILE = 64 };

typedef struct attention_sizes {
    int64_t batch, tokens, width, heads, depth;
    float scale;
    bool causal;
} attention_sizes;

static attention_sizes attention_of(const car_kernel *kernel) {
    car_shape out = car_kernel_out(kernel);
    attention_sizes s = {.batch = out.dim[0], .tokens = out.dim[1], .width = out.dim[2]};
    s.heads = kernel->op->config.attention.heads;
    s.causal = kernel->op->config.attention.causal;
    s.depth = s.width / s.heads;
    s.scale = (float)(1.0 / sqrt((double)s.depth));
    return s;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static car_status prepare_attention(car_kernel *kernel) {
    attention_sizes s = attention_of(kernel);
    kernel->name = "sgemm, tiled";
    kernel->scratch_bytes = 2 * sizeof(float) * (size_t)(smaller(TILE, s.tokens) * s.tokens); /* p and dp */
    return CAR_OK;
}

/* Number of keys that query `row` attends to. */
static int64_t columns_of(const attention_sizes *s, int64_t row) {
    return s->causal ? row + 1 : s->tokens;
}

static car_status forward_head(const car_kernel *kernel, const attention_sizes *s, const float *query, float *out,
                               float *lse, float *scores) {
    const car_vector *vector = car_vector_select();
    int64_t stride = 3 * s->width;
    const float *key = query + s->width, *value = key + s->width;
    car_status status = CAR_OK;
    for (int64_t first = 0; first < s->tokens; first += TILE) {
        int64_t rows = smaller(TILE, s->tokens - first), columns = columns_of(s, first + rows - 1);
        CAR_TRY(car_onednn_sgemm(kernel, 'N', 'T', rows, columns, s->depth, query + first * stride, stride, key, stride,
                                 0.0f, scores, columns));
        for (int64_t r = 0; r < rows; r++) {
            int64_t used = columns_of(s, first + r);
            float value_of_row = vector->attention_softmax(scores + r * columns, used, s->scale);
            memset(scores + r * columns + used, 0, (size_t)(columns - used) * sizeof *scores);
            if (lse) {
                lse[first + r] = value_of_row;
            }
        }
        CAR_TRY(car_onednn_sgemm(kernel, 'N', 'N', rows, s->depth, columns, scores, columns, value, stride, 0.0f,
                                 out + first * s->width, s->width));
    }
done:
    return status;
}

static car_status forward_attention(const car_kernel *kernel, const car_kernel_io *io) {
    attention_sizes s = attention_of(kernel);
    const float *x = io->in[0];
    float *out = io->out, *lse = io->training ? io->aux : NULL;
    car_status status = CAR_OK;
    for (int64_t b = 0; b < s.batch; b++) {
        for (int64_t h = 0; h < s.heads; h++) {
            CAR_TRY(forward_head(kernel, &s, x + b * s.tokens * 3 * s.width + h * s.depth,
                                 out + b * s.tokens * s.width + h * s.depth,
                                 lse ? lse + (b * s.heads + h) * s.tokens : NULL, io->scratch));
        }
    }
done:
    return status;
}

/* Recomputes p and turns dp into the gradient of the scores, row by row. */
static void restore_tile(const attention_sizes *s, int64_t first, int64_t rows, int64_t columns, float *p, float *dp,
                         const float *out, const float *grad_out, const float *lse) {
    const car_vector *vector = car_vector_select();
    for (int64_t r = 0; r < rows; r++) {
        int64_t used = columns_of(s, first + r), at = (first + r) * s->width;
        float delta = vector->dot(out + at, grad_out + at, s->depth);
        vector->attention_restore(p + r * columns, used, s->scale, lse[first + r]);
        vector->attention_gradient(dp + r * columns, p + r * columns, delta, s->scale, used);
        memset(p + r * columns + used, 0, (size_t)(columns - used) * sizeof *p);
        memset(dp + r * columns + used, 0, (size_t)(columns - used) * sizeof *dp);
    }
}

/* One tile of queries: computes their gradient, and adds to those of keys and values. */
static car_status backward_tile(const car_kernel *kernel, const attention_sizes *s, int64_t first, const float *query,
                                const float *out, const float *grad_out, const float *lse, float *grad_query,
                                float *p) {
    int64_t stride = 3 * s->width, rows = smaller(TILE, s->tokens - first), columns = columns_of(s, first + rows - 1);
    const float *key = query + s->width, *value = key + s->width;
    const float *q = query + first * stride, *g = grad_out + first * s->width;
    float *grad_key = grad_query + s->width, *grad_value = grad_key + s->width;
    float *dp = p + smaller(TILE, s->tokens) * s->tokens;
    car_status status = CAR_OK;
    CAR_TRY(car_onednn_sgemm(kernel, 'N', 'T', rows, columns, s->depth, q, stride, key, stride, 0.0f, p, columns));
    CAR_TRY(car_onednn_sgemm(kernel, 'N', 'T', rows, columns, s->depth, g, s->width, value, stride, 0.0f, dp, columns));
    restore_tile(s, first, rows, columns, p, dp, out, grad_out, lse);
    CAR_TRY(
        car_onednn_sgemm(kernel, 'T', 'N', columns, s->depth, rows, p, columns, g, s->width, 1.0f, grad_value, stride));
    CAR_TRY(
        car_onednn_sgemm(kernel, 'T', 'N', columns, s->depth, rows, dp, columns, q, stride, 1.0f, grad_key, stride));
    CAR_TRY(car_onednn_sgemm(kernel, 'N', 'N', rows, s->depth, columns, dp, columns, key, stride, 0.0f,
                             grad_query + first * stride, stride));
done:
    return status;
}

static car_status backward_attention(const car_kernel *kernel, const car_kernel_io *io) {
    attention_sizes s = attention_of(kernel);
    car_status status = CAR_OK;
    if (!io->grad_in[0]) {
        return CAR_OK;
    }
    /* Keys and values are added up. */
    memset(io->grad_in[0], 0, (size_t)(s.batch * s.tokens * 3 * s.width) * sizeof(float));
    for (int64_t b = 0; b < s.batch; b++) {
        for (int64_t h = 0; h < s.heads; h++) {
            int64_t in_at = b * s.tokens * 3 * s.width + h * s.depth, out_at = b * s.tokens * s.width + h * s.depth;
            for (int64_t first = 0; first < s.tokens; first += TILE) {
                CAR_TRY(backward_tile(kernel, &s, first, (const float *)io->in[0] + in_at,
                                      (const float *)io->out + out_at, (const float *)io->grad_out + out_at,
                                      (const float *)io->aux + (b * s.heads + h) * s.tokens,
                                      (float *)io->grad_in[0] + in_at, io->scratch));
            }
        }
    }
done:
    return status;
}

const car_kernel_class car_onednn_attention = {
    .prepare = prepare_attention, .forward = forward_attention, .backward = backward_attention};
