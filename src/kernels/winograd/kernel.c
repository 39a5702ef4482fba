/* Winograd convolutions as a class of the tables, for floats and bf16. */
#include <string.h>

#include "base/base.h"
#include "kernels/bf16/amx_conv.h"
#include "kernels/winograd/winograd.h"

#if defined(__x86_64__)
extern const car_winograd car_winograd_avx2;
extern const car_winograd car_winograd_avx512;

const car_winograd *car_winograd_select(int block) {
    if (block == car_winograd_avx512.block && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return &car_winograd_avx512;
    }
    if (block == car_winograd_avx2.block && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &car_winograd_avx2;
    }
    return NULL;
}
#else
const car_winograd *car_winograd_select(int block) {
    (void)block;
    return NULL;
}
#endif

static int64_t blocks_of(int64_t channels, int block) {
    return (channels + block - 1) / block;
}

static car_winograd_shape shape_of(const car_kernel *kernel) {
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    return (car_winograd_shape){.images = in.dim[0],
                                .height = in.dim[2],
                                .width = in.dim[3],
                                .in_blocks = blocks_of(in.dim[1], kernel->block_in[0]),
                                .out_blocks = blocks_of(out.dim[1], kernel->block_out),
                                .bf16 = kernel->bf16};
}

bool car_winograd_suits(const car_kernel *kernel) {
    const car_conv_config *config = &kernel->op->config.conv;
    bool fits = config->kernel == 3 && config->stride == 1 && config->pad == 1 && !config->bias &&
                kernel->block_in[0] == kernel->block_out;
    const car_winograd *loops = car_winograd_select(kernel->block_out);
    if (!fits || !loops || kernel->convolutions == CAR_CONVOLUTIONS_DIRECT || car_amx_conv_suits(kernel)) {
        return false;
    }
    car_winograd_shape shape = shape_of(kernel);
    return kernel->convolutions == CAR_CONVOLUTIONS_WINOGRAD ||
           car_winograd_pays(&shape, loops, kernel->op->grad_mode[0] != CAR_GRAD_NONE, car_program_multiplies_bf16());
}

size_t car_winograd_scratch_bytes(const car_kernel *kernel) {
    car_winograd_shape shape = shape_of(kernel);
    return car_winograd_select(kernel->block_out)->scratch(&shape) * sizeof(float);
}

size_t car_winograd_weight_bytes(const car_kernel *kernel) {
    car_winograd_shape shape = shape_of(kernel);
    size_t block = (size_t)kernel->block_out;
    return (size_t)(shape.in_blocks * shape.out_blocks) * CAR_WINOGRAD_TAPS * block * block * sizeof(float);
}

static car_status prepare(car_kernel *kernel) {
    kernel->scratch_bytes = car_winograd_scratch_bytes(kernel);
    kernel->weight_bytes = car_winograd_weight_bytes(kernel);
    kernel->own_layout = true;
    kernel->name = car_winograd_select(kernel->block_out)->name;
    return CAR_OK;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_winograd_shape shape = shape_of(kernel);
    car_winograd_select(kernel->block_out)
        ->convolve(&shape, false, false, io->in[0], io->param[0], io->out, io->scratch);
    return CAR_OK;
}

/* Computes the weights' gradient first, because the input's gradient may share the input's buffer. */
static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_winograd *loops = car_winograd_select(kernel->block_out);
    car_winograd_shape shape = shape_of(kernel);
    loops->by_weights(&shape, io->in[0], io->grad_out, io->grad_param[0], io->scratch);
    if (io->grad_in[0]) {
        bool add = kernel->op->grad_mode[0] == CAR_GRAD_ADD;
        loops->convolve(&shape, true, add, io->grad_out, io->param[0], io->grad_in[0], io->scratch);
    }
    return CAR_OK;
}

/* ---- layout of the weights ------------------------------------------------------------------- */

/* Index of weight (output o, input i, tap q): [o/V][i/V][q][i%V][o%V]. */
static size_t stored_at(const car_winograd_shape *shape, int64_t block, int64_t o, int64_t i, int64_t q) {
    int64_t both = o / block * shape->in_blocks + i / block;
    return (size_t)(((both * CAR_WINOGRAD_TAPS + q) * block + i % block) * block + o % block);
}

static void convert(const car_kernel *kernel, float *canonical, float *stored, bool import) {
    car_winograd_shape shape = shape_of(kernel);
    car_shape weight = car_kernel_param(kernel, 0);
    float *next = canonical;
    for (int64_t o = 0; o < weight.dim[0]; o++) {
        for (int64_t i = 0; i < weight.dim[1]; i++) {
            for (int64_t q = 0; q < CAR_WINOGRAD_TAPS; q++, next++) {
                float *place = &stored[stored_at(&shape, kernel->block_out, o, i, q)];
                *(import ? place : next) = *(import ? next : place);
            }
        }
    }
}

static car_status import_param(const car_kernel *kernel, const float *canonical, float *stored) {
    memset(stored, 0, kernel->weight_bytes);
    convert(kernel, (float *)(uintptr_t)canonical, stored, true);
    return CAR_OK;
}

static car_status export_param(const car_kernel *kernel, const float *stored, float *canonical) {
    convert(kernel, canonical, (float *)(uintptr_t)stored, false);
    return CAR_OK;
}

const car_kernel_class car_winograd_conv = {
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .import_param = import_param,
    .export_param = export_param,
    .adds_grad = true,
};
