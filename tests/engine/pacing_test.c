/* What the clock of the wall decides: pacing, which keeps workers apart so that memory falls, and the watchdog, which
 * speaks up when nothing moves. Nothing here depends on how fast the machine is: where somebody must be waited for,
 * a feed waits until it has happened. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/predict.h"
#include "engine/session.h"

enum { WORKERS = 4, STAGES = 16, STEPS = 4, LINES = 64, LINE = 160 };
static const double patience = 60; /* seconds for what takes milliseconds */

/* Everything that feeds and the logger see and wait for. */
typedef struct observer {
    car_session session;
    pthread_mutex_t lock;
    int64_t fed[WORKERS];  /* steps that a worker was fed for */
    int too_early;         /* feeds before the lead allowed them */
    bool others_were_fed;  /* while the first worker's first feed lasted */
    size_t held_by_others; /* the first worker's first feed waits until so many bytes are alive */
    char lines[LINES][LINE];
    int line_count;
    bool dumped;
} observer;

static void observe(observer *o) {
    memset(o, 0, sizeof *o);
    pthread_mutex_init(&o->lock, NULL);
}

static void open_session(observer *o, car_session_config *config) {
    config->training.feed_user = config->log_user = o;
    car_status status = car_session_open(&o->session, config);
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(o->session.context));
    }
}

static void run_session(observer *o) {
    car_status status = car_trainer_run(o->session.trainer, STEPS);
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(o->session.context));
    }
    assert_int_equal(car_trainer_steps(o->session.trainer), STEPS);
}

static void end(observer *o) {
    car_session_close(&o->session);
    pthread_mutex_destroy(&o->lock);
}

typedef bool (*condition)(observer *o);

/* Whether it came true in time. */
static bool wait_for(observer *o, condition holds, double seconds) {
    const struct timespec moment = {.tv_nsec = 1000000};
    double limit = car_clock_seconds() + seconds;
    bool held = false;
    while (!held && car_clock_seconds() < limit) {
        nanosleep(&moment, NULL);
        pthread_mutex_lock(&o->lock);
        held = holds(o);
        pthread_mutex_unlock(&o->lock);
    }
    return held;
}

/* ---- pacing ------------------------------------------------------------------------------------------------------ */

/* A perceptron whose layers are alike, so that sixteen stages are of equal cost and hold the same. */
static car_session_config even_config(bool paced) {
    car_session_config config = car_session_config_default("mlp", WORKERS, CAR_RULE_CDP_V2);
    config.model_config =
        (car_model_config){.batch = 8, .channels = 4, .image_size = 4, .width = 64, .depth = STAGES, .classes = 64};
    config.partition.stages = STAGES;
    config.training.threads = config.plan.threads = WORKERS; /* one each: only pacing keeps them apart */
    config.training.unpaced = !paced;
    return config;
}

/* A worker that was not fed for step s is at phase s + i/N at most. */
static int count_early(const observer *o, int64_t step, int worker) {
    double lead = o->session.partition->longest_task + 1e-6;
    int early = 0;
    for (int i = 0; i < WORKERS; i++) {
        double phase = (double)o->fed[i] + (double)i / WORKERS;
        early += i != worker && phase + lead < (double)step + (double)worker / WORKERS;
    }
    return early;
}

static bool others_were_fed(observer *o) {
    return o->fed[1] + o->fed[2] + o->fed[3] > 0;
}

static car_status observing_feed(void *user, int64_t step, int worker, car_tape *tape) {
    observer *o = user;
    pthread_mutex_lock(&o->lock);
    o->too_early += count_early(o, step, worker);
    pthread_mutex_unlock(&o->lock);
    car_status status = car_session_feed(&o->session, step, worker, tape);
    if (step == 0 && worker == 0) {
        bool paced = !o->session.config.training.unpaced;
        o->others_were_fed = wait_for(o, others_were_fed, paced ? 0.2 : patience);
    }
    pthread_mutex_lock(&o->lock);
    o->fed[worker] = step + 1;
    pthread_mutex_unlock(&o->lock);
    return status;
}

static void check_window(bool paced) {
    car_session_config config = even_config(paced);
    observer o;
    observe(&o);
    config.training.feed = observing_feed;
    open_session(&o, &config);
    assert_true(o.session.partition->longest_task < 1.0 / WORKERS); /* or the lead would allow all */
    run_session(&o);
    if (paced) {
        assert_false(o.others_were_fed);
        assert_int_equal(o.too_early, 0);
    } else {
        assert_true(o.others_were_fed);
        assert_true(o.too_early > 0);
    }
    end(&o);
}

static void test_window(void **state) {
    (void)state;
    check_window(true);
}

/* So that the test above can fail. */
static void test_no_window_without_pacing(void **state) {
    (void)state;
    check_window(false);
}

static bool others_hold_all(observer *o) {
    return car_arena_live(o->session.arena, CAR_MEMORY_ACTIVATIONS) >= o->held_by_others;
}

/* The first worker starts late. Without pacing the others run on to where the ring makes them wait for it. */
static car_status late_feed(void *user, int64_t step, int worker, car_tape *tape) {
    observer *o = user;
    if (step == 0 && worker == 0) {
        bool paced = !o->session.config.training.unpaced;
        wait_for(o, others_hold_all, paced ? 0.2 : patience);
    }
    return car_session_feed(&o->session, step, worker, tape);
}

/* Peak of the activations over N times what one worker holds. */
static double measure_peak(bool paced) {
    car_session_config config = even_config(paced);
    observer o;
    observe(&o);
    config.training.feed = late_feed;
    open_session(&o, &config);
    double held = (double)o.session.partition->held_bytes;
    o.held_by_others = (size_t)((WORKERS - 1.1) * held);
    run_session(&o);
    double ratio = (double)car_arena_peak(o.session.arena, CAR_MEMORY_ACTIVATIONS) / (WORKERS * held);
    end(&o);
    return ratio;
}

static void test_pacing_saves_memory(void **state) {
    (void)state;
    double paced = measure_peak(true), unpaced = measure_peak(false);
    print_message("peak over N workers': %.3f paced, %.3f without\n", paced, unpaced);
    assert_true(unpaced > 0.9);
    assert_true(paced < 0.75);
}

/* With a thread for every worker the budget holds whatever the timing: at most what evenly spaced workers need. */
static void test_budget(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        car_session_config config = car_session_config_default(m ? "gpt2-nano" : "vit-tiny", WORKERS, CAR_RULE_CDP_V2);
        config.model_config.depth = 6; /* short stages, so that there is something to pace */
        config.training.threads = config.plan.threads = WORKERS;
        observer o;
        observe(&o);
        open_session(&o, &config);
        run_session(&o);
        double even =
            car_predict_free_running(o.session.partition, WORKERS) * WORKERS * (double)o.session.partition->curve.peak;
        double peak = (double)car_arena_peak(o.session.arena, CAR_MEMORY_ACTIVATIONS);
        print_message("%s: peak over evenly spaced workers': %.3f\n", config.model, peak / even);
        assert_true(peak <= even);
        end(&o);
    }
}

/* Four stages without work, then four layers: workers wait for weights that are made beyond the lead. A hang is
 * ended by the alarm. */
static void test_uneven_stages_do_not_hang(void **state) {
    static const int cuts[] = {1, 1, 1, 1, 3, 5, 7};
    (void)state;
    alarm(2 * (unsigned)patience);
    for (int threads = 1; threads <= 8; threads *= 2) {
        car_session_config config = car_session_config_default("mlp", 8, CAR_RULE_CDP_V2);
        observer o;
        observe(&o);
        config.model_config = (car_model_config){.batch = 1, .image_size = 4, .width = 48, .depth = 3, .classes = 48};
        config.partition = (car_partition_config){.stages = 8, .measure = CAR_MEASURE_CUTS, .cuts = cuts};
        config.training.threads = threads;
        open_session(&o, &config);
        run_session(&o);
        end(&o);
    }
    alarm(0);
}

/* ---- the watchdog ------------------------------------------------------------------------------------------------ */

static void keep_line(void *user, car_log_level level, const char *line) {
    observer *o = user;
    pthread_mutex_lock(&o->lock);
    if (level == CAR_LOG_ERROR && o->line_count < LINES) {
        snprintf(o->lines[o->line_count++], LINE, "%s", line);
    }
    o->dumped = o->dumped || strstr(line, "stage 3:"); /* the last line */
    pthread_mutex_unlock(&o->lock);
}

static bool has_dumped(observer *o) {
    return o->dumped;
}

/* Stays away until somebody notices. */
static car_status lost_feed(void *user, int64_t step, int worker, car_tape *tape) {
    observer *o = user;
    if (step == 1 && worker == 2) {
        wait_for(o, has_dumped, patience);
    }
    return car_session_feed(&o->session, step, worker, tape);
}

static bool has_line(const observer *o, const char *part) {
    for (int n = 0; n < o->line_count; n++) {
        if (strstr(o->lines[n], part)) {
            return true;
        }
    }
    return false;
}

static void test_watchdog(void **state) {
    static const char *const parts[] = {"no task has ended", "worker 0:",  "worker 1:",  "worker 2: running F0.2@1",
                                        "worker 3:",         "thread 0: ", "thread 1: ", "thread 2: ",
                                        "stage 0:",          "stage 3:"};
    car_session_config config = car_session_config_default("mlp", WORKERS, CAR_RULE_DP);
    char expected[CAR_DIGEST_CAPACITY], digest[CAR_DIGEST_CAPACITY];
    observer o;
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        observe(&o);
        config.training.threads = 3;
        config.training.watchdog_seconds = lost ? 0.3 : 0;
        config.training.feed = lost ? lost_feed : NULL;
        config.log = keep_line;
        open_session(&o, &config);
        run_session(&o);
        assert_int_equal(car_weights_digest(car_trainer_weights(o.session.trainer), lost ? digest : expected), CAR_OK);
        assert_int_equal(o.line_count > 0, lost);
        for (size_t p = 0; lost && p < sizeof parts / sizeof *parts; p++) {
            if (!has_line(&o, parts[p])) {
                fail_msg("the watchdog did not say \"%s\"", parts[p]);
            }
        }
        /* Exactly one thread is on a task; the others wait, and are said to. */
        assert_int_equal(lost && !has_line(&o, ": F0.2@1"), 0);
        assert_int_equal(lost && !has_line(&o, ": waiting for a task"), 0);
        end(&o);
    }
    assert_string_equal(expected, digest); /* and then it ended well */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_no_window_without_pacing),
        cmocka_unit_test(test_pacing_saves_memory),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_uneven_stages_do_not_hang),
        cmocka_unit_test(test_watchdog),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
