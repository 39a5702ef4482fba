/* Frozen parameters, rates of their own, and the moving average, by their definitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/arithmetic.h"
#include "engine/internal.h"
#include "support/rig.h"

static const car_rig_config resnet = {.model = "resnet20",
                                      .model_config = {.batch = 2, .classes = 3, .image_size = 8, .width = 8}};

static int param(const car_rig *rig, const char *name) {
    int found = car_graph_find_param(rig->graph, name);
    assert_true(found != CAR_NONE);
    return found;
}

static void statistics_follow_their_layer(void **state) {
    (void)state;
    const car_param_rule by_name[] = {{.pattern = "layer1.*", .frozen = true}};
    const car_param_rule affine[] = {{.pattern = "bn1.weight", .frozen = true},
                                     {.pattern = "bn1.bias", .frozen = true}};
    const car_param_rule half[] = {{.pattern = "bn1.weight", .frozen = true}};
    car_optimizer_config config = car_optimizer_config_default();
    car_rig rig;
    car_rig_open(&rig, &resnet);
    config.average = 0.9;
    config.rules = by_name;
    config.rule_count = 1;
    assert_true(car_optimizer_freezes(&config, rig.graph, param(&rig, "layer1.0.conv1.weight")));
    assert_true(car_optimizer_freezes(&config, rig.graph, param(&rig, "layer1.0.bn1.running_mean")));
    assert_false(car_optimizer_freezes(&config, rig.graph, param(&rig, "layer2.0.bn1.running_mean")));
    assert_int_equal(car_optimizer_param_states(&config, rig.graph, param(&rig, "layer1.0.conv1.weight")), 0);
    assert_int_equal(car_optimizer_param_states(&config, rig.graph, param(&rig, "layer2.0.conv1.weight")), 2);
    assert_int_equal(car_optimizer_param_states(&config, rig.graph, param(&rig, "layer2.0.bn1.running_mean")), 1);
    config.rules = affine;
    config.rule_count = 2;
    assert_true(car_optimizer_freezes(&config, rig.graph, param(&rig, "bn1.running_var")));
    config.rules = half;
    config.rule_count = 1;
    assert_false(car_optimizer_freezes(&config, rig.graph, param(&rig, "bn1.running_var")));
    car_rig_close(&rig);
}

static void wrong_rules_are_refused(void **state) {
    (void)state;
    const car_param_rule none[] = {{.pattern = "layer9.*", .lr_scale = 2}}, all[] = {{.pattern = "*", .frozen = true}};
    car_optimizer_config config = car_optimizer_config_default();
    car_rig rig;
    car_rig_open(&rig, &resnet);
    config.rule_count = 1;
    config.rules = none;
    car_rig_expect_failure(&rig, car_optimizer_check(&config, rig.graph), CAR_ERROR_ARGUMENT,
                           "no parameter matches 'layer9.*'");
    config.rules = all;
    car_rig_expect_failure(&rig, car_optimizer_check(&config, rig.graph), CAR_ERROR_ARGUMENT, "nothing to train");
    car_rig_close(&rig);
}

/* Three updates of a head, whose parameters are stored as they are. */
static void averages_and_rates_are_what_they_say(void **state) {
    (void)state;
    enum { UPDATES = 3 };
    const car_param_rule rules[] = {{.pattern = "fc.*", .lr_scale = 7}, {.pattern = "fc.bias", .lr_scale = 0.5}};
    car_optimizer_config config = car_optimizer_config_default();
    car_optimizer *optimizer = NULL;
    car_rig rig;
    car_rig_open(&rig, &resnet);
    config.momentum = 0;
    config.average = 0.75;
    config.rules = rules;
    config.rule_count = 2;
    car_rig_expect_ok(&rig, car_optimizer_create(rig.program, rig.arena, &config, &optimizer));
    int p = param(&rig, "fc.bias");
    const car_op *op = car_graph_op(rig.graph, car_graph_op_count(rig.graph) - 2);
    assert_int_equal(op->params[1], p);
    float *w = car_weights_data(rig.weights, p), gradient[16];
    int64_t stored = (int64_t)(car_program_param_bytes(rig.program, p) / sizeof(float));
    assert_in_range(stored, 3, 16);
    float w0 = w[0], w2 = w[2];
    double weight = (double)w[0], average = weight;
    for (int u = 0; u < UPDATES; u++) {
        const car_renewal renewal = {.optimizer = optimizer, .update = u, .lr = 0.5, .scale = 1, .batches = 1};
        for (int i = 0; i < 16; i++) {
            gradient[i] = (float)(u + 1);
        }
        /* In place, and in two ranges. */
        car_rig_expect_ok(&rig, car_engine_renew(rig.program, op, 1, 0, 2, &renewal, w, w, gradient));
        car_rig_expect_ok(&rig, car_engine_renew(rig.program, op, 1, 2, stored - 2, &renewal, w, w, gradient));
        weight -= 0.5 * 0.5 * (u + 1);
        average = 0.75 * average + 0.25 * weight;
        assert_true(fabs((double)w[0] - weight) < 1e-6);
        assert_true(fabs((double)w[2] - (double)w2 - (weight - (double)w0)) < 1e-6);
        assert_true(fabs((double)car_optimizer_state(optimizer, CAR_OPTIMIZER_AVERAGE, p)[0] - average) < 1e-6);
    }
    car_optimizer_destroy(optimizer);
    car_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_follow_their_layer),
        cmocka_unit_test(wrong_rules_are_refused),
        cmocka_unit_test(averages_and_rates_are_what_they_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
