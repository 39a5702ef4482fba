/* SGD against PyTorch's definition written out in double, and the synthetic task. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/data.h"
#include "carousel/model.h"
#include "carousel/optimizer.h"

typedef struct fixture {
    car_context *context;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    car_gradients *gradients;
    car_optimizer *optimizer;
    car_lane *lane;
} fixture;

/* x -> linear(3) -> loss, small enough to follow by hand; a batch norm's statistics in the other one. */
static void set_up(fixture *f, const car_optimizer_config *config, bool image) {
    assert_int_equal(car_context_create(NULL, &f->context), CAR_OK);
    assert_int_equal(car_graph_create(f->context, &f->graph), CAR_OK);
    int x = image ? car_graph_input(f->graph, "x", (car_shape){4, {2, 3, 2, 2}}, CAR_F32)
                  : car_graph_input(f->graph, "x", (car_shape){2, {2, 5}}, CAR_F32);
    if (image) {
        x = car_graph_batchnorm(f->graph, "bn", x,
                                &(car_batchnorm_config){.residual = CAR_NONE, .eps = 1e-5, .momentum = 0.25});
        x = car_graph_global_avgpool(f->graph, "pool", x);
    }
    x = car_graph_linear(f->graph, "fc", x, &(car_linear_config){.out_features = 3, .bias = true, .tied = CAR_NONE});
    int labels = car_graph_input(f->graph, "labels", (car_shape){1, {2}}, CAR_I32);
    assert_int_equal(car_graph_finish(f->graph, car_graph_cross_entropy(f->graph, "loss", x, labels, 0)), CAR_OK);
    assert_int_equal(car_program_create(f->graph, NULL, &f->program), CAR_OK);
    assert_int_equal(car_arena_create(f->context, 0, &f->arena), CAR_OK);
    assert_int_equal(car_weights_create(f->program, f->arena, &f->weights), CAR_OK);
    assert_int_equal(car_weights_initialize(f->weights, 3), CAR_OK);
    assert_int_equal(car_gradients_create(f->program, f->arena, &f->gradients), CAR_OK);
    assert_int_equal(car_optimizer_create(f->program, f->arena, config, &f->optimizer), CAR_OK);
    assert_int_equal(car_lane_create(f->program, f->arena, &f->lane), CAR_OK);
}

static void tear_down(fixture *f) {
    car_lane_destroy(f->lane);
    car_optimizer_destroy(f->optimizer);
    car_gradients_destroy(f->gradients);
    car_weights_destroy(f->weights);
    car_arena_destroy(f->arena);
    car_program_destroy(f->program);
    car_graph_destroy(f->graph);
    car_context_destroy(f->context);
}

enum { COUNT = 15, STEPS = 4 };

/* One weight after some steps, by the definition. */
static double expected_weight(double w, const double *gradients, const car_optimizer_config *config, double lr) {
    double m = 0;
    for (int t = 0; t < STEPS; t++) {
        double g = gradients[t] + config->weight_decay * w;
        m = t == 0 ? g : config->momentum * m + g;
        w -= lr * (config->nesterov ? g + config->momentum * m : m);
    }
    return w;
}

static void check_sgd(car_optimizer_config config) {
    fixture f = {0};
    float start[COUNT], end[COUNT];
    double given[COUNT][STEPS];
    set_up(&f, &config, false);
    int param = car_graph_find_param(f.graph, "fc.weight");
    assert_int_equal(car_weights_get(f.weights, param, start), CAR_OK);
    for (int t = 0; t < STEPS; t++) {
        for (int i = 0; i < COUNT; i++) {
            given[i][t] = (i - 7) * 0.1 + t * 0.03;
            car_gradients_data(f.gradients, 0)[i] = (float)given[i][t];
        }
        assert_int_equal(car_optimizer_step(f.optimizer, f.lane, f.weights, f.gradients, 0.1), CAR_OK);
    }
    assert_int_equal(car_weights_get(f.weights, param, end), CAR_OK);
    for (int i = 0; i < COUNT; i++) {
        assert_true(fabs(end[i] - expected_weight(start[i], given[i], &config, 0.1)) < 1e-6);
    }
    tear_down(&f);
}

static void test_sgd(void **state) {
    (void)state;
    check_sgd((car_optimizer_config){0});
    check_sgd((car_optimizer_config){.momentum = 0.9});
    check_sgd((car_optimizer_config){.momentum = 0.9, .weight_decay = 0.1});
    check_sgd((car_optimizer_config){.momentum = 0.8, .weight_decay = 0.1, .nesterov = true});
}

static void test_statistics_move(void **state) {
    (void)state;
    fixture f = {0};
    float mean[3], variance[3];
    set_up(&f, &(car_optimizer_config){.weight_decay = 0.5}, true);
    int op_use = car_graph_op(f.graph, 0)->first_use;
    for (int c = 0; c < 3; c++) {
        car_gradients_data(f.gradients, op_use + 2)[c] = 4.0f * (float)c;
        car_gradients_data(f.gradients, op_use + 3)[c] = 3.0f;
    }
    assert_int_equal(car_optimizer_step(f.optimizer, f.lane, f.weights, f.gradients, 0.1), CAR_OK);
    assert_int_equal(car_weights_get(f.weights, car_graph_find_param(f.graph, "bn.running_mean"), mean), CAR_OK);
    assert_int_equal(car_weights_get(f.weights, car_graph_find_param(f.graph, "bn.running_var"), variance), CAR_OK);
    for (int c = 0; c < 3; c++) {
        assert_float_equal(mean[c], (float)c, 1e-6); /* 0.75 * 0 + 0.25 * 4c */
        assert_float_equal(variance[c], 1.5f, 1e-6); /* 0.75 * 1 + 0.25 * 3 */
    }
    tear_down(&f);
}

static void test_synthetic(void **state) {
    (void)state;
    enum { BATCH = 64, SIZE = 8 };
    static float one[BATCH * 3 * SIZE * SIZE], two[BATCH * 3 * SIZE * SIZE];
    int32_t labels[BATCH], again[BATCH];
    car_synthetic source = {.seed = 5, .task = CAR_TASK_IMAGES};
    source.config = (car_model_config){.batch = BATCH, .classes = 4, .image_size = SIZE, .channels = 3};
    car_synthetic_batch(&source, 100, one, labels);
    int seen[4] = {0};
    for (int b = 0; b < BATCH; b++) {
        assert_in_range(labels[b], 0, 3);
        seen[labels[b]]++;
    }
    for (int c = 0; c < 4; c++) {
        assert_true(seen[c] > 4); /* 16 expected */
    }
    /* A sample depends on its number, not on the batch it comes in. */
    source.config.batch = 1;
    car_synthetic_batch(&source, 107, two, again);
    assert_int_equal(again[0], labels[7]);
    assert_memory_equal(two, one + 7 * 3 * SIZE * SIZE, 3 * SIZE * SIZE * sizeof(float));
    source.seed = 6;
    car_synthetic_batch(&source, 107, two, again);
    assert_memory_not_equal(two, one + 7 * 3 * SIZE * SIZE, 3 * SIZE * SIZE * sizeof(float));
}

static void test_synthetic_tokens(void **state) {
    (void)state;
    enum { BATCH = 16, LENGTH = 64, WORDS = 10 };
    int32_t tokens[BATCH * LENGTH], labels[BATCH * LENGTH], follower[WORDS][WORDS] = {{0}};
    car_synthetic source = {.seed = 5, .task = CAR_TASK_TOKENS};
    source.config = (car_model_config){.batch = BATCH, .vocabulary = WORDS, .seq_len = LENGTH};
    car_synthetic_batch(&source, 0, tokens, labels);
    for (int i = 0; i < BATCH * LENGTH; i++) {
        assert_in_range(tokens[i], 0, WORDS - 1);
        if (i % LENGTH < LENGTH - 1) {
            assert_int_equal(labels[i], tokens[i + 1]);
        }
        follower[tokens[i]][labels[i]]++;
    }
    /* Each token has one successor that is taken most of the time. */
    int rows = 0, most = 0;
    for (int a = 0; a < WORDS; a++) {
        int best = 0;
        for (int b = 0; b < WORDS; b++) {
            rows += follower[a][b];
            best = follower[a][b] > best ? follower[a][b] : best;
        }
        most += best;
    }
    assert_true(most > rows * 7 / 10 && most < rows * 95 / 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_statistics_move),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_synthetic_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
