/* Snapshots: taken while the cycle goes on, they are the clean state after a step, and training goes on from them to the
 * bit. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* After the four above, which it wants. */
#include <cmocka.h>

#include "engine/session.h"

enum { CUT_AT = 4, STEPS = 7, WORKERS = 3, CUTS = 16 };

typedef struct keeper {
    car_session session;
    const car_snapshot *snapshot;
    int64_t steps[CUTS];
    int count;
    pthread_t thread;
    bool handed_over;
} keeper;

static void keep_snapshot(void *user, const car_snapshot *snapshot) {
    keeper *k = user;
    k->snapshot = snapshot;
    k->steps[k->count++] = car_snapshot_get_numbers(snapshot).step;
}

static void open_keeper(keeper *k, car_session_config config, int64_t every, car_snapshot_function on_snapshot) {
    memset(k, 0, sizeof *k);
    config.training.snapshot_every = every;
    config.training.on_snapshot = on_snapshot;
    config.training.snapshot_user = k;
    car_status status = car_session_open(&k->session, &config);
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(k->session.context));
    }
}

static void run(keeper *k, int64_t steps) {
    car_status status = car_trainer_run(k->session.trainer, steps);
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(k->session.context));
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void assert_equal_snapshots(const car_snapshot *left, const car_snapshot *right, const char *what) {
    const car_graph *graph = car_program_graph(car_snapshot_program(left));
    car_snapshot_numbers a = car_snapshot_get_numbers(left), b = car_snapshot_get_numbers(right);
    assert_int_equal(a.step, b.step);
    assert_int_equal(a.updates, b.updates);
    assert_true(a.norm == b.norm || (isnan(a.norm) && isnan(b.norm)));
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        size_t bytes = (size_t)car_shape_elements(car_graph_param(graph, p)->shape) * sizeof(float);
        float *one = malloc(bytes), *other = malloc(bytes);
        for (car_snapshot_part part = CAR_SNAPSHOT_WEIGHTS; part < CAR_SNAPSHOT_PARTS; part++) {
            assert_int_equal(car_snapshot_has(left, part, p), car_snapshot_has(right, part, p));
            if (!car_snapshot_has(left, part, p)) {
                continue;
            }
            assert_int_equal(car_snapshot_get(left, part, p, one), CAR_OK);
            assert_int_equal(car_snapshot_get(right, part, p, other), CAR_OK);
            if (memcmp(one, other, bytes) != 0) {
                fail_msg("%s: part %d of %s differs", what, (int)part, car_graph_param(graph, p)->name);
            }
        }
        free(one);
        free(other);
    }
}

/* The state of a trainer between runs. */
static car_snapshot *state_of(keeper *k) {
    car_snapshot *snapshot = NULL;
    assert_int_equal(car_trainer_create_snapshot(k->session.trainer, &snapshot), CAR_OK);
    car_trainer_take_snapshot(k->session.trainer, snapshot);
    return snapshot;
}

/* The same run three times: without a snapshot up to the step, and to the end; with a snapshot on the way, and another trainer
 * that goes on from it. */
static void check_snapshot(car_session_config config, const char *what) {
    keeper whole, kept, resumed;
    open_keeper(&whole, config, 0, NULL);
    open_keeper(&kept, config, CUT_AT, keep_snapshot);
    config.training.threads = config.training.threads == 1 ? 2 : 1; /* the snapshot is the same for any number */
    open_keeper(&resumed, config, 0, NULL);
    run(&whole, CUT_AT);
    car_snapshot *expected = state_of(&whole);
    run(&whole, STEPS);
    run(&kept, STEPS);
    assert_int_equal(kept.count, 1);
    assert_equal_snapshots(expected, kept.snapshot, what);

    /* Through the canonical layout, as a file would have it. */
    const car_graph *graph = kept.session.graph;
    car_snapshot *moved = state_of(&resumed);
    car_snapshot_numbers numbers = car_snapshot_get_numbers(kept.snapshot);
    car_snapshot_set_numbers(moved, &numbers);
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        float *values = malloc((size_t)car_shape_elements(car_graph_param(graph, p)->shape) * sizeof *values);
        for (car_snapshot_part part = CAR_SNAPSHOT_WEIGHTS; part < CAR_SNAPSHOT_PARTS; part++) {
            if (car_snapshot_has(kept.snapshot, part, p)) {
                assert_int_equal(car_snapshot_get(kept.snapshot, part, p, values), CAR_OK);
                assert_int_equal(car_snapshot_set(moved, part, p, values), CAR_OK);
            }
        }
        free(values);
    }
    assert_int_equal(car_trainer_restore(resumed.session.trainer, moved), CAR_OK);
    assert_int_equal(car_trainer_steps(resumed.session.trainer), CUT_AT);
    run(&resumed, STEPS);
    car_snapshot *end = state_of(&whole), *other = state_of(&resumed);
    assert_equal_snapshots(end, other, what);
    car_snapshot_destroy(other);
    car_snapshot_destroy(end);
    car_snapshot_destroy(moved);
    car_snapshot_destroy(expected);
    car_session_close(&resumed.session);
    car_session_close(&kept.session);
    car_session_close(&whole.session);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_going_on_to_the_bit(void **state) {
    static const char *const models[] = {"mlp", "resnet20", "vit-tiny", "gpt2-nano"};
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_ACCUMULATE};
    (void)state;
    for (int m = 0; m < 4; m++) {
        for (int r = 0; r < 4; r++) {
            for (int kind = 0; kind < CAR_OPTIMIZERS; kind++) {
                car_session_config config = car_session_config_default(models[m], WORKERS, rules[r]);
                config.training.optimizer.kind = (car_optimizer_kind)kind;
                if ((m + kind) % 2) {
                    config.training.optimizer.correction = (car_correction){.c = 0.9, .a = 1};
                }
                config.training.threads = config.plan.threads = 1 + (m + r) % 3;
                check_snapshot(config, models[m]);
            }
        }
    }
}

/* What else a run remembers: the last norm, and how many updates were made. */
static void test_clipping_and_skipped_steps(void **state) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int r = 0; r < 3; r++) {
        car_session_config config = car_session_config_default("mlp", WORKERS, rules[r]);
        config.training.optimizer.kind = CAR_OPTIMIZER_ADAMW;
        config.training.clip_norm = 0.05;
        check_snapshot(config, "clipping");
        config.training.clip_norm = 0;
        config.training.skip_nonfinite = true;
        config.fault = (car_fault){.kind = CAR_FAULT_VALUE, .step = 2, .worker = 1, .value = NAN};
        check_snapshot(config, "a skipped step");
    }
}

static void *give_back_later(void *argument) {
    keeper *k = argument;
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    car_trainer_return_snapshot(k->session.trainer);
    return NULL;
}

/* The snapshot may be given back, and the next one handed over by another thread, before this returns: hence the lock. */
static void hand_over(void *user, const car_snapshot *snapshot) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    keeper *k = user;
    pthread_mutex_lock(&lock);
    if (k->handed_over) {
        pthread_join(k->thread, NULL);
    }
    keep_snapshot(user, snapshot);
    k->handed_over = pthread_create(&k->thread, NULL, give_back_later, k) == 0;
    pthread_mutex_unlock(&lock);
}

/* A snapshot after every step, by a slow writer: updates wait for it, in order, with any number of threads. */
static void test_a_slow_writer_holds_up_but_never_hangs(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        for (car_rule rule = CAR_RULE_CDP_V1; rule <= CAR_RULE_CDP_V2; rule++) {
            char expected[CAR_DIGEST_CAPACITY], digest[CAR_DIGEST_CAPACITY];
            car_session_config config = car_session_config_default("mlp", WORKERS, rule);
            config.training.threads = config.plan.threads = threads;
            keeper plain, written;
            open_keeper(&plain, config, 0, NULL);
            open_keeper(&written, config, 1, hand_over);
            run(&plain, STEPS);
            run(&written, STEPS);
            pthread_join(written.thread, NULL);
            assert_int_equal(written.count, STEPS);
            for (int c = 0; c < STEPS; c++) {
                assert_int_equal(written.steps[c], c + 1);
            }
            assert_int_equal(car_weights_digest(car_trainer_weights(plain.session.trainer), expected), CAR_OK);
            assert_int_equal(car_weights_digest(car_trainer_weights(written.session.trainer), digest), CAR_OK);
            assert_string_equal(expected, digest);
            car_session_close(&written.session);
            car_session_close(&plain.session);
        }
    }
}

static void give_back_at_once(void *user, const car_snapshot *snapshot) {
    keeper *k = user;
    keep_snapshot(user, snapshot);
    car_trainer_return_snapshot(k->session.trainer);
}

static void test_giving_back_from_the_callback(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        car_session_config config = car_session_config_default("mlp", WORKERS, CAR_RULE_CDP_V2);
        keeper k;
        config.training.threads = config.plan.threads = threads;
        open_keeper(&k, config, 1, give_back_at_once);
        run(&k, STEPS);
        assert_int_equal(k.count, STEPS);
        car_session_close(&k.session);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_giving_back_from_the_callback),
        cmocka_unit_test(test_going_on_to_the_bit),
        cmocka_unit_test(test_clipping_and_skipped_steps),
        cmocka_unit_test(test_a_slow_writer_holds_up_but_never_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
