/* Reference kernel of the linear layer on the last dimension: y = x W' + b, with the weight stored [out, in] or [in,
 * out]. */
#include "kernels/reference/reference.h"

typedef struct sizes {
    int64_t rows, in, out;
    int64_t step_in, step_out; /* of the weight: element (o, i) is at o * step_out + i * step_in */
} sizes;

static sizes linear_sizes(const car_kernel *kernel) {
    car_shape x = car_kernel_in(kernel, 0), y = car_kernel_out(kernel);
    sizes s = {.rows = car_reference_rows(&x), .in = car_reference_width(&x), .out = car_reference_width(&y)};
    bool in_by_out = kernel->op->config.linear.in_by_out;
    s.step_in = in_by_out ? s.out : 1;
    s.step_out = in_by_out ? 1 : s.in;
    return s;
}

static car_status linear_forward(const car_kernel *kernel, const car_kernel_io *io) {
    sizes s = linear_sizes(kernel);
    const float *x = io->in[0], *weight = io->param[0], *bias = kernel->op->config.linear.bias ? io->param[1] : NULL;
    float *y = io->out;
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t o = 0; o < s.out; o++) {
            double sum = bias ? (double)bias[o] : 0;
            for (int64_t i = 0; i < s.in; i++) {
                sum += (double)x[r * s.in + i] * (double)weight[o * s.step_out + i * s.step_in];
            }
            y[r * s.out + o] = (float)sum;
        }
    }
    return CAR_OK;
}

static void grad_input(const sizes *s, const float *weight, const float *grad, float *grad_in) {
    for (int64_t r = 0; r < s->rows; r++) {
        for (int64_t i = 0; i < s->in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < s->out; o++) {
                sum += (double)grad[r * s->out + o] * (double)weight[o * s->step_out + i * s->step_in];
            }
            grad_in[r * s->in + i] = (float)sum;
        }
    }
}

static void grad_weight(const sizes *s, const float *x, const float *grad, float *out) {
    for (int64_t o = 0; o < s->out; o++) {
        for (int64_t i = 0; i < s->in; i++) {
            double sum = 0;
            for (int64_t r = 0; r < s->rows; r++) {
                sum += (double)grad[r * s->out + o] * (double)x[r * s->in + i];
            }
            out[o * s->step_out + i * s->step_in] = (float)sum;
        }
    }
}

static void grad_bias(const sizes *s, const float *grad, float *out) {
    for (int64_t o = 0; o < s->out; o++) {
        double sum = 0;
        for (int64_t r = 0; r < s->rows; r++) {
            sum += (double)grad[r * s->out + o];
        }
        out[o] = (float)sum;
    }
}

static car_status linear_backward(const car_kernel *kernel, const car_kernel_io *io) {
    sizes s = linear_sizes(kernel);
    grad_weight(&s, io->in[0], io->grad_out, io->grad_param[0]);
    if (kernel->op->config.linear.bias) {
        grad_bias(&s, io->grad_out, io->grad_param[1]);
    }
    if (io->grad_in[0]) {
        grad_input(&s, io->param[0], io->grad_out, io->grad_in[0]);
    }
    return CAR_OK;
}

const car_kernel_class car_reference_linear = {
    .prepare = car_reference_prepare, .forward = linear_forward, .backward = linear_backward};
