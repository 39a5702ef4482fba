/* Ranks that are groups of threads of one process against the shared engine: every placement gives the same weights. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/placements.h"
#include "transport/transport.h"

enum { MOST_RANKS = 16 };

/* One rank of a case. */
typedef struct member {
    car_hub *hub;
    int rank;
    const car_placement_setting *setting;
    const char *model;
    car_rule rule;
    bool guarded, good;
    int64_t stop_step; /* CAR_NONE: it is not stopped */
    int stopper;
} member;

static void *run_member(void *argument) {
    member *m = argument;
    car_context *context = NULL;
    car_transport *transport = NULL;
    if (car_context_create(NULL, &context) == CAR_OK && car_hub_join(m->hub, context, m->rank, &transport) == CAR_OK) {
        m->good = m->stop_step == CAR_NONE ? car_placement_run(transport, m->setting, m->model, m->rule, m->guarded)
                                           : car_placement_stop(transport, m->setting, m->model, m->rule, m->stop_step,
                                                                m->stopper, m->guarded);
        car_transport_close(transport);
    }
    car_context_destroy(context);
    return NULL;
}

/* A thread for each rank; all must end well. */
static void run_members(int ranks, const member *like, void *(*function)(void *)) {
    member members[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    car_context *context = NULL;
    car_hub *hub = NULL;
    assert_true(ranks <= MOST_RANKS);
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_hub_create(context, ranks, &hub), CAR_OK);
    for (int r = 0; r < ranks; r++) {
        members[r] = *like;
        members[r].hub = hub;
        members[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, function, &members[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        assert_true(members[r].good);
    }
    car_hub_destroy(hub);
    car_context_destroy(context);
}

static void run_case(const car_placement_setting *setting, const char *model, car_rule rule, bool guarded) {
    const member like = {.setting = setting, .model = model, .rule = rule, .guarded = guarded, .stop_step = CAR_NONE};
    run_members(car_placement_ranks(setting, rule), &like, run_member);
}

static void run_placement(car_placement placement) {
    for (int s = 0; s < car_placement_setting_count; s++) {
        const car_placement_setting *setting = &car_placement_settings[s];
        for (int r = 0; r < 3 && setting->placement == placement && !setting->full; r++) {
            run_case(setting, "mlp", car_placement_rules[r], false);
            run_case(setting, "mlp", car_placement_rules[r], true);
            if (setting->workers == 3) { /* with a tied parameter, once for each placement */
                run_case(setting, "gpt2-nano", car_placement_rules[r], false);
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
            const member like = {.setting = setting,
                                 .model = n % 4 == 3 && setting->workers == 3 ? "gpt2-nano" : "mlp",
                                 .rule = car_placement_rules[n / setting->workers],
                                 .guarded = n % 2 == 1,
                                 .stop_step = n % 5,
                                 .stopper = n % setting->workers};
            run_members(car_placement_ranks(setting, like.rule), &like, run_member);
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
    member *m = argument;
    car_context *context = NULL;
    car_transport *t = NULL;
    int ranks = m->setting->ranks, all[MOST_RANKS], told = m->rank == 1 ? 77 : 0, handed = m->rank == 2 ? 5 : 0;
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
    member *m = argument;
    car_context *context = NULL;
    car_transport *t = NULL;
    int own = 0, all[MOST_RANKS];
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
    const member like = {.setting = &setting};
    run_members(setting.ranks, &like, function);
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
