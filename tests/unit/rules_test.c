/* What rules and placements say of themselves, compared with the tables that they make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/plan.h"
#include "plan/placement.h"
#include "plan/usage.h"
#include "support/common.h"
#include "support/plans.h"

enum { STEPS = 9, MOST_DEVICES = 16 };

/* What the table of a run shows. */
typedef struct seen {
    int sends, activations, reduces, broadcasts, weights;
    int updates_of_first;      /* devices that made version 1 of stage 0 */
    int computing[8];          /* ranks that compute a stage */
    int reduced[MOST_DEVICES]; /* of a device: the first bundle that it reduces; CAR_NONE */
} seen;

static void look_at(const car_plan *plan, seen *out) {
    car_task_list list = {0};
    bool computes[MOST_DEVICES][8] = {{false}};
    *out = (seen){0};
    for (int d = 0; d < car_plan_devices(plan); d++) {
        bool made = false;
        out->reduced[d] = CAR_NONE;
        for (int64_t w = 0; w < car_plan_windows(plan, STEPS); w++) {
            car_common_expect_ok(car_plan_expand(plan, d, w, STEPS, &list));
            for (int k = 0; k < list.count; k++) {
                const car_task *task = &list.tasks[k];
                out->sends += task->kind == CAR_TASK_SEND;
                out->activations += task->kind == CAR_TASK_SEND && task->cargo == CAR_CARGO_ACTIVATION;
                out->weights += task->kind == CAR_TASK_SEND && task->cargo == CAR_CARGO_WEIGHTS;
                out->broadcasts += task->kind == CAR_TASK_BROADCAST;
                out->reduces += task->kind == CAR_TASK_REDUCE;
                out->reduced[d] =
                    task->kind == CAR_TASK_REDUCE && out->reduced[d] == CAR_NONE ? task->bundle : out->reduced[d];
                made |= task->kind == CAR_TASK_UPDATE && task->bundle == 0 && task->version == 1;
                if (car_task_computes(task)) {
                    computes[car_plan_rank_of(plan, d)][task->stage] = true;
                }
            }
        }
        out->updates_of_first += made;
    }
    for (int r = 0; r < MOST_DEVICES; r++) {
        for (int j = 0; j < 8; j++) {
            out->computing[j] += computes[r][j];
        }
    }
    car_task_list_release(plan, &list);
}

/* ---- one plan -------------------------------------------------------------------------------- */

static void check_rule(const car_plan *plan, const car_rule_info *rule) {
    int workers = car_plan_config_of(plan)->workers, stages = car_plan_partition(plan)->stage_count, late = 0;
    bool together = true;
    for (int i = 0; i < workers; i++) {
        for (int j = 0; j < stages; j++) {
            late += car_plan_delay(plan, i, j);
            together &= car_plan_forward_slot(plan, 3, i, j) == car_plan_forward_slot(plan, 3, 0, j) &&
                        car_plan_backward_slot(plan, 3, i, j) == car_plan_backward_slot(plan, 3, 0, j);
        }
    }
    assert_int_equal(rule->late, late == 0                  ? CAR_LATE_NEVER
                                 : late == workers * stages ? CAR_LATE_EVERYWHERE
                                                            : CAR_LATE_PARTLY);
    /* In the cycle the last worker ends a step after the first has begun the next. */
    assert_int_equal(rule->cyclic,
                     car_plan_backward_slot(plan, 0, workers - 1, 0) >= car_plan_forward_slot(plan, 1, 0, 0));
    assert_int_equal(car_plan_is_cyclic(plan), rule->cyclic);
    bool apart = true; /* 2k slots, forwards and backwards alike */
    for (int i = 1; i < workers; i++) {
        int64_t spacing = 2 * (int64_t)car_plan_per_worker(plan);
        apart &= car_plan_forward_slot(plan, 3, i, 0) == car_plan_forward_slot(plan, 3, i - 1, 0) + spacing &&
                 car_plan_backward_slot(plan, 3, i, 0) == car_plan_backward_slot(plan, 3, i - 1, 0) + spacing;
    }
    assert_int_equal(car_plan_is_spaced(plan), apart);
    if (together) {
        assert_true(rule->together || rule->in_turns); /* in one turn, if there are threads enough */
    }
    assert_int_equal(car_rule_updates_early(car_plan_config_of(plan)->rule),
                     rule->cyclic &&
                         car_plan_update_slot(plan, 0, stages - 1) <= car_plan_backward_slot(plan, 0, workers - 1, 0) &&
                         car_plan_delay(plan, workers - 1, stages - 1) == 0);
}

static void check_placement(const car_plan *plan, const car_placement_info *placement) {
    const car_plan_config *config = car_plan_config_of(plan);
    seen s;
    look_at(plan, &s);
    assert_int_equal(car_plan_config_devices(config), car_plan_devices(plan));
    assert_int_equal(placement->one_process, car_plan_ranks(plan) == 1);
    assert_int_equal(placement->one_process, s.sends + s.reduces + s.broadcasts == 0);
    assert_int_equal(placement->by_stage, s.activations > 0);
    assert_int_equal(placement->owned, s.broadcasts + s.weights > 0);
    assert_int_equal(placement->repeated, s.updates_of_first > 1);
    assert_int_equal(car_plan_reduces(plan), s.reduces > 0);
    for (int j = 0; j < car_plan_partition(plan)->stage_count; j++) {
        assert_int_equal(car_plan_stage_ranks(plan, j), s.computing[j]);
    }
    bool copies = (placement->repeated && !placement->by_stage) || config->zero_copies == 2;
    assert_int_equal(car_plan_needs_beats(plan), copies && car_plan_is_spaced(plan));
    for (int d = 0; d < car_plan_devices(plan); d++) { /* who meets in a collective, and is numbered from 0 there */
        int members = 0;
        for (int other = 0; other < car_plan_devices(plan); other++) {
            bool meets = s.reduced[other] == s.reduced[d];
            members += other < d && meets;
            assert_int_equal(car_plan_collective_group(plan, other) == car_plan_collective_group(plan, d), meets);
        }
        if (s.reduces > 0) {
            assert_int_equal(car_plan_collective_member(plan, d), members);
        }
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void what_they_say_is_so(void **state) {
    (void)state;
    for (int n = 0; n < CAR_RULES * CAR_PLACEMENTS * 4; n++) {
        int workers = 3 + n % 2, per_worker = 1 + n / 2 % 2;
        car_plan_config config = {
            .workers = workers, .rule = (car_rule)(n / 4 % CAR_RULES), .placement = (car_placement)(n / 4 / CAR_RULES)};
        car_partition *partition = car_plans_uniform(workers * per_worker, 2);
        car_plan *plan = NULL;
        if (car_plan_create(car_common_context, partition, &config, &plan) == CAR_OK) {
            check_rule(plan, car_rule_info_of(config.rule));
            check_placement(plan, car_placement_info_of(config.placement));
        }
        car_context_clear_error(car_common_context);
        car_plan_destroy(plan);
        car_partition_destroy(partition);
    }
}

/* A rule goes with every placement, or with one, which the message names. */
static void rules_say_where_they_go(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    for (int r = 0; r < CAR_RULES; r++) {
        const char *only = NULL;
        char message[256] = "";
        int fits = 0;
        for (int p = 0; p < CAR_PLACEMENTS; p++) {
            car_plan_config config = {.workers = 4, .rule = (car_rule)r, .placement = (car_placement)p};
            car_plan *plan = NULL;
            car_status status = car_plan_create(car_common_context, partition, &config, &plan);
            if (status == CAR_OK) {
                only = car_placement_text((car_placement)p);
                fits++;
            } else {
                assert_int_equal(status, CAR_ERROR_ARGUMENT);
                snprintf(message, sizeof message, "%s", car_context_error(car_common_context));
            }
            car_context_clear_error(car_common_context);
            car_plan_destroy(plan);
        }
        assert_int_equal(fits, car_rule_info_of((car_rule)r)->anywhere ? CAR_PLACEMENTS : 1);
        if (fits == 1) {
            assert_non_null(strstr(message, car_rule_text((car_rule)r)));
            assert_non_null(strstr(message, only));
        }
    }
    car_partition_destroy(partition);
}

static void all_are_described(void **state) {
    (void)state;
    for (int r = 0; r < CAR_RULES; r++) {
        assert_non_null(car_rule_info_of((car_rule)r)->summary);
    }
    for (int p = 0; p < CAR_PLACEMENTS; p++) {
        const car_placement_info *info = car_placement_info_of((car_placement)p);
        assert_non_null(info->summary);
        car_placement found = CAR_PLACEMENTS;
        assert_true(car_placement_is_known(info->name, &found));
        assert_int_equal(found, p);
        assert_int_equal(car_placement_class_of((car_placement)p)->owner != NULL, info->owned);
    }
    car_placement placement = CAR_PLACEMENT_ZERO;
    car_rule rule = CAR_RULE_2BW;
    assert_false(car_placement_is_known("nowhere", &placement));
    assert_false(car_rule_is_known("cdp", &rule));
    assert_true(car_rule_is_known("dp", &rule));
    assert_int_equal(placement, CAR_PLACEMENT_ZERO);
    assert_int_equal(rule, CAR_RULE_DP);
}

static void unknown_ones_are_refused(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    const car_plan_config wrong[] = {{.workers = 4, .rule = CAR_RULES},
                                     {.workers = 4, .placement = CAR_PLACEMENTS},
                                     {.workers = 4, .rule = (car_rule)-1}};
    for (int n = 0; n < 3; n++) {
        car_plan *plan = NULL;
        assert_int_equal(car_plan_create(car_common_context, partition, &wrong[n], &plan), CAR_ERROR_ARGUMENT);
        assert_null(plan);
        car_context_clear_error(car_common_context);
    }
    car_partition_destroy(partition);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_they_say_is_so),
        cmocka_unit_test(rules_say_where_they_go),
        cmocka_unit_test(all_are_described),
        cmocka_unit_test(unknown_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
