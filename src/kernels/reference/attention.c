/* Reference kernel of multi-head attention.
 *
 * x is [b, t, 3e]: queries, keys and values side by side, each split into heads of d = e / heads. With the
 * scores s_ij = q_i k_j / sqrt(d) (j <= i if causal), p_ij = exp(s_ij - l_i) and l_i the logarithm of the sum
 * of exp(s_ij) over j, the output is o_i = sum_j p_ij v_j. Only l is kept; backward recomputes p:
 *     dv_j = sum_i p_ij do_i        ds_ij = p_ij (do_i v_j - D_i), with D_i = do_i o_i
 *     dq_i = sum_j ds_ij k_j / sqrt(d)        dk_j = sum_i ds_ij q_i / sqrt(d) */
#include <math.h>
#include <string.h>

#include "kernels/reference/reference.h"

typedef struct sizes {
    int64_t batch, tokens, width, heads, d;
    bool causal;
} sizes;

static sizes attention_sizes(const car_kernel *kernel) {
    car_shape out = car_kernel_out(kernel);
    sizes s = {.batch = out.dim[0], .tokens = out.dim[1], .width = out.dim[2]};
    s.heads = kernel->op->config.attention.heads;
    s.d = s.width / s.heads;
    s.causal = kernel->op->config.attention.causal;
    return s;
}

/* Forward needs one row of scores, backward the sums of one head's gradients. */
static car_status attention_prepare(car_kernel *kernel) {
    sizes s = attention_sizes(kernel);
    kernel->name = "reference";
    kernel->scratch_bytes = (size_t)(3 * s.tokens * s.d) * sizeof(double);
    return CAR_OK;
}

enum { QUERY, KEY, VALUE };

/* Index of the d numbers of a query, key or value in x or its gradient. */
static int64_t part_at(const sizes *s, int64_t b, int64_t t, int64_t head, int part) {
    return ((b * s->tokens + t) * 3 + part) * s->width + head * s->d;
}
/* The same for the output. */
static int64_t out_at(const sizes *s, int64_t b, int64_t t, int64_t head) {
    return (b * s->tokens + t) * s->width + head * s->d;
}
/* Number of keys that query i attends to. */
static int64_t seen(const sizes *s, int64_t i) {
    return s->causal ? i + 1 : s->tokens;
}

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* Computes one row of the output of one head and returns l_i. `row` has space for its scores. */
static double forward_row(const sizes *s, const float *x, int64_t b, int64_t head, int64_t i, double *row, float *out) {
    double maximum = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen(s, i); j++) {
        const float *query = x + part_at(s, b, i, head, QUERY), *key = x + part_at(s, b, j, head, KEY);
        row[j] = dot(query, key, s->d) / sqrt((double)s->d);
        maximum = fmax(maximum, row[j]);
    }
    for (int64_t j = 0; j < seen(s, i); j++) {
        row[j] = exp(row[j] - maximum);
        sum += row[j];
    }
    for (int64_t e = 0; e < s->d; e++) {
        double value = 0;
        for (int64_t j = 0; j < seen(s, i); j++) {
            value += row[j] * (double)x[part_at(s, b, j, head, VALUE) + e];
        }
        out[out_at(s, b, i, head) + e] = (float)(value / sum);
    }
    return maximum + log(sum);
}

static car_status attention_forward(const car_kernel *kernel, const car_kernel_io *io) {
    sizes s = attention_sizes(kernel);
    float *aux = io->aux;
    for (int64_t b = 0; b < s.batch; b++) {
        for (int64_t head = 0; head < s.heads; head++) {
            for (int64_t i = 0; i < s.tokens; i++) {
                double logarithm = forward_row(&s, io->in[0], b, head, i, io->scratch, io->out);
                if (aux) {
                    aux[(b * s.heads + head) * s.tokens + i] = (float)logarithm;
                }
            }
        }
    }
    return CAR_OK;
}

/* Adds the contribution of row i to the gradients of its head: sums[part][t][d]. */
static void backward_row(const sizes *s, const car_kernel_io *io, int64_t b, int64_t head, int64_t i, double *sums) {
    const float *x = io->in[0], *query = x + part_at(s, b, i, head, QUERY);
    const float *grad = (const float *)io->grad_out + out_at(s, b, i, head);
    double logarithm = (double)((const float *)io->aux)[(b * s->heads + head) * s->tokens + i];
    double mean = dot(grad, (const float *)io->out + out_at(s, b, i, head), s->d);
    double scale = 1 / sqrt((double)s->d);
    double *grad_query = sums + (QUERY * s->tokens + i) * s->d;
    for (int64_t j = 0; j < seen(s, i); j++) {
        const float *key = x + part_at(s, b, j, head, KEY), *value = x + part_at(s, b, j, head, VALUE);
        double *grad_key = sums + (KEY * s->tokens + j) * s->d, *grad_value = sums + (VALUE * s->tokens + j) * s->d;
        double p = exp(dot(query, key, s->d) * scale - logarithm);
        double grad_score = p * (dot(grad, value, s->d) - mean);
        for (int64_t e = 0; e < s->d; e++) {
            grad_query[e] += grad_score * scale * (double)key[e];
            grad_key[e] += grad_score * scale * (double)query[e];
            grad_value[e] += p * (double)grad[e];
        }
    }
}

static car_status attention_backward(const car_kernel *kernel, const car_kernel_io *io) {
    sizes s = attention_sizes(kernel);
    float *grad_in = io->grad_in[0];
    double *sums = io->scratch;
    for (int64_t b = 0; grad_in && b < s.batch; b++) {
        for (int64_t head = 0; head < s.heads; head++) {
            memset(sums, 0, kernel->own_scratch_bytes);
            for (int64_t i = 0; i < s.tokens; i++) {
                backward_row(&s, io, b, head, i, sums);
            }
            for (int part = QUERY; part <= VALUE; part++) {
                for (int64_t t = 0; t < s.tokens; t++) {
                    for (int64_t e = 0; e < s.d; e++) {
                        grad_in[part_at(&s, b, t, head, part) + e] = (float)sums[(part * s.tokens + t) * s.d + e];
                    }
                }
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_attention = {
    .prepare = attention_prepare, .forward = attention_forward, .backward = attention_backward};
