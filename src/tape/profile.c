/* Measuring what operations cost: see carousel/profile.h. */
#include "carousel/profile.h"

#include <stdlib.h>

#include "base/base.h"
#include "tape/internal.h"

enum { ROUNDS = 7, WARM_UP = 1 };

typedef struct bench {
    const car_graph *graph;
    const car_program_config *config;
    car_context *context;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    car_gradients *gradients;
    car_lane *lane;
    car_tape *tape;
    double *seconds; /* [round][forward, backward][operation] */
    int ops;
} bench;

static double *measured(const bench *b, int round, bool backward, int op) {
    return &b->seconds[((size_t)round * 2 + backward) * (size_t)b->ops + (size_t)op];
}

/* Any numbers will do: time does not depend on them. Labels and tokens of 0 are always legal. */
static car_status feed(const bench *b) {
    for (int v = 0; v < car_graph_tensor_count(b->graph); v++) {
        const car_tensor *tensor = car_graph_tensor(b->graph, v);
        if (tensor->producer != CAR_NONE) {
            continue;
        }
        float *data = NULL;
        car_status status = car_context_allocate(b->context, tensor->bytes, 1, &data);
        for (size_t n = 0; status == CAR_OK && tensor->dtype == CAR_F32 && n < tensor->bytes / sizeof *data; n++) {
            data[n] = car_random_uniform(1, n) - 0.5f;
        }
        status = status == CAR_OK ? car_tape_feed(b->tape, v, data) : status;
        car_context_release(b->context, data, tensor->bytes, 1);
        if (status != CAR_OK) {
            return status;
        }
    }
    return CAR_OK;
}

static car_status run_round(const bench *b, int round) {
    bool counts = round >= WARM_UP;
    car_status status = CAR_OK;
    car_tape_begin(b->tape, 1, true);
    CAR_TRY(feed(b));
    for (int l = 0; l < b->ops; l++) {
        double started = car_clock_seconds();
        CAR_TRY(car_tape_forward(b->tape, b->lane, b->weights, l, l + 1));
        if (counts) {
            *measured(b, round - WARM_UP, false, l) = car_clock_seconds() - started;
        }
    }
    for (int l = b->ops - 1; l >= 0; l--) {
        double started = car_clock_seconds();
        CAR_TRY(car_tape_backward(b->tape, b->lane, b->weights, b->gradients, l, l + 1));
        if (counts) {
            *measured(b, round - WARM_UP, true, l) = car_clock_seconds() - started;
        }
    }
done:
    return status;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(const bench *b, bool backward, int op) {
    double values[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        values[round] = *measured(b, round, backward, op);
    }
    car_sort(values, ROUNDS, sizeof values[0], compare);
    return values[ROUNDS / 2];
}

static car_status set_up(bench *b) {
    car_status status = CAR_OK;
    CAR_TRY(car_program_create(b->graph, b->config, &b->program));
    CAR_TRY(car_arena_create(b->context, 0, &b->arena));
    CAR_TRY(car_weights_create(b->program, b->arena, &b->weights));
    CAR_TRY(car_gradients_create(b->program, b->arena, &b->gradients));
    CAR_TRY(car_lane_create(b->program, b->arena, &b->lane));
    CAR_TRY(car_tape_create(b->program, b->arena, &b->tape));
    car_tape_defer_loss(b->tape); /* as ranks do */
    CAR_TRY(car_context_allocate(b->context, (size_t)b->ops * 2 * ROUNDS, sizeof(double), &b->seconds));
    CAR_TRY(car_weights_initialize(b->weights, 1));
done:
    return status;
}

static void tear_down(bench *b) {
    car_context_release(b->context, b->seconds, (size_t)b->ops * 2 * ROUNDS, sizeof(double));
    car_tape_destroy(b->tape);
    car_lane_destroy(b->lane);
    car_gradients_destroy(b->gradients);
    car_weights_destroy(b->weights);
    car_arena_destroy(b->arena);
    car_program_destroy(b->program);
}

static car_status store(const bench *b, car_costs *out) {
    car_status status = car_costs_from_flops(b->graph, out);
    for (int l = 0; status == CAR_OK && l < b->ops; l++) {
        out->forward[l] = median(b, false, l);
        out->backward[l] = median(b, true, l);
    }
    return status;
}

car_status car_costs_measure(const car_graph *graph, const car_program_config *program, car_profile_function progress,
                             void *user, car_costs *out) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(car_graph_context(graph), out);
    const car_program_config plain = car_program_config_default();
    bench b = {.graph = graph,
               .config = program ? program : &plain,
               .context = car_graph_context(graph),
               .ops = car_graph_op_count(graph)};
    car_status status = CAR_OK;
    *out = (car_costs){0};
    CAR_TRY(set_up(&b));
    for (int round = 0; round < WARM_UP + ROUNDS; round++) {
        if (progress) {
            progress(user, round, WARM_UP + ROUNDS);
        }
        CAR_TRY(run_round(&b, round));
    }
    CAR_TRY(store(&b, out));
done:
    tear_down(&b);
    return status;
}
