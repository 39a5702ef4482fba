/* The facts about the cycle that everything stands on, for N = 1 .. 12 and k = 1 .. 4. The truth here is the clock,
 *
 *     F(i,j,t) = 2S*t + 2k*i + j        B(i,j,t) = 2S*t + 2k*i + 2S-1-j
 *
 * searched through by brute force; what the formulas claim and what the plan says is compared with that. Nothing is taken
 * from the code under test. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/plan.h"

enum { MOST_WORKERS = 12, MOST_PER_WORKER = 4, STEPS = 5 };

typedef struct setting {
    int N, k, S;
    car_partition *partition;
    car_plan *plan;
} setting;

static car_context *context;

static int set_up(void **state) {
    (void)state;
    return car_context_create(NULL, &context) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    car_context_destroy(context);
    return 0;
}

static setting open_setting(int N, int k, car_rule rule, car_placement placement) {
    setting s = {.N = N, .k = k, .S = k * N};
    car_plan_config config = {.workers = N, .rule = rule, .placement = placement};
    assert_int_equal(car_partition_create_uniform(context, s.S, 1.0, &s.partition), CAR_OK);
    assert_int_equal(car_plan_create(context, s.partition, &config, &s.plan), CAR_OK);
    return s;
}

static void close_setting(setting *s) {
    car_plan_destroy(s->plan);
    car_partition_destroy(s->partition);
}

typedef void (*check_function)(const setting *s);

static void for_all(car_rule rule, car_placement placement, check_function check) {
    for (int N = 1; N <= MOST_WORKERS; N++) {
        for (int k = 1; k <= MOST_PER_WORKER; k++) {
            setting s = open_setting(N, k, rule, placement);
            check(&s);
            close_setting(&s);
        }
    }
}

/* ---- the clock ------------------------------------------------------------------------------------------ */

static int64_t F(const setting *s, int i, int j, int64_t t) {
    return 2 * (int64_t)s->S * t + 2 * (int64_t)s->k * i + j;
}

static int64_t B(const setting *s, int i, int j, int64_t t) {
    return 2 * (int64_t)s->S * t + 2 * (int64_t)s->k * i + 2 * (int64_t)s->S - 1 - j;
}

/* When the last worker is done with a stage, searched for. */
static int64_t last_backward(const setting *s, int j, int64_t t) {
    int64_t last = B(s, 0, j, t);
    for (int i = 1; i < s->N; i++) {
        last = B(s, i, j, t) > last ? B(s, i, j, t) : last;
    }
    return last;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

typedef void (*task_function)(const setting *s, int device, const car_task *task, void *user);

static void for_tasks(const setting *s, task_function function, void *user) {
    car_task_list list = {0};
    for (int device = 0; device < car_plan_devices(s->plan); device++) {
        for (int64_t window = 0; window < car_plan_windows(s->plan, STEPS); window++) {
            assert_int_equal(car_plan_expand(s->plan, device, window, STEPS, &list), CAR_OK);
            for (int n = 0; n < list.count; n++) {
                function(s, device, &list.tasks[n], user);
            }
        }
    }
    car_task_list_release(s->plan, &list);
}

/* Who works on a stage in a slot of a steady window: 1 + worker, negative for a backward; 0 nobody; MANY more than one. */
enum { WINDOW = 2, MANY = 1 << 20 };

typedef struct grid {
    int *cells; /* [slot of the window][stage] */
} grid;

static void enter(const setting *s, grid *g, int64_t slot, int stage, int entry) {
    int64_t column = slot - WINDOW * 2 * (int64_t)s->S;
    if (column >= 0 && column < 2 * s->S) {
        int *cell = &g->cells[column * s->S + stage];
        *cell = *cell == 0 ? entry : MANY;
    }
}

static void enter_task(const setting *s, int device, const car_task *task, void *user) {
    (void)device;
    if (task->kind == CAR_TASK_FORWARD || task->kind == CAR_TASK_BACKWARD) {
        enter(s, user, task->slot, task->stage, task->kind == CAR_TASK_FORWARD ? 1 + task->worker : -1 - task->worker);
    }
}

static grid grid_of_clock(const setting *s) {
    grid g = {calloc(2 * (size_t)s->S * (size_t)s->S, sizeof *g.cells)};
    assert_non_null(g.cells);
    for (int64_t t = 0; t < STEPS; t++) {
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
static void check_one_worker(const setting *s) {
    grid clock = grid_of_clock(s), table = {calloc(2 * (size_t)s->S * (size_t)s->S, sizeof *table.cells)};
    assert_non_null(table.cells);
    for_tasks(s, enter_task, &table);
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
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_one_worker);
}

/* ---- fact 2 --------------------------------------------------------------------------------------------- */

/* Gradients are summed in ring order, 2k slots apart. In the table, worker i's partial sum leaves in the slot of its
 * backward and is there for worker i+1's. */
static void check_partial_sum(const setting *s, int device, const car_task *task, void *user) {
    int *counts = user;
    if (task->cargo != CAR_CARGO_PARTIAL) {
        return;
    }
    bool sends = task->kind == CAR_TASK_SEND;
    assert_int_equal(device, sends ? task->worker : task->worker + 1);
    assert_int_equal(task->peer, sends ? task->worker + 1 : task->worker);
    if (sends) {
        assert_int_equal(task->slot, B(s, task->worker, task->stage, task->step));
    } else {
        assert_true(task->slot > B(s, task->worker, task->stage, task->step));
        assert_true(task->slot <= B(s, task->worker + 1, task->stage, task->step));
    }
    counts[sends]++;
}

static void check_ring_order(const setting *s) {
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
    for_tasks(s, check_partial_sum, counts);
    assert_int_equal(counts[0], STEPS * s->S * (s->N - 1));
    assert_int_equal(counts[1], STEPS * s->S * (s->N - 1));
}

static void test_ring_order(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, check_ring_order);
}

/* ---- fact 3 --------------------------------------------------------------------------------------------- */

typedef struct update_count {
    int count;
} update_count;

static void check_update_task(const setting *s, int device, const car_task *task, void *user) {
    (void)device;
    if (task->kind == CAR_TASK_UPDATE) {
        /* It closes the slot of the last backward: the next slot is the first that sees the result. */
        assert_int_equal(task->slot, last_backward(s, task->stage, task->step));
        assert_int_equal(task->version, task->step + 1);
        ((update_count *)user)->count++;
    }
}

static void check_update_slots(const setting *s) {
    update_count updates = {0};
    for (int j = 0; j < s->S; j++) {
        for (int64_t t = 0; t < STEPS; t++) {
            int64_t seen = last_backward(s, j, t) + 1;
            assert_int_equal(seen, 2 * (int64_t)s->S * (t + 2) - 2 * s->k - j);
            assert_int_equal(car_plan_update_slot(s->plan, t, j), seen);
        }
    }
    for_tasks(s, check_update_task, &updates);
    assert_int_equal(updates.count, STEPS * s->S);
}

static void test_update_slots(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_update_slots);
}

/* ---- fact 4 --------------------------------------------------------------------------------------------- */

/* Fresh where timing allows: the forward of the next step does not come before the update. */
static bool is_fresh(const setting *s, int i, int j) {
    return F(s, i, j, 1) > last_backward(s, j, 0);
}

static void check_version(const setting *s, int device, const car_task *task, void *user) {
    (void)device;
    (void)user;
    if (task->kind == CAR_TASK_FORWARD || task->kind == CAR_TASK_BACKWARD) {
        int64_t version = is_fresh(s, task->worker, task->stage) ? task->step : task->step - 1;
        assert_int_equal(task->version, version < 0 ? 0 : version);
    }
}

static void check_freshness(const setting *s) {
    for (int i = 0; i < s->N; i++) {
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(is_fresh(s, i, j), s->k * (i + 1) + j >= s->S);
            assert_int_equal(car_plan_delay(s->plan, i, j), is_fresh(s, i, j) ? 0 : 1);
            /* The step after the next always sees it, which is all that cdp-v1 asks for. */
            assert_true(F(s, i, j, 2) > last_backward(s, j, 0));
        }
    }
    for_tasks(s, check_version, NULL);
}

static void test_freshness(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_freshness);
}

static void check_all_stale(const setting *s) {
    for (int i = 0; i < s->N; i++) {
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(car_plan_delay(s->plan, i, j), 1);
        }
    }
}

static void check_all_fresh(const setting *s) {
    for (int i = 0; i < s->N; i++) {
        for (int j = 0; j < s->S; j++) {
            assert_int_equal(car_plan_delay(s->plan, i, j), 0);
        }
    }
}

static void test_other_rules(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V1, CAR_PLACEMENT_SHARED, check_all_stale);
    for_all(CAR_RULE_DP, CAR_PLACEMENT_SHARED, check_all_fresh);
}

/* With a slack of m, the first fresh forward comes at least m slots after it could. */
static void test_slack(void **state) {
    (void)state;
    for (int N = 1; N <= MOST_WORKERS; N++) {
        for (int k = 1; k <= MOST_PER_WORKER; k++) {
            for (int slack = 0; slack <= 2 * k; slack++) {
                setting s = open_setting(N, k, CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED);
                car_plan_config config = {.workers = N, .rule = CAR_RULE_CDP_V2, .freshness_slack = slack};
                car_plan *plan = NULL;
                assert_int_equal(car_plan_create(context, s.partition, &config, &plan), CAR_OK);
                for (int i = 0; i < N; i++) {
                    for (int j = 0; j < s.S; j++) {
                        /* k*(i+1) + j counts half the slots: F moves by 2k with i, and by 2 with j seen from U. */
                        bool fresh = F(&s, i, j, 1) - (last_backward(&s, j, 0) + 1) >= 2 * slack;
                        assert_int_equal(car_plan_delay(plan, i, j), fresh ? 0 : 1);
                    }
                }
                car_plan_destroy(plan);
                close_setting(&s);
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

static band alive_by_clock(const setting *s) {
    band b = {INFINITY, 0};
    for (int64_t slot = 4 * s->S; slot < 6 * s->S; slot++) {
        int alive = 0;
        for (int64_t t = 0; t < STEPS; t++) {
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

/* The same from what the table makes and frees. */
static void add_life(const setting *s, int device, const car_task *task, void *user) {
    int *changes = user; /* [slot]: begun in it, minus ended before it */
    (void)device;
    if (task->kind == CAR_TASK_FORWARD && task->slot < 6 * s->S) {
        changes[task->slot]++;
    } else if (task->frees & CAR_FREES_ACTIVATIONS && task->slot + 1 < 6 * s->S) {
        changes[task->slot + 1]--;
    }
}

static band alive_by_table(const setting *s) {
    int *changes = calloc(6 * (size_t)s->S, sizeof *changes), alive = 0;
    band b = {INFINITY, 0};
    assert_non_null(changes);
    for_tasks(s, add_life, changes);
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

static void expect_near(double value, double expected) {
    assert_true(fabs(value - expected) < 1e-9);
}

static void check_activations(const setting *s) {
    band clock = alive_by_clock(s), table = alive_by_table(s);
    double N = s->N, k = s->k;
    expect_near(table.least, clock.least);
    expect_near(table.most, clock.most);
    if (s->k == 1) {
        expect_near(clock.most, (N + 1) / 2);
        expect_near(clock.least, (N + 1) / 2);
    } else if (s->N % 2 == 0) {
        expect_near(clock.most, (N + 1 / k) / 2);
        expect_near(clock.least, (N + 1 / k) / 2);
    } else {
        assert_true(clock.most > clock.least); /* a sawtooth */
    }
}

static void test_activations(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, check_activations);
}

/* Odd N: the sawtooth's peak comes down to (N + 1/N) / 2 as k grows. */
static void test_activations_of_odd_workers(void **state) {
    (void)state;
    for (int N = 1; N <= 7; N += 2) {
        double goal = (N + 1.0 / N) / 2, off = INFINITY;
        for (int k = 1; k <= 16; k *= 2) {
            setting s = {.N = N, .k = k, .S = k * N};
            double peak = alive_by_clock(&s).most;
            assert_true(fabs(peak - goal) <= off * 0.75 || fabs(peak - goal) < 1e-9);
            off = fabs(peak - goal);
        }
        assert_true(off < 0.05);
    }
}

/* Stages 0 .. S-1 by all workers at once: dp's peak is all that all workers hold. */
static void check_activations_of_dp(const setting *s) {
    band table = alive_by_table(s);
    expect_near(table.most, s->N);
}

static void test_activations_of_dp(void **state) {
    (void)state;
    for_all(CAR_RULE_DP, CAR_PLACEMENT_SHARED, check_activations_of_dp);
}

/* ---- fact 6 --------------------------------------------------------------------------------------------- */

typedef struct traffic {
    int *sent; /* [device][slot][cargo] */
    int64_t slots;
    int jumps;
} traffic;

static void count_message(const setting *s, int device, const car_task *task, void *user) {
    traffic *t = user;
    if (task->kind != CAR_TASK_SEND) {
        return;
    }
    int *sent = &t->sent[(device * t->slots + task->slot) * CAR_CARGOS + task->cargo];
    assert_int_equal((*sent)++, 0); /* one of a kind for each worker and slot */
    if (task->peer == (device + 1) % s->N && !(device == s->N - 1 && task->cargo == CAR_CARGO_FINISHED)) {
        return;
    }
    /* What does not go to the next worker is the jump: to the first worker that is fresh, in no time. */
    int fresh = 0;
    while (!is_fresh(s, fresh, task->stage)) {
        fresh++;
    }
    assert_int_equal(device, s->N - 1);
    assert_int_equal(task->cargo, CAR_CARGO_FINISHED);
    if (task->slot == B(s, s->N - 1, task->stage, task->step)) {
        assert_int_equal(task->peer, fresh);
        assert_true(s->k > 1 || fresh == s->N - 1 - task->stage);
        t->jumps++;
    } else {
        assert_int_equal(task->peer, 0); /* passed on around the ring */
    }
}

/* The jump is received in the slot of the first fresh forward; with k = 1 that is the very next slot. */
static void check_jump_arrives(const setting *s, int device, const car_task *task, void *user) {
    (void)user;
    if (task->kind == CAR_TASK_RECEIVE && task->cargo == CAR_CARGO_FINISHED && task->peer == s->N - 1 && device != 0) {
        assert_true(is_fresh(s, device, task->stage));
        assert_int_equal(task->slot, F(s, device, task->stage, task->step + 1));
        if (s->k == 1) {
            assert_int_equal(task->slot, last_backward(s, task->stage, task->step) + 1);
        }
    }
}

static void check_messages(const setting *s) {
    traffic t = {.slots = 2 * (int64_t)s->S * (STEPS + 1)};
    t.sent = calloc((size_t)(s->N * t.slots * CAR_CARGOS), sizeof *t.sent);
    assert_non_null(t.sent);
    for_tasks(s, count_message, &t);
    for_tasks(s, check_jump_arrives, NULL);
    /* Where worker N-1 is itself the first that is fresh (the first stages), the sum is where it is needed. */
    int stay = 0;
    for (int j = 0; j < s->S; j++) {
        int fresh = 0;
        while (!is_fresh(s, fresh, j)) {
            fresh++;
        }
        stay += fresh == s->N - 1;
    }
    assert_int_equal(t.jumps, (STEPS - 1) * (s->S - stay));
    free(t.sent);
}

static void test_messages(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, check_messages);
}

/* dp needs a collective between two slots: all ranks meet after every backward, and there are no messages. The cycle has
 * no collectives. */
static void count_collective(const setting *s, int device, const car_task *task, void *user) {
    int *counts = user; /* [slot], and whatever else in [-1] */
    (void)device;
    if (task->kind == CAR_TASK_REDUCE) {
        assert_int_equal(task->slot % (2 * (int64_t)s->S), 2 * s->S - 1 - task->stage);
        counts[task->slot]++;
    }
    counts[-1] += task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE || task->kind == CAR_TASK_BROADCAST;
}

static void check_collectives(const setting *s) {
    int slots = 2 * s->S * (STEPS + 1), *counts = calloc((size_t)slots + 1, sizeof *counts);
    assert_non_null(counts);
    for_tasks(s, count_collective, counts + 1);
    bool dp = car_plan_config_of(s->plan)->rule == CAR_RULE_DP;
    assert_true(!dp || counts[0] == 0);
    for (int slot = 0; slot < slots; slot++) {
        bool backward = slot < 2 * s->S * STEPS && slot % (2 * s->S) >= s->S;
        assert_int_equal(counts[slot + 1], dp && backward ? s->N : 0);
    }
    free(counts);
}

static void test_collectives(void **state) {
    (void)state;
    for_all(CAR_RULE_DP, CAR_PLACEMENT_REPLICA, check_collectives);
    for_all(CAR_RULE_CDP_V1, CAR_PLACEMENT_REPLICA, check_collectives);
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, check_collectives);
}

/* ---- zero: where weights go ----------------------------------------------------------------------------- */

/* k = 1: from the forward of worker i a version goes to the backward of worker i+j+1, mod N, which is what has the next
 * slot with that stage; searched for among all tasks that use the version. */
static void check_weight_move(const setting *s, int device, const car_task *task, void *user) {
    (void)user;
    if (task->kind != CAR_TASK_SEND || task->cargo != CAR_CARGO_WEIGHTS || task->slot < 0) {
        return;
    }
    int64_t best = INT64_MAX;
    int user_device = CAR_NONE;
    for (int64_t t = 0; t < STEPS; t++) {
        for (int i = 0; i < s->N; i++) {
            int64_t version = is_fresh(s, i, task->stage) || t == 0 ? t : t - 1;
            int64_t slots[2] = {F(s, i, task->stage, t), B(s, i, task->stage, t)};
            for (int n = 0; n < 2; n++) {
                if (version == task->version && slots[n] > task->slot && slots[n] < best) {
                    best = slots[n];
                    user_device = i;
                }
            }
        }
    }
    assert_int_equal(task->peer, user_device);
    bool forward = (task->slot - 2 * s->k * device - task->stage) % (2 * (int64_t)s->S) == 0;
    if (s->k == 1 && forward && best == task->slot + 1) {
        assert_int_equal(user_device, (device + task->stage + 1) % s->N);
    }
}

static void check_weight_moves(const setting *s) {
    for_tasks(s, check_weight_move, NULL);
}

static void test_weight_moves(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_ZERO, check_weight_moves);
}

/* ---- the grid ------------------------------------------------------------------------------------------- */

/* Stage j's activations of micro-batch n are alive from F to B; on each rank those intervals must not touch. */
static void check_grid_ranks(const setting *s) {
    int64_t *free_from = NULL; /* [device]: the slot after what it holds */
    int first = 0;
    assert_int_equal(car_plan_devices(s->plan), s->N * (s->N + 1) / 2);
    free_from = calloc((size_t)car_plan_devices(s->plan), sizeof *free_from);
    assert_non_null(free_from);
    for (int r = 0; r < s->N; r++) {
        for (int64_t n = 0; n < 6 * s->N; n++) {
            int rank = first + (int)(n % (s->N - r)), i = (int)(n % s->N);
            int64_t t = n / s->N;
            for (int j = r * s->k; j < (r + 1) * s->k; j++) {
                assert_int_equal(car_plan_device(s->plan, t, i, j), rank);
            }
            /* The group's life of a micro-batch: first forward of its stages to the last backward of them. */
            assert_true(F(s, i, r * s->k, t) >= free_from[rank]);
            free_from[rank] = B(s, i, r * s->k, t) + 1;
        }
        first += s->N - r;
    }
    assert_int_equal(first, car_plan_devices(s->plan));
    free(free_from);
}

static void test_grid_ranks(void **state) {
    (void)state;
    for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_GRID, check_grid_ranks);
}

/* A rank fewer would not do: N-r micro-batches are alive in group r at once. */
static void test_grid_needs_its_ranks(void **state) {
    (void)state;
    for (int N = 1; N <= MOST_WORKERS; N++) {
        setting s = {.N = N, .k = 1, .S = N};
        for (int j = 0; j < N; j++) {
            int most = 0;
            for (int64_t slot = 4 * N; slot < 6 * N; slot++) {
                int alive = 0;
                for (int64_t n = 0; n < 4 * N; n++) {
                    int i = (int)(n % N);
                    alive += F(&s, i, j, n / N) <= slot && slot <= B(&s, i, j, n / N);
                }
                most = alive > most ? alive : most;
            }
            assert_int_equal(most, N - j);
        }
    }
}

static int64_t gcd(int64_t a, int64_t b) {
    return b == 0 ? a : gcd(b, a % b);
}

/* The pattern of a grid comes again after lcm over r of (N-r) / gcd(N, N-r) steps: by the formula, and by looking for the
 * first shift after which all micro-batches are on the same ranks. */
static void test_grid_pattern(void **state) {
    (void)state;
    const int64_t known[MOST_WORKERS + 1] = {[3] = 2, [4] = 3, [8] = 105};
    for (int N = 1; N <= 8; N++) {
        setting s = open_setting(N, 1, CAR_RULE_CDP_V2, CAR_PLACEMENT_GRID);
        int64_t steps = 1, shift = 0;
        for (int r = 0; r < N; r++) {
            int64_t own = (N - r) / gcd(N, N - r);
            steps = steps / gcd(steps, own) * own;
        }
        bool same = false;
        while (!same) {
            shift++;
            same = true;
            for (int i = 0; i < N; i++) {
                for (int j = 0; j < N; j++) {
                    same = same && car_plan_device(s.plan, shift, i, j) == car_plan_device(s.plan, 0, i, j);
                }
            }
        }
        assert_int_equal(shift, steps);
        assert_true(known[N] == 0 || known[N] == steps);
        close_setting(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_worker_per_stage), cmocka_unit_test(test_ring_order),
        cmocka_unit_test(test_update_slots),         cmocka_unit_test(test_freshness),
        cmocka_unit_test(test_other_rules),          cmocka_unit_test(test_slack),
        cmocka_unit_test(test_activations),          cmocka_unit_test(test_activations_of_odd_workers),
        cmocka_unit_test(test_activations_of_dp),    cmocka_unit_test(test_messages),
        cmocka_unit_test(test_collectives),          cmocka_unit_test(test_weight_moves),
        cmocka_unit_test(test_grid_ranks),           cmocka_unit_test(test_grid_needs_its_ranks),
        cmocka_unit_test(test_grid_pattern),
    };
    return cmocka_run_group_tests_name("plan_facts", tests, set_up, tear_down);
}
