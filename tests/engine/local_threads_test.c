/* Ranks that are groups of threads of one process against the shared engine: every placement gives the same weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/thread_ranks.h"
#include "transport/transport.h"

static void run_case(const car_placement_setting *setting, const char *model, car_rule rule, bool guarded) {
    const car_thread_rank like = {
        .setting = setting, .model = model, .rule = rule, .guarded = guarded, .stop_step = CAR_NONE};
    assert_true(car_thread_ranks_train(&like, NULL));
}

static void run_placement(car_placement placement) {
    for (int s = 0; s < car_placement_setting_count; s++) {
        const car_placement_setting *setting = &car_placement_settings[s];
        bool several = setting->accumulate > 1;
        if (setting->placement == placement && several && !setting->full) {
            run_case(setting, "mlp", CAR_RULE_STAGGER, true);
        }
        for (int r = 0; r < 3 && setting->placement == placement && !setting->full; r++) {
            run_case(setting, "mlp", car_placement_rules[r], false);
            run_case(setting, "mlp", car_placement_rules[r], true);
            if (setting->workers == 3 || several) { /* with a tied parameter, once or twice for each placement */
                run_case(setting, "gpt2-nano", car_placement_rules[r], false);
                run_case(setting, CAR_PLACEMENT_BF16, car_placement_rules[r], r == 1);
            }
        }
    }
}

/* Stopped by the feed of every worker in turn, with and without clipping and a skipped step. */
static void test_stopping(void **state) {
    (void)state;
    for (int s = 0; s < car_placement_setting_count; s++) {
        const car_placement_setting *setting = &car_placement_settings[s];
        for (int n = 0; n < 3 * setting->workers && !setting->full; n++) {
            car_placement_setting with = *setting;
            with.snapshot_every = n % 3;
            with.weights_every = n % 4 == 1 ? 3 : 0;
            const car_thread_rank like = {.setting = &with,
                                          .model = n % 4 == 3 && setting->workers == 3 ? "gpt2-nano" : "mlp",
                                          .rule = car_placement_rules[n / setting->workers],
                                          .guarded = n % 2 == 1,
                                          .stop_step = n % 5,
                                          .stopper = n % setting->workers};
            assert_true(car_thread_ranks_train(&like, NULL));
        }
    }
}

static void test_shared(void **state) {
    (void)state;
    run_placement(CAR_PLACEMENT_SHARED);
}
static void test_replica(void **state) {
    (void)state;
    run_placement(CAR_PLACEMENT_REPLICA);
}
static void test_zero(void **state) {
    (void)state;
    run_placement(CAR_PLACEMENT_ZERO);
    /* Two stages an owner, where one's norm decides about the other, whose new weights the forward between them reads. */
    const car_placement_setting two = {CAR_PLACEMENT_ZERO, 3, 2, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0};
    run_case(&two, "mlp", CAR_RULE_CDP_V2, true);
}
static void test_pipeline(void **state) {
    (void)state;
    run_placement(CAR_PLACEMENT_PIPELINE);
}
static void test_grid(void **state) {
    (void)state;
    run_placement(CAR_PLACEMENT_GRID);
}

/* ---- calls around the loop, and a rank that fails -------------------------------------------- */

static void *call_all(void *argument) {
    car_thread_rank *m = argument;
    car_context *context = NULL;
    car_transport *t = NULL;
    int ranks = m->setting->ranks, all[CAR_THREAD_RANKS_MOST], told = m->rank == 1 ? 77 : 0,
        handed = m->rank == 2 ? 5 : 0;
    m->good = car_context_create(NULL, &context) == CAR_OK && car_hub_join(m->hub, context, m->rank, &t) == CAR_OK;
    for (int round = 0; m->good && round < 200; round++) {
        int own = 100 * round + m->rank;
        m->good = car_transport_all_gather(t, &own, sizeof own, all) == CAR_OK;
        for (int r = 0; r < ranks; r++) {
            m->good = m->good && all[r] == 100 * round + r;
        }
        m->good = m->good && car_transport_broadcast(t, 1, &told, sizeof told) == CAR_OK && told == 77;
        m->good = m->good && car_transport_hand_over(t, 2, 0, &handed, sizeof handed) == CAR_OK;
        m->good = m->good && (m->rank != 0 || handed == 5);
    }
    car_transport_close(t);
    car_context_destroy(context);
    return NULL;
}

static void *leave_others_alone(void *argument) {
    car_thread_rank *m = argument;
    car_context *context = NULL;
    car_transport *t = NULL;
    int own = 0, all[CAR_THREAD_RANKS_MOST];
    m->good = car_context_create(NULL, &context) == CAR_OK && car_hub_join(m->hub, context, m->rank, &t) == CAR_OK;
    if (m->rank == 1) {
        car_transport_abort(t, 1);
    } else {
        m->good = m->good && car_transport_all_gather(t, &own, sizeof own, all) == CAR_ERROR_IO;
    }
    car_transport_close(t);
    car_context_destroy(context);
    return NULL;
}

static void run_all(void *(*function)(void *)) {
    const car_placement_setting setting = {.ranks = 3};
    const car_thread_rank like = {.setting = &setting};
    assert_true(car_thread_ranks_run(setting.ranks, &like, NULL, function, NULL, NULL));
}

static void test_blocking_calls(void **state) {
    (void)state;
    run_all(call_all);
}

static void test_a_rank_that_leaves(void **state) {
    (void)state;
    run_all(leave_others_alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocking_calls), cmocka_unit_test(test_a_rank_that_leaves),
        cmocka_unit_test(test_shared),         cmocka_unit_test(test_replica),
        cmocka_unit_test(test_zero),           cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_grid),           cmocka_unit_test(test_stopping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
