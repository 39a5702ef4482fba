/* Stages of one's own beside operations of the graph, with an optimizer and updates of one's own, and their checkpoints. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/checkpoint.h"
#include "engine/toy_run.h"
#include "support/expect.h"
#include "support/scratch.h"

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
    const car_linear_config hidden = {.out_features = WIDTH}, head = {.out_features = CLASSES};
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
    assert_int_equal(car_plan_validate(plan, 4), CAR_OK);
    assert_int_equal(car_program_create(graph, NULL, &program), CAR_OK);
    assert_int_equal(car_arena_create(context, 0, &arena), CAR_OK);
    car_trainer_config config = car_trainer_config_default();
    config.feed = feed_mixed;
    config.feed_user = inputs;
    assert_int_equal(car_trainer_create(plan, program, arena, &config, &trainer), CAR_OK);
    assert_int_equal(car_trainer_initialize(trainer, CAR_TOY_SEED), CAR_OK);

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

/* ---- an optimizer of one's own ---------------------------------------------------------------------------- */

static car_status descend(const car_optimizer_io *io) {
    const double *g = io->gradient;
    double *w = io->weights;
    assert_int_equal(io->dtype, CAR_F64);
    for (int64_t i = 0; i < io->count; i++) {
        w[i] -= io->lr * g[i];
    }
    return CAR_OK;
}

/* The same update for all elements and no more, in pieces and as a whole. */
static void doubles_are_updated(void **state) {
    (void)state;
    for (int elementwise = 0; elementwise < 2; elementwise++) {
        const car_optimizer_class own = {
            .name = "descent", .update = descend, .takes_doubles = true, .elementwise = elementwise};
        const car_toy_config config = {.stages = 2, .workers = 2};
        car_optimizer_config how = car_optimizer_config_default();
        car_optimizer *optimizer = NULL;
        car_toy toy;
        how.own = &own;
        car_toy_open(&toy, &config, (car_plan_config){.rule = CAR_RULE_CDP_V2}, false);
        car_toy_must(&toy, car_optimizer_create(toy.program, toy.arena, &how, &optimizer));
        size_t bytes = car_program_param_bytes(toy.program, 0);
        double *from = calloc(1, bytes), *to = calloc(1, bytes), *sum = calloc(1, bytes);
        assert_true(from && to && sum);
        for (int i = 0; i < CAR_TOY_SIZE; i++) {
            from[i] = 1;
            sum[i] = i;
        }
        car_toy_must(&toy, car_optimizer_update(optimizer, 0, 0, 0.5, 0.5, (void *)from, (void *)to, (void *)sum));
        for (int i = 0; i < CAR_TOY_SIZE; i++) {
            assert_true(to[i] == 1 - 0.25 * i);
        }
        free(sum);
        free(to);
        free(from);
        car_optimizer_destroy(optimizer);
        car_toy_close(&toy);
    }
}

/* ---- updates of one's own -------------------------------------------------------------------------------- */

/* Gradient descent on top of the calls; and a weight that is put is a weight that is read. */
static void descent_on_top(void **state) {
    const car_toy_config config = {.stages = 2, .workers = 2};
    car_plan_config plan = {.rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_SHARED, .threads = 2};
    double values[CAR_TOY_MOST], read[CAR_TOY_MOST], gradient[CAR_TOY_MOST], first = 0, loss = 0;
    car_toy toy;
    car_hub *hub = NULL;
    car_transport *transport = NULL;
    car_rank *rank = NULL;
    (void)state;
    car_toy_open(&toy, &config, plan, true);
    car_toy_must(&toy, car_hub_create(toy.context, 1, &hub));
    car_toy_must(&toy, car_hub_join(hub, toy.context, 0, &transport));
    const car_trainer_config training = car_toy_configure(&toy, 2);
    car_toy_must(&toy, car_rank_create(toy.plan, toy.program, toy.arena, transport, &training, &rank));
    car_toy_must(&toy, car_rank_initialize(rank, CAR_TOY_SEED));
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

/* ---- files ------------------------------------------------------------------------------------------------- */

typedef struct trained {
    car_toy toy;
    car_trainer *trainer;
    car_snapshot *snapshot; /* room for its state */
} trained;

static void open_trained(trained *t) {
    static const car_toy_config config = {.stages = 4, .workers = 2};
    car_plan_config plan = {.rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_SHARED, .threads = 2};
    car_toy_open(&t->toy, &config, plan, false);
    car_trainer_config training = car_toy_configure(&t->toy, 2);
    training.optimizer.kind = CAR_OPTIMIZER_ADAMW;
    training.optimizer.correction = (car_correction){.c = 0.5, .a = 1};
    training.optimizer.average = 0.9;
    car_toy_must(&t->toy, car_trainer_create(t->toy.plan, t->toy.program, t->toy.arena, &training, &t->trainer));
    car_toy_must(&t->toy, car_trainer_initialize(t->trainer, CAR_TOY_SEED));
    car_toy_must(&t->toy, car_trainer_create_snapshot(t->trainer, &t->snapshot));
}

static void close_trained(trained *t) {
    car_snapshot_destroy(t->snapshot);
    car_trainer_destroy(t->trainer);
    car_toy_close(&t->toy);
}

static void expect_same_state(trained *a, trained *b) {
    double x[CAR_TOY_SIZE] = {0}, y[CAR_TOY_SIZE] = {0};
    int parts = 0;
    car_toy_must(&a->toy, car_trainer_take_snapshot(a->trainer, a->snapshot));
    car_toy_must(&b->toy, car_trainer_take_snapshot(b->trainer, b->snapshot));
    for (int part = 0; part < CAR_SNAPSHOT_PARTS; part++) {
        for (int p = 0; p < car_graph_param_count(a->toy.graph); p++) {
            if (car_snapshot_has(a->snapshot, (car_snapshot_part)part, p)) {
                car_toy_must(&a->toy, car_snapshot_get(a->snapshot, (car_snapshot_part)part, p, x));
                car_toy_must(&b->toy, car_snapshot_get(b->snapshot, (car_snapshot_part)part, p, y));
                assert_memory_equal(x, y, sizeof x);
                parts++;
            }
        }
    }
    assert_int_equal(parts, 6 * 5); /* weights twice, moments, last gradient, average; model and stages */
}

/* Neither rounded nor read as something else. */
static void expect_other_type_refused(car_context *context, const car_checkpoint *checkpoint) {
    const car_toy_config config = {.stages = 4, .workers = 2, .floats = true};
    car_toy toy;
    car_snapshot *snapshot = NULL;
    car_weights *weights = NULL;
    bool exact = false;
    car_toy_open(&toy, &config, (car_plan_config){.rule = CAR_RULE_CDP_V1}, false);
    car_toy_must(&toy, car_snapshot_create(toy.program, toy.arena, true, 2, &snapshot));
    car_toy_must(&toy, car_weights_create(toy.program, toy.arena, &weights));
    car_expect_failure(toy.context, car_weights_load(weights, car_checkpoint_weights_path(checkpoint), NULL, NULL),
                       CAR_ERROR_UNSUPPORTED, "'model' has elements of type F64");
    car_expect_failure(context, car_checkpoint_read(checkpoint, snapshot, &exact), CAR_ERROR_SHAPE,
                       "model has type F64 in the file and floats in this model");
    car_weights_destroy(weights);
    car_snapshot_destroy(snapshot);
    car_toy_close(&toy);
}

/* Trained further after a file, to the bit as without. */
static void checkpoints_keep_doubles(void **state) {
    trained whole, first, second;
    car_scratch scratch;
    car_checkpoint *checkpoint = NULL;
    bool exact = false;
    (void)state;
    car_scratch_open(&scratch);
    open_trained(&whole);
    open_trained(&first);
    open_trained(&second);
    car_toy_must(&whole.toy, car_trainer_run(whole.trainer, 5));
    car_toy_must(&first.toy, car_trainer_run(first.trainer, 2));
    car_toy_must(&first.toy, car_trainer_take_snapshot(first.trainer, first.snapshot));
    const car_checkpoint_config config = {.directory = scratch.directory, .keep = 1};
    car_toy_must(&first.toy, car_checkpoint_write(first.toy.context, &config, first.snapshot, "{}"));
    car_toy_must(&second.toy, car_checkpoint_open(second.toy.context, scratch.directory, 2, &checkpoint));
    car_toy_must(&second.toy, car_checkpoint_read(checkpoint, second.snapshot, &exact));
    assert_true(exact);
    car_toy_must(&second.toy, car_trainer_restore(second.trainer, second.snapshot));
    expect_same_state(&first, &second);
    car_toy_must(&second.toy, car_trainer_run(second.trainer, 5));
    expect_same_state(&whole, &second);

    char wanted[65], found[65];
    car_weights *weights = car_trainer_weights(second.trainer);
    car_scratch_path path = car_scratch_in(&scratch, "weights.safetensors");
    car_toy_must(&whole.toy, car_weights_save(car_trainer_weights(whole.trainer), path.text));
    car_toy_must(&whole.toy, car_weights_digest(car_trainer_weights(whole.trainer), wanted));
    car_toy_must(&second.toy, car_trainer_initialize(second.trainer, CAR_TOY_SEED + 1));
    car_toy_must(&second.toy, car_weights_load(weights, path.text, NULL, NULL));
    car_toy_must(&second.toy, car_weights_digest(weights, found));
    assert_string_equal(wanted, found);
    expect_other_type_refused(second.toy.context, checkpoint);
    car_checkpoint_close(checkpoint);
    close_trained(&second);
    close_trained(&first);
    close_trained(&whole);
    car_scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_mix_with_operations),
        cmocka_unit_test(descent_on_top),
        cmocka_unit_test(doubles_are_updated),
        cmocka_unit_test(checkpoints_keep_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
