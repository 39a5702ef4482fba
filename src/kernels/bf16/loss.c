/* The loss of bf16 logits, in floats, one row at a time. */
#include "kernels/bf16/bf16.h"

static car_status prepare(car_kernel *kernel) {
    car_shape shape = car_kernel_in(kernel, 0);
    kernel->name = car_vector_select()->name;
    kernel->scratch_bytes = (size_t)shape.dim[shape.rank - 1] * sizeof(float);
    return CAR_OK;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t classes = shape.dim[shape.rank - 1], rows = car_shape_elements(shape) / classes;
    const int32_t *labels = io->in[1];
    float *kept = io->training ? io->aux : NULL, *x = io->scratch;
    double total = 0;
    car_status status = CAR_OK;
    for (int64_t r = 0; r < rows; r++) {
        float lse = 0;
        car_vector_select()->widen(x, (const car_bf16 *)io->in[0] + r * classes, classes);
        CAR_TRY(car_onednn_loss_of_row(kernel, x, classes, kernel->op->config.cross_entropy.smoothing, r, labels[r],
                                       &lse, &total));
        if (kept) {
            kept[r] = lse;
        }
    }
    int64_t counted = car_onednn_counted_rows(labels, rows);
    *(float *)io->out = (float)(counted ? total / (double)counted : 0);
done:
    return status;
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_vector *vector = car_vector_select();
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t classes = shape.dim[shape.rank - 1], rows = car_shape_elements(shape) / classes;
    const int32_t *labels = io->in[1];
    const float *kept = io->aux;
    int64_t counted = car_onednn_counted_rows(labels, rows);
    float scale = counted ? *(const float *)io->grad_out / (float)counted : 0, *g = io->scratch;
    for (int64_t r = 0; io->grad_in[0] && r < rows; r++) {
        car_bf16 *to = (car_bf16 *)io->grad_in[0] + r * classes;
        vector->widen(g, (const car_bf16 *)io->in[0] + r * classes, classes);
        car_onednn_loss_gradient(g, g, classes, kernel->op->config.cross_entropy.smoothing, labels[r], kept[r], scale);
        if (kernel->op->grad_mode[0] == CAR_GRAD_ADD) {
            vector->narrow_sum(to, g, classes);
        } else {
            vector->narrow(to, g, classes);
        }
    }
    return CAR_OK;
}

const car_kernel_class car_bf16_cross_entropy = {
    .prepare = prepare, .forward = forward, .backward = backward, .adds_grad = true};
