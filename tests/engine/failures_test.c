/* What the trainer does when something goes wrong, or ends early: losses and gradients that are not finite, a feed that
 * fails, memory that does not suffice, being stopped. It must say so, hang never, leave nothing behind, and where the
 * run goes on, go on with exactly the right bits. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/session.h"

enum { WORKERS = 4, STEPS = 6, FAULT_STEP = 2 };

static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_ACCUMULATE};
enum { RULES = sizeof rules / sizeof *rules };

/* ---- helpers ------------------------------------------------------------------------------------------------- */

static void must(const car_session *session, car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), session->context ? car_context_error(session->context) : "");
    }
}

static void open_session(car_session *session, const car_session_config *config) {
    must(session, car_session_open(session, config));
}

/* Without the trainer the arena is empty: nobody has forgotten a block, whatever happened. */
static void close_session(car_session *session) {
    car_trainer_destroy(session->trainer);
    session->trainer = NULL;
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        assert_int_equal(car_arena_live(session->arena, (car_memory)c), 0);
    }
    car_session_close(session);
}

static void digest_of(const car_session *session, char *digest) {
    must(session, car_weights_digest(car_trainer_weights(session->trainer), digest));
}

static int thread_count(void) {
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    assert_non_null(folder);
    while (readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

/* A thread that was joined may be listed for a moment longer. */
static void assert_threads_gone(int before) {
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int tries = 0; thread_count() > before && tries < 10000; tries++) {
        nanosleep(&moment, NULL);
    }
    assert_int_equal(thread_count(), before);
}

static void assert_failed(const car_session *session, car_status status, car_status expected, const char *part) {
    const char *message = car_context_error(session->context);
    if (status != expected || !strstr(message, part)) {
        fail_msg("got \"%s\" with \"%s\" where \"%s\" with \"...%s...\" was expected", car_status_text(status), message,
                 car_status_text(expected), part);
    }
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

static void test_unproven_plan_is_refused(void **state) {
    car_session_config config = car_session_config_default("mlp", WORKERS, CAR_RULE_CDP_V2);
    car_session session;
    car_plan *plan = NULL;
    car_trainer *trainer = NULL;
    (void)state;
    open_session(&session, &config);
    car_trainer_config training = config.training;
    training.feed = car_session_feed;
    training.feed_user = &session;
    must(&session, car_plan_create(session.context, session.partition, &config.plan, &plan));
    assert_failed(&session, car_trainer_create(plan, session.program, session.arena, &training, &trainer),
                  CAR_ERROR_ARGUMENT, "the plan has not been proven");
    car_context_clear_error(session.context);
    must(&session, car_plan_validate(plan, 4));
    must(&session, car_trainer_create(plan, session.program, session.arena, &training, &trainer));
    car_trainer_destroy(trainer);
    car_plan_destroy(plan);
    close_session(&session);
}

/* ---- not finite ------------------------------------------------------------------------------------------------ */

static void check_bad_loss(car_rule rule, int worker, int threads, float value) {
    car_session_config config = car_session_config_default("mlp", WORKERS, rule);
    car_session session;
    char part[64];
    int before = thread_count();
    config.training.threads = threads;
    config.fault = (car_fault){CAR_FAULT_VALUE, FAULT_STEP, worker, value};
    open_session(&session, &config);
    car_status status = car_trainer_run(session.trainer, STEPS);
    assert_threads_gone(before);
    snprintf(part, sizeof part, "worker %d in step %d ", worker, FAULT_STEP + 1);
    assert_failed(&session, status, CAR_ERROR_NOT_FINITE, part);
    assert_true(session.report_count <= FAULT_STEP);
    assert_int_equal(car_trainer_steps(session.trainer), session.report_count);
    assert_true(session.reports_in_order);
    assert_int_equal(car_trainer_run(session.trainer, STEPS), CAR_ERROR_NOT_FINITE); /* it stays failed */
    close_session(&session);
}

static void test_bad_loss_ends_the_run(void **state) {
    (void)state;
    for (int r = 0; r < RULES; r++) {
        check_bad_loss(rules[r], 0, 1, NAN);
        check_bad_loss(rules[r], 1, WORKERS, INFINITY);
        check_bad_loss(rules[r], WORKERS - 1, 2, NAN);
    }
}

/* Weights and state of the optimizer from one session to the other. */
static void copy_state(car_session *to, car_session *from) {
    car_optimizer *source = car_trainer_optimizer(from->trainer), *target = car_trainer_optimizer(to->trainer);
    for (int p = 0; p < car_graph_param_count(from->graph); p++) {
        float *values = malloc((size_t)car_shape_elements(car_graph_param(from->graph, p)->shape) * sizeof *values);
        assert_non_null(values);
        must(from, car_weights_get(car_trainer_weights(from->trainer), p, values));
        must(to, car_weights_set(car_trainer_weights(to->trainer), p, values));
        free(values);
        for (int s = 0; s < car_optimizer_states(source); s++) {
            if (car_optimizer_state(source, s, p)) {
                memcpy(car_optimizer_state(target, s, p), car_optimizer_state(source, s, p),
                       car_program_param_bytes(from->program, p));
            }
        }
    }
}

static void assert_same_state(car_session *a, car_session *b) {
    car_optimizer *x = car_trainer_optimizer(a->trainer), *y = car_trainer_optimizer(b->trainer);
    char first[CAR_DIGEST_CAPACITY], second[CAR_DIGEST_CAPACITY];
    digest_of(a, first);
    digest_of(b, second);
    assert_string_equal(first, second);
    for (int s = 0; s < car_optimizer_states(x); s++) {
        for (int p = 0; p < car_graph_param_count(a->graph); p++) {
            if (car_optimizer_state(x, s, p)) {
                assert_memory_equal(car_optimizer_state(x, s, p), car_optimizer_state(y, s, p),
                                    car_program_param_bytes(a->program, p));
            }
        }
    }
}

typedef void (*prepare_function)(car_session *session);

/* A step that is skipped leaves theta_{t+1} = theta_t, so that both versions are alike, as they are at the start of a
 * run. The rest must therefore be what a new run does that begins with the weights and the optimizer of the good
 * steps before, and with the samples after it. */
static void check_skipping(const car_session_config *with_fault, prepare_function prepare, bool loss_is_finite) {
    car_session_config config = *with_fault;
    car_session skipping, before, after;
    open_session(&skipping, &config);
    prepare(&skipping);
    must(&skipping, car_trainer_run(skipping.trainer, STEPS));
    assert_int_equal(skipping.report_count, STEPS);
    for (int t = 0; t < STEPS; t++) {
        assert_int_equal(skipping.reports[t].skipped, t == config.fault.step);
        assert_true(isfinite(skipping.reports[t].loss) || (t == config.fault.step && !loss_is_finite));
    }
    config.fault.kind = CAR_FAULT_NONE;
    open_session(&before, &config);
    prepare(&before);
    must(&before, car_trainer_run(before.trainer, with_fault->fault.step));
    config.first_sample_step = with_fault->fault.step + 1;
    open_session(&after, &config);
    copy_state(&after, &before);
    must(&after, car_trainer_run(after.trainer, STEPS - with_fault->fault.step - 1));
    assert_same_state(&skipping, &after);
    for (int t = 0; t < after.report_count; t++) {
        assert_true(skipping.reports[with_fault->fault.step + 1 + t].loss == after.reports[t].loss);
    }
    close_session(&skipping);
    close_session(&before);
    close_session(&after);
}

static void leave_as_it_is(car_session *session) {
    (void)session;
}

static void test_bad_loss_is_skipped(void **state) {
    static const char *const models[] = {"mlp", "resnet20"}; /* the second has running statistics */
    (void)state;
    for (int r = 0; r < RULES; r++) {
        for (int m = 0; m < 2; m++) {
            car_session_config config = car_session_config_default(models[m], WORKERS, rules[r]);
            config.training.threads = 1 + m * 2;
            config.training.skip_nonfinite = true;
            config.fault = (car_fault){CAR_FAULT_VALUE, FAULT_STEP, 1 + r % 3, NAN};
            check_skipping(&config, leave_as_it_is, false);
        }
    }
}

static void fill(car_session *session, const char *name, float value, float slope) {
    int param = car_graph_find_param(session->graph, name);
    assert_true(param != CAR_NONE);
    int64_t count = car_shape_elements(car_graph_param(session->graph, param)->shape);
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = value + slope * (float)i;
    }
    must(session, car_weights_set(car_trainer_weights(session->trainer), param, values));
    free(values);
}

/* Of a perceptron with one hidden layer: the first weights so small that the greatest inputs give a finite loss, the
 * last so large that the gradient of the first ones, a multiple of those inputs, is infinite. */
static void prepare_overflow(car_session *session) {
    fill(session, "1.weight", 1e-25f, 0);
    fill(session, "1.bias", 0, 0);
    fill(session, "3.weight", 100, 1);
}

/* The same, with larger first weights: the square of the last ones' gradient is infinite, too. */
static void prepare_overflow_above(car_session *session) {
    prepare_overflow(session);
    fill(session, "1.weight", 1e-12f, 0);
}

static car_session_config overflow_config(car_rule rule) {
    car_session_config config = car_session_config_default("mlp", 2, rule);
    config.model_config.depth = 1;
    config.training.schedule.lr = 1e-30; /* so that the weights stay what they are */
    config.fault = (car_fault){CAR_FAULT_VALUE, FAULT_STEP, 1, 3e38f};
    return config;
}

static void test_bad_gradient_is_skipped(void **state) {
    static const car_rule exact[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_ACCUMULATE};
    (void)state;
    for (size_t r = 0; r < sizeof exact / sizeof *exact; r++) {
        car_session_config config = overflow_config(exact[r]);
        config.training.skip_nonfinite = true;
        check_skipping(&config, prepare_overflow, true);
    }
    /* Under cdp-v2, if it shows in the highest stage: no other is updated before it was measured. */
    car_session_config config = overflow_config(CAR_RULE_CDP_V2);
    config.training.skip_nonfinite = true;
    check_skipping(&config, prepare_overflow_above, true);
}

/* If it shows in another, that one has been updated already, so the run ends, and says why. */
static void test_bad_gradient_ends_cdp_v2(void **state) {
    car_session_config config = overflow_config(CAR_RULE_CDP_V2);
    car_session session;
    (void)state;
    config.training.skip_nonfinite = true;
    open_session(&session, &config);
    prepare_overflow(&session);
    car_status status = car_trainer_run(session.trainer, STEPS);
    assert_failed(&session, status, CAR_ERROR_NOT_FINITE, "gradient of stage");
    assert_failed(&session, status, CAR_ERROR_NOT_FINITE, "step 3 ");
    assert_int_equal(session.report_count, FAULT_STEP); /* the step that failed is none */
    assert_int_equal(car_trainer_steps(session.trainer), FAULT_STEP);
    close_session(&session);
}

/* Skipping does not go on for ever where no step can be finite: ten in a row end the run, also where it was drained in
 * between. Nine do not. */
static void test_skipping_gives_up(void **state) {
    (void)state;
    for (int r = 0; r < RULES; r++) {
        car_session_config config = car_session_config_default("mlp", WORKERS, rules[r]);
        car_session session;
        config.training.threads = config.plan.threads = 1 + r % 3;
        config.training.skip_nonfinite = true;
        open_session(&session, &config);
        fill(&session, "1.weight", NAN, 0);
        must(&session, car_trainer_run(session.trainer, CAR_TRAINER_MOST_SKIPPED - 1));
        car_status status = car_trainer_run(session.trainer, 3 * CAR_TRAINER_MOST_SKIPPED);
        assert_failed(&session, status, CAR_ERROR_NOT_FINITE, "10 steps in a row were skipped");
        assert_failed(&session, status, CAR_ERROR_NOT_FINITE, "the last of them step 10");
        assert_int_equal(session.report_count, CAR_TRAINER_MOST_SKIPPED);
        assert_int_equal(car_trainer_steps(session.trainer), CAR_TRAINER_MOST_SKIPPED);
        close_session(&session);
    }
}

/* ---- feeds and memory -------------------------------------------------------------------------------------------- */

static void check_failing_feed(car_rule rule, int worker, int threads) {
    car_session_config config = car_session_config_default("gpt2-nano", WORKERS, rule);
    car_session session;
    int before = thread_count();
    config.training.threads = config.plan.threads = threads;
    config.fault = (car_fault){CAR_FAULT_ERROR, FAULT_STEP, worker, 0};
    open_session(&session, &config);
    car_status status = car_trainer_run(session.trainer, STEPS);
    assert_threads_gone(before);
    assert_failed(&session, status, CAR_ERROR_IO, "no sample for worker");
    assert_true(session.report_count <= FAULT_STEP);
    assert_int_equal(car_trainer_steps(session.trainer), session.report_count);
    assert_true(session.reports_in_order);
    assert_int_equal(car_trainer_run(session.trainer, STEPS), CAR_ERROR_IO);
    close_session(&session);
}

static void test_failing_feed_ends_the_run(void **state) {
    (void)state;
    for (int r = 0; r < RULES; r++) {
        check_failing_feed(rules[r], 0, 1);
        check_failing_feed(rules[r], 0, WORKERS);
        check_failing_feed(rules[r], WORKERS - 1, WORKERS);
        check_failing_feed(rules[r], 2, 2);
    }
}

static size_t live_bytes(const car_session *session) {
    size_t sum = 0;
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        sum += car_arena_live(session->arena, (car_memory)c);
    }
    return sum;
}

/* Half of what the activations took in a first run: enough to begin, not to end. */
static void test_memory_runs_out(void **state) {
    (void)state;
    for (int r = 0; r < RULES; r++) {
        car_session_config config = car_session_config_default("vit-tiny", WORKERS, rules[r]);
        car_session session;
        int before = thread_count();
        config.training.threads = WORKERS;
        open_session(&session, &config);
        size_t standing = live_bytes(&session);
        must(&session, car_trainer_run(session.trainer, 2));
        size_t most = car_arena_peak(session.arena, CAR_MEMORY_ACTIVATIONS);
        close_session(&session);

        config.limit = standing + most / 2;
        open_session(&session, &config);
        car_status status = car_trainer_run(session.trainer, STEPS);
        assert_threads_gone(before);
        assert_int_equal(status, CAR_ERROR_MEMORY);
        assert_true(strlen(car_context_error(session.context)) > 0);
        assert_true(car_arena_peak(session.arena, CAR_MEMORY_ACTIVATIONS) > 0); /* it had begun */
        close_session(&session);
    }
}

/* ---- extremes and ends --------------------------------------------------------------------------------------------- */

static void train(const car_session_config *config, int64_t steps, char *digest) {
    car_session session;
    open_session(&session, config);
    must(&session, car_trainer_run(session.trainer, steps));
    assert_int_equal(car_trainer_steps(session.trainer), steps);
    assert_int_equal(session.report_count, steps);
    assert_int_equal(car_arena_live(session.arena, CAR_MEMORY_ACTIVATIONS), car_session_rest(&session));
    digest_of(&session, digest);
    close_session(&session);
}

static void test_more_threads_than_tasks(void **state) {
    char one[CAR_DIGEST_CAPACITY], many[CAR_DIGEST_CAPACITY];
    (void)state;
    for (int r = 0; r < RULES; r++) {
        for (int workers = 1; workers <= 2; workers++) {
            car_session_config config = car_session_config_default("mlp", workers, rules[r]);
            config.training.threads = config.plan.threads = 1;
            train(&config, STEPS, one);
            config.training.threads = config.plan.threads = 16;
            train(&config, STEPS, many);
            assert_string_equal(one, many);
        }
    }
}

/* With one worker the cycle is empty: cdp-v2 sees all updates, as dp does; cdp-v1 stays a step behind. */
static void test_one_worker(void **state) {
    char digest[RULES][CAR_DIGEST_CAPACITY];
    (void)state;
    for (int stages = 1; stages <= 3; stages++) {
        for (int r = 0; r < RULES; r++) {
            car_session_config config = car_session_config_default("mlp", 1, rules[r]);
            config.partition.stages = stages;
            train(&config, STEPS, digest[r]);
        }
        assert_string_equal(digest[0], digest[2]);
        assert_string_equal(digest[0], digest[3]);
        assert_string_not_equal(digest[0], digest[1]);
    }
}

static void test_running_again(void **state) {
    char whole[CAR_DIGEST_CAPACITY], again[CAR_DIGEST_CAPACITY];
    (void)state;
    for (int r = 0; r < RULES; r++) {
        car_session_config config = car_session_config_default("resnet20", WORKERS, rules[r]);
        car_session session;
        train(&config, STEPS, whole);
        open_session(&session, &config);
        must(&session, car_trainer_run(session.trainer, 0));
        assert_int_equal(session.report_count, 0);
        must(&session, car_trainer_run(session.trainer, STEPS / 2)); /* a cut changes nothing */
        must(&session, car_trainer_run(session.trainer, STEPS));
        must(&session, car_trainer_run(session.trainer, STEPS)); /* and this does nothing */
        must(&session, car_trainer_run(session.trainer, 1));
        assert_int_equal(car_trainer_steps(session.trainer), STEPS);
        assert_int_equal(session.report_count, STEPS);
        digest_of(&session, again);
        assert_string_equal(whole, again);
        close_session(&session);
    }
}

static void test_stopping_before(void **state) {
    car_session_config config = car_session_config_default("mlp", WORKERS, CAR_RULE_CDP_V2);
    char fresh[CAR_DIGEST_CAPACITY], stopped[CAR_DIGEST_CAPACITY];
    car_session session;
    (void)state;
    open_session(&session, &config);
    digest_of(&session, fresh);
    car_trainer_stop(session.trainer);
    must(&session, car_trainer_run(session.trainer, STEPS));
    assert_int_equal(car_trainer_steps(session.trainer), 0);
    assert_int_equal(session.report_count, 0);
    digest_of(&session, stopped);
    assert_string_equal(fresh, stopped);
    close_session(&session);
}

/* Stops the trainer while a worker is fed for a step. */
typedef struct stopping {
    car_session session;
    int worker;
} stopping;

static car_status feed_and_stop(void *user, int64_t step, int worker, car_tape *tape) {
    stopping *s = user;
    if (step == FAULT_STEP && worker == s->worker) {
        car_trainer_stop(s->session.trainer);
    }
    return car_session_feed(&s->session, step, worker, tape);
}

/* The step under way has made no update, since not all of its forwards are done: it is dropped. The one before may not
 * have begun its updates either, except under dp, where they are made before. */
static void check_stopping(car_rule rule, int threads, int worker) {
    char expected[CAR_DIGEST_CAPACITY], stopped[CAR_DIGEST_CAPACITY];
    car_session_config config = car_session_config_default("gpt2-nano", WORKERS, rule);
    car_session_config plain = config;
    stopping s = {.worker = worker};
    config.training.threads = config.plan.threads = threads;
    config.training.feed = feed_and_stop;
    config.training.feed_user = &s;
    open_session(&s.session, &config);
    must(&s.session, car_trainer_run(s.session.trainer, STEPS));
    int64_t steps = car_trainer_steps(s.session.trainer);
    assert_true(steps == FAULT_STEP || (rule != CAR_RULE_DP && steps == FAULT_STEP - 1));
    assert_int_equal(s.session.report_count, steps);
    assert_true(s.session.reports_in_order);
    assert_true(car_arena_live(s.session.arena, CAR_MEMORY_ACTIVATIONS) <= car_session_rest(&s.session));
    digest_of(&s.session, stopped);
    train(&plain, steps, expected);
    assert_string_equal(expected, stopped);
    close_session(&s.session);
}

static void test_stopping_during(void **state) {
    (void)state;
    for (int r = 0; r < RULES; r++) {
        for (int threads = 1; threads <= WORKERS; threads += WORKERS - 1) {
            check_stopping(rules[r], threads, 0);
            check_stopping(rules[r], threads, WORKERS - 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unproven_plan_is_refused),
        cmocka_unit_test(test_bad_loss_ends_the_run),
        cmocka_unit_test(test_bad_loss_is_skipped),
        cmocka_unit_test(test_bad_gradient_is_skipped),
        cmocka_unit_test(test_bad_gradient_ends_cdp_v2),
        cmocka_unit_test(test_skipping_gives_up),
        cmocka_unit_test(test_failing_feed_ends_the_run),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_more_threads_than_tasks),
        cmocka_unit_test(test_one_worker),
        cmocka_unit_test(test_running_again),
        cmocka_unit_test(test_stopping_before),
        cmocka_unit_test(test_stopping_during),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
