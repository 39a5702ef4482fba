/* The simulator of self-timed execution, against a second one that is as plain as can be, and against what is known
 * without simulating. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "carousel/predict.h"
#include "support/common.h"
#include "support/expect.h"
#include "support/plain_simulator.h"
#include "support/plans.h"

static car_simulation simulate(const car_partition *partition, car_plan_config config, car_simulation_config how) {
    car_plan *plan = car_plans_make(partition, config);
    car_simulation simulation;
    car_common_expect_ok(car_plan_simulate(plan, &how, &simulation));
    car_plan_destroy(plan);
    return simulation;
}

/* ---- against the plain simulator ------------------------------------------------------------- */

static void compare(const car_partition *partition, car_plan_config config, car_simulation_config how) {
    car_plan *plan = car_plans_make(partition, config);
    how.steps = 5;
    car_simulation expected = car_plain_simulate(plan, &how), actual = simulate(partition, config, how);
    car_plan_destroy(plan);
    /* What comes from other ranks is asked for some slots before its use, which the plain one does not know: where weights
     * move, and where nothing keeps several workers of a rank apart, one may wait a little longer, with what it holds. */
    bool moves = config.placement == CAR_PLACEMENT_ZERO && config.rule != CAR_RULE_DP;
    bool hosted = config.ranks > 0 && !how.paced;
    double peak = hosted ? 0.02 * (double)expected.peak : 0, mean = hosted || moves ? 0.02 * (double)expected.mean : 1;
    bool same = fabs(actual.step_time - expected.step_time) < 1e-9 && fabs(actual.idle - expected.idle) < 1e-9 &&
                fabs((double)actual.peak - (double)expected.peak) <= peak &&
                fabs((double)actual.mean - (double)expected.mean) <= mean;
    if (!same) {
        fail_msg(
            "%s over %s, %d workers of %d, %d stages, %d threads, %d executors, pace %d %g: step %.9g idle %.9g peak "
            "%zu mean "
            "%zu; expected %.9g %.9g %zu %zu",
            car_rule_text(config.rule), car_placement_text(config.placement), config.workers, config.accumulate,
            partition->stage_count, config.threads, how.executors, how.paced, how.lead, actual.step_time, actual.idle,
            actual.peak, actual.mean, expected.step_time, expected.idle, expected.peak, expected.mean);
    }
}

static bool is_possible(car_rule rule, car_placement placement) {
    bool pipeline = rule == CAR_RULE_GPIPE || rule == CAR_RULE_1F1B || rule == CAR_RULE_2BW;
    return (!pipeline || placement == CAR_PLACEMENT_PIPELINE) &&
           (rule != CAR_RULE_ACCUMULATE || placement == CAR_PLACEMENT_SHARED);
}

/* Every rule and placement, with the pace and without, on enough executors and on too few. */
static void compare_all(const car_partition *partition, int workers, int accumulate, car_sum_order order) {
    for (int c = 0; c < CAR_RULES * CAR_PLACEMENTS; c++) {
        car_plan_config config = {.workers = workers,
                                  .accumulate = accumulate,
                                  .sum_order = order,
                                  .rule = c % CAR_RULES,
                                  .placement = c / CAR_RULES};
        bool several = accumulate > 1, by_worker = order == CAR_SUM_ORDER_WORKER;
        bool own_first = config.rule == CAR_RULE_DP && config.placement != CAR_PLACEMENT_PIPELINE;
        if (!is_possible(config.rule, config.placement) ||
            (several && (own_first ? !by_worker : by_worker && config.placement == CAR_PLACEMENT_GRID))) {
            continue;
        }
        config.threads = config.placement == CAR_PLACEMENT_SHARED ? 2 : 0;
        compare(partition, config, (car_simulation_config){.paced = true});
        compare(partition, config, (car_simulation_config){.executors = workers});
        compare(partition, config, (car_simulation_config){.paced = true, .executors = workers});
        compare(partition, config, (car_simulation_config){.paced = true, .lead = 0.03, .executors = workers});
    }
}

static void uniform_stages_agree(void **state) {
    (void)state;
    for (int N = 1; N <= 3; N++) {
        car_partition *partition = car_plans_uniform(2 * N, 2);
        compare_all(partition, N, 1, CAR_SUM_ORDER_AUTO);
        compare_all(partition, N, 2, N % 2 ? CAR_SUM_ORDER_WORKER : CAR_SUM_ORDER_MICRO_BATCH);
        compare_all(partition, N, 3, N % 2 ? CAR_SUM_ORDER_MICRO_BATCH : CAR_SUM_ORDER_WORKER);
        car_partition_destroy(partition);
    }
}

/* Uneven and empty stages, ties. */
static void networks_agree(void **state) {
    (void)state;
    static const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches};
    for (int n = 0; n < 3; n++) {
        car_plans_model s = car_plans_open_net(nets[n], 6);
        compare_all(s.partition, 3, 1, CAR_SUM_ORDER_AUTO);
        compare_all(s.partition, 2, 2, n % 2 ? CAR_SUM_ORDER_WORKER : CAR_SUM_ORDER_MICRO_BATCH);
        car_plan_config ranks = {.workers = 6, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA, .ranks = 3};
        compare(s.partition, ranks, (car_simulation_config){.paced = true});
        compare(s.partition, ranks, (car_simulation_config){.executors = 6});
        /* Without a pace the first worker of a rank is ahead of the last of the rank before it, but not of the sum. */
        ranks.mapping = CAR_MAPPING_CONTIGUOUS;
        compare(s.partition, ranks, (car_simulation_config){.paced = true});
        compare(s.partition, ranks, (car_simulation_config){.executors = 6});
        compare(s.partition, ranks, (car_simulation_config){.executors = 2});
        car_plans_close_model(&s);
    }
}

/* ---- what is known --------------------------------------------------------------------------- */

/* Bytes that one worker has on average over a step without waiting. */
static double mean_of_curve(const car_curve *curve) {
    double area = 0;
    for (int e = 0; e < curve->events; e++) {
        area += (double)curve->during[e] * ((e + 1 < curve->events ? curve->begin[e + 1] : 1) - curve->begin[e]);
    }
    return area;
}

static void equal_stages_need_no_waiting(void **state) {
    (void)state;
    car_placement placements[] = {CAR_PLACEMENT_SHARED, CAR_PLACEMENT_REPLICA, CAR_PLACEMENT_ZERO};
    for (int N = 1; N <= 6; N++) {
        for (int c = 0; c < 9; c++) {
            car_rule rule = (car_rule[]){CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2}[c / 3];
            car_partition *partition = car_plans_uniform(2 * N, 1);
            car_plan_config config = {.workers = N, .rule = rule, .placement = placements[c % 3]};
            car_simulation s = simulate(partition, config, (car_simulation_config){.paced = true});
            car_expect_near(s.step_time, 1, 1e-9);
            car_expect_near(s.idle, 0, 1e-9);
            car_expect_near((double)s.mean, N * mean_of_curve(&partition->curve), 1);
            size_t own = placements[c % 3] == CAR_PLACEMENT_SHARED ? s.peak : partition->curve.peak;
            assert_int_equal(s.device_peak, own);
            if (rule == CAR_RULE_DP) {
                assert_int_equal(s.peak, (size_t)N * partition->curve.peak);
            } else if (N > 1) {
                assert_true(s.peak < (size_t)N * partition->curve.peak);
            }
            car_partition_destroy(partition);
        }
    }
}

static void pipelines_fill_and_flush(void **state) {
    (void)state;
    enum { N = 4, K = 2 };
    car_partition *partition = car_plans_uniform(K * N, 2);
    car_plan_config config = {.workers = N, .placement = CAR_PLACEMENT_PIPELINE};
    car_simulation_config how = {.paced = true};
    double fill = (double)(N - 1) / N;
    config.rule = CAR_RULE_GPIPE;
    car_simulation gpipe = simulate(partition, config, how);
    config.rule = CAR_RULE_1F1B;
    car_simulation one = simulate(partition, config, how);
    config.rule = CAR_RULE_2BW;
    car_simulation two = simulate(partition, config, how);
    car_expect_near(gpipe.step_time, 1 + fill, 1e-9);
    car_expect_near(one.step_time, 1 + fill, 1e-9);
    car_expect_near(two.step_time, 1, 1e-9);
    car_expect_near(gpipe.idle, fill / (1 + fill), 1e-9);
    car_expect_near(two.idle, 0, 1e-9);
    assert_int_equal(gpipe.peak, (size_t)N * partition->curve.peak);
    assert_true(one.peak < gpipe.peak);
    assert_int_equal(one.device_peak, partition->held_bytes); /* the first rank's stages of all micro-batches */
    config.rule = CAR_RULE_CDP_V2;
    config.placement = CAR_PLACEMENT_GRID;
    car_simulation grid = simulate(partition, config, how);
    car_expect_near(grid.step_time, 1, 1e-9);
    car_expect_near(grid.idle, 1 - 2.0 / (N + 1), 1e-9); /* N workers keep N of N(N+1)/2 ranks busy */
    assert_int_equal(grid.device_peak, partition->held_bytes / N);
    car_partition_destroy(partition);
}

static void fewer_threads_take_longer(void **state) {
    (void)state;
    enum { N = 4 };
    car_partition *partition = car_plans_uniform(N, 1);
    double all = N * (double)partition->curve.peak;
    for (int P = 1; P <= N; P *= 2) {
        car_plan_config config = {.workers = N, .rule = CAR_RULE_ACCUMULATE, .threads = P};
        car_simulation_config how = {.paced = true};
        car_simulation s = simulate(partition, config, how);
        double step = (double)N / P + (P - 1) / (2.0 * N); /* to one sum they add one after the other */
        car_expect_near(s.step_time, step, 1e-9);
        car_expect_near(s.idle, 1 - N / (P * step), 1e-9);
        car_expect_near((double)s.peak / all, (double)P / N, 1e-9);
        config.rule = CAR_RULE_CDP_V2;
        s = simulate(partition, config, how);
        car_expect_near(s.step_time, (double)N / P, 1e-3);
        config.rule = CAR_RULE_DP;
        s = simulate(partition, config, how);
        car_expect_near(s.step_time, (double)N / P, 1e-9);
        assert_true((double)s.peak / all > 0.9); /* whatever the threads: all forwards come first */
        how.executors = P;
        config.threads = 0;
        car_expect_near(simulate(partition, config, how).step_time, (double)N / P, 1e-9);
    }
    /* Executors beyond the threads do not help: no more micro-batches are under way. */
    car_plan_config config = {.workers = N, .rule = CAR_RULE_ACCUMULATE, .threads = 2};
    car_simulation s = simulate(partition, config, (car_simulation_config){.executors = N});
    car_expect_near((double)s.peak / all, 0.5, 1e-9);
    car_expect_near(s.step_time, 2 + 1.0 / (2 * N), 1e-9);
    car_partition_destroy(partition);
}

/* Three workers on two threads: nine forwards take five rounds, so do nine backwards, and nothing of one step may run
 * in a gap of another. */
static void dp_waits_at_the_turn_and_for_the_update(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(3, 1);
    car_simulation s = simulate(partition, (car_plan_config){.workers = 3, .rule = CAR_RULE_DP, .threads = 2},
                                (car_simulation_config){.paced = true});
    car_expect_near(s.step_time, 10.0 / 6, 1e-9);
    car_expect_near(s.idle, 0.1, 1e-9);
    car_partition_destroy(partition);
}

/* What is alive only in an operation that takes no time is alive nevertheless. */
static void operations_without_duration_count(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 1);
    car_curve *curve = &partition->curve;
    curve->begin[2] = curve->begin[1];
    curve->during[1] = curve->peak = 10 * partition->held_bytes;
    car_simulation_config how = {.paced = true};
    car_simulation dp = simulate(partition, (car_plan_config){.workers = 4, .rule = CAR_RULE_DP}, how);
    assert_int_equal(dp.peak, 4 * curve->peak);
    car_simulation cycle = simulate(partition, (car_plan_config){.workers = 4, .rule = CAR_RULE_CDP_V2}, how);
    assert_true(cycle.peak > curve->peak && cycle.peak < 2 * curve->peak); /* one worker at a time */
    car_simulation rank = simulate(
        partition, (car_plan_config){.workers = 4, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA}, how);
    assert_int_equal(rank.device_peak, curve->peak);
    car_partition_destroy(partition);
}

static void a_rank_serves_its_workers_in_turn(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 1);
    car_plan_config config = {.workers = 4, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA, .ranks = 2};
    car_simulation s = simulate(partition, config, (car_simulation_config){.paced = true, .executors = 4});
    car_expect_near(s.step_time, 2, 1e-3);
    car_expect_near(s.idle, 0.5, 1e-3);
    s = simulate(partition, config, (car_simulation_config){.paced = true});
    car_expect_near(s.step_time, 2, 1e-3);
    car_expect_near(s.idle, 0, 1e-3);
    assert_true(s.device_peak < 2 * partition->curve.peak);
    car_partition_destroy(partition);
}

/* ViT-B/16 with 4 workers on 4 devices: pacing is what keeps the workers apart, and costs no time. In one process, where
 * they add to one sum, they stay at least a backward apart. */
static void pacing_decides(void **state) {
    (void)state;
    car_plans_model vit = car_plans_open_model("vit-b16", 4);
    double dp = 4 * (double)vit.partition->curve.peak;
    for (car_rule rule = CAR_RULE_CDP_V1; rule <= CAR_RULE_CDP_V2; rule++) {
        car_plan_config config = {.workers = 4, .rule = rule};
        car_simulation close = simulate(vit.partition, config, (car_simulation_config){.executors = 4});
        config.placement = CAR_PLACEMENT_REPLICA;
        car_simulation wild = simulate(vit.partition, config, (car_simulation_config){.executors = 4});
        config.placement = CAR_PLACEMENT_SHARED;
        car_simulation paced = simulate(vit.partition, config, (car_simulation_config){.executors = 4, .paced = true});
        car_simulation strict =
            simulate(vit.partition, config, (car_simulation_config){.executors = 4, .paced = true, .lead = 1.0 / 16});
        car_expect_near((double)wild.peak / dp, 1, 0.01);
        car_expect_near((double)close.peak / dp, 0.70, 0.01);
        car_expect_near(wild.step_time, 1, 0.01);
        car_expect_near((double)paced.peak / dp, 0.539, 0.02);
        car_expect_near(paced.step_time, 1, 0.01);
        assert_true(strict.step_time > 1.3);
        assert_true(strict.peak < paced.peak);
    }
    car_plans_close_model(&vit);
}

/* Other times for the operations: another run for every seed, the same for the same. */
static void jitter_is_seeded(void **state) {
    (void)state;
    car_plans_model vit = car_plans_open_model("vit-tiny", 4);
    car_plan_config config = {.workers = 4, .rule = CAR_RULE_CDP_V2, .threads = 2};
    car_simulation_config exact = {.paced = true}, first = {.paced = true, .jitter = 0.2, .seed = 1}, second = first;
    second.seed = 2;
    car_simulation costs = simulate(vit.partition, config, exact), one = simulate(vit.partition, config, first);
    car_simulation again = simulate(vit.partition, config, first), other = simulate(vit.partition, config, second);
    assert_memory_equal(&one, &again, sizeof one);
    assert_true(one.mean != other.mean && one.mean != costs.mean);
    car_expect_near(one.step_time, costs.step_time, 0.05 * costs.step_time); /* on the average it costs the same */
    car_plans_close_model(&vit);
}

static void more_steps_say_the_same(void **state) {
    (void)state;
    car_plans_model net = car_plans_open_model("resnet20", 8);
    car_plan_config config = {.workers = 4, .rule = CAR_RULE_CDP_V2};
    car_simulation few = simulate(net.partition, config, (car_simulation_config){.paced = true});
    car_simulation many = simulate(net.partition, config, (car_simulation_config){.paced = true, .steps = 40});
    car_expect_near(many.step_time, few.step_time, 1e-3);
    car_expect_near((double)many.peak, (double)few.peak, 0.01 * (double)few.peak);
    car_expect_near((double)many.mean, (double)few.mean, 0.01 * (double)few.mean);
    car_plans_close_model(&net);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_stages_agree),
        cmocka_unit_test(networks_agree),
        cmocka_unit_test(equal_stages_need_no_waiting),
        cmocka_unit_test(pipelines_fill_and_flush),
        cmocka_unit_test(fewer_threads_take_longer),
        cmocka_unit_test(dp_waits_at_the_turn_and_for_the_update),
        cmocka_unit_test(operations_without_duration_count),
        cmocka_unit_test(a_rank_serves_its_workers_in_turn),
        cmocka_unit_test(pacing_decides),
        cmocka_unit_test(jitter_is_seeded),
        cmocka_unit_test(more_steps_say_the_same),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
