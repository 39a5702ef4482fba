/* Predictions for single ranks. That they are what ranks then hold is tested with real ones, in tests/mpi/memory.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "carousel/predict.h"
#include "support/common.h"
#include "support/plans.h"

static car_device_prediction predict_rank(const car_plan *plan, int rank) {
    car_device_prediction prediction;
    car_common_expect_ok(car_plan_predict_device(plan, rank, 2, &prediction));
    return prediction;
}

/* A rank with a whole micro-batch holds that one's peak; those of a grid and of a pipeline hold their stages' part of one,
 * and of N-r. Weights: all, or what the rank has, once or twice; under zero less than two stages at a time. */
static void ranks_hold_their_share(void **state) {
    (void)state;
    enum { N = 3 };
    car_plans_model s = car_plans_open_net(car_net_residual, N);
    size_t all = car_graph_param_bytes(s.graph), largest = 0;
    for (int j = 0; j < N; j++) {
        largest = s.partition->bundles[j].bytes > largest ? s.partition->bundles[j].bytes : largest;
    }
    for (car_rule rule = CAR_RULE_CDP_V1; rule <= CAR_RULE_CDP_V2; rule++) {
        car_plan_config config = {.workers = N, .rule = rule, .placement = CAR_PLACEMENT_GRID};
        car_plan *grid = car_plans_make(s.partition, config);
        config.placement = CAR_PLACEMENT_PIPELINE;
        car_plan *pipeline = car_plans_make(s.partition, config);
        config.placement = CAR_PLACEMENT_ZERO;
        car_plan *zero = car_plans_make(s.partition, config);
        config.placement = CAR_PLACEMENT_REPLICA;
        car_plan *replica = car_plans_make(s.partition, config);
        for (int r = 0, first = 0; r < N; first += N - r, r++) {
            car_device_prediction one = predict_rank(grid, first), several = predict_rank(pipeline, r);
            size_t own = s.partition->bundles[r].bytes;
            assert_int_equal(predict_rank(replica, r).activations, s.partition->curve.peak);
            assert_int_equal(predict_rank(zero, r).activations, s.partition->curve.peak);
            assert_int_equal(predict_rank(replica, r).weights, all);
            assert_int_equal(predict_rank(replica, r).optimizer, 2 * all);
            assert_true(predict_rank(zero, r).weights <= 2 * largest);
            assert_int_equal(predict_rank(zero, r).optimizer, 2 * s.partition->bundles[N - 1 - r].bytes);
            assert_true(several.weights == own || several.weights == 2 * own);
            for (int other = first; other < first + N - r; other++) {
                assert_int_equal(predict_rank(grid, other).activations, one.activations);
            }
            assert_true(several.activations <= (size_t)(N - r) * one.activations);
            assert_true(several.activations > (size_t)(N - r - 1) * one.activations);
        }
        car_plan_destroy(replica);
        car_plan_destroy(zero);
        car_plan_destroy(pipeline);
        car_plan_destroy(grid);
    }
    car_plans_close_model(&s);
}

static void not_every_plan_has_ranks(void **state) {
    (void)state;
    car_plans_model s = car_plans_open_net(car_net_residual, 2);
    car_partition *uniform = car_plans_uniform(2, 1);
    car_plan *shared = car_plans_make(s.partition, (car_plan_config){.workers = 2, .rule = CAR_RULE_CDP_V2});
    car_plan *bare = car_plans_make(
        uniform, (car_plan_config){.workers = 2, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA});
    car_plan *sound = car_plans_make(
        s.partition, (car_plan_config){.workers = 2, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA});
    car_device_prediction prediction;
    assert_int_equal(car_plan_predict_device(shared, 0, 1, &prediction), CAR_ERROR_UNSUPPORTED);
    assert_int_equal(car_plan_predict_device(bare, 0, 1, &prediction), CAR_ERROR_UNSUPPORTED);
    assert_int_equal(car_plan_predict_device(sound, 2, 1, &prediction), CAR_ERROR_ARGUMENT);
    assert_int_equal(car_plan_predict_device(sound, -1, 1, &prediction), CAR_ERROR_ARGUMENT);
    car_context_clear_error(car_common_context);
    car_plan_destroy(sound);
    car_plan_destroy(bare);
    car_plan_destroy(shared);
    car_partition_destroy(uniform);
    car_plans_close_model(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_hold_their_share),
        cmocka_unit_test(not_every_plan_has_ranks),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
