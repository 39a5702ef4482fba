/* Batch and layer normalisation with vectorised loops. oneDNN's kernels cannot add a residual or add to an existing
 * gradient, and store a separate mask for a fused ReLU. */
#include <string.h>

#include "kernels/onednn/onednn.h"

static car_status prepare(car_kernel *kernel) {
    kernel->name = car_vector_select()->name;
    return CAR_OK;
}

/* ---- batch normalisation --------------------------------------------------------------------- */

static car_vector_norm norm_of(const car_kernel *kernel, const car_kernel_io *io) {
    const car_batchnorm_config *config = &kernel->op->config.batchnorm;
    car_shape shape = car_kernel_in(kernel, 0);
    return (car_vector_norm){
        .images = shape.dim[0],
        .channels = shape.dim[1],
        .pixels = shape.dim[2] * shape.dim[3],
        .block = kernel->block_in[0],
        .eps = (float)config->eps,
        .relu = config->relu,
        .bf16 = kernel->bf16,
        .x = io->in[0],
        .gamma = io->param[0],
        .beta = io->param[1],
        .mean = io->param[2],
        .variance = io->param[3],
        .residual = io->in[1],
        .y = io->out,
    };
}

static car_status forward_batchnorm(const car_kernel *kernel, const car_kernel_io *io) {
    const car_vector *vector = car_vector_select();
    car_vector_norm norm = norm_of(kernel, io);
    if (io->training) {
        float *mean = io->aux, *variance = mean + norm.channels;
        vector->batch_statistics(&norm, mean, variance);
        norm.mean = mean;
        norm.variance = variance;
    }
    vector->batchnorm(&norm);
    return CAR_OK;
}

static car_status backward_batchnorm(const car_kernel *kernel, const car_kernel_io *io) {
    car_vector_norm norm = norm_of(kernel, io);
    const float *mean = io->aux, *variance = mean + norm.channels;
    norm.mean = mean;
    norm.variance = variance;
    norm.grad_y = io->grad_out;
    norm.saved_y = io->out; /* only saved with a residual and a ReLU */
    norm.grad_x = io->grad_in[0];
    norm.grad_residual = io->grad_in[1];
    norm.grad_gamma = io->grad_param[0];
    norm.grad_beta = io->grad_param[1];
    car_vector_select()->batchnorm_backward(&norm);
    /* What the running statistics move towards; the variance is unbiased. */
    double count = (double)norm.images * (double)norm.pixels;
    float correction = (float)(count > 1 ? count / (count - 1) : 1);
    for (int64_t c = 0; c < norm.channels; c++) {
        io->grad_param[2][c] = mean[c];
        io->grad_param[3][c] = variance[c] * correction;
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_batchnorm = {
    .prepare = prepare, .forward = forward_batchnorm, .backward = backward_batchnorm};

/* ---- layer normalisation --------------------------------------------------------------------- */

static car_status forward_layernorm(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t width = shape.dim[shape.rank - 1];
    car_vector_select()->layernorm(io->out, io->training ? io->aux : NULL, io->in[0], io->param[0], io->param[1],
                                   car_shape_elements(shape) / width, width, (float)kernel->op->config.layernorm.eps);
    return CAR_OK;
}

static car_status backward_layernorm(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t width = shape.dim[shape.rank - 1];
    car_vector_select()->layernorm_backward(io->grad_in[0], io->grad_param[0], io->grad_param[1], io->grad_out,
                                            io->in[0], io->aux, io->param[0], car_shape_elements(shape) / width, width,
                                            kernel->op->grad_mode[0] == CAR_GRAD_ADD);
    return CAR_OK;
}

const car_kernel_class car_onednn_layernorm = {
    .prepare = prepare, .forward = forward_layernorm, .backward = backward_layernorm, .adds_grad = true};
