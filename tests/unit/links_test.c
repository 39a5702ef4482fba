/* How long messages of paced links may wait, and how early their receives are posted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/rank_internal.h"
#include "support/common.h"
#include "support/plans.h"

enum { WORKERS = 4, STAGES = 16, K = STAGES / WORKERS, PERIOD = 2 * STAGES, DUE = 1000 };

typedef struct fixture {
    car_partition *partition;
    car_plan *plan;
    car_rank rank;
} fixture;

static fixture begin(car_rule rule, int slack) {
    fixture f = {.partition = car_plans_uniform(STAGES, 1)};
    const car_plan_config config = {
        .workers = WORKERS, .rule = rule, .placement = CAR_PLACEMENT_REPLICA, .freshness_slack = slack};
    f.plan = car_plans_make(f.partition, config);
    f.rank.plan = f.plan;
    f.rank.batches = WORKERS;
    f.rank.per_worker = K;
    f.rank.paced = true;
    return f;
}

static void end(fixture *f) {
    car_plan_destroy(f->plan);
    car_partition_destroy(f->partition);
}

static int64_t latest(const fixture *f, car_cargo cargo, int stage) {
    const car_task send = {
        .kind = CAR_TASK_SEND, .cargo = cargo, .stage = stage, .bundle = stage, .step = 5, .due = DUE};
    return car_rank_latest(&f->rank, &send);
}

static int64_t ahead(const fixture *f, car_cargo cargo) {
    const car_task receive = {.kind = CAR_TASK_RECEIVE, .cargo = cargo};
    return car_rank_slots_ahead(&f->rank, &receive);
}

/* Between the last gradient of stage j and its first use lie 2j + 9 slots: more than 6k from stage 8 on. */
static void a_step_of_delay_leaves_time(void **state) {
    (void)state;
    fixture f = begin(CAR_RULE_CDP_V1, 0);
    assert_int_equal(latest(&f, CAR_CARGO_PARTIAL, 15), DUE + 3 * K);
    assert_int_equal(latest(&f, CAR_CARGO_PARTIAL, 8), DUE + 2 * K + 1);
    assert_int_equal(latest(&f, CAR_CARGO_PARTIAL, 7), DUE - K);
    assert_int_equal(latest(&f, CAR_CARGO_FINISHED, 8), DUE - 2 * K);
    assert_int_equal(latest(&f, CAR_CARGO_FINISHED, 7), DUE - 3 * K);
    assert_int_equal(latest(&f, CAR_CARGO_ACTIVATION, 8), 0);
    f.rank.chains = true;
    assert_int_equal(latest(&f, CAR_CARGO_PARTIAL, 15), DUE + K);
    f.rank.paced = false;
    assert_int_equal(latest(&f, CAR_CARGO_PARTIAL, 15), 0);
    end(&f);
}

static void fresh_weights_have_little_time(void **state) {
    (void)state;
    for (int slack = 0; slack <= 2 * K; slack += K) {
        fixture f = begin(CAR_RULE_CDP_V2, slack);
        assert_int_equal(latest(&f, CAR_CARGO_PARTIAL, 12), DUE - K);
        assert_int_equal(latest(&f, CAR_CARGO_FINISHED, 12), DUE - 3 * K);
        end(&f);
    }
}

static void receives_follow_the_bottleneck(void **state) {
    (void)state;
    fixture f = begin(CAR_RULE_CDP_V1, 0);
    assert_int_equal(ahead(&f, CAR_CARGO_PARTIAL), 2 * K);
    assert_int_equal(ahead(&f, CAR_CARGO_FINISHED), PERIOD);
    f.rank.saturated = true;
    assert_int_equal(ahead(&f, CAR_CARGO_PARTIAL), 0);
    assert_int_equal(ahead(&f, CAR_CARGO_FINISHED), PERIOD);
    f.rank.paced = f.rank.saturated = false;
    assert_int_equal(ahead(&f, CAR_CARGO_PARTIAL), 2 * K);
    assert_int_equal(ahead(&f, CAR_CARGO_FINISHED), 4 * K);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_delay_leaves_time),
        cmocka_unit_test(fresh_weights_have_little_time),
        cmocka_unit_test(receives_follow_the_bottleneck),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
