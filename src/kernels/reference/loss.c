/* Reference kernel of the loss: the mean over rows of the cross-entropy of softmax(logits).
 *
 * With label smoothing s over c classes, the target distribution has 1-s on the label plus s/c on every class. Rows
 * with a negative label are ignored. */
#include <math.h>

#include "base/base.h"
#include "kernels/reference/reference.h"

static double log_sum_exp(const float *row, int64_t classes) {
    double maximum = -INFINITY, sum = 0;
    for (int64_t c = 0; c < classes; c++) {
        maximum = fmax(maximum, (double)row[c]);
    }
    for (int64_t c = 0; c < classes; c++) {
        sum += exp((double)row[c] - maximum);
    }
    return maximum + log(sum);
}

static double target(const car_kernel *kernel, int32_t label, int64_t c, int64_t classes) {
    double smoothing = kernel->op->config.cross_entropy.smoothing;
    return (c == label ? 1 - smoothing : 0) + smoothing / (double)classes;
}

static int64_t count_labelled(const int32_t *label, int64_t rows) {
    int64_t counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        counted += label[r] >= 0;
    }
    return counted;
}

static car_status cross_entropy_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int64_t rows = car_reference_rows(&in), classes = car_reference_width(&in);
    const int32_t *label = io->in[1];
    float *loss = io->out, *aux = io->aux;
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *row = (const float *)io->in[0] + r * classes;
        if (label[r] >= classes) {
            return car_context_fail(kernel->context, CAR_ERROR_ARGUMENT,
                                    "%s: label %d in row %lld is out of range; it must be below %lld", kernel->op->name,
                                    (int)label[r], (long long)r, (long long)classes);
        }
        double logarithm = log_sum_exp(row, classes);
        for (int64_t c = 0; label[r] >= 0 && c < classes; c++) {
            sum -= target(kernel, label[r], c, classes) * ((double)row[c] - logarithm);
        }
        if (aux) {
            aux[r] = (float)logarithm;
        }
    }
    int64_t counted = count_labelled(label, rows);
    *loss = counted > 0 ? (float)(sum / (double)counted) : 0;
    return CAR_OK;
}

/* The gradient may share the buffer of the logits: each is read before it is overwritten. */
static car_status cross_entropy_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int64_t rows = car_reference_rows(&in), classes = car_reference_width(&in);
    const float *logits = io->in[0], *aux = io->aux;
    const int32_t *label = io->in[1];
    int64_t counted = count_labelled(label, rows);
    float *grad_in = io->grad_in[0];
    for (int64_t r = 0; grad_in && r < rows; r++) {
        for (int64_t c = 0; c < classes; c++) {
            double slope = 0;
            if (label[r] >= 0) {
                double probability = exp((double)logits[r * classes + c] - (double)aux[r]);
                slope = (probability - target(kernel, label[r], c, classes)) / (double)counted;
            }
            grad_in[r * classes + c] = (float)((double)*(const float *)io->grad_out * slope);
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_cross_entropy = {
    .prepare = car_reference_prepare, .forward = cross_entropy_forward, .backward = cross_entropy_backward};
