/* Plans of very many workers: devices and tags are right up to the last that fits, and refused beyond. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/common.h"
#include "support/plans.h"

/* A few operations in very many stages: nearly all are empty. */
static car_plan *try_plan(car_plans_model *model, int workers, int stages, car_rule rule, car_placement placement) {
    const car_plan_config config = {.workers = workers, .rule = rule, .placement = placement};
    car_plan *plan = NULL;
    *model = car_plans_open_net(car_net_residual, stages);
    (void)car_plan_create(car_common_context, model->partition, &config, &plan);
    return plan;
}

static void must_refuse(int workers, int stages, car_rule rule, car_placement placement, const char *part) {
    car_plans_model model;
    car_plan *plan = try_plan(&model, workers, stages, rule, placement);
    if (plan || !strstr(car_context_error(car_common_context), part)) {
        fail_msg("%d workers: no '%s' in '%s'", workers, part, car_context_error(car_common_context));
    }
    car_context_clear_error(car_common_context);
    car_plans_close_model(&model);
}

static void too_many_devices_or_tags_are_refused(void **state) {
    (void)state;
    must_refuse(46341, 46341, CAR_RULE_DP, CAR_PLACEMENT_GRID, "needs 2147488281 devices");
    must_refuse(65536, 65536, CAR_RULE_CDP_V2, CAR_PLACEMENT_GRID, "needs 2147516416 devices");
    must_refuse(65535, 65535, CAR_RULE_CDP_V1, CAR_PLACEMENT_GRID, "tags");
    must_refuse(14000, 14000, CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, "tags; use fewer workers or stages");
    must_refuse(14000, 14000, CAR_RULE_DP, CAR_PLACEMENT_GRID, "tags");
    must_refuse(1024, 1 << 18, CAR_RULE_CDP_V2, CAR_PLACEMENT_ZERO, "tags");
}

static void one_process_needs_neither(void **state) {
    (void)state;
    car_plans_model model;
    car_plan *plan = try_plan(&model, 65536, 65536, CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED);
    assert_non_null(plan);
    assert_int_equal(car_plan_devices(plan), 65536);
    car_plan_destroy(plan);
    car_plans_close_model(&model);
}

static void devices_and_tags_fit_up_to_there(void **state) {
    (void)state;
    enum { MANY = 12000 };
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V2};
    for (int r = 0; r < 2; r++) {
        car_plans_model model;
        car_plan *plan = try_plan(&model, MANY, MANY, rules[r], CAR_PLACEMENT_GRID);
        assert_non_null(plan);
        int64_t devices = rules[r] == CAR_RULE_DP ? (int64_t)MANY * MANY : (int64_t)MANY * (MANY + 1) / 2;
        assert_int_equal(car_plan_devices(plan), devices);
        int last = car_plan_device(plan, 0, MANY - 1, MANY - 1);
        assert_int_equal(last, devices - 1);
        car_plan_destroy(plan);
        car_plans_close_model(&model);
    }
    car_plans_model model;
    car_plan *plan = try_plan(&model, MANY, MANY, CAR_RULE_CDP_V1, CAR_PLACEMENT_REPLICA);
    car_task_list list = {0};
    int messages = 0, most = 0;
    assert_non_null(plan);
    car_common_expect_ok(car_plan_expand(plan, MANY - 1, 1, 4, &list));
    for (int t = 0; t < list.count; t++) {
        const car_task *task = &list.tasks[t];
        if (task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE) {
            assert_true(task->tag >= 0);
            most = task->tag > most ? task->tag : most;
            messages++;
        }
    }
    assert_true(messages > 0);
    assert_true(most > 1 << 30);
    car_task_list_release(plan, &list);
    car_plan_destroy(plan);
    car_plans_close_model(&model);
}

static void any_slack_is_only_a_delay(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    car_plan *plan =
        car_plans_make(partition, (car_plan_config){.workers = 4, .rule = CAR_RULE_CDP_V2, .freshness_slack = INT_MAX});
    for (int stage = 0; stage < 4; stage++) {
        assert_int_equal(car_plan_delay(plan, 3, stage), 1);
    }
    car_plan_destroy(plan);
    car_partition_destroy(partition);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_many_devices_or_tags_are_refused),
        cmocka_unit_test(one_process_needs_neither),
        cmocka_unit_test(devices_and_tags_fit_up_to_there),
        cmocka_unit_test(any_slack_is_only_a_delay),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
