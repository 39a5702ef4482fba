/* Operations along rows in bf16: rows are widened, processed by the loops for floats, and rounded when stored. */
#include <string.h>

#include "kernels/bf16/bf16.h"

enum { TOGETHER = 16 }; /* rows widened at a time, so that they stay in the first-level cache */

static car_status prepare_rows(car_kernel *kernel, int64_t floats) {
    kernel->name = car_vector_select()->name;
    kernel->scratch_bytes = (size_t)floats * sizeof(float);
    return CAR_OK;
}

static int64_t width_of(car_shape shape) {
    return shape.dim[shape.rank - 1];
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- layer normalisation --------------------------------------------------------------------- */

/* Scratch for inputs, gradients, and two rows for the gradients of scale and shift. */
static car_status prepare_layernorm(car_kernel *kernel) {
    return prepare_rows(kernel, (2 * TOGETHER + 2) * width_of(car_kernel_in(kernel, 0)));
}

static car_status forward_layernorm(const car_kernel *kernel, const car_kernel_io *io) {
    const car_vector *vector = car_vector_select();
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t width = width_of(shape), rows = car_shape_elements(shape) / width;
    float *statistics = io->training ? io->aux : NULL, *x = io->scratch, *y = x + TOGETHER * width;
    for (int64_t r = 0; r < rows; r += TOGETHER) {
        int64_t count = smaller(TOGETHER, rows - r);
        vector->widen(x, (const car_bf16 *)io->in[0] + r * width, count * width);
        vector->layernorm(y, statistics ? statistics + 2 * r : NULL, x, io->param[0], io->param[1], count, width,
                          (float)kernel->op->config.layernorm.eps);
        vector->narrow((car_bf16 *)io->out + r * width, y, count * width);
    }
    return CAR_OK;
}

static void store_gradient(const car_kernel *kernel, car_bf16 *to, const float *from, int64_t count) {
    if (kernel->op->grad_mode[0] == CAR_GRAD_ADD) {
        car_vector_select()->narrow_sum(to, from, count);
    } else {
        car_vector_select()->narrow(to, from, count);
    }
}

static car_status backward_layernorm(const car_kernel *kernel, const car_kernel_io *io) {
    const car_vector *vector = car_vector_select();
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t width = width_of(shape), rows = car_shape_elements(shape) / width;
    float *x = io->scratch, *g = x + TOGETHER * width, *scale = g + TOGETHER * width, *shift = scale + width;
    memset(io->grad_param[0], 0, (size_t)width * sizeof(float));
    memset(io->grad_param[1], 0, (size_t)width * sizeof(float));
    for (int64_t r = 0; r < rows; r += TOGETHER) {
        int64_t count = smaller(TOGETHER, rows - r);
        vector->widen(x, (const car_bf16 *)io->in[0] + r * width, count * width);
        vector->widen(g, (const car_bf16 *)io->grad_out + r * width, count * width);
        vector->layernorm_backward(io->grad_in[0] ? g : NULL, scale, shift, g, x, (const float *)io->aux + 2 * r,
                                   io->param[0], count, width, false);
        vector->accumulate(io->grad_param[0], scale, width);
        vector->accumulate(io->grad_param[1], shift, width);
        if (io->grad_in[0]) {
            store_gradient(kernel, (car_bf16 *)io->grad_in[0] + r * width, g, count * width);
        }
    }
    return CAR_OK;
}

const car_kernel_class car_bf16_layernorm = {
    .prepare = prepare_layernorm, .forward = forward_layernorm, .backward = backward_layernorm, .adds_grad = true};

/* ---- embedding ------------------------------------------------------------------------------- */

static car_status prepare_embedding(car_kernel *kernel) {
    return prepare_rows(kernel, width_of(car_kernel_out(kernel)));
}

static car_status forward_embedding(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel);
    int64_t tokens = out.dim[1], width = out.dim[2], vocabulary = car_kernel_param(kernel, 0).dim[0];
    const car_bf16 *table = io->param[0], *positions = io->param[1];
    const int32_t *ids = io->in[0];
    for (int64_t r = 0; r < out.dim[0] * tokens; r++) {
        if (ids[r] < 0 || ids[r] >= vocabulary) {
            return car_context_fail(kernel->context, CAR_ERROR_ARGUMENT,
                                    "%s: token %d at [%lld, %lld] is out of range; it must be in 0..%lld",
                                    kernel->op->name, (int)ids[r], (long long)(r / tokens), (long long)(r % tokens),
                                    (long long)(vocabulary - 1));
        }
        car_vector_select()->add_bf16((car_bf16 *)io->out + r * width, table + ids[r] * width,
                                      positions + r % tokens * width, width);
    }
    return CAR_OK;
}

static car_status backward_embedding(const car_kernel *kernel, const car_kernel_io *io) {
    const car_vector *vector = car_vector_select();
    car_shape out = car_kernel_out(kernel);
    int64_t tokens = out.dim[1], width = out.dim[2];
    const int32_t *ids = io->in[0];
    float *row = io->scratch;
    for (int p = 0; p < 2; p++) {
        memset(io->grad_param[p], 0, (size_t)car_shape_elements(car_kernel_param(kernel, p)) * sizeof(float));
    }
    for (int64_t r = 0; r < out.dim[0] * tokens; r++) {
        vector->widen(row, (const car_bf16 *)io->grad_out + r * width, width);
        vector->accumulate(io->grad_param[0] + ids[r] * width, row, width);
        vector->accumulate(io->grad_param[1] + r % tokens * width, row, width);
    }
    return CAR_OK;
}

const car_kernel_class car_bf16_embedding = {
    .prepare = prepare_embedding, .forward = forward_embedding, .backward = backward_embedding, .adds_grad = true};
