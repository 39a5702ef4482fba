/* Evaluates a model with several threads, each taking the next micro-batch. Results are kept by batch and added in
 * order, so that the sum does not depend on which thread computed what. */
#include "carousel/evaluate.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/base.h"
#include "base/sha256.h"
#include "kernels/vector/vector.h"
#include "tape/internal.h"

typedef struct batch_result {
    double loss;
    int64_t rows, top1, top5;
    double metric, weight; /* of the user's own metric */
} batch_result;

typedef struct evaluation {
    const car_program *program;
    car_arena *arena;
    const car_weights *weights;
    car_evaluate_config config;
    pthread_mutex_t *lock; /* guards the counts */
    batch_result *results;
    atomic_llong next;
    atomic_int status;           /* of the first failure */
    char error[CAR_ERROR_BYTES]; /* its message */
} evaluation;

/* Labels come from the caller's feed and select a logit, so they are checked before use. */
static car_status check_labels(const evaluation *e, const car_tape *tape, int64_t batch) {
    const car_graph *graph = car_program_graph(e->program);
    const car_op *loss = car_graph_op(graph, car_graph_op_count(graph) - 1);
    int64_t classes = car_graph_classes(graph);
    int64_t rows = car_shape_elements(car_graph_tensor(graph, loss->inputs[1])->shape);
    const int32_t *labels = car_tape_tensor(tape, loss->inputs[1]);
    if (!labels) {
        return car_context_fail(car_program_context(e->program), CAR_ERROR_ARGUMENT,
                                "evaluation: micro-batch %lld was not fed any labels", (long long)batch);
    }
    for (int64_t r = 0; r < rows; r++) {
        if (labels[r] >= classes) {
            return car_context_fail(
                car_program_context(e->program), CAR_ERROR_ARGUMENT,
                "evaluation: label %d in row %lld of micro-batch %lld is out of range; there are %lld classes",
                (int)labels[r], (long long)r, (long long)batch, (long long)classes);
        }
    }
    return CAR_OK;
}

/* Row r of the logits as floats; `room` holds one row. */
static const float *logits_at(const evaluation *e, const car_tape *tape, int64_t classes, int64_t r, float *room) {
    const car_graph *graph = car_program_graph(e->program);
    const void *values = car_tape_tensor(tape, car_graph_logits(graph));
    if (car_graph_tensor(graph, car_graph_logits(graph))->dtype == CAR_F32) {
        return (const float *)values + r * classes;
    }
    car_vector_select()->widen(room, (const car_bf16 *)values + r * classes, classes);
    return room;
}

/* For one counted row: the rank of its label, and the model's answer. */
typedef struct verdict {
    int rank;
    int64_t answer;
} verdict;

static verdict judge(const evaluation *e, const car_tape *tape, int64_t row, int32_t label, float *room) {
    const car_graph *graph = car_program_graph(e->program);
    int64_t classes = car_graph_classes(graph);
    int logits = car_graph_logits(graph);
    if (logits == CAR_NONE) { /* the fused head has computed this already, chunk by chunk */
        int aux = car_graph_op(graph, car_graph_op_count(graph) - 1)->aux;
        const float *found = (const float *)car_tape_tensor(tape, aux) + row * CAR_HEAD_AUX;
        return (verdict){(int)found[CAR_HEAD_RANK], (int64_t)found[CAR_HEAD_ANSWER]};
    }
    const float *values = logits_at(e, tape, classes, row, room);
    return (verdict){car_head_rank(values, classes, label), e->config.counts ? car_head_answer(values, classes) : 0};
}

static void count_rows(const evaluation *e, const car_tape *tape, float *room, batch_result *result) {
    const car_graph *graph = car_program_graph(e->program);
    const car_op *loss = car_graph_op(graph, car_graph_op_count(graph) - 1);
    int64_t rows = car_shape_elements(car_graph_tensor(graph, loss->inputs[1])->shape);
    const int32_t *labels = car_tape_tensor(tape, loss->inputs[1]);
    if (e->config.counts) {
        pthread_mutex_lock(e->lock);
    }
    for (int64_t r = 0; r < rows; r++) {
        if (labels[r] >= 0) {
            verdict v = judge(e, tape, r, labels[r], room);
            result->rows++;
            result->top1 += v.rank < 1;
            result->top5 += v.rank < CAR_HEAD_MOST_RANK;
            if (e->config.counts) {
                e->config.counts[labels[r] * car_graph_classes(graph) + v.answer]++;
            }
        }
    }
    if (e->config.counts) {
        pthread_mutex_unlock(e->lock);
    }
}

/* `room` must hold all rows if the logits are not floats. */
static car_status measure(const evaluation *e, const car_tape *tape, int64_t batch, float *room, batch_result *result) {
    const car_graph *graph = car_program_graph(e->program);
    const car_op *loss = car_graph_op(graph, car_graph_op_count(graph) - 1);
    int64_t rows = car_shape_elements(car_graph_tensor(graph, loss->inputs[1])->shape);
    int64_t classes = car_graph_classes(graph);
    const float *logits = logits_at(e, tape, classes, 0, room);
    for (int64_t r = 1; logits == room && r < rows; r++) {
        logits_at(e, tape, classes, r, room + r * classes);
    }
    const car_metric_io io = {.user = e->config.metric_user,
                              .batch = batch,
                              .rows = rows,
                              .classes = classes,
                              .logits = logits,
                              .labels = car_tape_tensor(tape, loss->inputs[1]),
                              .sum = &result->metric,
                              .weight = &result->weight,
                              .context = car_program_context(e->program)};
    car_status status = e->config.metric(&io);
    return status == CAR_OK
               ? CAR_OK
               : car_context_fail(io.context, status, "evaluation: the metric of micro-batch %lld failed: %s",
                                  (long long)batch, car_status_text(status));
}

/* The loss summed over rows; the loss of a batch is their mean. */
static double weigh_loss(const car_tape *tape, const batch_result *result) {
    return result->rows ? (double)car_tape_loss(tape) * (double)result->rows : 0;
}

static car_status run_batches(evaluation *e) {
    int ops = car_graph_op_count(car_program_graph(e->program));
    car_context *context = car_program_context(e->program);
    size_t room_floats = (size_t)car_graph_classes(car_program_graph(e->program));
    car_lane *lane = NULL;
    car_tape *tape = NULL;
    float *room = NULL;
    car_status status = CAR_OK;
    if (e->config.metric) {
        room_floats = (size_t)car_shape_elements(
            car_graph_tensor(car_program_graph(e->program), car_graph_logits(car_program_graph(e->program)))->shape);
    }
    CAR_TRY(car_context_allocate(context, room_floats, sizeof *room, &room));
    CAR_TRY(car_lane_create(e->program, e->arena, &lane));
    CAR_TRY(car_tape_create(e->program, e->arena, &tape));
    for (;;) {
        int64_t batch = atomic_fetch_add(&e->next, 1);
        if (batch >= e->config.batches || atomic_load(&e->status) != CAR_OK) {
            break;
        }
        car_tape_begin(tape, 0, false);
        CAR_TRY(e->config.feed(e->config.feed_user, batch, 0, tape));
        CAR_TRY(check_labels(e, tape, batch));
        /* Labels are alive until the loss has read them; after a fused head and loss they stay. */
        bool fused = car_graph_logits(car_program_graph(e->program)) == CAR_NONE;
        int before = fused ? ops : ops - 1;
        CAR_TRY(car_tape_forward(tape, lane, e->weights, 0, before));
        count_rows(e, tape, room, &e->results[batch]);
        if (e->config.metric) {
            CAR_TRY(measure(e, tape, batch, room, &e->results[batch]));
        }
        CAR_TRY(car_tape_forward(tape, lane, e->weights, before, ops));
        e->results[batch].loss = weigh_loss(tape, &e->results[batch]);
    }
done:
    car_tape_destroy(tape);
    car_lane_destroy(lane);
    car_context_release(context, room, room ? room_floats : 0, sizeof *room);
    return status;
}

/* A failure belongs to the caller of the evaluation, not to a training that runs at the same time. */
static void *evaluate_thread(void *argument) {
    evaluation *e = argument;
    car_context *context = car_program_context(e->program);
    car_error_scope scope;
    int none = CAR_OK;
    car_context_open_scope(context, &scope);
    car_status status = run_batches(e);
    if (status != CAR_OK && atomic_compare_exchange_strong(&e->status, &none, (int)status)) {
        memcpy(e->error, scope.error, sizeof e->error);
    }
    car_context_close_scope(context, &scope);
    return NULL;
}

static void run_threads(evaluation *e, pthread_t *handles, int threads) {
    int started = 0;
    while (started < threads - 1 && pthread_create(&handles[started], NULL, evaluate_thread, e) == 0) {
        started++;
    }
    evaluate_thread(e); /* the caller is one of them */
    while (started > 0) {
        pthread_join(handles[--started], NULL);
    }
}

car_status car_evaluate(const car_program *program, car_arena *arena, const car_weights *weights, int threads,
                        int64_t batches, car_feed_function feed, void *feed_user, car_evaluation *out) {
    return car_evaluate_with(
        program, arena, weights,
        &(car_evaluate_config){.threads = threads, .batches = batches, .feed = feed, .feed_user = feed_user}, out);
}

car_status car_evaluate_check(const car_graph *graph, car_metric_function metric) {
    if (car_graph_classes(graph) == 0) {
        return car_context_fail(
            car_graph_context(graph), CAR_ERROR_UNSUPPORTED,
            "this graph ends in a custom stage, so it has no logits to evaluate: use car_trainer_evaluate");
    }
    if (metric && car_graph_logits(graph) == CAR_NONE) {
        return car_context_fail(car_graph_context(graph), CAR_ERROR_UNSUPPORTED,
                                "a custom metric needs the logits, but this graph's head never stores all of them");
    }
    return CAR_OK;
}

car_status car_evaluate_with(const car_program *program, car_arena *arena, const car_weights *weights,
                             const car_evaluate_config *config, car_evaluation *out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(car_program_context(program), arena);
    CAR_REQUIRE(car_program_context(program), weights);
    CAR_REQUIRE(car_program_context(program), config);
    CAR_REQUIRE(car_program_context(program), out);
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    car_context *context = car_program_context(program);
    evaluation e = {.program = program, .arena = arena, .weights = weights, .config = *config, .lock = &lock};
    int threads = config->threads;
    int64_t batches = config->batches;
    double weight = 0;
    pthread_t *handles = NULL;
    car_status status = CAR_OK;
    *out = (car_evaluation){0};
    if (threads < 1 || batches < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "an evaluation needs at least one thread and one micro-batch");
    }
    CAR_TRY(car_evaluate_check(car_program_graph(program), config->metric));
    CAR_TRY(car_context_allocate(context, (size_t)threads, sizeof *handles, &handles));
    CAR_TRY(car_context_allocate(context, (size_t)batches, sizeof *e.results, &e.results));
    run_threads(&e, handles, threads);
    status = (car_status)atomic_load(&e.status);
    if (status != CAR_OK) {
        CAR_TRY(e.error[0] ? car_context_fail(context, status, "%s", e.error) : status);
    }
    for (int64_t b = 0; b < batches; b++) {
        out->loss += e.results[b].loss;
        out->rows += e.results[b].rows;
        out->top1 += (double)e.results[b].top1;
        out->top5 += (double)e.results[b].top5;
        out->metric += e.results[b].metric;
        weight += e.results[b].weight;
    }
    double rows = out->rows > 0 ? (double)out->rows : 1;
    out->loss /= rows;
    out->top1 /= rows;
    out->top5 /= rows;
    out->metric = weight != 0 ? out->metric / weight : 0;
done:
    car_context_release(context, e.results, (size_t)batches, sizeof *e.results);
    car_context_release(context, handles, (size_t)threads, sizeof *handles);
    return status;
}

car_status car_weights_digest(const car_weights *weights, char *text) {
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(car_program_context(weights->program), text);
    const car_graph *graph = car_program_graph(weights->program);
    car_context *context = car_program_context(weights->program);
    car_sha256 sha = car_sha256_begin();
    car_status status = CAR_OK;
    for (int p = 0; status == CAR_OK && p < car_graph_param_count(graph); p++) {
        const car_param *param = car_graph_param(graph, p);
        size_t bytes = (size_t)car_shape_elements(param->shape) * car_dtype_bytes(param->dtype);
        void *values = NULL;
        status = car_context_allocate(context, bytes, 1, &values);
        if (status == CAR_OK) {
            status = car_weights_get(weights, p, values);
            car_sha256_add(&sha, values, bytes);
        }
        car_context_release(context, values, bytes, 1);
    }
    car_sha256_end(&sha, text);
    return status;
}
