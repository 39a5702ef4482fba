/* Reference kernels that work on one element at a time, or only move elements. */
#include <math.h>

#include "base/base.h"
#include "kernels/reference/reference.h"

/* ---- ReLU ---------------------------------------------------------------------------------------- */

static car_status relu_forward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *x = io->in[0];
    float *y = io->out;
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i] < 0 ? 0 : x[i]; /* written so that NaN stays NaN */
    }
    return CAR_OK;
}

static car_status relu_backward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *y = io->out, *grad = io->grad_out;
    float *grad_in = io->grad_in[0];
    for (int64_t i = 0; grad_in && i < count; i++) {
        grad_in[i] = y[i] > 0 ? grad[i] : 0;
    }
    return CAR_OK;
}

const car_kernel_class car_reference_relu = {
    .prepare = car_reference_prepare, .forward = relu_forward, .backward = relu_backward};

/* ---- addition ------------------------------------------------------------------------------------ */

static car_status add_forward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *a = io->in[0], *b = io->in[1];
    float *y = io->out;
    for (int64_t i = 0; i < count; i++) {
        y[i] = a[i] + b[i];
    }
    return CAR_OK;
}

/* The gradient of both inputs is that of the output. */
static car_status add_backward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *grad = io->grad_out;
    for (int q = 0; q < 2; q++) {
        float *grad_in = io->grad_in[q];
        for (int64_t i = 0; grad_in && i < count; i++) {
            grad_in[i] = grad[i];
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_add = {
    .prepare = car_reference_prepare, .forward = add_forward, .backward = add_backward};

/* ---- flatten: in row-major layout nothing moves --------------------------------------------------- */

static car_status flatten_forward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *x = io->in[0];
    float *y = io->out;
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i];
    }
    return CAR_OK;
}

static car_status flatten_backward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *grad = io->grad_out;
    float *grad_in = io->grad_in[0];
    for (int64_t i = 0; grad_in && i < count; i++) {
        grad_in[i] = grad[i];
    }
    return CAR_OK;
}

const car_kernel_class car_reference_flatten = {
    .prepare = car_reference_prepare, .forward = flatten_forward, .backward = flatten_backward};

/* ---- GELU: x times the normal distribution function, or its approximation by tanh ----------------- */

#define SQRT_HALF 0.70710678118654752440        /* of 1/2 */
#define INVERSE_SQRT_TAU 0.39894228040143267794 /* 1/sqrt(2 pi) */
#define SQRT_TWO_OVER_PI 0.79788456080286535588
#define CUBIC 0.044715

static double gelu(double x, bool approximate) {
    if (approximate) {
        return 0.5 * x * (1 + tanh(SQRT_TWO_OVER_PI * (x + CUBIC * x * x * x)));
    }
    return 0.5 * x * (1 + erf(x * SQRT_HALF));
}

static double gelu_slope(double x, bool approximate) {
    if (approximate) {
        double t = tanh(SQRT_TWO_OVER_PI * (x + CUBIC * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_TWO_OVER_PI * (1 + 3 * CUBIC * x * x);
    }
    return 0.5 * (1 + erf(x * SQRT_HALF)) + x * INVERSE_SQRT_TAU * exp(-0.5 * x * x);
}

static car_status gelu_forward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *x = io->in[0];
    float *y = io->out;
    for (int64_t i = 0; i < count; i++) {
        y[i] = (float)gelu((double)x[i], kernel->op->config.gelu.tanh);
    }
    return CAR_OK;
}

static car_status gelu_backward(const car_kernel *kernel, const car_kernel_io *io) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    const float *x = io->in[0], *grad = io->grad_out;
    float *grad_in = io->grad_in[0];
    for (int64_t i = 0; grad_in && i < count; i++) {
        grad_in[i] = (float)((double)grad[i] * gelu_slope((double)x[i], kernel->op->config.gelu.tanh));
    }
    return CAR_OK;
}

const car_kernel_class car_reference_gelu = {
    .prepare = car_reference_prepare, .forward = gelu_forward, .backward = gelu_backward};

/* ---- dropout: nothing is saved, backward draws the same numbers again ------------------------------ */

/* The factor of element i. */
static double dropout_factor(const car_kernel *kernel, const car_kernel_io *io, int64_t i) {
    double p = kernel->op->config.dropout.p;
    if (!io->training) {
        return 1;
    }
    return (double)car_random_uniform(io->key, (uint64_t)i) >= p ? 1 / (1 - p) : 0;
}

static void dropout_apply(const car_kernel *kernel, const car_kernel_io *io, const float *from, float *to) {
    int64_t count = car_shape_elements(car_kernel_out(kernel));
    for (int64_t i = 0; i < count; i++) {
        double factor = dropout_factor(kernel, io, i);
        to[i] = factor > 0 ? (float)(factor * (double)from[i]) : 0;
    }
}

static car_status dropout_forward(const car_kernel *kernel, const car_kernel_io *io) {
    dropout_apply(kernel, io, io->in[0], io->out);
    return CAR_OK;
}

static car_status dropout_backward(const car_kernel *kernel, const car_kernel_io *io) {
    if (io->grad_in[0]) {
        dropout_apply(kernel, io, io->grad_out, io->grad_in[0]);
    }
    return CAR_OK;
}

const car_kernel_class car_reference_dropout = {
    .prepare = car_reference_prepare, .forward = dropout_forward, .backward = dropout_backward};

/* ---- one token of each sequence: [b, t, e] -> [b, e] ----------------------------------------------- */

static car_status select_token_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int64_t tokens = in.dim[1], width = in.dim[2], index = kernel->op->config.select_token.index;
    const float *x = io->in[0];
    float *y = io->out;
    for (int64_t b = 0; b < in.dim[0]; b++) {
        for (int64_t e = 0; e < width; e++) {
            y[b * width + e] = x[(b * tokens + index) * width + e];
        }
    }
    return CAR_OK;
}

static car_status select_token_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int64_t tokens = in.dim[1], width = in.dim[2], index = kernel->op->config.select_token.index;
    const float *grad = io->grad_out;
    float *grad_in = io->grad_in[0];
    for (int64_t b = 0; grad_in && b < in.dim[0]; b++) {
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t e = 0; e < width; e++) {
                grad_in[(b * tokens + t) * width + e] = t == index ? grad[b * width + e] : 0;
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_select_token = {
    .prepare = car_reference_prepare, .forward = select_token_forward, .backward = select_token_backward};
