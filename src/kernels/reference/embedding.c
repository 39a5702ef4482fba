/* Reference kernels that make a sequence: token embeddings, and image patches after a class token. */
#include "base/base.h"
#include "kernels/reference/reference.h"

/* ---- token and position embedding ------------------------------------------------------------------- */

static car_status embedding_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel);
    int64_t tokens = out.dim[1], width = out.dim[2], vocabulary = car_kernel_param(kernel, 0).dim[0];
    const int32_t *token = io->in[0];
    const float *by_token = io->param[0], *by_position = io->param[1];
    float *y = io->out;
    for (int64_t r = 0; r < out.dim[0] * tokens; r++) {
        if (token[r] < 0 || token[r] >= vocabulary) {
            return car_context_fail(kernel->context, CAR_ERROR_ARGUMENT,
                                    "%s: token %d at [%lld, %lld] is out of range; it must be in 0..%lld",
                                    kernel->op->name, (int)token[r], (long long)(r / tokens), (long long)(r % tokens),
                                    (long long)(vocabulary - 1));
        }
        for (int64_t e = 0; e < width; e++) {
            y[r * width + e] = by_token[token[r] * width + e] + by_position[r % tokens * width + e];
        }
    }
    return CAR_OK;
}

/* The gradient of one token's row: the sum over all positions where it occurs; `first` is the first one. */
static void grad_token(const int32_t *token, const float *grad, int64_t first, int64_t rows, int64_t width,
                       float *grad_row) {
    for (int64_t e = 0; e < width; e++) {
        double sum = 0;
        for (int64_t r = first; r < rows; r++) {
            sum += token[r] == token[first] ? (double)grad[r * width + e] : 0;
        }
        grad_row[e] = (float)sum;
    }
}

static bool occurs_before(const int32_t *token, int64_t position) {
    for (int64_t r = 0; r < position; r++) {
        if (token[r] == token[position]) {
            return true;
        }
    }
    return false;
}

static car_status embedding_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel), by_token = car_kernel_param(kernel, 0);
    int64_t batch = out.dim[0], tokens = out.dim[1], width = out.dim[2], positions = car_kernel_param(kernel, 1).dim[0];
    const int32_t *token = io->in[0];
    const float *grad = io->grad_out;
    for (int64_t i = 0; i < car_shape_elements(by_token); i++) {
        io->grad_param[0][i] = 0;
    }
    for (int64_t r = 0; r < batch * tokens; r++) {
        if (!occurs_before(token, r)) {
            grad_token(token, grad, r, batch * tokens, width, io->grad_param[0] + token[r] * width);
        }
    }
    for (int64_t t = 0; t < positions; t++) {
        for (int64_t e = 0; e < width; e++) {
            double sum = 0;
            for (int64_t b = 0; t < tokens && b < batch; b++) {
                sum += (double)grad[(b * tokens + t) * width + e];
            }
            io->grad_param[1][t * width + e] = (float)sum;
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_embedding = {
    .prepare = car_reference_prepare, .forward = embedding_forward, .backward = embedding_backward};

/* ---- patches as tokens: x [b, e, h, w] -> [b, 1 + hw, e] ---------------------------------------------- */

static car_status patch_tokens_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel);
    int64_t tokens = out.dim[1], width = out.dim[2], patches = tokens - 1;
    const float *x = io->in[0], *class_token = io->param[0], *position = io->param[1];
    float *y = io->out;
    for (int64_t b = 0; b < out.dim[0]; b++) {
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t e = 0; e < width; e++) {
                float value = t == 0 ? class_token[e] : x[(b * width + e) * patches + t - 1];
                y[(b * tokens + t) * width + e] = value + position[t * width + e];
            }
        }
    }
    return CAR_OK;
}

static car_status patch_tokens_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel);
    int64_t batch = out.dim[0], tokens = out.dim[1], width = out.dim[2], patches = tokens - 1;
    const float *grad = io->grad_out;
    float *grad_in = io->grad_in[0];
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t e = 0; e < width; e++) {
            double sum = 0;
            for (int64_t b = 0; b < batch; b++) {
                sum += (double)grad[(b * tokens + t) * width + e];
            }
            io->grad_param[1][t * width + e] = (float)sum;
            if (t == 0) {
                io->grad_param[0][e] = (float)sum;
            }
        }
    }
    for (int64_t b = 0; grad_in && b < batch; b++) {
        for (int64_t e = 0; e < width; e++) {
            for (int64_t p = 0; p < patches; p++) {
                grad_in[(b * width + e) * patches + p] = grad[(b * tokens + 1 + p) * width + e];
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_patch_tokens = {
    .prepare = car_reference_prepare, .forward = patch_tokens_forward, .backward = patch_tokens_backward};
