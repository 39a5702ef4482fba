/* Stages of one's own: what goes wrong in them, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/toy_run.h"
#include "support/expect.h"

/* ---- trouble ----------------------------------------------------------------------------------------------- */

static void expect_trouble(int fault, car_status expected, const char *message) {
    const car_toy_config config = {.stages = 4, .workers = 2, .fault = fault};
    car_plan_config plan = {.rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_SHARED, .threads = 2};
    car_toy toy;
    car_trainer *trainer = NULL;
    car_toy_open(&toy, &config, plan, true);
    const car_trainer_config training = car_toy_configure(&toy, 2);
    car_toy_must(&toy, car_trainer_create(toy.plan, toy.program, toy.arena, &training, &trainer));
    car_toy_must(&toy, car_trainer_initialize(trainer, CAR_TOY_SEED));
    assert_int_equal(car_trainer_run(trainer, 2), expected);
    if (!strstr(car_context_error(toy.context), message)) {
        fail_msg("'%s' does not say '%s'", car_context_error(toy.context), message);
    }
    car_trainer_destroy(trainer);
    car_toy_close(&toy);
}

static void trouble_ends_a_run(void **state) {
    (void)state;
    expect_trouble(CAR_TOY_FAILS, CAR_ERROR_STAGE, "stage run.1: the oscillator broke at 42");
    expect_trouble(CAR_TOY_FAILS_SILENTLY, CAR_ERROR_IO, "stage run.1: its forward failed");
    expect_trouble(CAR_TOY_WRITES_BEHIND, CAR_ERROR_STAGE,
                   "stage run.1: its forward wrote past the end of the 56 bytes of output");
    expect_trouble(CAR_TOY_WRITES_BEFORE, CAR_ERROR_STAGE,
                   "stage run.1: its backward wrote before the 56 bytes of carried_gradients");
    expect_trouble(CAR_TOY_INFINITE, CAR_ERROR_NOT_FINITE, "the loss of worker");
}

/* A loss that is not finite, though all gradients are, and none of them is of the stage that decides. */
/* ---- bad use ------------------------------------------------------------------------------------------------ */

static car_status nothing(const car_stage_io *io) {
    (void)io;
    return CAR_OK;
}

static void expect_refused(const car_stage_class *stage, const car_stage_config *config, car_status expected,
                           const char *message) {
    car_context *context = NULL;
    car_graph *graph = NULL;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_graph_create(context, &graph), CAR_OK);
    assert_int_equal(car_graph_input(graph, "data", (car_shape){1, {4}}, CAR_F32), 0);
    int out = car_graph_stage(graph, "own", stage, config);
    assert_int_equal(out, CAR_NONE);
    assert_int_equal(car_graph_finish(graph, out), expected);
    if (!strstr(car_context_error(context), message)) {
        fail_msg("'%s' does not say '%s'", car_context_error(context), message);
    }
    car_graph_destroy(graph);
    car_context_destroy(context);
}

static void bad_use_is_refused(void **state) {
    const car_stage_class good = {.forward = nothing, .backward = nothing};
    const car_stage_config none = car_stage_config_default();
    (void)state;
    car_stage_class bad = good;
    bad.backward = NULL;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "needs a forward and a backward");
    bad = good;
    bad.rebuilt_bytes = 8;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "no recompute");
    bad = good;
    bad.segments = 2;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "needs a recompute");
    bad = good;
    bad.dtype = CAR_I32;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "CAR_F32 or CAR_F64");
    bad = good;
    bad.output_bytes = 8;
    bad.output_shape = (car_shape){1, {3}};
    expect_refused(&bad, &none, CAR_ERROR_SHAPE, "output_shape has 12 bytes, but its output_bytes is 8");
    bad = good;
    bad.input_bytes = 8;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "names no input");
    expect_refused(&bad, &(car_stage_config){.input = 0}, CAR_ERROR_SHAPE,
                   "takes an input of 8 bytes, but data has 16");
    expect_refused(&good, &(car_stage_config){.input = CAR_NONE, .carried_count = 1, .carried = {0}},
                   CAR_ERROR_ARGUMENT, "was not made by car_graph_carry");
    expect_refused(&good, &(car_stage_config){.input = CAR_NONE, .data_count = 1, .data = {7}}, CAR_ERROR_ARGUMENT,
                   "not an input of the graph");
    expect_refused(&good, &(car_stage_config){.input = CAR_NONE, .data_count = 9}, CAR_ERROR_ARGUMENT, "at most");
    expect_refused(NULL, &none, CAR_ERROR_ARGUMENT, "needs a forward and a backward");
    expect_refused(&good, NULL, CAR_ERROR_ARGUMENT, "it needs a config");
    bad = good;
    bad.held_bytes = (size_t)-8;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "a size of its class is above 2^48 bytes");
    bad = good;
    bad.param_count = INT64_MAX / 2;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "a size of its class is above 2^48 bytes");
    bad = good;
    bad.forward_cost = -1;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "costs must be finite and not negative");
}

/* Plans and trainers that do not fit a chain. */
static void bad_plans_are_refused(void **state) {
    static const struct {
        car_plan_config plan;
        const char *message;
    } cases[] = {
        {{.workers = 6, .placement = CAR_PLACEMENT_REPLICA, .ranks = 4},
         "4 ranks for 6 workers: the number of ranks must divide"},
        {{.workers = 4}, "6 stages for 4 workers: the number of stages must be a multiple"},
        {{.workers = 2, .accumulate = -1}, "-1 micro-batches per step, with 2 workers; use 1 to"},
        {{.workers = 0}, "0 workers; use 1 to"},
        {{.workers = 2,
          .accumulate = 2,
          .rule = CAR_RULE_CDP_V2,
          .placement = CAR_PLACEMENT_GRID,
          .sum_order = CAR_SUM_ORDER_WORKER},
         "cannot be added by worker"},
        {{.workers = 2, .accumulate = 2, .rule = CAR_RULE_DP, .sum_order = CAR_SUM_ORDER_MICRO_BATCH},
         "or rule accumulate, which adds all micro-batches"},
    };
    const car_toy_config config = {.stages = 6, .workers = 2};
    car_toy toy;
    car_trainer *trainer = NULL;
    (void)state;
    car_toy_open(&toy, &config, (car_plan_config){.rule = CAR_RULE_CDP_V2}, true);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        car_plan *plan = NULL;
        car_expect_failure(toy.context, car_plan_create(toy.context, toy.partition, &cases[c].plan, &plan),
                           CAR_ERROR_ARGUMENT, cases[c].message);
        assert_null(plan);
    }
    car_trainer_config training = car_toy_configure(&toy, 1);
    training.feed = NULL;
    car_expect_failure(toy.context, car_trainer_create(toy.plan, toy.program, toy.arena, &training, &trainer),
                       CAR_ERROR_ARGUMENT, "a feed");
    car_toy_close(&toy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trouble_ends_a_run),
        cmocka_unit_test(bad_use_is_refused),
        cmocka_unit_test(bad_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
