/* Stages of one's own: the runtime against plain calls, over rules, threads, placements and ranks; what may go wrong. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/thread_ranks.h"
#include "engine/toy_stages.h"

enum { MOST = CAR_TOY_SIZE * (CAR_TOY_MOST_STAGES + 1), SEED = 3, RUN = 3 };

/* ---- one rank of a run ------------------------------------------------------------------------------ */

typedef struct member {
    car_toy_config config;
    car_plan_config plan;
    int threads;
    bool asks;  /* for loss and gradient on the way */
    bool clips; /* and skips what is not finite */
    car_hub *hub;
    int rank;
    /* Found. */
    int count;
    int64_t steps; /* after the questions */
    double start[MOST], end[MOST], gradient[MOST], loss, evaluated, serial_loss, serial[MOST];
} member;

static car_trainer_config configure(const car_toy *toy, int threads) {
    car_trainer_config config = car_trainer_config_default();
    config.threads = threads;
    config.feed = car_toy_feed;
    config.feed_user = (void *)(uintptr_t)toy;
    return config;
}

/* The loss and gradient of the first step; then some steps, with questions on the way if wanted. */
static void *train(void *argument) {
    member *m = argument;
    car_toy toy;
    car_transport *transport = NULL;
    car_rank *rank = NULL;
    car_toy_open(&toy, &m->config, m->plan, true);
    m->count = car_toy_count(&toy);
    car_toy_must(&toy, car_hub_join(m->hub, toy.context, m->rank, &transport));
    car_trainer_config config = configure(&toy, m->threads);
    config.clip_norm = m->clips ? 0.5 : 0;
    config.skip_nonfinite = m->clips;
    car_toy_must(&toy, car_rank_create(toy.plan, toy.program, toy.arena, transport, &config, &rank));
    car_toy_must(&toy, car_rank_initialize(rank, SEED));
    car_toy_must(&toy, car_toy_read(&toy, rank, m->start));
    car_toy_must(&toy, car_rank_evaluate(rank, &m->evaluated));
    car_toy_must(&toy, car_toy_gradient(&toy, rank, &m->loss, m->gradient));
    car_toy_serial(&toy, 0, m->start, &m->serial_loss, m->serial);
    car_toy_must(&toy, car_rank_run(rank, m->asks ? 2 : RUN));
    if (m->asks) {
        double loss, nothing[MOST];
        car_toy_must(&toy, car_rank_evaluate(rank, &loss));
        car_toy_must(&toy, car_toy_gradient(&toy, rank, &loss, nothing));
        m->steps = car_rank_steps(rank);
        car_toy_must(&toy, car_rank_run(rank, RUN));
    }
    car_toy_must(&toy, car_toy_read(&toy, rank, m->end));
    car_rank_destroy(rank);
    car_transport_close(transport);
    car_toy_close(&toy);
    return NULL;
}

/* All ranks of one process; the first one's findings are `m`'s, and all must have found the same. */
static void run(member *m) {
    static member members[CAR_THREAD_RANKS_MOST];
    pthread_t threads[CAR_THREAD_RANKS_MOST];
    car_context *context = NULL;
    int64_t devices = 0;
    car_plan_config plan = m->plan;
    plan.workers = m->config.workers;
    devices = car_plan_config_devices(&plan);
    int ranks = plan.placement == CAR_PLACEMENT_SHARED ? 1 : plan.ranks > 0 ? plan.ranks : (int)devices;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_hub_create(context, ranks, &m->hub), CAR_OK);
    for (int r = 0; r < ranks; r++) {
        members[r] = *m;
        members[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, train, &members[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        size_t bytes = (size_t)members[0].count * sizeof(double);
        assert_memory_equal(members[r].gradient, members[0].gradient, bytes);
        assert_memory_equal(members[r].end, members[0].end, bytes);
        assert_true(members[r].loss == members[0].loss && members[r].evaluated == members[0].evaluated);
    }
    *m = members[0];
    car_hub_destroy(m->hub);
    car_context_destroy(context);
}

static void expect_serial(const member *m) {
    assert_memory_equal(m->gradient, m->serial, (size_t)m->count * sizeof(double));
    assert_true(m->loss == m->serial_loss);
    assert_true(m->evaluated == m->serial_loss);
}

static member shared(car_rule rule, int workers, int stages, int threads, int segments) {
    return (member){.config = {.stages = stages, .workers = workers, .segments = segments},
                    .plan = {.rule = rule, .placement = CAR_PLACEMENT_SHARED, .threads = threads},
                    .threads = threads};
}

/* ---- equality ---------------------------------------------------------------------------------------- */

static void gradient_is_the_serial_one(void **state) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_ACCUMULATE, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int r = 0; r < 4; r++) {
        for (int threads = 1; threads <= 3; threads += 2) {
            member m = shared(rules[r], 3, 6, threads, threads == 1 ? 0 : 3);
            run(&m);
            expect_serial(&m);
        }
    }
}

/* Central differences of the loss, by every parameter of the model and one of a stage. */
static void gradient_is_the_derivative(void **state) {
    const car_toy_config config = {.stages = 4, .workers = 2, .segments = 2};
    car_plan_config plan = {.rule = CAR_RULE_ACCUMULATE, .placement = CAR_PLACEMENT_SHARED, .threads = 1};
    double values[MOST], gradient[MOST], loss = 0, up = 0, down = 0;
    car_toy toy;
    (void)state;
    car_toy_open(&toy, &config, plan, false);
    for (int n = 0; n < car_toy_count(&toy); n++) {
        values[n] = (float)(0.3 * sin(n));
    }
    car_toy_serial(&toy, 0, values, &loss, gradient);
    for (int n = 0; n <= CAR_TOY_SIZE; n++) {
        const double before = values[n], step = n < CAR_TOY_SIZE ? 1e-5 : 0x1p-10, unused = gradient[n];
        double other[MOST];
        values[n] = before + step;
        car_toy_serial(&toy, 0, values, &up, other);
        values[n] = before - step;
        car_toy_serial(&toy, 0, values, &down, other);
        values[n] = before;
        assert_true(fabs((up - down) / (2 * step) - unused) < 1e-5);
    }
    car_toy_close(&toy);
}

static void questions_change_nothing(void **state) {
    static const car_rule rules[] = {CAR_RULE_ACCUMULATE, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int r = 0; r < 3; r++) {
        member plain = shared(rules[r], 2, 4, 2, 0), asking;
        plain.clips = r > 0;
        asking = plain;
        asking.asks = true;
        run(&plain);
        run(&asking);
        assert_int_equal(asking.steps, 2);
        assert_memory_equal(plain.end, asking.end, (size_t)plain.count * sizeof(double));
    }
}

static void placements_agree(void **state) {
    static const struct {
        car_placement placement;
        int workers, stages, ranks;
    } cases[] = {
        {CAR_PLACEMENT_REPLICA, 6, 6, 2},  {CAR_PLACEMENT_REPLICA, 6, 6, 3}, {CAR_PLACEMENT_PIPELINE, 3, 6, 0},
        {CAR_PLACEMENT_PIPELINE, 4, 4, 0}, {CAR_PLACEMENT_ZERO, 3, 6, 0},    {CAR_PLACEMENT_GRID, 2, 4, 0},
    };
    static const car_rule rules[] = {CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        for (int r = 0; r < 2; r++) {
            member one = shared(rules[r], cases[c].workers, cases[c].stages, 1, 2), many = one;
            many.plan.placement = cases[c].placement;
            many.plan.ranks = cases[c].ranks;
            one.clips = many.clips = c % 2 == 0;
            many.asks = r == 1;
            run(&one);
            run(&many);
            expect_serial(&many);
            if (memcmp(one.end, many.end, (size_t)one.count * sizeof(double)) != 0) {
                fail_msg("case %d under %s: other weights than in one process", c, car_rule_text(rules[r]));
            }
        }
    }
}

/* Collectives add in any order. */
static void collectives_add_doubles(void **state) {
    static const car_placement placements[] = {CAR_PLACEMENT_REPLICA, CAR_PLACEMENT_ZERO};
    (void)state;
    for (int p = 0; p < 2; p++) {
        member m = shared(CAR_RULE_DP, 3, 3, 1, 0);
        m.config.bare = true;
        m.plan.placement = placements[p];
        run(&m);
        assert_true(fabs(m.loss - m.serial_loss) < 1e-14 * m.serial_loss);
        for (int n = 0; n < m.count; n++) {
            assert_true(fabs(m.gradient[n] - m.serial[n]) < 1e-13);
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* One micro-batch at a time needs what the curve says, to the byte, with and without what is rebuilt. */
static void memory_is_as_predicted(void **state) {
    (void)state;
    for (int segments = 0; segments <= 3; segments += 3) {
        const car_toy_config config = {.stages = 4, .workers = 2, .segments = segments};
        car_plan_config plan = {.rule = CAR_RULE_ACCUMULATE, .placement = CAR_PLACEMENT_SHARED, .threads = 1};
        car_toy toy;
        car_trainer *trainer = NULL;
        car_toy_open(&toy, &config, plan, false);
        const car_trainer_config training = configure(&toy, 1);
        car_toy_must(&toy, car_trainer_create(toy.plan, toy.program, toy.arena, &training, &trainer));
        car_toy_must(&toy, car_trainer_initialize(trainer, SEED));
        car_toy_must(&toy, car_trainer_run(trainer, 2));
        assert_int_equal(car_arena_peak(toy.arena, CAR_MEMORY_ACTIVATIONS), toy.partition->curve.peak);
        car_trainer_destroy(trainer);
        car_toy_close(&toy);
    }
}

/* ---- between operations of the graph --------------------------------------------------------------------- */

enum { ROWS = 4, WIDTH = 6, CLASSES = 3 };

/* Scales columns, with the square of the scales as a penalty. */
static car_status scale_forward(const car_stage_io *io) {
    const float *x = io->input, *p = io->params;
    float *y = io->output;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        y[i] = x[i] * p[i % WIDTH];
    }
    for (int i = 0; i < WIDTH; i++) {
        *io->loss += 0.5 * (double)p[i] * (double)p[i];
    }
    return CAR_OK;
}

static car_status scale_backward(const car_stage_io *io) {
    const float *x = io->input, *p = io->params, *dy = io->output_gradient;
    float *dx = io->input_gradient, *dp = io->param_gradients;
    for (int i = 0; i < WIDTH; i++) {
        dp[i] += p[i];
    }
    for (int i = 0; i < ROWS * WIDTH; i++) {
        dp[i % WIDTH] += dy[i] * x[i];
        dx[i] = dy[i] * p[i % WIDTH];
    }
    return CAR_OK;
}

static car_status feed_mixed(void *user, int64_t step, int worker, car_tape *tape) {
    const int *inputs = user;
    float x[ROWS * WIDTH];
    int32_t labels[ROWS];
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = (float)sin((double)(step + 3 * worker) + i);
        labels[i % ROWS] = (worker + i) % CLASSES;
    }
    car_status status = car_tape_feed(tape, inputs[0], x);
    return status == CAR_OK ? car_tape_feed(tape, inputs[1], labels) : status;
}

/* linear, a stage of one's own whose input is read by an addition too, linear, cross-entropy. */
static void stages_mix_with_operations(void **state) {
    static const car_stage_class scale = {.forward = scale_forward,
                                          .backward = scale_backward,
                                          .input_bytes = ROWS * WIDTH * sizeof(float),
                                          .output_bytes = ROWS * WIDTH * sizeof(float),
                                          .output_shape = {2, {ROWS, WIDTH}},
                                          .keeps_input = true,
                                          .param_count = WIDTH,
                                          .init = {CAR_INIT_UNIFORM, 1},
                                          .forward_cost = 2 * ROWS * WIDTH};
    const car_linear_config hidden = {.out_features = WIDTH, .tied = CAR_NONE},
                            head = {.out_features = CLASSES, .tied = CAR_NONE};
    car_plan_config plan_config = {.workers = 2, .rule = CAR_RULE_ACCUMULATE, .placement = CAR_PLACEMENT_SHARED};
    car_context *context = NULL;
    car_graph *graph = NULL;
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_program *program = NULL;
    car_arena *arena = NULL;
    car_trainer *trainer = NULL;
    int inputs[2];
    (void)state;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_graph_create(context, &graph), CAR_OK);
    inputs[0] = car_graph_input(graph, "x", (car_shape){2, {ROWS, WIDTH}}, CAR_F32);
    inputs[1] = car_graph_input(graph, "labels", (car_shape){1, {ROWS}}, CAR_I32);
    int x = car_graph_linear(graph, "first", inputs[0], &hidden);
    int y = car_graph_stage(graph, "scale", &scale, &(car_stage_config){.input = x});
    int logits = car_graph_linear(graph, "head", car_graph_add(graph, "sum", x, y), &head);
    assert_int_equal(car_graph_finish(graph, car_graph_cross_entropy(graph, "loss", logits, inputs[1], 0)), CAR_OK);
    assert_int_equal(car_partition_create(graph, &(car_partition_config){.stages = 2}, &partition), CAR_OK);
    assert_int_equal(car_plan_create(context, partition, &plan_config, &plan), CAR_OK);
    assert_int_equal(car_plan_validate(plan, 4, NULL), CAR_OK);
    assert_int_equal(car_program_create(graph, NULL, &program), CAR_OK);
    assert_int_equal(car_arena_create(context, 0, &arena), CAR_OK);
    car_trainer_config config = car_trainer_config_default();
    config.feed = feed_mixed;
    config.feed_user = inputs;
    assert_int_equal(car_trainer_create(plan, program, arena, &config, &trainer), CAR_OK);
    assert_int_equal(car_trainer_initialize(trainer, SEED), CAR_OK);

    int param = car_graph_find_param(graph, "scale.params"), first = car_graph_find_param(graph, "first.weight");
    float p[WIDTH], w[WIDTH * WIDTH], dp[WIDTH], dw[WIDTH * WIDTH];
    void *values[8] = {NULL}, *gradients[8] = {NULL};
    values[param] = p;
    values[first] = w;
    gradients[param] = dp;
    gradients[first] = dw;
    double loss = 0, up = 0, down = 0;
    assert_int_equal(car_trainer_read(trainer, values), CAR_OK);
    assert_int_equal(car_trainer_gradient(trainer, &loss, gradients), CAR_OK);
    for (int n = 0; n < 2 * WIDTH; n++) {
        float *value = n < WIDTH ? &p[n] : &w[n], before = *value;
        *value = before + 0x1p-6f;
        assert_int_equal(car_trainer_assign(trainer, (const void *const *)values), CAR_OK);
        assert_int_equal(car_trainer_evaluate(trainer, &up), CAR_OK);
        *value = before - 0x1p-6f;
        assert_int_equal(car_trainer_assign(trainer, (const void *const *)values), CAR_OK);
        assert_int_equal(car_trainer_evaluate(trainer, &down), CAR_OK);
        *value = before;
        double expected = (up - down) * 0x1p5, found = (double)(n < WIDTH ? dp[n] : dw[n]);
        if (fabs(expected - found) > 2e-4) {
            fail_msg("derivative %d is %g, and the loss says %g", n, found, expected);
        }
    }
    car_trainer_destroy(trainer);
    car_arena_destroy(arena);
    car_program_destroy(program);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_graph_destroy(graph);
    car_context_destroy(context);
}

/* ---- updates of one's own -------------------------------------------------------------------------------- */

/* Gradient descent on top of the calls; and a weight that is put is a weight that is read. */
static void descent_on_top(void **state) {
    const car_toy_config config = {.stages = 2, .workers = 2};
    car_plan_config plan = {.rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_SHARED, .threads = 2};
    double values[MOST], read[MOST], gradient[MOST], first = 0, loss = 0;
    car_toy toy;
    car_hub *hub = NULL;
    car_transport *transport = NULL;
    car_rank *rank = NULL;
    (void)state;
    car_toy_open(&toy, &config, plan, true);
    car_toy_must(&toy, car_hub_create(toy.context, 1, &hub));
    car_toy_must(&toy, car_hub_join(hub, toy.context, 0, &transport));
    const car_trainer_config training = configure(&toy, 2);
    car_toy_must(&toy, car_rank_create(toy.plan, toy.program, toy.arena, transport, &training, &rank));
    car_toy_must(&toy, car_rank_initialize(rank, SEED));
    car_toy_must(&toy, car_rank_evaluate(rank, &first));
    car_toy_must(&toy, car_toy_read(&toy, rank, values));
    for (int step = 0; step < 5; step++) {
        car_toy_must(&toy, car_toy_gradient(&toy, rank, &loss, gradient));
        for (int n = 0; n < car_toy_count(&toy); n++) {
            values[n] = (float)(values[n] - 0.05 * gradient[n]);
        }
        car_toy_must(&toy, car_toy_assign(&toy, rank, values));
        car_toy_must(&toy, car_toy_read(&toy, rank, read));
        assert_memory_equal(values, read, (size_t)car_toy_count(&toy) * sizeof(double));
    }
    car_toy_must(&toy, car_rank_evaluate(rank, &loss));
    assert_true(loss < first);
    assert_int_equal(car_rank_steps(rank), 0);
    car_rank_destroy(rank);
    car_transport_close(transport);
    car_hub_destroy(hub);
    car_toy_close(&toy);
}

/* ---- trouble ----------------------------------------------------------------------------------------------- */

static void expect_trouble(int fault, car_status expected, const char *message) {
    const car_toy_config config = {.stages = 4, .workers = 2, .fault = fault};
    car_plan_config plan = {.rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_SHARED, .threads = 2};
    car_toy toy;
    car_trainer *trainer = NULL;
    car_toy_open(&toy, &config, plan, true);
    const car_trainer_config training = configure(&toy, 2);
    car_toy_must(&toy, car_trainer_create(toy.plan, toy.program, toy.arena, &training, &trainer));
    car_toy_must(&toy, car_trainer_initialize(trainer, SEED));
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
                   "stage run.1: its forward wrote behind the 56 bytes of output");
    expect_trouble(CAR_TOY_WRITES_BEFORE, CAR_ERROR_STAGE,
                   "stage run.1: its backward wrote in front of the 56 bytes of carried_gradients");
    expect_trouble(CAR_TOY_INFINITE, CAR_ERROR_NOT_FINITE, "the loss of worker");
}

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
    expect_refused(&bad, &none, CAR_ERROR_SHAPE, "output_shape has 12 bytes, its output_bytes are 8");
    bad = good;
    bad.input_bytes = 8;
    expect_refused(&bad, &none, CAR_ERROR_ARGUMENT, "names no input");
    expect_refused(&bad, &(car_stage_config){.input = 0}, CAR_ERROR_SHAPE, "takes in 8 bytes, and data hands on 16");
    expect_refused(&good, &(car_stage_config){.input = CAR_NONE, .carried_count = 1, .carried = {0}},
                   CAR_ERROR_ARGUMENT, "not a tensor of car_graph_carry");
    expect_refused(&good, &(car_stage_config){.input = CAR_NONE, .data_count = 1, .data = {7}}, CAR_ERROR_ARGUMENT,
                   "not an input of the graph");
    expect_refused(&good, &(car_stage_config){.input = CAR_NONE, .data_count = 9}, CAR_ERROR_ARGUMENT, "at most");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_derivative), cmocka_unit_test(gradient_is_the_serial_one),
        cmocka_unit_test(questions_change_nothing),   cmocka_unit_test(placements_agree),
        cmocka_unit_test(collectives_add_doubles),    cmocka_unit_test(memory_is_as_predicted),
        cmocka_unit_test(stages_mix_with_operations), cmocka_unit_test(descent_on_top),
        cmocka_unit_test(trouble_ends_a_run),         cmocka_unit_test(bad_use_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
