/* AMX convolutions as a class of the table. */
#include "kernels/bf16/amx_conv.h"

#include <string.h>

enum { CHANNELS = 16, LARGEST_KERNEL = 7 };

static car_amx_conv_shape shape_of(const car_kernel *kernel) {
    const car_conv_config *config = &kernel->op->config.conv;
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    return (car_amx_conv_shape){.images = in.dim[0],
                                .height = in.dim[2],
                                .width = in.dim[3],
                                .out_height = out.dim[2],
                                .out_width = out.dim[3],
                                .in_blocks = in.dim[1] / CHANNELS,
                                .out_blocks = out.dim[1] / CHANNELS,
                                .kernel = config->kernel,
                                .stride = config->stride,
                                .pad = config->pad};
}

bool car_amx_conv_suits(const car_kernel *kernel) {
    const car_conv_config *config = &kernel->op->config.conv;
    int64_t in = car_kernel_in(kernel, 0).dim[1], out = car_kernel_out(kernel).dim[1];
    bool fits = !config->bias && config->kernel <= LARGEST_KERNEL && kernel->block_in[0] == CHANNELS &&
                kernel->block_out == CHANNELS && in % (2 * CHANNELS) == 0 && out % (2 * CHANNELS) == 0;
    return kernel->bf16 && fits && kernel->convolutions != CAR_CONVOLUTIONS_WINOGRAD && car_program_multiplies_bf16() &&
           car_amx_usable();
}

static car_status prepare(car_kernel *kernel) {
    const car_amx_conv_shape shape = shape_of(kernel);
    size_t weights = (size_t)car_shape_elements(car_kernel_param(kernel, 0));
    kernel->scratch_bytes = car_amx_conv_scratch(&shape);
    kernel->weight_bytes = weights * sizeof(float);
    kernel->derived_bytes = kernel->op->grad_mode[0] != CAR_GRAD_NONE ? weights * sizeof(car_bf16) : 0;
    kernel->own_layout = true;
    kernel->name = "amx";
    return CAR_OK;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_amx_conv_shape shape = shape_of(kernel);
    car_amx_conv_forward(&shape, io->in[0], io->param[0], io->out, io->scratch);
    return CAR_OK;
}

/* Computes the weights' gradient first, because the input's gradient may share the input's buffer. */
static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_amx_conv_shape shape = shape_of(kernel);
    car_amx_conv_by_weights(&shape, io->in[0], io->grad_out, io->grad_param[0], io->scratch);
    if (io->grad_in[0]) {
        car_amx_conv_by_data(&shape, io->grad_out, io->derived, kernel->op->grad_mode[0] == CAR_GRAD_ADD,
                             io->grad_in[0], io->scratch);
    }
    return CAR_OK;
}

static car_status derive(const car_kernel *kernel, const float *const *param, void *derived, void *stream) {
    const car_amx_conv_shape shape = shape_of(kernel);
    (void)stream;
    car_amx_conv_exchange(&shape, (const void *)param[0], derived);
    return CAR_OK;
}

/* Index of weight (output o, tap t, input i) in storage. */
static size_t stored_at(const car_amx_conv_shape *s, int64_t o, int64_t t, int64_t i) {
    enum { BOTH = 2 * CHANNELS };
    int64_t block = (o / CHANNELS * s->kernel * s->kernel + t) * (s->in_blocks / 2) + i / BOTH;
    return (size_t)(((block * CHANNELS + i % BOTH / 2) * CHANNELS + o % CHANNELS) * 2 + i % 2);
}

static void convert(const car_kernel *kernel, float *canonical, float *stored, bool import) {
    const car_amx_conv_shape shape = shape_of(kernel);
    int64_t inputs = shape.in_blocks * CHANNELS, outputs = shape.out_blocks * CHANNELS;
    float *next = canonical;
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t i = 0; i < inputs; i++) {
            for (int64_t t = 0; t < shape.kernel * shape.kernel; t++, next++) {
                float *place = &stored[stored_at(&shape, o, t, i)];
                *(import ? place : next) = *(import ? next : place);
            }
        }
    }
}

static car_status import_param(const car_kernel *kernel, const float *canonical, float *stored) {
    convert(kernel, (float *)(uintptr_t)canonical, stored, true);
    return CAR_OK;
}

static car_status export_param(const car_kernel *kernel, const float *stored, float *canonical) {
    convert(kernel, canonical, (float *)(uintptr_t)stored, false);
    return CAR_OK;
}

const car_kernel_class car_amx_conv = {
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .derive = derive,
    .import_param = import_param,
    .export_param = export_param,
    .adds_grad = true,
};
