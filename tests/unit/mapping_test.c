/* The choice of a mapping: by memory on one machine, by what crosses between several, unless that does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "carousel/mapping.h"
#include "support/common.h"
#include "support/expect.h"
#include "support/plans.h"

enum { SPREAD = CAR_MAPPING_INTERLEAVED, TOGETHER = CAR_MAPPING_CONTIGUOUS };

static car_mapping_choice choose(const car_partition *partition, car_plan_config config, car_machines machines) {
    car_mapping_choice choice;
    car_common_expect_ok(car_plan_choose_mapping(car_common_context, partition, &config, &machines, &choice));
    return choice;
}

static double weights_of(const car_partition *partition) {
    double bytes = 0;
    for (int b = 0; b < partition->bundle_count; b++) {
        bytes += (double)partition->bundles[b].bytes;
    }
    return bytes;
}

static void one_machine_wants_memory(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    const car_plan_config config = {
        .workers = 4, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA, .ranks = 2};
    car_mapping_choice choice = choose(partition, config, (car_machines){.count = 1, .optimizer_states = 1});
    assert_int_equal(choice.mapping, SPREAD);
    assert_false(choice.scarce);
    assert_true(choice.rank_bytes[SPREAD] < choice.rank_bytes[TOGETHER]);
    assert_int_equal(choice.machine_bytes[SPREAD], choice.machine_bytes[TOGETHER]);
    car_expect_near(choice.crossing[SPREAD] + choice.crossing[TOGETHER], 0, 0);
    car_partition_destroy(partition);
}

/* Four workers, two machines. Partial sums go 0-1-2-3 and finished ones 3-0-1-2: six hops, which all cross between
 * machines that take turns; side by side 1-2 does, twice, and 3-0. */
static void several_machines_want_few_bytes(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    double weights = weights_of(partition);
    const car_plan_config config = {.workers = 4, .rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_REPLICA};
    car_mapping_choice choice = choose(partition, config, (car_machines){.count = 2, .optimizer_states = 1});
    assert_int_equal(choice.mapping, TOGETHER);
    car_expect_near(choice.crossing[SPREAD], 6 * weights, 0.5);
    car_expect_near(choice.crossing[TOGETHER], 3 * weights, 0.5);
    assert_true(choice.machine_bytes[SPREAD] < choice.machine_bytes[TOGETHER]);
    assert_int_equal(choice.rank_bytes[SPREAD], choice.rank_bytes[TOGETHER]); /* one worker each */
    car_partition_destroy(partition);
}

static void scarce_memory_decides(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(8, 2);
    const car_plan_config config = {
        .workers = 8, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA, .ranks = 4};
    car_machines machines = {.count = 2, .optimizer_states = 2};
    car_mapping_choice choice = choose(partition, config, machines);
    assert_int_equal(choice.mapping, TOGETHER);
    machines.memory = choice.machine_bytes[TOGETHER]; /* all of it: too much */
    choice = choose(partition, config, machines);
    assert_int_equal(choice.mapping, SPREAD);
    assert_true(choice.scarce);
    machines.memory = 2 * choice.machine_bytes[TOGETHER];
    choice = choose(partition, config, machines);
    assert_int_equal(choice.mapping, TOGETHER);
    assert_false(choice.scarce);
    car_partition_destroy(partition);
}

/* dp's collectives and its memory are the same either way. */
static void dp_does_not_care(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    const car_plan_config config = {.workers = 4, .rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_REPLICA};
    car_mapping_choice choice = choose(partition, config, (car_machines){.count = 2, .optimizer_states = 1});
    assert_int_equal(choice.mapping, SPREAD);
    assert_int_equal(choice.machine_bytes[SPREAD], choice.machine_bytes[TOGETHER]);
    car_partition_destroy(partition);
}

static void zero_is_mapped_too(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    const car_plan_config config = {.workers = 4, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_ZERO};
    car_mapping_choice choice = choose(partition, config, (car_machines){.count = 2, .optimizer_states = 1});
    assert_true(choice.crossing[TOGETHER] > 0);
    assert_int_equal(choice.mapping, choice.crossing[TOGETHER] < choice.crossing[SPREAD] ? TOGETHER : SPREAD);
    car_partition_destroy(partition);
}

static void machines_of_devices(void **state) {
    (void)state;
    const car_machines two = {.count = 2};
    const int in_turn[] = {0, 1, 0, 1, 0, 1}, one_by_one[] = {0, 0, 0, 1, 1, 1};
    for (int d = 0; d < 6; d++) {
        assert_int_equal(car_machines_of_device(&two, 6, CAR_MAPPING_INTERLEAVED, d), in_turn[d]);
        assert_int_equal(car_machines_of_device(&two, 6, CAR_MAPPING_CONTIGUOUS, d), one_by_one[d]);
    }
}

static void uneven_machines_are_refused(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(4, 2);
    const car_plan_config config = {.workers = 4, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA};
    const car_machines three = {.count = 3}, none = {.count = 0};
    car_mapping_choice choice;
    car_expect_failure(car_common_context,
                       car_plan_choose_mapping(car_common_context, partition, &config, &three, &choice),
                       CAR_ERROR_ARGUMENT, "4 ranks cannot be spread evenly over 3 machines");
    car_expect_failure(car_common_context,
                       car_plan_choose_mapping(car_common_context, partition, &config, &none, &choice),
                       CAR_ERROR_ARGUMENT, "over 0 machines");
    car_partition_destroy(partition);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_machine_wants_memory),    cmocka_unit_test(several_machines_want_few_bytes),
        cmocka_unit_test(scarce_memory_decides),       cmocka_unit_test(dp_does_not_care),
        cmocka_unit_test(zero_is_mapped_too),          cmocka_unit_test(machines_of_devices),
        cmocka_unit_test(uneven_machines_are_refused),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
