/* The facts about the cycle that everything stands on, for N = 1 .. 12 and k = 1 .. 4: who works when, on which version,
 * and what is alive. The truth is the clock in support/setting.h, searched through by brute force; what the formulas claim
 * and what the plan says is compared with that. What is sent, and to whom, is in plan_traffic_facts_test.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/predict.h"
#include "support/common.h"
#include "support/expect.h"
#include "support/plans.h"
#include "support/setting.h"

/* Who works on a stage in a slot of a steady window: 1 + worker, negative for a backward; 0 nobody; MANY more than one. */
enum { WINDOW = 2, MANY = 1 << 20 };

typedef struct grid {
    int *cells; /* [slot of the window][stage] */
} grid;

static void enter(const car_setting *s, grid *g, int64_t slot, int stage, int entry) {
    int64_t column = slot - WINDOW * 2 * (int64_t)s->S;
    if (column >= 0 && column < 2 * s->S) {
        int *cell = &g->cells[column * s->S + stage];
        *cell = *cell == 0 ? entry : MANY;
    }
}

static void enter_task(const car_setting *s, int device, const car_task *task, void *user) {
    (void)device;
    if (task->kind == CAR_TASK_FORWARD || task->kind == CAR_TASK_BACKWARD) {
        enter(s, user, task->slot, task->stage,
              task->kind == CAR_TASK_FORWARD ? 1 + task->micro_batch : -1 - task->micro_batch);
    }
}

static grid grid_of_clock(const car_setting *s) {
    grid g = {calloc(2 * (size_t)s->S * (size_t)s->S, sizeof *g.cells)};
    assert_non_null(g.cells);
    for (int64_t t = 0; t < CAR_SETTING_STEPS; t++) {
        for (int i = 0; i < s->N; i++) {
            for (int j = 0; j < s->S; j++) {
                enter(s, &g, F(s, i, j, t), j, 1 + i);
                enter(s, &g, B(s, i, j, t), j, -1 - i);
            }
        }
    }
    return g;
}

/* ---- fact 1 --------------------------------------------------------------------------------------------- */

/* In steady state, with k = 1, each stage is worked on by exactly one worker in every slot, alternately a forward and a
 * backward. For any k, nobody meets anybody at a stage, and the table is the clock. */
static void check_one_worker(const car_setting *s) {
    grid clock = grid_of_clock(s), table = {calloc(2 * (size_t)s->S * (size_t)s->S, sizeof *table.cells)};
    assert_non_null(table.cells);
    car_setting_for_tasks(s, enter_task, &table);
    assert_memory_equal(clock.cells, table.cells, 2 * (size_t)s->S * (size_t)s->S * sizeof *clock.cells);
    for (int slot = 0; slot < 2 * s->S; slot++) {
        for (int j = 0; j < s->S; j++) {
            int here = clock.cells[slot * s->S + j], next = clock.cells[(slot + 1) % (2 * s->S) * s->S + j];
            assert_int_not_equal(here, MANY);
            if (s->k == 1) {
                assert_int_not_equal(here, 0);
                assert_true((here > 0) != (next > 0));
            }
        }
    }
    free(table.cells);
    free(clock.cells);
}

static void test_one_worker_per_stage(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_one_worker);
}

/* ---- fact 2 --------------------------------------------------------------------------------------------- */

/* Gradients are summed in ring order, 2k slots apart. In the table, worker i's partial sum leaves in the slot of its
 * backward and is there for worker i+1's. */
static void check_partial_sum(const car_setting *s, int device, const car_task *task, void *user) {
    int *counts = user;
    if (task->cargo != CAR_CARGO_PARTIAL) {
        return;
    }
    bool sends = task->kind == CAR_TASK_SEND;
    assert_int_equal(device, sends ? task->micro_batch : task->micro_batch + 1);
    assert_int_equal(task->peer, sends ? task->micro_batch + 1 : task->micro_batch);
    if (sends) {
        assert_int_equal(task->slot, B(s, task->micro_batch, task->stage, task->step));
    } else {
        assert_true(task->slot > B(s, task->micro_batch, task->stage, task->step));
        assert_true(task->slot <= B(s, task->micro_batch + 1, task->stage, task->step));
    }
    counts[sends]++;
}

static void check_ring_order(const car_setting *s) {
    int counts[2] = {0};
    for (int j = 0; j < s->S; j++) {
        /* Go through all slots and note who does the backward. */
        int next = 0;
        int64_t before = 0;
        for (int64_t slot = 0; slot < 4 * s->S; slot++) {
            for (int i = 0; i < s->N; i++) {
                if (B(s, i, j, 0) == slot) {
                    assert_int_equal(i, next++);
                    assert_true(i == 0 || slot - before == 2 * s->k);
                    before = slot;
                }
            }
        }
        assert_int_equal(next, s->N);
    }
    car_setting_for_tasks(s, check_partial_sum, counts);
    assert_int_equal(counts[0], CAR_SETTING_STEPS * s->S * (s->N - 1));
    assert_int_equal(counts[1], CAR_SETTING_STEPS * s->S * (s->N - 1));
}

static void test_ring_order(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, check_ring_order);
}

/* ---- fact 3 --------------------------------------------------------------------------------------------- */

typedef struct update_count {
    int count;
} update_count;

static void check_update_task(const car_setting *s, int device, const car_task *task, void *user) {
    (void)device;
    if (task->kind == CAR_TASK_UPDATE) {
        /* It closes the slot of the last backward: the next slot is the first that sees the result. */
        assert_int_equal(task->slot, car_setting_last_backward(s, task->stage, task->step));
        assert_int_equal(task->version, task->step + 1);
        ((update_count *)user)->count++;
    }
}

static void check_update_slots(const car_setting *s) {
    update_count updates = {0};
    for (int j = 0; j < s->S; j++) {
        for (int64_t t = 0; t < CAR_SETTING_STEPS; t++) {
            int64_t seen = car_setting_last_backward(s, j, t) + 1;
            assert_int_equal(seen, 2 * (int64_t)s->S * (t + 2) - 2 * s->k - j);
            assert_int_equal(car_plan_update_slot(s->plan, t, j), seen);
        }
    }
    car_setting_for_tasks(s, check_update_task, &updates);
    assert_int_equal(updates.count, CAR_SETTING_STEPS * s->S);
}

static void test_update_slots(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_update_slots);
}

/* ---- fact 4 --------------------------------------------------------------------------------------------- */

static void check_version(const car_setting *s, int device, const car_task *task, void *user) {
    (void)device;
    (void)user;
    if (task->kind == CAR_TASK_FORWARD || task->kind == CAR_TASK_BACKWARD) {
        int64_t version = car_setting_is_fresh(s, task->micro_batch, task->stage) ? task->step : task->step - 1;
        assert_int_equal(task->version, version < 0 ? 0 : version);
    }
}

static void check_freshness(const car_setting *s) {
    for (int i = 0; i < s->N; i++) {
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(car_setting_is_fresh(s, i, j), s->k * (i + 1) + j >= s->S);
            assert_int_equal(car_plan_delay(s->plan, i, j), car_setting_is_fresh(s, i, j) ? 0 : 1);
            /* The step after the next always sees it, which is all that cdp-v1 asks for. */
            assert_true(F(s, i, j, 2) > car_setting_last_backward(s, j, 0));
        }
    }
    car_setting_for_tasks(s, check_version, NULL);
}

static void test_freshness(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_freshness);
}

static void check_all_stale(const car_setting *s) {
    for (int i = 0; i < s->N; i++) {
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(car_plan_delay(s->plan, i, j), 1);
        }
    }
}

static void check_all_fresh(const car_setting *s) {
    for (int i = 0; i < s->N; i++) {
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(car_plan_delay(s->plan, i, j), 0);
        }
    }
}

static void test_other_rules(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_CDP_V1, CAR_PLACEMENT_SHARED, check_all_stale);
    car_setting_for_all(CAR_RULE_DP, CAR_PLACEMENT_SHARED, check_all_fresh);
}

/* With a slack of m, the first fresh forward comes at least m slots after it could. */
static void test_slack(void **state) {
    (void)state;
    for (int N = 1; N <= CAR_SETTING_MOST_WORKERS; N++) {
        for (int k = 1; k <= CAR_SETTING_MOST_PER_WORKER; k++) {
            for (int slack = 0; slack <= 2 * k; slack++) {
                car_setting s = car_setting_open(N, k, CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED);
                car_plan_config config = {.workers = N, .rule = CAR_RULE_CDP_V2, .freshness_slack = slack};
                car_plan *plan = car_plans_make(s.partition, config);
                for (int i = 0; i < N; i++) {
                    for (int j = 0; j < s.S; j++) {
                        /* k*(i+1) + j counts half the slots: F moves by 2k with i, and by 2 with j seen from U. */
                        bool fresh = F(&s, i, j, 1) - (car_setting_last_backward(&s, j, 0) + 1) >= 2 * slack;
                        assert_int_equal(car_plan_delay(plan, i, j), fresh ? 0 : 1);
                    }
                }
                car_plan_destroy(plan);
                car_setting_close(&s);
            }
        }
    }
}

/* ---- fact 5 --------------------------------------------------------------------------------------------- */

/* Peak and least of the activations alive over all workers, in units of one micro-batch's. A stage's are held from the
 * start of its forward to the end of its backward. */
typedef struct band {
    double least, most;
} band;

static band alive_by_clock(const car_setting *s) {
    band b = {INFINITY, 0};
    for (int64_t slot = 4 * s->S; slot < 6 * s->S; slot++) {
        int alive = 0;
        for (int64_t t = 0; t < CAR_SETTING_STEPS; t++) {
            for (int i = 0; i < s->N; i++) {
                for (int j = 0; j < s->S; j++) {
                    alive += F(s, i, j, t) <= slot && slot <= B(s, i, j, t);
                }
            }
        }
        b.least = fmin(b.least, (double)alive / s->S);
        b.most = fmax(b.most, (double)alive / s->S);
    }
    return b;
}

/* The same from the forwards and backwards of the table. */
static void add_life(const car_setting *s, int device, const car_task *task, void *user) {
    int *changes = user; /* [slot]: begun in it, minus ended before it */
    (void)device;
    if (task->kind == CAR_TASK_FORWARD && task->slot < 6 * s->S) {
        changes[task->slot]++;
    } else if (task->kind == CAR_TASK_BACKWARD && task->slot + 1 < 6 * s->S) {
        changes[task->slot + 1]--;
    }
}

static band alive_by_table(const car_setting *s) {
    int *changes = calloc(6 * (size_t)s->S, sizeof *changes), alive = 0;
    band b = {INFINITY, 0};
    assert_non_null(changes);
    car_setting_for_tasks(s, add_life, changes);
    for (int slot = 0; slot < 6 * s->S; slot++) {
        alive += changes[slot];
        if (slot >= 4 * s->S) {
            b.least = fmin(b.least, (double)alive / s->S);
            b.most = fmax(b.most, (double)alive / s->S);
        }
    }
    free(changes);
    return b;
}

static void check_activations(const car_setting *s) {
    band clock = alive_by_clock(s), table = alive_by_table(s);
    double N = s->N, k = s->k;
    car_expect_near(table.least, clock.least, 1e-9);
    car_expect_near(table.most, clock.most, 1e-9);
    if (s->k == 1) {
        car_expect_near(clock.most, (N + 1) / 2, 1e-9);
        car_expect_near(clock.least, (N + 1) / 2, 1e-9);
    } else if (s->N % 2 == 0) {
        car_expect_near(clock.most, (N + 1 / k) / 2, 1e-9);
        car_expect_near(clock.least, (N + 1 / k) / 2, 1e-9);
    } else {
        assert_true(clock.most > clock.least); /* a sawtooth */
    }
}

static void test_activations(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_activations);
}

/* Odd N: the sawtooth's peak comes down to (N + 1/N) / 2 as k grows. */
static void test_activations_of_odd_workers(void **state) {
    (void)state;
    for (int N = 1; N <= 7; N += 2) {
        double goal = (N + 1.0 / N) / 2, off = INFINITY;
        for (int k = 1; k <= 16; k *= 2) {
            car_setting s = {.N = N, .k = k, .S = k * N};
            double peak = alive_by_clock(&s).most;
            assert_true(fabs(peak - goal) <= off * 0.75 || fabs(peak - goal) < 1e-9);
            off = fabs(peak - goal);
        }
        assert_true(off < 0.05);
    }
}

/* Stages 0 .. S-1 by all workers at once: dp's peak is all that all workers hold. */
static void check_activations_of_dp(const car_setting *s) {
    band table = alive_by_table(s);
    car_expect_near(table.most, s->N, 1e-9);
}

static void test_activations_of_dp(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_DP, CAR_PLACEMENT_SHARED, check_activations_of_dp);
}

/* ---- several micro-batches a worker --------------------------------------------------------------------- */

/* Micro-batch n = t*M*N + m is at 2k*n: the clock goes on, whatever M is. */
typedef struct several {
    int N, k, S, M, B; /* B = M*N */
    car_plan *plan;
} several;

static int64_t forward_of(const several *s, int64_t n, int j) {
    return 2 * (int64_t)s->k * n + j;
}
static int64_t backward_of(const several *s, int64_t n, int j) {
    return 2 * (int64_t)s->k * n + 2 * (int64_t)s->S - 1 - j;
}

/* When the last micro-batch of a step is done with a stage, searched for. */
static int64_t last_backward(const several *s, int64_t t, int j) {
    int64_t last = 0;
    for (int64_t n = t * s->B; n < (t + 1) * s->B; n++) {
        last = backward_of(s, n, j) > last ? backward_of(s, n, j) : last;
    }
    return last;
}

static void for_several(car_rule rule, void (*check)(const several *s)) {
    for (int N = 1; N <= 5; N++) {
        for (int k = 1; k <= 3; k++) {
            car_partition *partition = car_plans_uniform(k * N, 1.0);
            for (int M = 1; M <= 4; M++) {
                car_plan_config config = {.workers = N, .accumulate = M, .rule = rule};
                several s = {N, k, k * N, M, M * N, car_plans_make(partition, config)};
                check(&s);
                car_plan_destroy(s.plan);
            }
            car_partition_destroy(partition);
        }
    }
}

/* The plan's slots are the clock's; at most N micro-batches are alive at once, one of each worker. */
static void check_clock(const several *s) {
    assert_int_equal(car_plan_micro_batches(s->plan), s->B);
    for (int64_t n = 0; n < 3 * (int64_t)s->B; n++) {
        int64_t t = n / s->B;
        int m = (int)(n % s->B);
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(car_plan_forward_slot(s->plan, t, m, j), forward_of(s, n, j));
            assert_int_equal(car_plan_backward_slot(s->plan, t, m, j), backward_of(s, n, j));
        }
        assert_int_equal(car_plan_worker(s->plan, m), n % s->N);
        assert_int_equal(car_plan_device(s->plan, t, m, 0), n % s->N);
        /* A worker's next begins in the slot after its last has ended. */
        assert_int_equal(forward_of(s, n + s->N, 0), backward_of(s, n, 0) + 1);
    }
}

/* Fresh where timing allows, which is the same condition as with one micro-batch, and always from a worker's second on. */
static void check_fresh(const several *s) {
    int late = 0;
    for (int m = 0; m < s->B; m++) {
        for (int j = 0; j < s->S; j++) {
            bool fresh = forward_of(s, s->B + m, j) > last_backward(s, 0, j);
            assert_int_equal(fresh, s->k * (m + 1) + j >= s->S);
            assert_int_equal(car_plan_delay(s->plan, m, j), !fresh);
            assert_true(fresh || m < s->N);
            late += !fresh;
        }
    }
    /* With one micro-batch each: k * N * (N - 1) / 2 of the N * S. */
    assert_int_equal(late, s->k * s->N * (s->N - 1) / 2);
    car_prediction prediction;
    car_common_expect_ok(car_plan_predict(s->plan, 0, &prediction));
    car_expect_near(prediction.stale_share, (double)late / (s->B * s->S), 1e-9);
}

/* cdp-v1: only the first of each worker is late. The users of a version follow each other, M*N of them. */
static void check_users(const several *s) {
    for (int j = 0; j < s->S; j++) {
        for (int64_t version = 1; version <= 2; version++) {
            int64_t users = 0, first = -1;
            for (int64_t n = 0; n < 5 * (int64_t)s->B; n++) {
                int64_t used = n / s->B - car_plan_delay(s->plan, (int)(n % s->B), j);
                first = used == version && first < 0 ? n : first;
                assert_true(used != version || n == first + users); /* without a gap */
                users += used == version;
            }
            assert_int_equal(first, version * s->B + s->N);
            assert_int_equal(users, s->B);
            assert_true(forward_of(s, first, j) > last_backward(s, version - 1, j)); /* it is made by then */
        }
    }
}

/* stagger: the same distances within a step, which begins when the one before has ended. Nobody is late. */
static void check_stagger(const several *s) {
    int64_t period = car_plan_period(s->plan);
    assert_int_equal(period, 2 * s->S * s->M + 2 * s->S - 2 * s->k);
    assert_int_equal(car_plan_backward_slot(s->plan, 1, s->B - 1, 0) + 1, car_plan_forward_slot(s->plan, 2, 0, 0));
    for (int m = 0; m < s->B; m++) {
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(car_plan_forward_slot(s->plan, 1, m, j), period + forward_of(s, m, j));
            assert_int_equal(car_plan_backward_slot(s->plan, 1, m, j), period + backward_of(s, m, j));
            assert_int_equal(car_plan_delay(s->plan, m, j), 0);
        }
    }
}

static void test_several_micro_batches(void **state) {
    (void)state;
    for_several(CAR_RULE_CDP_V2, check_clock);
    for_several(CAR_RULE_CDP_V2, check_fresh);
    for_several(CAR_RULE_CDP_V1, check_clock);
    for_several(CAR_RULE_CDP_V1, check_users);
    for_several(CAR_RULE_STAGGER, check_stagger);
}

/* What is no number of micro-batches, and orders of addition that do not go with a rule or placement. */
static void test_refusals(void **state) {
    (void)state;
    static const struct {
        car_plan_config config;
        const char *says;
    } wrong[] = {
        {{.workers = 4, .accumulate = -1}, "use 1 to 65536"},
        {{.workers = 4, .accumulate = 1 << 19}, "use 1 to 65536"},
        {{.workers = 4, .accumulate = 2, .sum_order = (car_sum_order)7}, "no sum order 7"},
        {{.workers = 4, .accumulate = 2, .sum_order = CAR_SUM_ORDER_MICRO_BATCH},
         "use sum-order worker, or rule accumulate"},
        {{.workers = 4,
          .accumulate = 2,
          .sum_order = CAR_SUM_ORDER_WORKER,
          .rule = CAR_RULE_CDP_V2,
          .placement = CAR_PLACEMENT_GRID},
         "use sum-order micro-batch"},
    };
    car_partition *partition = car_plans_uniform(4, 1.0);
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        car_plan *plan = NULL;
        assert_int_equal(car_plan_create(car_common_context, partition, &wrong[w].config, &plan), CAR_ERROR_ARGUMENT);
        assert_non_null(strstr(car_context_error(car_common_context), wrong[w].says));
        car_context_clear_error(car_common_context);
    }
    car_partition_destroy(partition);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_worker_per_stage),
        cmocka_unit_test(test_ring_order),
        cmocka_unit_test(test_update_slots),
        cmocka_unit_test(test_freshness),
        cmocka_unit_test(test_other_rules),
        cmocka_unit_test(test_slack),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_activations_of_odd_workers),
        cmocka_unit_test(test_activations_of_dp),
        cmocka_unit_test(test_several_micro_batches),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("plan_facts", tests, car_common_set_up, car_common_tear_down);
}
