/* Vectorised loops, where no library is as fast or where passes over memory can be fused.
 *
 * The loops are plain C in vector.c and the files it includes, vectorised by the compiler. They are compiled once
 * for each instruction set and selected at run time. All threads of a machine get the same set, so results do not
 * depend on which thread computes them. Sizes are numbers of elements. */
#ifndef CAR_VECTOR_H
#define CAR_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bf16.h"

/* A batch normalisation over one tensor [images][blocks][pixels][block], with a block of 8 or 16. Tensors are all
 * floats or all bf16. */
typedef struct car_vector_norm {
    int64_t images, channels, pixels;
    int block;
    float eps;
    bool relu, bf16;
    const float *gamma, *beta;
    const float *mean, *variance; /* of the batch, or running */
    const void *x, *residual;     /* residual may be NULL */
    void *y;
    /* Backward. */
    const void *grad_y, *saved_y; /* saved_y: the mask for a residual with ReLU */
    void *grad_x, *grad_residual; /* may be NULL; one of them may be grad_y's buffer */
    float *grad_gamma, *grad_beta;
} car_vector_norm;

typedef struct car_vector_sgd {
    float lr, scale, momentum, weight_decay;
    bool nesterov;
} car_vector_sgd;

typedef struct car_vector_adamw {
    float shrink, scale, beta1, rest1, beta2, rest2, step_size, root, eps; /* shrink: 1 - lr * decay; rest: 1 - beta */
} car_vector_adamw;

/* SGD corrected for a delay: w = old - lr * (v + c * (v - v before) + a * (g - g before)). */
typedef struct car_vector_sgd_corrected {
    float lr, scale, momentum, weight_decay, c, a;
} car_vector_sgd_corrected;

/* AdamW corrected for a delay: w = shrink * old - (moved * m + before * m before + a * (g - g before)) / (...). */
typedef struct car_vector_adamw_corrected {
    car_vector_adamw plain; /* without step_size */
    float moved, before, a;
} car_vector_adamw_corrected;

/* Muon's step along `u`: w = shrink * old - lr * (u + c * (u - u before)). */
typedef struct car_vector_muon {
    float shrink, lr, c;
} car_vector_muon;

typedef struct car_vector {
    const char *name;

    /* Conversion between floats and bf16. narrow_sum: y = round(y + x). */
    void (*widen)(float *y, const car_bf16 *x, int64_t n);
    void (*narrow)(car_bf16 *y, const float *x, int64_t n);
    void (*narrow_sum)(car_bf16 *y, const float *x, int64_t n);

    /* Like those for floats, rounded when stored. */
    void (*add_bf16)(car_bf16 *y, const car_bf16 *a, const car_bf16 *b, int64_t n); /* y may be a or b */
    void (*relu_bf16)(car_bf16 *y, const car_bf16 *x, int64_t n);
    void (*relu_backward_bf16)(car_bf16 *grad_x, const car_bf16 *grad_y, const car_bf16 *y, int64_t n);

    void (*add)(float *y, const float *a, const float *b, int64_t n); /* y may be a or b */
    void (*accumulate)(float *y, const float *x, int64_t n);          /* y += x */
    void (*relu)(float *y, const float *x, int64_t n);
    void (*relu_backward)(float *grad_x, const float *grad_y, const float *y, int64_t n);

    /* Writes mean and variance, `channels` floats each. */
    void (*batch_statistics)(const car_vector_norm *norm, float *mean, float *variance);
    void (*batchnorm)(const car_vector_norm *norm);
    void (*batchnorm_backward)(const car_vector_norm *norm);

    /* statistics: mean and reciprocal standard deviation of each row. */
    void (*layernorm)(float *y, float *statistics, const float *x, const float *gamma, const float *beta, int64_t rows,
                      int64_t width, float eps);
    /* grad_x may be NULL or grad_y. With `add`, adds to grad_x. */
    void (*layernorm_backward)(float *grad_x, float *grad_gamma, float *grad_beta, const float *grad_y, const float *x,
                               const float *statistics, const float *gamma, int64_t rows, int64_t width, bool add);

    void (*fill_rows)(float *y, const float *row, int64_t rows, int64_t width); /* copies `row` to every row */
    /* Overwrites `sum` with column sums. */
    void (*sum_rows)(float *sum, const float *x, int64_t rows, int64_t width);

    /* Returns log(sum(exp(x))) of a row and, if `sum` is not NULL, the sum of x. */
    float (*log_sum_exp)(const float *x, int64_t n, float *sum);
    /* y = (exp(x - lse) - shift) * scale; y may be x. */
    void (*softmax_gradient)(float *y, const float *x, float lse, float shift, float scale, int64_t n);

    /* Attention, for one row of scores: s = softmax(s * scale); returns the log-sum-exp. */
    float (*attention_softmax)(float *s, int64_t n, float scale);
    void (*attention_restore)(float *s, int64_t n, float scale, float lse); /* s = exp(s * scale - lse) */
    /* dp = p * (dp - delta) * scale */
    void (*attention_gradient)(float *dp, const float *p, float delta, float scale, int64_t n);
    float (*dot)(const float *a, const float *b, int64_t n);

    void (*gelu_tanh)(float *y, const float *x, int64_t n); /* y may be x */
    /* y += x w: a row of `rows` numbers times a matrix with `rows` rows of `width`, `stride` apart. */
    void (*combine_rows)(float *y, const float *x, const float *w, int64_t rows, int64_t width, int64_t stride);

    /* Computes w from old, which may be the same buffer; g = scale * sum. m is NULL without momentum. */
    void (*sgd)(float *w, const float *old, float *m, const float *sum, const car_vector_sgd *config, int64_t n);
    void (*adamw)(float *w, const float *old, float *m, float *v, const float *sum, const car_vector_adamw *config,
                  int64_t n);
    /* The same, corrected for a delay. `last` holds the last gradient and receives this one; NULL if a is 0. */
    void (*sgd_corrected)(float *w, const float *old, float *m, float *last, const float *sum,
                          const car_vector_sgd_corrected *config, int64_t n);
    void (*adamw_corrected)(float *w, const float *old, float *m, float *v, float *last, const float *sum,
                            const car_vector_adamw_corrected *config, int64_t n);
    /* Muon: m = momentum * m + g, u = g + momentum * m, g = scale * sum. */
    void (*muon_momentum)(float *u, float *m, const float *sum, float scale, float momentum, int64_t n);
    /* `last` holds the previous u and receives this one; NULL if c is 0. */
    void (*muon_step)(float *w, const float *old, float *last, const float *u, const car_vector_muon *config,
                      int64_t n);
    /* acc = keep * acc + move * x */
    void (*blend)(float *acc, const float *x, float keep, float move, int64_t n);
    double (*square_sum)(const float *x, int64_t n);
} car_vector;

/* The best set for this machine. */
const car_vector *car_vector_select(void);

#endif
