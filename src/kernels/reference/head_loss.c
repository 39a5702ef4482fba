/* Reference kernel of a head with its loss: computes the logits x W' of a row and their cross-entropy, and keeps
 * only their log-sum-exp. */
#include <math.h>

#include "base/base.h"
#include "kernels/reference/reference.h"

typedef struct sizes {
    int64_t rows, width, classes, counted;
    double smoothing;
} sizes;

static sizes sizes_of(const car_kernel *kernel, const int32_t *label) {
    car_shape in = car_kernel_in(kernel, 0);
    sizes s = {.rows = car_reference_rows(&in), .width = car_reference_width(&in)};
    s.classes = kernel->op->config.head_loss.classes;
    s.smoothing = kernel->op->config.head_loss.smoothing;
    for (int64_t r = 0; r < s.rows; r++) {
        s.counted += label[r] >= 0;
    }
    return s;
}

/* Scratch for the logits of a row. */
static car_status prepare(car_kernel *kernel) {
    kernel->name = "reference";
    kernel->scratch_bytes = (size_t)kernel->op->config.head_loss.classes * sizeof(float);
    return CAR_OK;
}

static void make_logits(const sizes *s, const float *x, const float *weight, float *logits) {
    for (int64_t c = 0; c < s->classes; c++) {
        double sum = 0;
        for (int64_t i = 0; i < s->width; i++) {
            sum += (double)x[i] * (double)weight[c * s->width + i];
        }
        logits[c] = (float)sum;
    }
}

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

static double target(const sizes *s, int32_t label, int64_t c) {
    return (c == label ? 1 - s->smoothing : 0) + s->smoothing / (double)s->classes;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const int32_t *label = io->in[1];
    sizes s = sizes_of(kernel, label);
    float *logits = io->scratch, *aux = io->aux, *loss = io->out;
    double sum = 0;
    for (int64_t r = 0; r < s.rows; r++) {
        if (label[r] >= s.classes) {
            return car_context_fail(kernel->context, CAR_ERROR_ARGUMENT,
                                    "%s: label %d in row %lld is out of range; it must be below %lld", kernel->op->name,
                                    (int)label[r], (long long)r, (long long)s.classes);
        }
        make_logits(&s, (const float *)io->in[0] + r * s.width, io->param[0], logits);
        double logarithm = log_sum_exp(logits, s.classes);
        for (int64_t c = 0; label[r] >= 0 && c < s.classes; c++) {
            sum -= target(&s, label[r], c) * ((double)logits[c] - logarithm);
        }
        if (aux) {
            bool judged = !io->training && label[r] >= 0;
            aux[r * CAR_HEAD_AUX + CAR_HEAD_LSE] = (float)logarithm;
            aux[r * CAR_HEAD_AUX + CAR_HEAD_RANK] = judged ? (float)car_head_rank(logits, s.classes, label[r]) : -1;
            aux[r * CAR_HEAD_AUX + CAR_HEAD_ANSWER] = judged ? (float)car_head_answer(logits, s.classes) : -1;
        }
    }
    *loss = s.counted > 0 ? (float)(sum / (double)s.counted) : 0;
    return CAR_OK;
}

/* Gradients of one row from its logits. The input's gradient may overwrite the input. */
static void backward_row(const sizes *s, const car_kernel_io *io, int64_t r, float *slopes) {
    const float *x = (const float *)io->in[0] + r * s->width, *weight = io->param[0];
    const int32_t *label = io->in[1];
    const float *aux = io->aux;
    float *grad_in = io->grad_in[0] ? (float *)io->grad_in[0] + r * s->width : NULL;
    make_logits(s, x, weight, slopes);
    for (int64_t c = 0; c < s->classes; c++) {
        double probability = exp((double)slopes[c] - (double)aux[r * CAR_HEAD_AUX + CAR_HEAD_LSE]);
        double slope = label[r] < 0 ? 0 : (probability - target(s, label[r], c)) / (double)s->counted;
        slopes[c] = (float)((double)*(const float *)io->grad_out * slope);
        for (int64_t i = 0; i < s->width; i++) {
            io->grad_param[0][c * s->width + i] += slopes[c] * x[i];
        }
    }
    for (int64_t i = 0; grad_in && i < s->width; i++) {
        double sum = 0;
        for (int64_t c = 0; c < s->classes; c++) {
            sum += (double)slopes[c] * (double)weight[c * s->width + i];
        }
        grad_in[i] = (float)sum;
    }
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    sizes s = sizes_of(kernel, io->in[1]);
    if (io->makes_loss) {
        car_status status = forward(kernel, io);
        if (status != CAR_OK) {
            return status;
        }
    }
    for (int64_t i = 0; i < s.classes * s.width; i++) {
        io->grad_param[0][i] = 0;
    }
    for (int64_t r = 0; r < s.rows; r++) {
        backward_row(&s, io, r, io->scratch);
    }
    return CAR_OK;
}

const car_kernel_class car_reference_head_loss = {.prepare = prepare, .forward = forward, .backward = backward};

int car_head_rank(const float *logits, int64_t classes, int32_t label) {
    int rank = isnan(logits[label]) ? CAR_HEAD_MOST_RANK : 0;
    for (int64_t c = 0; c < classes; c++) {
        rank += isnan(logits[c]) || logits[c] > logits[label] || (logits[c] == logits[label] && c < label);
    }
    return rank;
}

int64_t car_head_answer(const float *logits, int64_t classes) {
    int64_t best = 0;
    for (int64_t c = 1; c < classes; c++) {
        best = logits[c] > logits[best] ? c : best;
    }
    return best;
}
