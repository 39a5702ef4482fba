/* Operations that move or combine elements, on blocked channels for images. ReLU and addition also work on bf16. */
#include <string.h>

#include "kernels/onednn/onednn.h"

static car_status prepare(car_kernel *kernel) {
    kernel->name = car_vector_select()->name;
    return CAR_OK;
}

/* Start of channel c of image n in a blocked tensor; its pixels are `block` apart. */
static size_t channel_at(car_shape shape, int block, int64_t n, int64_t c) {
    int64_t blocks = (shape.dim[1] + block - 1) / block, pixels = shape.dim[2] * shape.dim[3];
    return (size_t)((n * blocks + c / block) * pixels * block + c % block);
}

/* ---- ReLU and addition ----------------------------------------------------------------------- */

static int64_t elements_of(const car_kernel *kernel) {
    return car_kernel_stored_elements(car_kernel_out(kernel), kernel->block_out);
}

static car_status forward_relu(const car_kernel *kernel, const car_kernel_io *io) {
    if (kernel->bf16) {
        car_vector_select()->relu_bf16(io->out, io->in[0], elements_of(kernel));
    } else {
        car_vector_select()->relu(io->out, io->in[0], elements_of(kernel));
    }
    return CAR_OK;
}

static car_status backward_relu(const car_kernel *kernel, const car_kernel_io *io) {
    if (io->grad_in[0] && kernel->bf16) {
        car_vector_select()->relu_backward_bf16(io->grad_in[0], io->grad_out, io->out, elements_of(kernel));
    } else if (io->grad_in[0]) {
        car_vector_select()->relu_backward(io->grad_in[0], io->grad_out, io->out, elements_of(kernel));
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_relu = {.prepare = prepare, .forward = forward_relu, .backward = backward_relu};

static void add(const car_kernel *kernel, void *y, const void *a, const void *b) {
    if (kernel->bf16) {
        car_vector_select()->add_bf16(y, a, b, elements_of(kernel));
    } else {
        car_vector_select()->add(y, a, b, elements_of(kernel));
    }
}

static car_status forward_add(const car_kernel *kernel, const car_kernel_io *io) {
    add(kernel, io->out, io->in[0], io->in[1]);
    return CAR_OK;
}

static car_status backward_add(const car_kernel *kernel, const car_kernel_io *io) {
    size_t bytes = (size_t)elements_of(kernel) * (kernel->bf16 ? sizeof(car_bf16) : sizeof(float));
    for (int q = 0; q < 2; q++) {
        if (io->grad_in[q] && kernel->op->grad_mode[q] == CAR_GRAD_ADD) {
            add(kernel, io->grad_in[q], io->grad_in[q], io->grad_out);
        } else if (io->grad_in[q] && io->grad_in[q] != io->grad_out) {
            memcpy(io->grad_in[q], io->grad_out, bytes);
        }
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_add = {
    .prepare = prepare, .forward = forward_add, .backward = backward_add, .adds_grad = true};

/* ---- dropout --------------------------------------------------------------------------------- */

/* What is dropped depends on an element's position in the row-major tensor, not on how it is stored. */
static void drop_run(float *y, const float *x, int64_t count, int64_t step, int64_t first, float p, uint64_t key) {
    float scale = 1.0f / (1.0f - p);
    for (int64_t i = 0; i < count; i++) {
        y[i * step] = car_random_uniform(key, (uint64_t)(first + i)) >= p ? x[i * step] * scale : 0.0f;
    }
}

static void drop(const car_kernel *kernel, const car_kernel_io *io, float *y, const float *x) {
    car_shape shape = car_kernel_out(kernel);
    float p = (float)kernel->op->config.dropout.p;
    int block = kernel->block_out;
    if (shape.rank != 4) {
        drop_run(y, x, car_shape_elements(shape), 1, 0, p, io->key);
        return;
    }
    int64_t pixels = shape.dim[2] * shape.dim[3];
    if (shape.dim[1] % block) {
        memset(y, 0, y == x ? 0 : (size_t)car_kernel_stored_elements(shape, block) * sizeof *y);
    }
    for (int64_t n = 0; n < shape.dim[0]; n++) {
        for (int64_t c = 0; c < shape.dim[1]; c++) {
            size_t at = channel_at(shape, block, n, c);
            drop_run(y + at, x + at, pixels, block, (n * shape.dim[1] + c) * pixels, p, io->key);
        }
    }
}

static car_status forward_dropout(const car_kernel *kernel, const car_kernel_io *io) {
    if (io->training) {
        drop(kernel, io, io->out, io->in[0]);
    } else {
        size_t elements = (size_t)car_kernel_stored_elements(car_kernel_out(kernel), kernel->block_out);
        memcpy(io->out, io->in[0], elements * sizeof(float));
    }
    return CAR_OK;
}

static car_status backward_dropout(const car_kernel *kernel, const car_kernel_io *io) {
    if (io->grad_in[0]) {
        drop(kernel, io, io->grad_in[0], io->grad_out);
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_dropout = {
    .prepare = prepare, .forward = forward_dropout, .backward = backward_dropout};

/* ---- global average pooling ------------------------------------------------------------------ */

static car_status forward_global_avgpool(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int block = kernel->block_in[0];
    int64_t pixels = in.dim[2] * in.dim[3];
    const float *x = io->in[0];
    float *y = io->out;
    for (int64_t n = 0; n < in.dim[0]; n++) {
        for (int64_t c = 0; c < in.dim[1]; c++) {
            const float *from = x + channel_at(in, block, n, c);
            double sum = 0;
            for (int64_t p = 0; p < pixels; p++) {
                sum += from[p * block];
            }
            y[n * in.dim[1] + c] = (float)(sum / (double)pixels);
        }
    }
    return CAR_OK;
}

static car_status backward_global_avgpool(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int block = kernel->block_in[0];
    int64_t pixels = in.dim[2] * in.dim[3];
    const float *g = io->grad_out;
    float *grad = io->grad_in[0];
    if (!grad) {
        return CAR_OK;
    }
    if (in.dim[1] % block) {
        memset(grad, 0, (size_t)car_kernel_stored_elements(in, block) * sizeof *grad);
    }
    for (int64_t n = 0; n < in.dim[0]; n++) {
        for (int64_t c = 0; c < in.dim[1]; c++) {
            float *to = grad + channel_at(in, block, n, c);
            float value = g[n * in.dim[1] + c] / (float)pixels;
            for (int64_t p = 0; p < pixels; p++) {
                to[p * block] = value;
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_global_avgpool = {
    .prepare = prepare, .forward = forward_global_avgpool, .backward = backward_global_avgpool};

/* ---- shortcut -------------------------------------------------------------------------------- */

/* Copies channel (n, c) between the small grid of the output and the strided grid of the input. */
static void copy_strided(const car_kernel *kernel, float *in_channel, float *out_channel, bool to_output) {
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    int64_t stride = kernel->op->config.shortcut.stride;
    for (int64_t h = 0; h < out.dim[2]; h++) {
        for (int64_t w = 0; w < out.dim[3]; w++) {
            float *small = out_channel + (h * out.dim[3] + w) * kernel->block_out;
            float *large = in_channel + (h * stride * in.dim[3] + w * stride) * kernel->block_in[0];
            if (to_output) {
                *small = *large;
            } else {
                *large = *small;
            }
        }
    }
}

static void copy_channels(const car_kernel *kernel, const float *x, float *y, bool to_output) {
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    float *in_base = (float *)(uintptr_t)(to_output ? x : y), *out_base = (float *)(uintptr_t)(to_output ? y : x);
    for (int64_t n = 0; n < in.dim[0]; n++) {
        for (int64_t c = 0; c < in.dim[1]; c++) {
            copy_strided(kernel, in_base + channel_at(in, kernel->block_in[0], n, c),
                         out_base + channel_at(out, kernel->block_out, n, c), to_output);
        }
    }
}

static car_status forward_shortcut(const car_kernel *kernel, const car_kernel_io *io) {
    memset(io->out, 0, (size_t)car_kernel_stored_elements(car_kernel_out(kernel), kernel->block_out) * sizeof(float));
    copy_channels(kernel, io->in[0], io->out, true);
    return CAR_OK;
}

static car_status backward_shortcut(const car_kernel *kernel, const car_kernel_io *io) {
    if (io->grad_in[0]) {
        memset(io->grad_in[0], 0,
               (size_t)car_kernel_stored_elements(car_kernel_in(kernel, 0), kernel->block_in[0]) * sizeof(float));
        copy_channels(kernel, io->grad_out, io->grad_in[0], false);
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_shortcut = {
    .prepare = prepare, .forward = forward_shortcut, .backward = backward_shortcut};

/* ---- flatten --------------------------------------------------------------------------------- */

/* Copies between a blocked image and rows of [channel][pixel]. */
static void copy_flat(const car_kernel *kernel, float *image, float *rows, bool to_rows) {
    car_shape in = car_kernel_in(kernel, 0);
    int block = kernel->block_in[0];
    int64_t pixels = in.dim[2] * in.dim[3];
    for (int64_t n = 0; n < in.dim[0]; n++) {
        for (int64_t c = 0; c < in.dim[1]; c++) {
            float *channel = image + channel_at(in, block, n, c), *row = rows + (n * in.dim[1] + c) * pixels;
            for (int64_t p = 0; p < pixels; p++) {
                if (to_rows) {
                    row[p] = channel[p * block];
                } else {
                    channel[p * block] = row[p];
                }
            }
        }
    }
}

static bool is_flat_already(const car_kernel *kernel) {
    return car_kernel_in(kernel, 0).rank != 4 || kernel->block_in[0] == 1;
}

static car_status forward_flatten(const car_kernel *kernel, const car_kernel_io *io) {
    if (is_flat_already(kernel)) {
        memcpy(io->out, io->in[0], (size_t)car_shape_elements(car_kernel_out(kernel)) * sizeof(float));
    } else {
        copy_flat(kernel, (float *)(uintptr_t)io->in[0], io->out, true);
    }
    return CAR_OK;
}

static car_status backward_flatten(const car_kernel *kernel, const car_kernel_io *io) {
    if (!io->grad_in[0]) {
        return CAR_OK;
    }
    if (is_flat_already(kernel)) {
        memcpy(io->grad_in[0], io->grad_out, (size_t)car_shape_elements(car_kernel_out(kernel)) * sizeof(float));
    } else {
        memset(io->grad_in[0], 0,
               (size_t)car_kernel_stored_elements(car_kernel_in(kernel, 0), kernel->block_in[0]) * sizeof(float));
        copy_flat(kernel, io->grad_in[0], (float *)(uintptr_t)io->grad_out, false);
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_flatten = {
    .prepare = prepare, .forward = forward_flatten, .backward = backward_flatten};
