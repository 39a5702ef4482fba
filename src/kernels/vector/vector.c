/* The vectorised loops for one instruction set. This file is compiled once for each, with CAR_VECTOR_ISA as its
 * name. */
#include "kernels/vector/vector.h"

#include <math.h>
#include <string.h>

/* Marks a loop whose elements are independent even if buffers coincide (in place). Without it, the compiler's
 * overlap check would send in-place calls to the slow path. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#include "kernels/vector/batchnorm_loops.h"
#include "kernels/vector/row_loops.h"
#include "kernels/vector/update_loops.h"

#ifndef CAR_VECTOR_ISA
#define CAR_VECTOR_ISA generic
#endif
#define JOIN_NAMES(a, b) a##b
#define EXPAND_AND_JOIN(a, b) JOIN_NAMES(a, b)
#define TABLE_NAME EXPAND_AND_JOIN(car_vector_, CAR_VECTOR_ISA)
#define TEXT_OF(a) #a
#define EXPANDED_TEXT_OF(a) TEXT_OF(a)

static void widen(float *restrict y, const car_bf16 *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = car_bf16_widen(x[i]);
    }
}

static void narrow(car_bf16 *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = car_bf16_round(x[i]);
    }
}

static void narrow_sum(car_bf16 *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = car_bf16_round(car_bf16_widen(y[i]) + x[i]);
    }
}

static void add_bf16(car_bf16 *y, const car_bf16 *a, const car_bf16 *b, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        y[i] = car_bf16_round(car_bf16_widen(a[i]) + car_bf16_widen(b[i]));
    }
}

static void add(float *y, const float *a, const float *b, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        y[i] = a[i] + b[i];
    }
}

static void accumulate(float *restrict y, const float *restrict x, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

static void relu(float *y, const float *x, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] < 0 ? 0 : x[i]; /* keeps NaNs */
    }
}

static void relu_backward(float *grad_x, const float *grad_y, const float *y, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        grad_x[i] = y[i] > 0 ? grad_y[i] : 0;
    }
}

static void relu_bf16(car_bf16 *y, const car_bf16 *x, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        y[i] = car_bf16_widen(x[i]) < 0 ? 0 : x[i];
    }
}

static void relu_backward_bf16(car_bf16 *grad_x, const car_bf16 *grad_y, const car_bf16 *y, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        grad_x[i] = car_bf16_widen(y[i]) > 0 ? grad_y[i] : 0;
    }
}

extern const car_vector TABLE_NAME;
const car_vector TABLE_NAME = {
    .name = "vector:" EXPANDED_TEXT_OF(CAR_VECTOR_ISA),
    .widen = widen,
    .narrow = narrow,
    .narrow_sum = narrow_sum,
    .add_bf16 = add_bf16,
    .relu_bf16 = relu_bf16,
    .relu_backward_bf16 = relu_backward_bf16,
    .add = add,
    .accumulate = accumulate,
    .relu = relu,
    .relu_backward = relu_backward,
    .batch_statistics = batch_statistics,
    .batchnorm = batchnorm,
    .batchnorm_backward = batchnorm_backward,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .fill_rows = fill_rows,
    .sum_rows = sum_rows,
    .log_sum_exp = log_sum_exp,
    .softmax_gradient = softmax_gradient,
    .attention_softmax = attention_softmax,
    .attention_restore = attention_restore,
    .attention_gradient = attention_gradient,
    .dot = dot,
    .gelu_tanh = gelu_tanh,
    .combine_rows = combine_rows,
    .sgd = sgd,
    .adamw = adamw,
    .sgd_corrected = sgd_corrected,
    .adamw_corrected = adamw_corrected,
    .muon_momentum = muon_momentum,
    .muon_step = muon_step,
    .blend = blend,
    .square_sum = square_sum,
};
