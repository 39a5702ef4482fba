/* The loss of bf16 logits, in floats, a row at a time. */
#include <string.h>

#include "kernels/bf16/bf16.h"

static car_status prepare(car_kernel *kernel) {
    car_shape shape = car_kernel_in(kernel, 0);
    kernel->name = car_vector_select()->name;
    kernel->scratch_bytes = (size_t)shape.dim[shape.rank - 1] * sizeof(float);
    return CAR_OK;
}

static int64_t counted_rows(const int32_t *labels, int64_t rows) {
    int64_t counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        counted += labels[r] >= 0;
    }
    return counted;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_vector *vector = car_vector_select();
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t classes = shape.dim[shape.rank - 1], rows = car_shape_elements(shape) / classes;
    double smoothing = kernel->op->config.cross_entropy.smoothing, total = 0;
    const int32_t *labels = io->in[1];
    float *kept = io->training ? io->aux : NULL, *x = io->scratch;
    for (int64_t r = 0; r < rows; r++) {
        vector->widen(x, (const car_bf16 *)io->in[0] + r * classes, classes);
        float sum = 0, lse = vector->log_sum_exp(x, classes, &sum);
        if (kept) {
            kept[r] = lse;
        }
        if (labels[r] >= classes) {
            return car_context_fail(kernel->context, CAR_ERROR_ARGUMENT,
                                    "%s: label %d in row %lld, but there are %lld classes", kernel->op->name,
                                    (int)labels[r], (long long)r, (long long)classes);
        }
        if (labels[r] >= 0) {
            double uniform = (double)lse - (double)sum / (double)classes;
            total += (1 - smoothing) * ((double)lse - (double)x[labels[r]]) + smoothing * uniform;
        }
    }
    int64_t counted = counted_rows(labels, rows);
    *(float *)io->out = (float)(counted ? total / (double)counted : 0);
    return CAR_OK;
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_vector *vector = car_vector_select();
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t classes = shape.dim[shape.rank - 1], rows = car_shape_elements(shape) / classes;
    double smoothing = kernel->op->config.cross_entropy.smoothing;
    const int32_t *labels = io->in[1];
    const float *kept = io->aux;
    int64_t counted = counted_rows(labels, rows);
    float scale = counted ? *(const float *)io->grad_out / (float)counted : 0, *g = io->scratch;
    bool adds = kernel->op->grad_mode[0] == CAR_GRAD_ADD;
    for (int64_t r = 0; io->grad_in[0] && r < rows; r++) {
        car_bf16 *to = (car_bf16 *)io->grad_in[0] + r * classes;
        if (labels[r] < 0) {
            memset(to, 0, adds ? 0 : (size_t)classes * sizeof *to);
            continue;
        }
        vector->widen(g, (const car_bf16 *)io->in[0] + r * classes, classes);
        vector->softmax_gradient(g, g, kept[r], (float)(smoothing / (double)classes), scale, classes);
        g[labels[r]] -= (float)(1 - smoothing) * scale;
        if (adds) {
            vector->narrow_sum(to, g, classes);
        } else {
            vector->narrow(to, g, classes);
        }
    }
    return CAR_OK;
}

const car_kernel_class car_bf16_cross_entropy = {
    .prepare = prepare, .forward = forward, .backward = backward, .adds_grad = true};
