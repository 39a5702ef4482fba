/* A head with its loss whose forward is left out: its backward makes the same loss and the same gradients, and none that
 * is finite from a loss that is not. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rig.h"
#include "tape/internal.h"

enum { BATCH = 2, TOKENS = 7, VOCABULARY = 23, WIDTH = 12 };

static int language(car_graph *graph, car_precision precision) {
    car_graph_set_precision(graph, precision);
    int tokens = car_graph_input(graph, "tokens", (car_shape){2, {BATCH, TOKENS}}, CAR_I32);
    int labels = car_graph_input(graph, "labels", (car_shape){2, {BATCH, TOKENS}}, CAR_I32);
    int x = car_graph_embedding(graph, "wte", "wpe", tokens, VOCABULARY, TOKENS, WIDTH);
    x = car_graph_layernorm(graph, "ln", x, 1e-5);
    return car_graph_head_loss(graph, "head", x, labels, VOCABULARY, "wte.weight", 0.1);
}

static int in_floats(car_graph *graph) {
    return language(graph, CAR_PRECISION_FP32);
}

static int in_bf16(car_graph *graph) {
    return language(graph, CAR_PRECISION_BF16);
}

static void check_bits(car_net_function build, car_kernels kernels) {
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = build, .kernels = kernels, .seed = 3});
    car_rig_spoil_gradients(&rig);
    car_rig_expect_ok(&rig, car_rig_step(&rig, 1));
    float loss = car_tape_loss(rig.tape);
    unsigned char *expected = car_rig_copy_gradients(&rig);
    assert_true(isfinite(loss));
    car_rig_spoil_gradients(&rig);
    car_tape_defer_loss(rig.tape);
    int operations = car_graph_op_count(rig.graph);
    car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
    car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, operations));
    assert_true(isnan(car_tape_loss(rig.tape))); /* it was left out */
    car_rig_expect_ok(&rig, car_tape_backward(rig.tape, rig.lane, rig.weights, rig.gradients, 0, operations));
    assert_true(car_tape_loss(rig.tape) == loss);
    unsigned char *found = car_rig_copy_gradients(&rig);
    assert_memory_equal(found, expected, car_rig_gradient_bytes(&rig));
    free(found);
    free(expected);
    car_rig_close(&rig);
}

static void loss_and_gradients_have_the_same_bits(void **state) {
    (void)state;
    check_bits(in_floats, CAR_KERNELS_ONEDNN);
    check_bits(in_floats, CAR_KERNELS_REFERENCE);
    check_bits(in_bf16, CAR_KERNELS_ONEDNN);
    check_bits(in_bf16, CAR_KERNELS_REFERENCE);
}

static void evaluation_runs_forward(void **state) {
    (void)state;
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = in_floats, .kernels = CAR_KERNELS_ONEDNN, .seed = 3});
    car_tape_defer_loss(rig.tape);
    car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, false));
    car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, car_graph_op_count(rig.graph)));
    assert_true(isfinite(car_tape_loss(rig.tape)));
    car_rig_close(&rig);
}

/* What stages of one's own added to the loss makes it infinite, and no gradient of the head may count. */
static void no_gradient_of_an_infinite_loss_is_finite(void **state) {
    (void)state;
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = in_floats, .kernels = CAR_KERNELS_ONEDNN, .seed = 3});
    int operations = car_graph_op_count(rig.graph);
    car_tape_defer_loss(rig.tape);
    car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
    rig.tape->added = INFINITY;
    car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, operations));
    car_rig_expect_ok(&rig, car_tape_backward(rig.tape, rig.lane, rig.weights, rig.gradients, 0, operations));
    assert_true(isinf(car_tape_loss(rig.tape)));
    const car_op *head = car_graph_op(rig.graph, operations - 1), *norm = car_graph_op(rig.graph, operations - 2);
    const float *weights = rig.gradients->use[head->first_use], *scale = rig.gradients->use[norm->first_use];
    for (int i = 0; i < VOCABULARY * WIDTH; i++) {
        assert_true(isnan(weights[i]));
    }
    for (int i = 0; i < WIDTH; i++) {
        assert_true(isnan(scale[i]));
    }
    car_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients_have_the_same_bits),
        cmocka_unit_test(evaluation_runs_forward),
        cmocka_unit_test(no_gradient_of_an_infinite_loss_is_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
