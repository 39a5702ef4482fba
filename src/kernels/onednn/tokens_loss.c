/* Patch tokens, and the loss. */
#include <string.h>

#include "kernels/onednn/onednn.h"

static car_status prepare(car_kernel *kernel) {
    kernel->name = car_vector_select()->name;
    return CAR_OK;
}

/* ---- patch tokens ---------------------------------------------------------------------------- */

/* The channels of one patch are in runs of `block`, `pixels * block` floats apart. */
typedef struct patch_layout {
    int64_t batch, width, pixels, tokens;
    int block;
} patch_layout;

static patch_layout layout_of(const car_kernel *kernel) {
    car_shape in = car_kernel_in(kernel, 0);
    int64_t pixels = in.dim[2] * in.dim[3];
    return (patch_layout){in.dim[0], in.dim[1], pixels, pixels + 1, kernel->block_in[0]};
}

static size_t run_at(const patch_layout *l, int64_t n, int64_t pixel, int64_t channel) {
    int64_t blocks = (l->width + l->block - 1) / l->block;
    return (size_t)(((n * blocks + channel / l->block) * l->pixels + pixel) * l->block);
}

static int64_t run_length(const patch_layout *l, int64_t channel) {
    return l->width - channel < l->block ? l->width - channel : l->block;
}

static car_status forward_patch_tokens(const car_kernel *kernel, const car_kernel_io *io) {
    patch_layout l = layout_of(kernel);
    const float *x = io->in[0], *class_token = io->param[0], *position = io->param[1];
    const car_vector *vector = car_vector_select();
    for (int64_t n = 0; n < l.batch; n++) {
        float *y = (float *)io->out + n * l.tokens * l.width;
        vector->add(y, class_token, position, l.width);
        for (int64_t p = 0; p < l.pixels; p++) {
            float *row = y + (p + 1) * l.width;
            for (int64_t c = 0; c < l.width; c += l.block) {
                memcpy(row + c, x + run_at(&l, n, p, c), (size_t)run_length(&l, c) * sizeof *row);
            }
            vector->accumulate(row, position + (p + 1) * l.width, l.width);
        }
    }
    return CAR_OK;
}

static void patch_gradient(const patch_layout *l, const float *grad_out, float *grad_in) {
    if (l->width % l->block) {
        int64_t blocks = (l->width + l->block - 1) / l->block;
        memset(grad_in, 0, (size_t)(l->batch * blocks * l->pixels * l->block) * sizeof *grad_in);
    }
    for (int64_t n = 0; n < l->batch; n++) {
        for (int64_t p = 0; p < l->pixels; p++) {
            const float *row = grad_out + (n * l->tokens + p + 1) * l->width;
            for (int64_t c = 0; c < l->width; c += l->block) {
                memcpy(grad_in + run_at(l, n, p, c), row + c, (size_t)run_length(l, c) * sizeof *row);
            }
        }
    }
}

static car_status backward_patch_tokens(const car_kernel *kernel, const car_kernel_io *io) {
    patch_layout l = layout_of(kernel);
    const car_vector *vector = car_vector_select();
    vector->sum_rows(io->grad_param[1], io->grad_out, l.batch, l.tokens * l.width);
    memcpy(io->grad_param[0], io->grad_param[1],
           (size_t)l.width * sizeof(float)); /* the class token is at position 0 */
    if (io->grad_in[0]) {
        patch_gradient(&l, io->grad_out, io->grad_in[0]);
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_patch_tokens = {
    .prepare = prepare, .forward = forward_patch_tokens, .backward = backward_patch_tokens};

/* ---- cross-entropy --------------------------------------------------------------------------- */

int64_t car_onednn_counted_rows(const int32_t *labels, int64_t rows) {
    int64_t counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        counted += labels[r] >= 0;
    }
    return counted;
}

car_status car_onednn_loss_of_row(const car_kernel *kernel, const float *x, int64_t classes, double smoothing,
                                  int64_t row, int32_t label, float *lse, double *total) {
    float sum = 0;
    *lse = car_vector_select()->log_sum_exp(x, classes, &sum);
    if (label >= classes) {
        return car_context_fail(kernel->context, CAR_ERROR_ARGUMENT,
                                "%s: label %d in row %lld is out of range; there are %lld classes", kernel->op->name,
                                (int)label, (long long)row, (long long)classes);
    }
    if (label >= 0) {
        double uniform = (double)*lse - (double)sum / (double)classes;
        *total += (1 - smoothing) * ((double)*lse - (double)x[label]) + smoothing * uniform;
    }
    return CAR_OK;
}

car_status car_onednn_head_lse(const car_kernel *kernel, const car_kernel_io *io, int64_t row, const float *logits,
                               float *lse, double *total) {
    if (io->makes_loss) {
        return car_onednn_loss_of_row(kernel, logits, kernel->op->config.head_loss.classes,
                                      kernel->op->config.head_loss.smoothing, row, ((const int32_t *)io->in[1])[row],
                                      lse, total);
    }
    *lse = ((const float *)io->aux)[row * CAR_HEAD_AUX + CAR_HEAD_LSE];
    return CAR_OK;
}

void car_onednn_loss_gradient(float *g, const float *x, int64_t classes, double smoothing, int32_t label, float lse,
                              float scale) {
    if (label < 0) {
        memset(g, 0, (size_t)classes * sizeof *g);
        return;
    }
    car_vector_select()->softmax_gradient(g, x, lse, (float)(smoothing / (double)classes), scale, classes);
    g[label] -= (float)(1 - smoothing) * scale;
}

static car_status forward_cross_entropy(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t classes = shape.dim[shape.rank - 1], rows = car_shape_elements(shape) / classes;
    const int32_t *labels = io->in[1];
    float *kept = io->training ? io->aux : NULL;
    double total = 0;
    for (int64_t r = 0; r < rows; r++) {
        float lse = 0;
        car_status status =
            car_onednn_loss_of_row(kernel, (const float *)io->in[0] + r * classes, classes,
                                   kernel->op->config.cross_entropy.smoothing, r, labels[r], &lse, &total);
        if (status != CAR_OK) {
            return status;
        }
        if (kept) {
            kept[r] = lse;
        }
    }
    int64_t counted = car_onednn_counted_rows(labels, rows);
    *(float *)io->out = (float)(counted ? total / (double)counted : 0);
    return CAR_OK;
}

static car_status backward_cross_entropy(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape shape = car_kernel_in(kernel, 0);
    int64_t classes = shape.dim[shape.rank - 1], rows = car_shape_elements(shape) / classes;
    const int32_t *labels = io->in[1];
    const float *kept = io->aux;
    int64_t counted = car_onednn_counted_rows(labels, rows);
    float scale = counted ? *(const float *)io->grad_out / (float)counted : 0;
    for (int64_t r = 0; io->grad_in[0] && r < rows; r++) {
        car_onednn_loss_gradient((float *)io->grad_in[0] + r * classes, (const float *)io->in[0] + r * classes, classes,
                                 kernel->op->config.cross_entropy.smoothing, labels[r], kept[r], scale);
    }
    return CAR_OK;
}

const car_kernel_class car_onednn_cross_entropy = {
    .prepare = prepare, .forward = forward_cross_entropy, .backward = backward_cross_entropy};
