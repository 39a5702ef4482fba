/* Reference kernels for images: convolution, pooling, the shortcut without parameters.
 *
 * Output pixel (oh, ow) of a window operation reads input pixels oh * stride - pad + kh, ow * stride - pad + kw with
 * kh, kw in 0..kernel-1; those outside the image are padding. */
#include <math.h>

#include "kernels/reference/reference.h"

static bool inside(const car_shape *image, int64_t h, int64_t w) {
    return h >= 0 && h < image->dim[2] && w >= 0 && w < image->dim[3];
}

/* ---- convolution ----------------------------------------------------------------------------- */

/* The output at [n, o, oh, ow]. */
static double conv_at(const car_kernel *kernel, const float *x, const float *weight, int64_t n, int64_t o, int64_t oh,
                      int64_t ow) {
    const car_conv_config *config = &kernel->op->config.conv;
    car_shape in = car_kernel_in(kernel, 0), filter = car_kernel_param(kernel, 0);
    double sum = 0;
    for (int64_t i = 0; i < in.dim[1]; i++) {
        for (int64_t kh = 0; kh < config->kernel; kh++) {
            for (int64_t kw = 0; kw < config->kernel; kw++) {
                int64_t h = oh * config->stride - config->pad + kh, w = ow * config->stride - config->pad + kw;
                if (inside(&in, h, w)) {
                    sum += (double)x[car_reference_at(&in, n, i, h, w)] *
                           (double)weight[car_reference_at(&filter, o, i, kh, kw)];
                }
            }
        }
    }
    return sum;
}

static car_status conv_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel);
    const float *bias = kernel->op->config.conv.bias ? io->param[1] : NULL;
    float *y = io->out;
    for (int64_t n = 0; n < out.dim[0]; n++) {
        for (int64_t o = 0; o < out.dim[1]; o++) {
            for (int64_t oh = 0; oh < out.dim[2]; oh++) {
                for (int64_t ow = 0; ow < out.dim[3]; ow++) {
                    double sum = conv_at(kernel, io->in[0], io->param[0], n, o, oh, ow);
                    y[car_reference_at(&out, n, o, oh, ow)] = (float)(sum + (bias ? (double)bias[o] : 0));
                }
            }
        }
    }
    return CAR_OK;
}

/* The input's gradient at [n, i, h, w]: from all output pixels whose window covers it. */
static double conv_grad_in_at(const car_kernel *kernel, const float *weight, const float *grad, int64_t n, int64_t i,
                              int64_t h, int64_t w) {
    const car_conv_config *config = &kernel->op->config.conv;
    car_shape out = car_kernel_out(kernel), filter = car_kernel_param(kernel, 0);
    double sum = 0;
    for (int64_t kh = 0; kh < config->kernel; kh++) {
        for (int64_t kw = 0; kw < config->kernel; kw++) {
            int64_t top = h + config->pad - kh, left = w + config->pad - kw;
            if (top % config->stride != 0 || left % config->stride != 0 ||
                !inside(&out, top / config->stride, left / config->stride)) {
                continue;
            }
            for (int64_t o = 0; o < out.dim[1]; o++) {
                sum += (double)grad[car_reference_at(&out, n, o, top / config->stride, left / config->stride)] *
                       (double)weight[car_reference_at(&filter, o, i, kh, kw)];
            }
        }
    }
    return sum;
}

/* The weight's gradient at [o, i, kh, kw]. */
static double conv_grad_weight_at(const car_kernel *kernel, const float *x, const float *grad, int64_t o, int64_t i,
                                  int64_t kh, int64_t kw) {
    const car_conv_config *config = &kernel->op->config.conv;
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    double sum = 0;
    for (int64_t n = 0; n < out.dim[0]; n++) {
        for (int64_t oh = 0; oh < out.dim[2]; oh++) {
            for (int64_t ow = 0; ow < out.dim[3]; ow++) {
                int64_t h = oh * config->stride - config->pad + kh, w = ow * config->stride - config->pad + kw;
                if (inside(&in, h, w)) {
                    sum += (double)x[car_reference_at(&in, n, i, h, w)] *
                           (double)grad[car_reference_at(&out, n, o, oh, ow)];
                }
            }
        }
    }
    return sum;
}

static void conv_grad_bias(const car_kernel *kernel, const float *grad, float *grad_bias) {
    car_shape out = car_kernel_out(kernel);
    for (int64_t o = 0; o < out.dim[1]; o++) {
        double sum = 0;
        for (int64_t n = 0; n < out.dim[0]; n++) {
            for (int64_t p = 0; p < out.dim[2] * out.dim[3]; p++) {
                sum += (double)grad[car_reference_at(&out, n, o, 0, p)];
            }
        }
        grad_bias[o] = (float)sum;
    }
}

static car_status conv_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0), filter = car_kernel_param(kernel, 0);
    for (int64_t o = 0; o < filter.dim[0]; o++) {
        for (int64_t i = 0; i < filter.dim[1]; i++) {
            for (int64_t kh = 0; kh < filter.dim[2]; kh++) {
                for (int64_t kw = 0; kw < filter.dim[3]; kw++) {
                    io->grad_param[0][car_reference_at(&filter, o, i, kh, kw)] =
                        (float)conv_grad_weight_at(kernel, io->in[0], io->grad_out, o, i, kh, kw);
                }
            }
        }
    }
    if (kernel->op->config.conv.bias) {
        conv_grad_bias(kernel, io->grad_out, io->grad_param[1]);
    }
    float *grad_in = io->grad_in[0];
    if (!grad_in) {
        return CAR_OK;
    }
    for (int64_t n = 0; n < in.dim[0]; n++) {
        for (int64_t i = 0; i < in.dim[1]; i++) {
            for (int64_t h = 0; h < in.dim[2]; h++) {
                for (int64_t w = 0; w < in.dim[3]; w++) {
                    grad_in[car_reference_at(&in, n, i, h, w)] =
                        (float)conv_grad_in_at(kernel, io->param[0], io->grad_out, n, i, h, w);
                }
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_conv = {
    .prepare = car_reference_prepare, .forward = conv_forward, .backward = conv_backward};

/* ---- max pooling ----------------------------------------------------------------------------- */

/* The first maximum of a window in row-major order, as in PyTorch (a NaN wins); padding never wins. */
static uint8_t find_maximum(const car_kernel *kernel, const float *x, int64_t n, int64_t c, int64_t oh, int64_t ow,
                            float *maximum) {
    const car_pool_config *config = &kernel->op->config.pool;
    car_shape in = car_kernel_in(kernel, 0);
    uint8_t best = 0;
    *maximum = -INFINITY;
    bool found = false;
    for (int k = 0; k < config->kernel * config->kernel; k++) {
        int64_t h = oh * config->stride - config->pad + k / config->kernel;
        int64_t w = ow * config->stride - config->pad + k % config->kernel;
        if (!inside(&in, h, w)) {
            continue;
        }
        float value = x[car_reference_at(&in, n, c, h, w)];
        if (!found || value > *maximum || isnan(value)) {
            found = true;
            best = (uint8_t)k;
            *maximum = value;
        }
    }
    return best;
}

static car_status maxpool_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel);
    float *y = io->out;
    uint8_t *index = io->aux; /* NULL in evaluation */
    for (int64_t n = 0; n < out.dim[0]; n++) {
        for (int64_t c = 0; c < out.dim[1]; c++) {
            for (int64_t oh = 0; oh < out.dim[2]; oh++) {
                for (int64_t ow = 0; ow < out.dim[3]; ow++) {
                    int64_t at = car_reference_at(&out, n, c, oh, ow);
                    uint8_t best = find_maximum(kernel, io->in[0], n, c, oh, ow, &y[at]);
                    if (index) {
                        index[at] = best;
                    }
                }
            }
        }
    }
    return CAR_OK;
}

/* The gradient of one input pixel: the sum over the windows that chose it. */
static double maxpool_grad_at(const car_kernel *kernel, const uint8_t *index, const float *grad, int64_t n, int64_t c,
                              int64_t h, int64_t w) {
    const car_pool_config *config = &kernel->op->config.pool;
    car_shape out = car_kernel_out(kernel);
    double sum = 0;
    for (int k = 0; k < config->kernel * config->kernel; k++) {
        int64_t top = h + config->pad - k / config->kernel, left = w + config->pad - k % config->kernel;
        if (top % config->stride != 0 || left % config->stride != 0 ||
            !inside(&out, top / config->stride, left / config->stride)) {
            continue;
        }
        int64_t at = car_reference_at(&out, n, c, top / config->stride, left / config->stride);
        if (index[at] == k) {
            sum += (double)grad[at];
        }
    }
    return sum;
}

static car_status maxpool_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    float *grad_in = io->grad_in[0];
    for (int64_t n = 0; grad_in && n < in.dim[0]; n++) {
        for (int64_t c = 0; c < in.dim[1]; c++) {
            for (int64_t h = 0; h < in.dim[2]; h++) {
                for (int64_t w = 0; w < in.dim[3]; w++) {
                    grad_in[car_reference_at(&in, n, c, h, w)] =
                        (float)maxpool_grad_at(kernel, io->aux, io->grad_out, n, c, h, w);
                }
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_maxpool = {
    .prepare = car_reference_prepare, .forward = maxpool_forward, .backward = maxpool_backward};

/* ---- average pooling: padding counts as zeros, as in PyTorch ---------------------------------- */

static double window_mean(const car_kernel *kernel, const float *x, int64_t n, int64_t c, int64_t oh, int64_t ow) {
    const car_pool_config *config = &kernel->op->config.pool;
    car_shape in = car_kernel_in(kernel, 0);
    double sum = 0;
    for (int k = 0; k < config->kernel * config->kernel; k++) {
        int64_t h = oh * config->stride - config->pad + k / config->kernel;
        int64_t w = ow * config->stride - config->pad + k % config->kernel;
        if (inside(&in, h, w)) {
            sum += (double)x[car_reference_at(&in, n, c, h, w)];
        }
    }
    return sum / (config->kernel * config->kernel);
}

static car_status avgpool_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape out = car_kernel_out(kernel);
    float *y = io->out;
    for (int64_t n = 0; n < out.dim[0]; n++) {
        for (int64_t c = 0; c < out.dim[1]; c++) {
            for (int64_t oh = 0; oh < out.dim[2]; oh++) {
                for (int64_t ow = 0; ow < out.dim[3]; ow++) {
                    y[car_reference_at(&out, n, c, oh, ow)] = (float)window_mean(kernel, io->in[0], n, c, oh, ow);
                }
            }
        }
    }
    return CAR_OK;
}

static double avgpool_grad_at(const car_kernel *kernel, const float *grad, int64_t n, int64_t c, int64_t h, int64_t w) {
    const car_pool_config *config = &kernel->op->config.pool;
    car_shape out = car_kernel_out(kernel);
    double sum = 0;
    for (int k = 0; k < config->kernel * config->kernel; k++) {
        int64_t top = h + config->pad - k / config->kernel, left = w + config->pad - k % config->kernel;
        if (top % config->stride == 0 && left % config->stride == 0 &&
            inside(&out, top / config->stride, left / config->stride)) {
            sum += (double)grad[car_reference_at(&out, n, c, top / config->stride, left / config->stride)];
        }
    }
    return sum / (config->kernel * config->kernel);
}

static car_status avgpool_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    float *grad_in = io->grad_in[0];
    for (int64_t n = 0; grad_in && n < in.dim[0]; n++) {
        for (int64_t c = 0; c < in.dim[1]; c++) {
            for (int64_t h = 0; h < in.dim[2]; h++) {
                for (int64_t w = 0; w < in.dim[3]; w++) {
                    grad_in[car_reference_at(&in, n, c, h, w)] =
                        (float)avgpool_grad_at(kernel, io->grad_out, n, c, h, w);
                }
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_avgpool = {
    .prepare = car_reference_prepare, .forward = avgpool_forward, .backward = avgpool_backward};

/* ---- global average pooling: [n, c, h, w] -> [n, c] ------------------------------------------- */

static car_status global_avgpool_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int64_t planes = in.dim[0] * in.dim[1], pixels = in.dim[2] * in.dim[3];
    const float *x = io->in[0];
    float *y = io->out;
    for (int64_t plane = 0; plane < planes; plane++) {
        double sum = 0;
        for (int64_t p = 0; p < pixels; p++) {
            sum += (double)x[plane * pixels + p];
        }
        y[plane] = (float)(sum / (double)pixels);
    }
    return CAR_OK;
}

static car_status global_avgpool_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0);
    int64_t planes = in.dim[0] * in.dim[1], pixels = in.dim[2] * in.dim[3];
    const float *grad = io->grad_out;
    float *grad_in = io->grad_in[0];
    for (int64_t plane = 0; grad_in && plane < planes; plane++) {
        for (int64_t p = 0; p < pixels; p++) {
            grad_in[plane * pixels + p] = (float)((double)grad[plane] / (double)pixels);
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_global_avgpool = {
    .prepare = car_reference_prepare, .forward = global_avgpool_forward, .backward = global_avgpool_backward};

/* ---- shortcut: every stride-th pixel, zeros in new channels ------------------------------------ */

static car_status shortcut_forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    int64_t stride = kernel->op->config.shortcut.stride;
    const float *x = io->in[0];
    float *y = io->out;
    for (int64_t n = 0; n < out.dim[0]; n++) {
        for (int64_t c = 0; c < out.dim[1]; c++) {
            for (int64_t h = 0; h < out.dim[2]; h++) {
                for (int64_t w = 0; w < out.dim[3]; w++) {
                    y[car_reference_at(&out, n, c, h, w)] =
                        c < in.dim[1] ? x[car_reference_at(&in, n, c, h * stride, w * stride)] : 0;
                }
            }
        }
    }
    return CAR_OK;
}

static car_status shortcut_backward(const car_kernel *kernel, const car_kernel_io *io) {
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    int64_t stride = kernel->op->config.shortcut.stride;
    const float *grad = io->grad_out;
    float *grad_in = io->grad_in[0];
    for (int64_t n = 0; grad_in && n < in.dim[0]; n++) {
        for (int64_t c = 0; c < in.dim[1]; c++) {
            for (int64_t h = 0; h < in.dim[2]; h++) {
                for (int64_t w = 0; w < in.dim[3]; w++) {
                    bool taken = h % stride == 0 && w % stride == 0;
                    grad_in[car_reference_at(&in, n, c, h, w)] =
                        taken ? grad[car_reference_at(&out, n, c, h / stride, w / stride)] : 0;
                }
            }
        }
    }
    return CAR_OK;
}

const car_kernel_class car_reference_shortcut = {
    .prepare = car_reference_prepare, .forward = shortcut_forward, .backward = shortcut_backward};
