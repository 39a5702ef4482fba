/* A plan's step on a described cluster: against the simulator of self-timed execution where messages are free, and
 * against what can be worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "carousel/cluster.h"
#include "carousel/predict.h"
#include "support/common.h"
#include "support/expect.h"
#include "support/plans.h"

static const car_cluster plain = {.devices_per_node = 1, .flops = 1, .between = {1e9, 1e-6}};

static car_timing time_plan(const car_partition *partition, car_plan_config config, const car_cluster *cluster,
                            double compute) {
    car_plan *plan = car_plans_make(partition, config);
    car_timing timing;
    car_common_expect_ok(car_plan_time(plan, cluster, compute, &timing));
    car_plan_destroy(plan);
    return timing;
}

static bool is_possible(car_rule rule, car_placement placement) {
    bool pipeline = rule == CAR_RULE_GPIPE || rule == CAR_RULE_1F1B || rule == CAR_RULE_2BW;
    return placement != CAR_PLACEMENT_SHARED && rule != CAR_RULE_ACCUMULATE &&
           (!pipeline || placement == CAR_PLACEMENT_PIPELINE);
}

/* ---- without a network ----------------------------------------------------------------------- */

/* Two programs that share nothing but the table and the clock must find the same steady state. */
static void free_messages_agree_with_the_simulator(void **state) {
    (void)state;
    static const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches};
    for (int n = 0; n < 3; n++) {
        car_plans_model model = car_plans_open_net(nets[n], 8);
        for (int c = 0; c < CAR_RULES * CAR_PLACEMENTS; c++) {
            car_plan_config config = {.workers = 4, .rule = c % CAR_RULES, .placement = c / CAR_RULES};
            if (!is_possible(config.rule, config.placement)) {
                continue;
            }
            car_plan *plan = car_plans_make(model.partition, config);
            car_simulation simulation;
            car_common_expect_ok(car_plan_simulate(plan, &(car_simulation_config){.steps = 12}, &simulation));
            double step = time_plan(model.partition, config, &plain, 3).free_step;
            /* Under zero the simulator lets one user have a version at a time, here it passes on when it may. */
            double apart = config.placement == CAR_PLACEMENT_ZERO ? 0.08 : 0.02;
            if (fabs(step / 3 - simulation.step_time) > apart * simulation.step_time) {
                fail_msg("net %d, %s over %s: %.4f of a worker's step, the simulator has %.4f", n,
                         car_rule_text(config.rule), car_placement_text(config.placement), step / 3,
                         simulation.step_time);
            }
            car_plan_destroy(plan);
        }
        car_plans_close_model(&model);
    }
}

/* ---- by hand --------------------------------------------------------------------------------- */

static double weights_of(const car_partition *partition) {
    double bytes = 0;
    for (int b = 0; b < partition->bundle_count; b++) {
        bytes += (double)partition->bundles[b].bytes;
    }
    return bytes;
}

/* All gradients are in one bucket, which is full after the last backward: nothing hides the ring. */
static void dp_adds_a_ring(void **state) {
    (void)state;
    car_plans_model model = car_plans_open_net(car_net_residual, 4);
    car_plan_config config = {.workers = 4, .rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_REPLICA};
    car_cluster slow = {.devices_per_node = 1, .flops = 1, .between = {1e6, 1e-3}};
    double bytes = weights_of(model.partition), ring = 2 * 3 * (1e-3 + bytes / 4 / 1e6);
    car_timing t = time_plan(model.partition, config, &slow, 0.5);
    car_expect_near(t.free_step, 0.5, 1e-9);
    car_expect_near(t.step, 0.5 + ring, 1e-9);
    car_expect_near(t.exposed, ring, 1e-9);
    car_expect_near(t.bytes, 2 * 3 * bytes, 1);
    car_expect_near(t.mean_rate, 2 * 3 * bytes / t.step, 1);
    car_expect_near(t.peak_rate, 2 * 3 * bytes / ring, 1);
    car_plans_close_model(&model);
}

/* All of a pipeline's micro-batches pass all its cuts twice; the first way in and the last way out are not hidden. */
static void a_pipeline_waits_for_latency(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 1);
    car_plan_config config = {.workers = 4, .rule = CAR_RULE_GPIPE, .placement = CAR_PLACEMENT_PIPELINE};
    car_cluster cluster = {.devices_per_node = 1, .flops = 1, .between = {1e18, 0.01}};
    car_expect_near(time_plan(partition, config, &cluster, 1).exposed, 6 * 0.01, 1e-9);
    cluster.devices_per_node = 4;
    cluster.inside = (car_link){1e18, 0.001};
    car_expect_near(time_plan(partition, config, &cluster, 1).exposed, 6 * 0.001, 1e-9);
    cluster.devices_per_node = 2;
    car_expect_near(time_plan(partition, config, &cluster, 1).exposed, 4 * 0.001 + 2 * 0.01, 1e-9);
    car_partition_destroy(partition);
}

/* A ring that stays in a node is as fast as the node. */
static void nodes_have_links_of_their_own(void **state) {
    (void)state;
    car_plans_model model = car_plans_open_net(car_net_residual, 4);
    car_plan_config config = {.workers = 4, .rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_REPLICA};
    car_cluster cluster = {.devices_per_node = 4, .flops = 1, .inside = {1e7, 1e-4}, .between = {1e6, 1e-3}};
    double bytes = weights_of(model.partition);
    car_expect_near(time_plan(model.partition, config, &cluster, 0.5).exposed, 6 * (1e-4 + bytes / 4 / 1e7), 1e-9);
    cluster.devices_per_node = 2;
    car_expect_near(time_plan(model.partition, config, &cluster, 0.5).exposed, 6 * (1e-3 + bytes / 4 / 1e6), 1e-9);
    car_plans_close_model(&model);
}

/* The plan gives a message two slots to arrive, and two are under way at most; where there is no slack, the slack of
 * others makes up for it. */
static void the_cycle_hides_its_messages(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(8, 1);
    for (int rule = CAR_RULE_CDP_V1; rule <= CAR_RULE_CDP_V2; rule++) {
        car_plan_config config = {.workers = 8, .rule = (car_rule)rule, .placement = CAR_PLACEMENT_REPLICA};
        double bytes = (double)partition->bundles[0].bytes, slot = 1.0 / 16;
        assert_true(bytes > 0);
        car_cluster cluster = {.devices_per_node = 1, .flops = 1, .between = {bytes / (slot / 3), 0}};
        car_timing t = time_plan(partition, config, &cluster, 1);
        car_expect_near(t.free_step, 1, 1e-9);
        car_expect_near(t.exposed, 0, 1e-9);
        assert_true(t.peak_rate > t.mean_rate && t.busiest > 0 && t.busiest <= 1);
        cluster.between.bandwidth = bytes / (3 * slot);
        assert_true(time_plan(partition, config, &cluster, 1).exposed > 0.5);
    }
    car_partition_destroy(partition);
}

/* Bytes are those that the table's traffic has, whatever the way they are counted in. */
static void bytes_are_the_predictions(void **state) {
    (void)state;
    car_plans_model model = car_plans_open_net(car_net_language, 6);
    for (int c = 0; c < CAR_RULES * CAR_PLACEMENTS; c++) {
        car_plan_config config = {.workers = 3, .rule = c % CAR_RULES, .placement = c / CAR_RULES};
        if (!is_possible(config.rule, config.placement)) {
            continue;
        }
        car_plan *plan = car_plans_make(model.partition, config);
        car_prediction prediction;
        car_common_expect_ok(car_plan_predict(plan, 1, &prediction));
        car_timing t = time_plan(model.partition, config, &plain, 1);
        /* Messages at the edges of what is counted may fall to either side. */
        car_expect_near(t.bytes, prediction.bytes_sent, 0.1 * prediction.bytes_sent);
        car_plan_destroy(plan);
    }
    car_plans_close_model(&model);
}

/* A slower network never makes a step faster, and a very slow one is all there is. */
static void slower_links_take_longer(void **state) {
    (void)state;
    car_plans_model model = car_plans_open_net(car_net_language, 8);
    for (int c = 0; c < CAR_RULES * CAR_PLACEMENTS; c++) {
        car_plan_config config = {.workers = 4, .rule = c % CAR_RULES, .placement = c / CAR_RULES};
        double last = 0;
        for (double bandwidth = 1e9; is_possible(config.rule, config.placement) && bandwidth > 1e3; bandwidth /= 10) {
            car_cluster cluster = {
                .devices_per_node = 2, .flops = 1, .inside = {bandwidth, 0}, .between = {bandwidth, 0}};
            car_timing t = time_plan(model.partition, config, &cluster, 1e-2);
            assert_true(t.step >= last * (1 - 1e-9));
            assert_true(t.step >= t.free_step * (1 - 1e-9) && t.busiest <= 1 + 1e-9);
            last = t.step;
        }
    }
    car_plans_close_model(&model);
}

static void what_has_no_network_is_refused(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(2, 1);
    car_plan *plan = car_plans_make(partition, (car_plan_config){.workers = 2});
    car_plan *ranks = car_plans_make(partition, (car_plan_config){.workers = 2, .placement = CAR_PLACEMENT_REPLICA});
    car_timing t;
    car_expect_failure(car_common_context, car_plan_time(plan, &plain, 1, &t), CAR_ERROR_ARGUMENT, "shared");
    car_expect_failure(car_common_context, car_plan_time(ranks, &plain, 0, &t), CAR_ERROR_ARGUMENT, "0 seconds");
    car_expect_failure(car_common_context, car_plan_time(ranks, &plain, NAN, &t), CAR_ERROR_ARGUMENT, "0 seconds");
    car_plan_destroy(ranks);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_messages_agree_with_the_simulator),
        cmocka_unit_test(dp_adds_a_ring),
        cmocka_unit_test(a_pipeline_waits_for_latency),
        cmocka_unit_test(nodes_have_links_of_their_own),
        cmocka_unit_test(the_cycle_hides_its_messages),
        cmocka_unit_test(bytes_are_the_predictions),
        cmocka_unit_test(slower_links_take_longer),
        cmocka_unit_test(what_has_no_network_is_refused),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
