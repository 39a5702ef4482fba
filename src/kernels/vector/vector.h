/* Vectorised loops: what no library does as fast, or what fuses passes over memory.
 *
 * The loops are plain C in vector.c and the files it includes, compiled once for each instruction set
 * and chosen at run time; the compiler does the vectorising. On one machine every thread gets the
 * same set, so results do not depend on who computes them. Sizes are counts of elements. */
#ifndef CAR_VECTOR_H
#define CAR_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bf16.h"

/* A batch normalisation over one tensor [images][blocks][pixels][block]; `block` is 8 or 16. Tensors are floats or, all of
 * them, bf16. */
typedef struct car_vector_norm {
    int64_t images, channels, pixels;
    int block;
    float eps;
    bool relu, bf16;
    const float *gamma, *beta;
    const float *mean, *variance; /* of the batch or running */
    const void *x, *residual;     /* residual: or NULL */
    void *y;
    /* backward */
    const void *grad_y, *saved_y; /* saved_y: the mask where there is a residual and a ReLU */
    void *grad_x, *grad_residual; /* or NULL; one of them may be grad_y's buffer */
    float *grad_gamma, *grad_beta;
} car_vector_norm;

typedef struct car_vector_sgd {
    float lr, scale, momentum, weight_decay;
    bool nesterov;
} car_vector_sgd;

typedef struct car_vector_adamw {
    float shrink, scale, beta1, rest1, beta2, rest2, step_size, root, eps; /* shrink: 1 - lr * decay; rest: 1 - beta */
} car_vector_adamw;

/* SGD with a correction of the delay: w = old - lr * (v + c * (v - v before) + a * (g - g before)). */
typedef struct car_vector_sgd_corrected {
    float lr, scale, momentum, weight_decay, c, a;
} car_vector_sgd_corrected;

/* AdamW with one: w = shrink * old - (moved * m + before * m before + a * (g - g before)) / (...). */
typedef struct car_vector_adamw_corrected {
    car_vector_adamw plain; /* step_size is not used */
    float moved, before, a;
} car_vector_adamw_corrected;

/* Muon's step along `u`: w = shrink * old - lr * (u + c * (u - u before)). */
typedef struct car_vector_muon {
    float shrink, lr, c;
} car_vector_muon;

typedef struct car_vector {
    const char *name;

    /* Between floats and bf16. narrow_sum: y = round(y + x). */
    void (*widen)(float *y, const car_bf16 *x, int64_t n);
    void (*narrow)(car_bf16 *y, const float *x, int64_t n);
    void (*narrow_sum)(car_bf16 *y, const float *x, int64_t n);

    /* The same as those for floats, rounded when they are stored. */
    void (*add_bf16)(car_bf16 *y, const car_bf16 *a, const car_bf16 *b, int64_t n); /* y may be a or b */
    void (*relu_bf16)(car_bf16 *y, const car_bf16 *x, int64_t n);
    void (*relu_backward_bf16)(car_bf16 *grad_x, const car_bf16 *grad_y, const car_bf16 *y, int64_t n);

    void (*add)(float *y, const float *a, const float *b, int64_t n); /* y may be a or b */
    void (*accumulate)(float *y, const float *x, int64_t n);          /* y += x */
    void (*relu)(float *y, const float *x, int64_t n);
    void (*relu_backward)(float *grad_x, const float *grad_y, const float *y, int64_t n);

    /* mean and variance: `channels` floats each, written. */
    void (*batch_statistics)(const car_vector_norm *norm, float *mean, float *variance);
    void (*batchnorm)(const car_vector_norm *norm);
    void (*batchnorm_backward)(const car_vector_norm *norm);

    /* statistics: mean and reciprocal deviation of each row. */
    void (*layernorm)(float *y, float *statistics, const float *x, const float *gamma, const float *beta, int64_t rows,
                      int64_t width, float eps);
    /* grad_x may be NULL or grad_y; add: grad_x is added to. */
    void (*layernorm_backward)(float *grad_x, float *grad_gamma, float *grad_beta, const float *grad_y, const float *x,
                               const float *statistics, const float *gamma, int64_t rows, int64_t width, bool add);

    void (*fill_rows)(float *y, const float *row, int64_t rows, int64_t width); /* every row becomes `row` */
    void (*sum_rows)(float *sum, const float *x, int64_t rows, int64_t width);  /* column sums, overwritten */

    /* Row-wise: returns log(sum(exp(x))) and, if `sum` is given, the sum of x. */
    float (*log_sum_exp)(const float *x, int64_t n, float *sum);
    /* y = (exp(x - lse) - shift) * scale; y may be x. */
    void (*softmax_gradient)(float *y, const float *x, float lse, float shift, float scale, int64_t n);

    /* Attention, one row of scores each: s *= scale, then s = softmax(s); returns the log-sum-exp. */
    float (*attention_softmax)(float *s, int64_t n, float scale);
    void (*attention_restore)(float *s, int64_t n, float scale, float lse); /* s = exp(s * scale - lse) */
    /* dp = p * (dp - delta) * scale */
    void (*attention_gradient)(float *dp, const float *p, float delta, float scale, int64_t n);
    float (*dot)(const float *a, const float *b, int64_t n);

    void (*gelu_tanh)(float *y, const float *x, int64_t n); /* y may be x */
    /* y += x w: a row of `rows` numbers times a matrix of `rows` rows of `width`, `stride` apart. */
    void (*combine_rows)(float *y, const float *x, const float *w, int64_t rows, int64_t width, int64_t stride);

    /* w from old, which may be the same; g = scale * sum. m is NULL without momentum. */
    void (*sgd)(float *w, const float *old, float *m, const float *sum, const car_vector_sgd *config, int64_t n);
    void (*adamw)(float *w, const float *old, float *m, float *v, const float *sum, const car_vector_adamw *config,
                  int64_t n);
    /* The same, corrected. `last` is the last gradient, and becomes this one; NULL if a is 0. */
    void (*sgd_corrected)(float *w, const float *old, float *m, float *last, const float *sum,
                          const car_vector_sgd_corrected *config, int64_t n);
    void (*adamw_corrected)(float *w, const float *old, float *m, float *v, float *last, const float *sum,
                            const car_vector_adamw_corrected *config, int64_t n);
    /* Muon: m = momentum * m + g, u = g + momentum * m, g = scale * sum. */
    void (*muon_momentum)(float *u, float *m, const float *sum, float scale, float momentum, int64_t n);
    /* `last` is the u before, and becomes this one; NULL if c is 0. */
    void (*muon_step)(float *w, const float *old, float *last, const float *u, const car_vector_muon *config,
                      int64_t n);
    /* acc = keep * acc + move * x */
    void (*blend)(float *acc, const float *x, float keep, float move, int64_t n);
    double (*square_sum)(const float *x, int64_t n);
} car_vector;

/* The best set for this machine. */
const car_vector *car_vector_select(void);

#endif
