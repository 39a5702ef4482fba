/* A head with its loss, one chunk of rows at a time: logits are computed in scratch space, used and dropped.
 *
 *   forward    for each chunk:  logits = x W'    loss and log-sum-exp of its rows
 *   backward   for each chunk:  logits = x W'    their gradient in place    dW += g' x    dx = g W
 *
 * Computing the logits twice would cost 10 % of the FLOPs of gpt2's step. So an engine that runs backward right after
 * forward skips forward (car_tape_defer_loss), and backward computes the loss as well (io->makes_loss). */
#include "kernels/onednn/onednn.h"

/* Bytes of logits in scratch space. More rows read the weights less often, but each thread has its own scratch. */
static const int64_t chunk_bytes = 32 << 20;

typedef struct sizes {
    int64_t rows, width, classes, chunk;
    double smoothing;
} sizes;

/* Chunks of about equal length. */
static sizes sizes_of(const car_kernel *kernel) {
    car_shape x = car_kernel_in(kernel, 0);
    sizes s = {.width = x.dim[x.rank - 1], .classes = kernel->op->config.head_loss.classes};
    s.rows = car_shape_elements(x) / s.width;
    s.smoothing = kernel->op->config.head_loss.smoothing;
    int64_t most = chunk_bytes / (s.classes * (int64_t)sizeof(float));
    most = kernel->op->config.head_loss.chunk > 0 ? kernel->op->config.head_loss.chunk : most;
    int64_t chunks = most > 0 ? (s.rows + most - 1) / most : s.rows;
    s.chunk = chunks > 0 ? (s.rows + chunks - 1) / chunks : 1;
    return s;
}

static int64_t rows_at(const sizes *s, int64_t first) {
    return s->rows - first < s->chunk ? s->rows - first : s->chunk;
}

static car_status prepare(car_kernel *kernel) {
    sizes s = sizes_of(kernel);
    kernel->name = "sgemm, chunks of rows";
    kernel->scratch_bytes = (size_t)(s.chunk * s.classes) * sizeof(float);
    return CAR_OK;
}

static car_status make_logits(const car_kernel *kernel, const car_kernel_io *io, const sizes *s, int64_t first) {
    return car_onednn_sgemm(kernel, 'N', 'T', rows_at(s, first), s->classes, s->width,
                            (const float *)io->in[0] + first * s->width, s->width, io->param[0], s->width, 0.0f,
                            io->scratch, s->classes);
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    sizes s = sizes_of(kernel);
    const int32_t *labels = io->in[1];
    double total = 0;
    car_status status = CAR_OK;
    for (int64_t first = 0; first < s.rows; first += s.chunk) {
        CAR_TRY(make_logits(kernel, io, &s, first));
        for (int64_t r = first; r < first + rows_at(&s, first); r++) {
            const float *logits = (const float *)io->scratch + (r - first) * s.classes;
            float lse = 0, *aux = io->aux ? (float *)io->aux + r * CAR_HEAD_AUX : NULL;
            bool judged = !io->training && labels[r] >= 0;
            CAR_TRY(car_onednn_loss_of_row(kernel, logits, s.classes, s.smoothing, r, labels[r], &lse, &total));
            if (aux) {
                aux[CAR_HEAD_LSE] = lse;
                aux[CAR_HEAD_RANK] = judged ? (float)car_head_rank(logits, s.classes, labels[r]) : -1;
                aux[CAR_HEAD_ANSWER] = judged ? (float)car_head_answer(logits, s.classes) : -1;
            }
        }
    }
    int64_t counted = car_onednn_counted_rows(labels, s.rows);
    *(float *)io->out = (float)(counted ? total / (double)counted : 0);
done:
    return status;
}

/* Writes the input's gradient last, because it may share the input's buffer. */
static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    sizes s = sizes_of(kernel);
    const int32_t *labels = io->in[1];
    int64_t counted = car_onednn_counted_rows(labels, s.rows);
    float scale = counted ? *(const float *)io->grad_out / (float)counted : 0, lse = 0;
    double total = 0;
    car_status status = CAR_OK;
    for (int64_t first = 0; first < s.rows; first += s.chunk) {
        int64_t rows = rows_at(&s, first);
        const float *x = (const float *)io->in[0] + first * s.width;
        CAR_TRY(make_logits(kernel, io, &s, first));
        for (int64_t r = 0; r < rows; r++) {
            float *g = (float *)io->scratch + r * s.classes;
            CAR_TRY(car_onednn_head_lse(kernel, io, first + r, g, &lse, &total));
            car_onednn_loss_gradient(g, g, s.classes, s.smoothing, labels[first + r], lse, scale);
        }
        CAR_TRY(car_onednn_sgemm(kernel, 'T', 'N', s.classes, s.width, rows, io->scratch, s.classes, x, s.width,
                                 first > 0 ? 1.0f : 0.0f, io->grad_param[0], s.width));
        if (io->grad_in[0]) {
            float beta = kernel->op->grad_mode[0] == CAR_GRAD_ADD ? 1.0f : 0.0f;
            CAR_TRY(car_onednn_sgemm(kernel, 'N', 'N', rows, s.width, s.classes, io->scratch, s.classes, io->param[0],
                                     s.width, beta, (float *)io->grad_in[0] + first * s.width, s.width));
        }
    }
    if (io->makes_loss) {
        *(float *)io->out = (float)(counted ? total / (double)counted : 0);
    }
done:
    return status;
}

const car_kernel_class car_onednn_head_loss = {
    .prepare = prepare, .forward = forward, .backward = backward, .adds_grad = true};
