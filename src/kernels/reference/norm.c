/* Reference kernels of normalisations: over a batch's pixels for each channel, over the last dimension for
 * each row. Both share one backward: with x^ = (x - mean) / deviation and g the gradient with respect to x^,
 *     dx = (g - mean(g) - x^ mean(g x^)) / deviation. */
#include <math.h>

#include "kernels/reference/reference.h"

/* ---- batch normalisation ----------------------------------------------------------------------- */

/* Index of element p (0..n*h*w-1) of channel c. */
static int64_t channel_at(const car_shape *shape, int64_t c, int64_t p) {
    int64_t pixels = shape->dim[2] * shape->dim[3];
    return (p / pixels * shape->dim[1] + c) * pixels + p % pixels;
}
static int64_t channel_count(const car_shape *shape) {
    return shape->dim[0] * shape->dim[2] * shape->dim[3];
}

/* Mean and biased variance of a channel. */
static void channel_statistics(const car_shape *shape, const float *x, int64_t c, double *mean, double *variance) {
    int64_t count = channel_count(shape);
    double sum = 0, squares = 0;
    for (int64_t p = 0; p < count; p++) {
        sum += (double)x[channel_at(shape, c, p)];
    }
    *mean = sum / (double)count;
    for (int64_t p = 0; p < count; p++) {
        double deviation = (double)x[channel_at(shape, c, p)] - *mean;
        squares += deviation * deviation;
    }
    *variance = squares / (double)count;
}

static car_status batchnorm_forward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_batchnorm_config *config = &kernel->op->config.batchnorm;
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t channels = shape.dim[1], count = channel_count(&shape);
    const float *x = io->in[0], *residual = io->in[1];
    float *y = io->out, *aux = io->aux;
    for (int64_t c = 0; c < channels; c++) {
        double mean, variance;
        if (io->training) {
            channel_statistics(&shape, x, c, &mean, &variance);
            aux[c] = (float)mean;
            aux[channels + c] = (float)variance;
        } else {
            mean = (double)car_kernel_floats(io, 2)[c];
            variance = (double)car_kernel_floats(io, 3)[c];
        }
        double scale = (double)car_kernel_floats(io, 0)[c] / sqrt(variance + config->eps),
               shift = (double)car_kernel_floats(io, 1)[c];
        for (int64_t p = 0; p < count; p++) {
            int64_t at = channel_at(&shape, c, p);
            double value = scale * ((double)x[at] - mean) + shift + (residual ? (double)residual[at] : 0);
            y[at] = config->relu && !(value > 0) && !isnan(value) ? 0 : (float)value;
        }
    }
    return CAR_OK;
}

/* The gradient of the output before the ReLU. Without a residual the output is not saved, so the ReLU's input is
 * computed from x. `normal` is x^. */
static double batchnorm_masked(const car_kernel *kernel, const car_kernel_io *io, int64_t c, int64_t at,
                               double normal) {
    const car_batchnorm_config *config = &kernel->op->config.batchnorm;
    const float *grad = io->grad_out, *y = io->out;
    if (config->relu) {
        bool passed =
            y ? y[at] > 0 : (double)car_kernel_floats(io, 0)[c] * normal + (double)car_kernel_floats(io, 1)[c] > 0;
        return passed ? (double)grad[at] : 0;
    }
    return (double)grad[at];
}

static car_status batchnorm_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t channels = shape.dim[1], count = channel_count(&shape);
    const float *x = io->in[0], *aux = io->aux;
    float *grad_x = io->grad_in[0], *grad_residual = io->grad_in[1];
    for (int64_t c = 0; c < channels; c++) {
        double mean = (double)aux[c], variance = (double)aux[channels + c];
        double inverse = 1 / sqrt(variance + kernel->op->config.batchnorm.eps),
               gamma = (double)car_kernel_floats(io, 0)[c];
        double sum = 0, product = 0;
        for (int64_t p = 0; p < count; p++) {
            int64_t at = channel_at(&shape, c, p);
            double normal = ((double)x[at] - mean) * inverse, g = batchnorm_masked(kernel, io, c, at, normal);
            sum += g;
            product += g * normal;
        }
        /* grad_out may share a buffer with either gradient: each element is read before it is overwritten. */
        for (int64_t p = 0; p < count; p++) {
            int64_t at = channel_at(&shape, c, p);
            double normal = ((double)x[at] - mean) * inverse, g = batchnorm_masked(kernel, io, c, at, normal);
            if (grad_x) {
                grad_x[at] = (float)(gamma * inverse * (g - sum / (double)count - normal * product / (double)count));
            }
            if (grad_residual) {
                grad_residual[at] = (float)g;
            }
        }
        io->grad_param[0][c] = (float)product;
        io->grad_param[1][c] = (float)sum;
        io->grad_param[2][c] = (float)mean;
        io->grad_param[3][c] = (float)(count > 1 ? variance * (double)count / (double)(count - 1) : variance);
    }
    return CAR_OK;
}

const car_kernel_class car_reference_batchnorm = {
    .prepare = car_reference_prepare, .forward = batchnorm_forward, .backward = batchnorm_backward};

/* ---- layer normalisation ------------------------------------------------------------------------ */

static car_status layernorm_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t rows = car_reference_rows(&shape), width = car_reference_width(&shape);
    float *aux = io->aux;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = (const float *)io->in[0] + r * width;
        float *y = (float *)io->out + r * width;
        double mean = 0, variance = 0;
        for (int64_t e = 0; e < width; e++) {
            mean += (double)x[e] / (double)width;
        }
        for (int64_t e = 0; e < width; e++) {
            variance += ((double)x[e] - mean) * ((double)x[e] - mean) / (double)width;
        }
        double inverse = 1 / sqrt(variance + kernel->op->config.layernorm.eps);
        for (int64_t e = 0; e < width; e++) {
            y[e] = (float)(((double)x[e] - mean) * inverse * (double)car_kernel_floats(io, 0)[e] +
                           (double)car_kernel_floats(io, 1)[e]);
        }
        if (aux) {
            aux[2 * r] = (float)mean;
            aux[2 * r + 1] = (float)inverse;
        }
    }
    return CAR_OK;
}

static void layernorm_grad_row(const float *x, const float *grad, const float *gamma, const float *aux, int64_t width,
                               float *grad_x) {
    double mean = (double)aux[0], inverse = (double)aux[1], sum = 0, product = 0;
    for (int64_t e = 0; e < width; e++) {
        double normal = ((double)x[e] - mean) * inverse, g = (double)grad[e] * (double)gamma[e];
        sum += g;
        product += g * normal;
    }
    for (int64_t e = 0; e < width; e++) {
        double normal = ((double)x[e] - mean) * inverse, g = (double)grad[e] * (double)gamma[e];
        grad_x[e] = (float)(inverse * (g - sum / (double)width - normal * product / (double)width));
    }
}

static car_status layernorm_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t rows = car_reference_rows(&shape), width = car_reference_width(&shape);
    const float *x = io->in[0], *grad = io->grad_out, *aux = io->aux;
    /* Parameters first, because the rows' gradients may overwrite grad_out. */
    for (int64_t e = 0; e < width; e++) {
        double sum = 0, product = 0;
        for (int64_t r = 0; r < rows; r++) {
            double normal = ((double)x[r * width + e] - (double)aux[2 * r]) * (double)aux[2 * r + 1];
            sum += (double)grad[r * width + e];
            product += (double)grad[r * width + e] * normal;
        }
        io->grad_param[0][e] = (float)product;
        io->grad_param[1][e] = (float)sum;
    }
    float *grad_x = io->grad_in[0];
    for (int64_t r = 0; grad_x && r < rows; r++) {
        layernorm_grad_row(x + r * width, grad + r * width, io->param[0], aux + 2 * r, width, grad_x + r * width);
    }
    return CAR_OK;
}

const car_kernel_class car_reference_layernorm = {
    .prepare = car_reference_prepare, .forward = layernorm_forward, .backward = layernorm_backward};
