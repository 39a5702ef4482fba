/* Weights and gradients of parameters: initial values, setting and getting, derived forms, versions, shared use. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/rig.h"

static float *canonical(const car_rig *rig, const car_weights *weights, int param, size_t *bytes) {
    *bytes = (size_t)car_shape_elements(car_graph_param(rig->graph, param)->shape) * sizeof(float);
    float *values = malloc(*bytes);
    assert_non_null(values);
    car_rig_expect_ok(rig, car_weights_get(weights, param, values));
    return values;
}

/* Whether a parameter has the same bits in two rigs. */
static bool same_values(const car_rig *a, int in_a, const car_rig *b, int in_b) {
    size_t bytes = 0, bytes_b = 0;
    float *left = canonical(a, a->weights, in_a, &bytes), *right = canonical(b, b->weights, in_b, &bytes_b);
    assert_int_equal(bytes, bytes_b);
    bool same = memcmp(left, right, bytes) == 0;
    free(left);
    free(right);
    return same;
}

/* ---- initial values -------------------------------------------------------------------------------------- */

enum { WIDE = 120, BATCH = 2 };

static int finish_wide(car_graph *graph, int x, int labels) {
    car_graph_set_init(graph, "normal.weight", (car_init){CAR_INIT_NORMAL, 0.02});
    car_graph_set_init(graph, "normal.bias", (car_init){CAR_INIT_CONSTANT, -0.75});
    return car_graph_cross_entropy(graph, "loss", x, labels, 0);
}

static int build_wide(car_graph *graph) {
    int x = car_graph_input(graph, "x", (car_shape){2, {BATCH, WIDE}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {BATCH}}, CAR_I32);
    x = car_net_linear(graph, "uniform", x, WIDE);
    x = car_net_linear(graph, "twin", x, WIDE);
    return finish_wide(graph, car_net_linear(graph, "normal", x, WIDE), labels);
}

/* The same parameters and one more, created in another order. */
static int build_wide_otherwise(car_graph *graph) {
    int labels = car_graph_input(graph, "labels", (car_shape){1, {BATCH}}, CAR_I32);
    int x = car_graph_input(graph, "x", (car_shape){2, {BATCH, WIDE}}, CAR_F32);
    x = car_graph_layernorm(graph, "more", x, 1e-5);
    x = car_net_linear(graph, "normal", x, WIDE);
    x = car_net_linear(graph, "twin", x, WIDE);
    return finish_wide(graph, car_net_linear(graph, "uniform", x, WIDE), labels);
}

static void initial_values_follow_seed_and_name(void **state) {
    (void)state;
    car_rig one, same, other, reordered;
    car_rig_open(&one, &(car_rig_config){.build = build_wide, .kernels = CAR_KERNELS_ONEDNN, .seed = 1});
    car_rig_open(&same, &(car_rig_config){.build = build_wide, .kernels = CAR_KERNELS_REFERENCE, .seed = 1});
    car_rig_open(&other, &(car_rig_config){.build = build_wide, .kernels = CAR_KERNELS_ONEDNN, .seed = 2});
    car_rig_open(&reordered,
                 &(car_rig_config){.build = build_wide_otherwise, .kernels = CAR_KERNELS_ONEDNN, .seed = 1});
    for (int p = 0; p < car_graph_param_count(one.graph); p++) {
        const car_param *param = car_graph_param(one.graph, p);
        int there = car_graph_find_param(reordered.graph, param->name);
        assert_int_not_equal(there, CAR_NONE);
        assert_true(same_values(&one, p, &same, p));
        assert_true(same_values(&one, p, &reordered, there));
        assert_int_equal(same_values(&one, p, &other, p), param->init.kind == CAR_INIT_CONSTANT);
    }
    /* Of one shape and distribution, but two names. */
    assert_false(same_values(&one, car_graph_find_param(one.graph, "uniform.weight"), &one,
                             car_graph_find_param(one.graph, "twin.weight")));
    car_rig_close(&one);
    car_rig_close(&same);
    car_rig_close(&other);
    car_rig_close(&reordered);
}

/* Six standard errors. */
static void check_moments(const car_rig *rig, const char *name, double deviation, double fourth) {
    size_t bytes = 0;
    float *values = canonical(rig, rig->weights, car_graph_find_param(rig->graph, name), &bytes);
    size_t count = bytes / sizeof(float);
    double n = (double)count, sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    free(values);
    double variance = deviation * deviation, spread = sqrt((fourth - 1) / n);
    if (fabs(sum / n) > 6 * deviation / sqrt(n) || fabs(squares / n / variance - 1) > 6 * spread) {
        fail_msg("%s: mean %g, deviation %g instead of %g", name, sum / n, sqrt(squares / n), deviation);
    }
}

static void initial_values_have_their_distribution(void **state) {
    (void)state;
    car_rig rig;
    size_t bytes = 0;
    car_rig_open(&rig, &(car_rig_config){.build = build_wide, .kernels = CAR_KERNELS_ONEDNN, .seed = 3});
    double bound = 1 / sqrt(WIDE);
    check_moments(&rig, "uniform.weight", bound / sqrt(3), 1.8); /* fourth moment over the variance squared */
    check_moments(&rig, "normal.weight", 0.02, 3);
    float *values = canonical(&rig, rig.weights, car_graph_find_param(rig.graph, "uniform.weight"), &bytes);
    float lowest = 0, highest = 0;
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        lowest = fminf(lowest, values[i]);
        highest = fmaxf(highest, values[i]);
    }
    free(values);
    assert_true((double)lowest >= -bound * 1.0001 && (double)lowest < -0.99 * bound);
    assert_true((double)highest <= bound * 1.0001 && (double)highest > 0.99 * bound);
    values = canonical(&rig, rig.weights, car_graph_find_param(rig.graph, "normal.bias"), &bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        assert_true(values[i] == -0.75F);
    }
    free(values);
    car_rig_close(&rig);
}

/* ---- accounts -------------------------------------------------------------------------------------------- */

static void bytes_are_accounted_for(void **state) {
    (void)state;
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN});
    size_t weights = 0;
    for (int p = 0; p < car_graph_param_count(rig.graph); p++) {
        weights += car_program_param_bytes(rig.program, p);
    }
    for (int l = 0; l < car_graph_op_count(rig.graph); l++) {
        weights += car_program_derived_bytes(rig.program, l);
    }
    assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_WEIGHTS), weights);
    assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_GRADIENTS), car_rig_gradient_bytes(&rig));
    assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_WORKSPACE), car_program_scratch_bytes(rig.program));
    car_rig_close(&rig);
}

/* ---- setting --------------------------------------------------------------------------------------------- */

/* A step's loss and gradients with what the rig's weights are now, to be freed. */
static unsigned char *step(const car_rig *rig, float *loss) {
    car_rig_spoil_gradients(rig);
    car_rig_expect_ok(rig, car_rig_step(rig, 4));
    *loss = car_tape_loss(rig->tape);
    return car_rig_copy_gradients(rig);
}

static void scale_stored(const car_rig *rig, car_weights *weights) {
    for (int p = 0; p < car_graph_param_count(rig->graph); p++) {
        float *data = car_weights_data(weights, p);
        for (size_t i = 0; i < car_program_param_bytes(rig->program, p) / sizeof(float); i++) {
            data[i] *= 1.5F;
        }
    }
}

/* Weights changed where they are stored, as optimizers do, and refreshed are the same as weights that were set. */
static void refreshed_weights_are_as_good_as_set_ones(void **state) {
    (void)state;
    static const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches};
    for (int i = 0; i < 3; i++) {
        car_rig rig;
        float losses[3];
        unsigned char *gradients[3];
        car_rig_open(&rig, &(car_rig_config){.build = nets[i], .kernels = CAR_KERNELS_ONEDNN});
        size_t gradient_bytes = car_rig_gradient_bytes(&rig);
        gradients[0] = step(&rig, &losses[0]);
        scale_stored(&rig, rig.weights);
        car_rig_expect_ok(&rig, car_weights_refresh(rig.weights, rig.lane, 0, car_graph_op_count(rig.graph)));
        gradients[1] = step(&rig, &losses[1]);
        assert_true(losses[0] != losses[1]);
        assert_memory_not_equal(gradients[0], gradients[1], gradient_bytes);

        car_weights *fresh = NULL;
        car_rig_expect_ok(&rig, car_weights_create(rig.program, rig.arena, &fresh));
        for (int p = 0; p < car_graph_param_count(rig.graph); p++) {
            size_t bytes = 0;
            float *values = canonical(&rig, rig.weights, p, &bytes);
            car_rig_expect_ok(&rig, car_weights_set(fresh, p, values));
            free(values);
        }
        car_weights_destroy(rig.weights);
        rig.weights = fresh;
        gradients[2] = step(&rig, &losses[2]);
        assert_true(losses[1] == losses[2]);
        assert_memory_equal(gradients[1], gradients[2], gradient_bytes);
        for (int k = 0; k < 3; k++) {
            free(gradients[k]);
        }
        car_rig_close(&rig);
    }
}

/* ---- versions -------------------------------------------------------------------------------------------- */

/* Fills `mixed` with the parameters of operations below the cut from one version, the others from another. */
static void mix(const car_rig *rig, const car_weights *low, const car_weights *high, int cut, car_weights *mixed) {
    for (int l = 0; l < car_graph_op_count(rig->graph); l++) {
        const car_op *op = car_graph_op(rig->graph, l);
        for (int p = 0; p < op->param_count; p++) {
            size_t bytes = 0;
            float *values = canonical(rig, l < cut ? low : high, op->params[p], &bytes);
            car_rig_expect_ok(rig, car_weights_set(mixed, op->params[p], values));
            free(values);
        }
    }
}

/* A range uses the weights that it is given, forward and backward, and no others. */
static void ranges_use_their_own_version(void **state) {
    (void)state;
    car_rig rig;
    car_weights *other = NULL, *mixed = NULL;
    float expected_loss = 0;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN, .seed = 1});
    int operations = car_graph_op_count(rig.graph);
    car_rig_expect_ok(&rig, car_weights_create(rig.program, rig.arena, &other));
    car_rig_expect_ok(&rig, car_weights_initialize(other, 2));
    car_rig_expect_ok(&rig, car_weights_create(rig.program, rig.arena, &mixed));
    car_weights *own = rig.weights;
    for (int cut = 1; cut < operations; cut += 4) {
        mix(&rig, own, other, cut, mixed);
        rig.weights = mixed;
        unsigned char *expected = step(&rig, &expected_loss);
        car_rig_spoil_gradients(&rig);
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 4, true));
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, own, 0, cut));
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, other, cut, operations));
        car_rig_expect_ok(&rig, car_tape_backward(rig.tape, rig.lane, other, rig.gradients, cut, operations));
        car_rig_expect_ok(&rig, car_tape_backward(rig.tape, rig.lane, own, rig.gradients, 0, cut));
        unsigned char *found = car_rig_copy_gradients(&rig);
        assert_true(car_tape_loss(rig.tape) == expected_loss);
        assert_memory_equal(found, expected, car_rig_gradient_bytes(&rig));
        free(found);
        free(expected);
    }
    rig.weights = own;
    car_weights_destroy(other);
    car_weights_destroy(mixed);
    car_rig_close(&rig);
}

/* ---- shared use ------------------------------------------------------------------------------------------ */

/* The gradient of a parameter with two uses is their sum, in ascending order. */
static void uses_are_added_up(void **state) {
    (void)state;
    car_rig rig;
    float loss = 0;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_language, .kernels = CAR_KERNELS_ONEDNN});
    free(step(&rig, &loss));
    int tied = car_graph_find_param(rig.graph, "wte.weight"), uses[4], count = 0;
    for (int use = 0; use < car_graph_use_count(rig.graph); use++) {
        if (car_graph_use_param(rig.graph, use) == tied) {
            uses[count++] = use;
        }
    }
    assert_int_equal(count, 2);
    size_t elements = (size_t)car_shape_elements(car_graph_param(rig.graph, tied)->shape);
    float *sum = malloc(elements * sizeof *sum);
    assert_non_null(sum);
    car_rig_expect_ok(&rig, car_gradients_get(rig.gradients, tied, sum));
    double first = 0, second = 0;
    for (size_t i = 0; i < elements; i++) { /* it is stored row-major */
        float a = car_gradients_data(rig.gradients, uses[0])[i], b = car_gradients_data(rig.gradients, uses[1])[i];
        assert_true(sum[i] == a + b);
        first += fabs((double)a);
        second += fabs((double)b);
    }
    assert_true(first > 0 && second > 0);
    free(sum);
    car_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initial_values_follow_seed_and_name),
        cmocka_unit_test(initial_values_have_their_distribution),
        cmocka_unit_test(bytes_are_accounted_for),
        cmocka_unit_test(refreshed_weights_are_as_good_as_set_ones),
        cmocka_unit_test(ranges_use_their_own_version),
        cmocka_unit_test(uses_are_added_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
