/* Convolutions that cut an image into patches (kernel = stride, no padding), as at the start of ViT. Each patch
 * becomes a row, and the convolution one matrix product. oneDNN's direct kernels do not support backward by weights
 * here and fall back to its reference, which is a thousand times slower.
 *
 *   image [c][h][w]  --gather-->  rows [patch][c][k][k]  --sgemm with weight [o][c][k][k]-->  [patch][o] */
#include <string.h>

#include "kernels/bf16/amx_conv.h"

typedef struct patch_sizes {
    int64_t images, channels, height, width; /* of the input */
    int64_t rows, columns;                   /* patches per image */
    int64_t kernel, outputs, row_length;
    int block; /* of the output */
} patch_sizes;

static patch_sizes sizes_of(const car_kernel *kernel) {
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    patch_sizes s = {.images = in.dim[0], .channels = in.dim[1], .height = in.dim[2], .width = in.dim[3]};
    s.rows = out.dim[2];
    s.columns = out.dim[3];
    s.kernel = kernel->op->config.conv.kernel;
    s.outputs = out.dim[1];
    s.row_length = s.channels * s.kernel * s.kernel;
    s.block = kernel->block_out;
    return s;
}

static int64_t patch_count(const patch_sizes *s) {
    return s->images * s->rows * s->columns;
}

static size_t patches_bytes(const patch_sizes *s) {
    return car_round_up((size_t)(patch_count(s) * s->row_length) * sizeof(float), 64);
}

static bool is_patch_conv(const car_kernel *kernel) {
    const car_conv_config *config = &kernel->op->config.conv;
    return config->kernel == config->stride && config->kernel > 1 && config->pad == 0 && kernel->block_in[0] == 1;
}

static car_status prepare(car_kernel *kernel) {
    patch_sizes s = sizes_of(kernel);
    kernel->scratch_bytes = patches_bytes(&s) + (size_t)(patch_count(&s) * s.outputs) * sizeof(float);
    kernel->name = "sgemm, patches";
    return CAR_OK;
}

/* Copies between the image and its patches as rows. Pixels after the last whole patch belong to none. */
static void move_patches(const patch_sizes *s, float *image, float *patches, bool gather) {
    for (int64_t p = 0; p < patch_count(s); p++) {
        int64_t n = p / (s->rows * s->columns), y = p / s->columns % s->rows, x = p % s->columns;
        for (int64_t c = 0; c < s->channels; c++) {
            for (int64_t k = 0; k < s->kernel; k++) {
                float *line =
                    image + ((n * s->channels + c) * s->height + y * s->kernel + k) * s->width + x * s->kernel;
                float *row = patches + p * s->row_length + (c * s->kernel + k) * s->kernel;
                memcpy(gather ? row : line, gather ? line : row, (size_t)s->kernel * sizeof *row);
            }
        }
    }
}

/* Copies between rows of outputs and blocked channels. */
static void move_outputs(const patch_sizes *s, float *blocked, float *rows, bool gather) {
    int64_t pixels = s->rows * s->columns, blocks = (s->outputs + s->block - 1) / s->block;
    for (int64_t p = 0; p < patch_count(s); p++) {
        for (int64_t c = 0; c < s->outputs; c += s->block) {
            int64_t run = s->outputs - c < s->block ? s->outputs - c : s->block;
            float *there = blocked + ((p / pixels * blocks + c / s->block) * pixels + p % pixels) * s->block;
            float *here = rows + p * s->outputs + c;
            memcpy(gather ? here : there, gather ? there : here, (size_t)run * sizeof *here);
        }
    }
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    patch_sizes s = sizes_of(kernel);
    float *patches = io->scratch, *rows = (float *)(void *)((char *)io->scratch + patches_bytes(&s));
    bool bias = kernel->op->config.conv.bias;
    move_patches(&s, (float *)(uintptr_t)io->in[0], patches, true);
    if (bias) {
        car_vector_select()->fill_rows(rows, io->param[1], patch_count(&s), s.outputs);
    }
    car_status status = car_onednn_sgemm(kernel, 'N', 'T', patch_count(&s), s.outputs, s.row_length, patches,
                                         s.row_length, io->param[0], s.row_length, bias ? 1.0f : 0.0f, rows, s.outputs);
    if (s.outputs % s.block) {
        size_t stored = car_round_up((size_t)s.outputs, (size_t)s.block);
        memset(io->out, 0, (size_t)patch_count(&s) * stored * sizeof(float));
    }
    move_outputs(&s, io->out, rows, false);
    return status;
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    patch_sizes s = sizes_of(kernel);
    float *patches = io->scratch, *rows = (float *)(void *)((char *)io->scratch + patches_bytes(&s));
    car_status status = CAR_OK;
    move_patches(&s, (float *)(uintptr_t)io->in[0], patches, true);
    move_outputs(&s, (float *)(uintptr_t)io->grad_out, rows, true);
    if (kernel->op->config.conv.bias) {
        car_vector_select()->sum_rows(io->grad_param[1], rows, patch_count(&s), s.outputs);
    }
    CAR_TRY(car_onednn_sgemm(kernel, 'T', 'N', s.outputs, s.row_length, patch_count(&s), rows, s.outputs, patches,
                             s.row_length, 0.0f, io->grad_param[0], s.row_length));
    if (io->grad_in[0]) {
        CAR_TRY(car_onednn_sgemm(kernel, 'N', 'N', patch_count(&s), s.row_length, s.outputs, rows, s.outputs,
                                 io->param[0], s.row_length, 0.0f, patches, s.row_length));
        memset(io->grad_in[0], 0, (size_t)(s.images * s.channels * s.height * s.width) * sizeof(float));
        move_patches(&s, io->grad_in[0], patches, false);
    }
done:
    return status;
}

static const car_kernel_class patch_conv = {.prepare = prepare, .forward = forward, .backward = backward};

const car_kernel_class *car_onednn_choose_conv(const car_kernel *kernel) {
    if (is_patch_conv(kernel)) {
        return kernel->bf16 ? NULL : &patch_conv;
    }
    if (car_amx_conv_suits(kernel)) {
        return &car_amx_conv;
    }
    if (car_winograd_suits(kernel)) {
        return &car_winograd_conv;
    }
    return !kernel->bf16 ? &car_onednn_conv : car_program_multiplies_bf16() ? &car_onednn_conv_bf16 : NULL;
}
