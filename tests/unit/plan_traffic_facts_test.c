/* The facts about messages, moving weights and the ranks of a grid, for N = 1 .. 12 and k = 1 .. 4. As in
 * plan_facts_test.c, the truth is the clock in support/setting.h, searched through by brute force. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/common.h"
#include "support/setting.h"

/* ---- fact 6 --------------------------------------------------------------------------------------------- */

typedef struct traffic {
    int *sent; /* [device][slot][cargo] */
    int64_t slots;
    int jumps;
} traffic;

static void count_message(const car_setting *s, int device, const car_task *task, void *user) {
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
    while (!car_setting_is_fresh(s, fresh, task->stage)) {
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
static void check_jump_arrives(const car_setting *s, int device, const car_task *task, void *user) {
    (void)user;
    if (task->kind == CAR_TASK_RECEIVE && task->cargo == CAR_CARGO_FINISHED && task->peer == s->N - 1 && device != 0) {
        assert_true(car_setting_is_fresh(s, device, task->stage));
        assert_int_equal(task->slot, F(s, device, task->stage, task->step + 1));
        if (s->k == 1) {
            assert_int_equal(task->slot, car_setting_last_backward(s, task->stage, task->step) + 1);
        }
    }
}

static void check_messages(const car_setting *s) {
    traffic t = {.slots = 2 * (int64_t)s->S * (CAR_SETTING_STEPS + 1)};
    t.sent = calloc((size_t)(s->N * t.slots * CAR_CARGOS), sizeof *t.sent);
    assert_non_null(t.sent);
    car_setting_for_tasks(s, count_message, &t);
    car_setting_for_tasks(s, check_jump_arrives, NULL);
    /* Where worker N-1 is itself the first that is fresh (the first stages), the sum is where it is needed. */
    int stay = 0;
    for (int j = 0; j < s->S; j++) {
        int fresh = 0;
        while (!car_setting_is_fresh(s, fresh, j)) {
            fresh++;
        }
        stay += fresh == s->N - 1;
    }
    assert_int_equal(t.jumps, (CAR_SETTING_STEPS - 1) * (s->S - stay));
    free(t.sent);
}

static void test_messages(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, check_messages);
}

/* dp needs a collective between two slots: all ranks meet after every backward, and there are no messages. The cycle has
 * no collectives. */
static void count_collective(const car_setting *s, int device, const car_task *task, void *user) {
    int *counts = user; /* [slot], and whatever else in [-1] */
    (void)device;
    if (task->kind == CAR_TASK_REDUCE) {
        assert_int_equal(task->slot % (2 * (int64_t)s->S), 2 * s->S - 1 - task->stage);
        counts[task->slot]++;
    }
    counts[-1] += task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE || task->kind == CAR_TASK_BROADCAST;
}

static void check_collectives(const car_setting *s) {
    int slots = 2 * s->S * (CAR_SETTING_STEPS + 1), *counts = calloc((size_t)slots + 1, sizeof *counts);
    assert_non_null(counts);
    car_setting_for_tasks(s, count_collective, counts + 1);
    bool dp = car_plan_config_of(s->plan)->rule == CAR_RULE_DP;
    assert_true(!dp || counts[0] == 0);
    for (int slot = 0; slot < slots; slot++) {
        bool backward = slot < 2 * s->S * CAR_SETTING_STEPS && slot % (2 * s->S) >= s->S;
        assert_int_equal(counts[slot + 1], dp && backward ? s->N : 0);
    }
    free(counts);
}

static void test_collectives(void **state) {
    (void)state;
    car_setting_for_all(CAR_RULE_DP, CAR_PLACEMENT_REPLICA, check_collectives);
    car_setting_for_all(CAR_RULE_CDP_V1, CAR_PLACEMENT_REPLICA, check_collectives);
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, check_collectives);
}

/* ---- zero: where weights go ----------------------------------------------------------------------------- */

/* k = 1: from the forward of worker i a version goes to the backward of worker i+j+1, mod N, which is what has the next
 * slot with that stage; searched for among all tasks that use the version, and the update of the next by its owner, who
 * makes it in the slot of its own forward of the step after. */
static void check_weight_move(const car_setting *s, int device, const car_task *task, void *user) {
    (void)user;
    if (task->kind != CAR_TASK_SEND || task->cargo != CAR_CARGO_WEIGHTS || task->slot < 0) {
        return;
    }
    int64_t best = INT64_MAX;
    int user_device = CAR_NONE;
    for (int64_t t = 0; t < CAR_SETTING_STEPS; t++) {
        for (int i = 0; i < s->N; i++) {
            int64_t version = car_setting_is_fresh(s, i, task->stage) || t == 0 ? t : t - 1;
            int64_t slots[2] = {F(s, i, task->stage, t), B(s, i, task->stage, t)};
            for (int n = 0; n < 2; n++) {
                if (version == task->version && slots[n] > task->slot && slots[n] < best) {
                    best = slots[n];
                    user_device = i;
                }
            }
        }
    }
    int owner = s->N - 1 - task->stage / s->k;
    int64_t made = F(s, owner, task->stage, task->version + 1);
    if (task->version < CAR_SETTING_STEPS && made > task->slot && made < best) {
        best = made;
        user_device = owner;
    }
    assert_int_equal(task->peer, user_device);
    bool forward = (task->slot - 2 * s->k * device - task->stage) % (2 * (int64_t)s->S) == 0;
    if (s->k == 1 && forward && best == task->slot + 1) {
        assert_int_equal(user_device, (device + task->stage + 1) % s->N);
    }
}

static void check_weight_moves(const car_setting *s) {
    car_setting_for_tasks(s, check_weight_move, NULL);
}

static void test_weight_moves(void **state) {
    (void)state;
    for (int c = 0; c < CAR_SETTING_MOST_WORKERS * CAR_SETTING_MOST_PER_WORKER; c++) {
        car_setting s = car_setting_open_zero(1 + c / CAR_SETTING_MOST_PER_WORKER, 1 + c % CAR_SETTING_MOST_PER_WORKER,
                                              CAR_RULE_CDP_V2, 0);
        check_weight_moves(&s);
        car_setting_close(&s);
    }
}

/* ---- zero: two copies ------------------------------------------------------------------------------------ */

/* What a rank sends in a run, and how much of it does not go to the next one. */
typedef struct chains {
    int64_t weights[CAR_SETTING_MOST_WORKERS], sums[CAR_SETTING_MOST_WORKERS]; /* messages, of steps in the middle */
    int starts;
} chains;

/* The micro-batch that a message is for is searched for: the first of the worker that uses the version after it was sent.
 * Its copy comes from the micro-batch before, or, if no micro-batch before uses the version, from its owner. */
static void check_copy(const car_setting *s, int device, const car_task *task, void *user) {
    chains *c = user;
    int ahead = car_plan_config_of(s->plan)->zero_ahead, users = 0, owner = s->N - 1 - task->stage / s->k;
    bool backward = task->cargo == CAR_CARGO_BACKWARD_WEIGHTS,
         v1 = car_plan_config_of(s->plan)->rule == CAR_RULE_CDP_V1;
    bool middle = task->slot >= 4 * s->S && task->slot < 6 * s->S;
    if (task->kind != CAR_TASK_SEND) {
        return;
    }
    c->sums[device] += middle && (task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED);
    if (!car_cargo_is_weights(task->cargo)) {
        return;
    }
    c->weights[device] += middle;
    for (int64_t n = 0; n < CAR_SETTING_STEPS * s->N; n++) {
        int i = (int)(n % s->N);
        int64_t t = n / s->N, used = backward ? B(s, i, task->stage, t) : F(s, i, task->stage, t);
        int64_t version = t == 0 || (!v1 && car_setting_is_fresh(s, i, task->stage)) ? t : t - 1;
        if (version == task->version && i == task->micro_batch && used > task->slot) {
            assert_int_equal(task->peer, i);
            assert_int_equal(device, users == 0 ? owner : (i + s->N - 1) % s->N);
            assert_true(task->due <= used && used - task->due <= ahead);
            assert_true(used - task->slot <= ahead || device == owner);
            c->starts += middle && users == 0 && device != (i + s->N - 1) % s->N;
            return;
        }
        users += version == task->version;
    }
    fail_msg("nobody uses what device %d sends in slot %lld", device, (long long)task->slot);
}

/* Both chains pass each rank once, so it sends all weights twice and adds to all sums: with its part of the chains' starts
 * (3 + 2/N) times all there is. Under cdp-v2 a chain begins at its owner: no start is a message to anybody but the next. */
static void test_chains(void **state) {
    (void)state;
    for (int c = 0; c < 2 * 8 * 3 * 4; c++) {
        int N = 2 + c / 2 % 8, k = 1 + c / 16 % 3, ahead = (int[]){2 * k, 1, 2 * k + 1, 2 * N * k}[c / 48];
        car_rule rule = c % 2 ? CAR_RULE_CDP_V1 : CAR_RULE_CDP_V2;
        car_setting s = car_setting_open_zero(N, k, rule, ahead);
        chains found = {0};
        car_setting_for_tasks(&s, check_copy, &found);
        for (int i = 0; i < N; i++) {
            assert_true(found.weights[i] <= 2 * s.S + 2 * k && found.sums[i] <= s.S);
        }
        assert_int_equal(found.starts > 0, rule == CAR_RULE_CDP_V1 && N > 2);
        car_setting_close(&s);
    }
}

/* ---- the grid ------------------------------------------------------------------------------------------- */

/* Stage j's activations of micro-batch n are alive from F to B; on each rank those intervals must not touch. */
static void check_grid_ranks(const car_setting *s) {
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
    car_setting_for_all(CAR_RULE_CDP_V2, CAR_PLACEMENT_GRID, check_grid_ranks);
}

/* A rank fewer would not do: N-r micro-batches are alive in group r at once. */
static void test_grid_needs_its_ranks(void **state) {
    (void)state;
    for (int N = 1; N <= CAR_SETTING_MOST_WORKERS; N++) {
        car_setting s = {.N = N, .k = 1, .S = N};
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
    const int64_t known[CAR_SETTING_MOST_WORKERS + 1] = {[3] = 2, [4] = 3, [8] = 105};
    for (int N = 1; N <= 8; N++) {
        car_setting s = car_setting_open(N, 1, CAR_RULE_CDP_V2, CAR_PLACEMENT_GRID);
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
        car_setting_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),     cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_weight_moves), cmocka_unit_test(test_chains),
        cmocka_unit_test(test_grid_ranks),   cmocka_unit_test(test_grid_needs_its_ranks),
        cmocka_unit_test(test_grid_pattern),
    };
    return cmocka_run_group_tests_name("plan_traffic_facts", tests, car_common_set_up, car_common_tear_down);
}
