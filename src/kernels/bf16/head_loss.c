/* A head with its loss in bf16, one chunk of rows at a time, as for floats (onednn/head_loss.c). Logits are floats
 * in scratch space; their gradient is rounded for the two products that follow. */
#include "kernels/bf16/bf16.h"

static const int64_t chunk_bytes = 32 << 20; /* of logits in scratch, approximately */

/* The products of a chunk with this many rows. */
typedef struct chunk {
    int64_t rows;
    car_bf16_product logits, by_weights, add_by_weights, by_data;
} chunk;

typedef struct head_state {
    int64_t rows, width, classes;
    chunk chunks[2]; /* full length, and the last one if it is shorter */
    size_t logits_offset, rounded_offset;
} head_state;

static const car_kernel_class *choose(const car_kernel *kernel) {
    (void)kernel;
    return car_program_multiplies_bf16() ? &car_bf16_head_loss : NULL;
}

static void release(car_kernel *kernel) {
    head_state *s = kernel->state;
    for (int c = 0; s && c < 2; c++) {
        car_bf16_product_destroy(&s->chunks[c].by_data);
        car_bf16_product_destroy(&s->chunks[c].add_by_weights);
        car_bf16_product_destroy(&s->chunks[c].by_weights);
        car_bf16_product_destroy(&s->chunks[c].logits);
    }
    car_context_release(kernel->context, s, s ? 1 : 0, sizeof *s);
}

static car_status prepare_chunk(car_kernel *kernel, const head_state *s, chunk *c) {
    const car_bf16_matrix x = car_bf16_rows(c->rows, s->width, s->width);
    const car_bf16_matrix weight = car_bf16_rows(s->classes, s->width, s->width);
    const car_bf16_matrix across = car_bf16_turned(s->classes, s->width, s->width);
    const car_bf16_matrix logits = car_bf16_rows(c->rows, s->classes, s->classes);
    const car_bf16_matrix turned = car_bf16_turned(c->rows, s->classes, s->classes);
    const car_bf16_product_config forward = {x, across, logits, .rounds = false};
    const car_bf16_product_config first = {turned, x, weight, .rounds = false};
    const car_bf16_product_config further = {turned, x, weight, .adds = true};
    const car_bf16_product_config by_data = {logits, weight, x, .rounds = true,
                                             .adds = kernel->op->grad_mode[0] == CAR_GRAD_ADD};
    car_status status = CAR_OK;
    CAR_TRY(car_bf16_product_create(kernel, &forward, &c->logits));
    CAR_TRY(car_bf16_product_create(kernel, &first, &c->by_weights));
    CAR_TRY(car_bf16_product_create(kernel, &further, &c->add_by_weights));
    if (kernel->op->grad_mode[0] != CAR_GRAD_NONE) {
        CAR_TRY(car_bf16_product_create(kernel, &by_data, &c->by_data));
    }
done:
    return status;
}

static car_status prepare(car_kernel *kernel) {
    car_shape x = car_kernel_in(kernel, 0);
    head_state *s = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(kernel->context, 1, sizeof *s, &s));
    kernel->state = s;
    s->width = x.dim[x.rank - 1];
    s->classes = kernel->op->config.head_loss.classes;
    s->rows = car_shape_elements(x) / s->width;
    int64_t asked = kernel->op->config.head_loss.chunk, most = chunk_bytes / (s->classes * (int64_t)sizeof(float));
    most = asked > 0 ? asked : most > 0 ? most : 1;
    int64_t chunks = (s->rows + most - 1) / most;
    s->chunks[0].rows = (s->rows + chunks - 1) / chunks;
    s->chunks[1].rows = s->rows % s->chunks[0].rows;
    for (int c = 0; c < 2 && s->chunks[c].rows > 0; c++) {
        CAR_TRY(prepare_chunk(kernel, s, &s->chunks[c]));
    }
    size_t logits = (size_t)(s->chunks[0].rows * s->classes);
    s->logits_offset = car_round_up(kernel->scratch_bytes, 64);
    s->rounded_offset = s->logits_offset + car_round_up(logits * sizeof(float), 64);
    kernel->scratch_bytes = s->rounded_offset + logits * sizeof(car_bf16);
    kernel->name = "bf16, chunks of rows";
done:
    return status;
}

static const chunk *chunk_at(const head_state *s, int64_t first) {
    return s->rows - first < s->chunks[0].rows ? &s->chunks[1] : &s->chunks[0];
}

static float *logits_of(const head_state *s, const car_kernel_io *io) {
    return (float *)(void *)((char *)io->scratch + s->logits_offset);
}

static car_status make_logits(const car_kernel *kernel, const car_kernel_io *io, int64_t first) {
    const head_state *s = kernel->state;
    return car_bf16_product_run(kernel, &chunk_at(s, first)->logits, io->stream, io->scratch,
                                (const car_bf16 *)io->in[0] + first * s->width, io->param[0], NULL, logits_of(s, io));
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const head_state *s = kernel->state;
    const int32_t *labels = io->in[1];
    double total = 0, smoothing = kernel->op->config.head_loss.smoothing;
    car_status status = CAR_OK;
    for (int64_t first = 0; first < s->rows; first += s->chunks[0].rows) {
        CAR_TRY(make_logits(kernel, io, first));
        for (int64_t r = first; r < first + chunk_at(s, first)->rows; r++) {
            const float *logits = logits_of(s, io) + (r - first) * s->classes;
            float lse = 0, *aux = io->aux ? (float *)io->aux + r * CAR_HEAD_AUX : NULL;
            bool judged = !io->training && labels[r] >= 0;
            CAR_TRY(car_onednn_loss_of_row(kernel, logits, s->classes, smoothing, r, labels[r], &lse, &total));
            if (aux) {
                aux[CAR_HEAD_LSE] = lse;
                aux[CAR_HEAD_RANK] = judged ? (float)car_head_rank(logits, s->classes, labels[r]) : -1;
                aux[CAR_HEAD_ANSWER] = judged ? (float)car_head_answer(logits, s->classes) : -1;
            }
        }
    }
    int64_t counted = car_onednn_counted_rows(labels, s->rows);
    *(float *)io->out = (float)(counted ? total / (double)counted : 0);
done:
    return status;
}

/* Writes the input's gradient last, because it may share the input's buffer. */
static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const head_state *s = kernel->state;
    const int32_t *labels = io->in[1];
    int64_t counted = car_onednn_counted_rows(labels, s->rows);
    float scale = counted ? *(const float *)io->grad_out / (float)counted : 0, *logits = logits_of(s, io), lse = 0;
    double total = 0;
    car_bf16 *rounded = (car_bf16 *)(void *)((char *)io->scratch + s->rounded_offset);
    car_status status = CAR_OK;
    for (int64_t first = 0; first < s->rows; first += s->chunks[0].rows) {
        const chunk *c = chunk_at(s, first);
        const car_bf16 *x = (const car_bf16 *)io->in[0] + first * s->width;
        CAR_TRY(make_logits(kernel, io, first));
        for (int64_t r = 0; r < c->rows; r++) {
            float *g = logits + r * s->classes;
            CAR_TRY(car_onednn_head_lse(kernel, io, first + r, g, &lse, &total));
            car_onednn_loss_gradient(g, g, s->classes, kernel->op->config.head_loss.smoothing, labels[first + r], lse,
                                     scale);
            car_vector_select()->narrow(rounded + r * s->classes, g, s->classes);
        }
        CAR_TRY(car_bf16_product_run(kernel, first > 0 ? &c->add_by_weights : &c->by_weights, io->stream, io->scratch,
                                     rounded, x, NULL, io->grad_param[0]));
        if (io->grad_in[0]) {
            CAR_TRY(car_bf16_product_run(kernel, &c->by_data, io->stream, io->scratch, rounded, io->param[0], NULL,
                                         (car_bf16 *)io->grad_in[0] + first * s->width));
        }
    }
    if (io->makes_loss) {
        *(float *)io->out = (float)(counted ? total / (double)counted : 0);
    }
done:
    return status;
}

const car_kernel_class car_bf16_head_loss = {.choose = choose,
                                             .prepare = prepare,
                                             .release = release,
                                             .forward = forward,
                                             .backward = backward,
                                             .adds_grad = true};
