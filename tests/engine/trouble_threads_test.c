/* Ranks of threads in trouble: messages that are late and overtake each other change no bit, and a rank that is lost ends
 * all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/thread_ranks.h"
#include "transport/transport.h"

static const car_trouble none = {.slow = CAR_NONE, .fails = CAR_NONE, .silent = CAR_NONE};

static car_trouble draw(uint64_t seed) {
    car_trouble trouble = none;
    trouble.seed = seed;
    trouble.late = 0.001;
    trouble.very_late = 0.02;
    return trouble;
}

/* The first setting of three workers in each placement over ranks. */
static const car_placement_setting *setting_of(car_placement placement) {
    for (int s = 0; s < car_placement_setting_count; s++) {
        if (car_placement_settings[s].placement == placement && car_placement_settings[s].workers == 3) {
            return &car_placement_settings[s];
        }
    }
    fail_msg("no setting");
    return NULL;
}

static const car_placement placements[] = {CAR_PLACEMENT_REPLICA, CAR_PLACEMENT_ZERO, CAR_PLACEMENT_PIPELINE,
                                           CAR_PLACEMENT_GRID};
enum { PLACEMENTS = sizeof placements / sizeof placements[0] };

/* ---- late ------------------------------------------------------------------------------------ */

static void test_late(void **state) {
    (void)state;
    for (int n = 0; n < 3 * PLACEMENTS; n++) {
        car_placement_setting setting = *setting_of(placements[n / 3]);
        setting.snapshot_every = n % 3;
        setting.weights_every = n % 2;
        const car_thread_rank like = {.setting = &setting,
                                      .model = "mlp",
                                      .rule = car_placement_rules[n % 3],
                                      .guarded = n % 2 == 1,
                                      .stop_step = n % 4 == 3 ? 2 : CAR_NONE};
        car_trouble trouble = draw((uint64_t)n);
        trouble.slow = n % 3;
        assert_true(car_thread_ranks_train(&like, &trouble));
    }
}

enum { MESSAGES = 64, TAGS = 4 };

/* Rank 0 sends 1 the numbers 0 .. 63 with 4 tags in turn. */
typedef struct mailbox {
    car_message messages[MESSAGES];
    float data[MESSAGES];
    int arrived[MESSAGES], count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} mailbox;

static void note_arrival(void *user, car_message *message) {
    mailbox *box = user;
    pthread_mutex_lock(&box->lock);
    box->arrived[box->count++] = (int)(message - box->messages);
    pthread_cond_signal(&box->changed);
    pthread_mutex_unlock(&box->lock);
}
static void watch(void *user) {
    (void)user;
}
static bool is_urgent(void *user) {
    (void)user;
    return false;
}
static size_t tell(void *user, char *status) {
    (void)user;
    (void)status;
    return 0;
}

static atomic_int overtakings; /* messages that did not come in the order in which they were sent */

/* Each tag's messages in their order; counts those that came before or after their turn. */
static bool is_in_order(const mailbox *box) {
    int last[TAGS];
    memset(last, -1, sizeof last);
    for (int n = 0; n < MESSAGES; n++) {
        int number = box->arrived[n];
        if (number <= last[number % TAGS] || (int)box->data[number] != number) {
            return false;
        }
        last[number % TAGS] = number;
        atomic_fetch_add(&overtakings, number != n);
    }
    return true;
}

static void send_all(car_transport *t, int rank, mailbox *box) {
    for (int n = 0; n < MESSAGES; n++) {
        box->data[n] = rank == 0 ? (float)n : -1;
        box->messages[n] = (car_message){.kind = rank == 0 ? CAR_MESSAGE_SEND : CAR_MESSAGE_RECEIVE,
                                         .data = &box->data[n],
                                         .bytes = sizeof box->data[n],
                                         .peer = 1 - rank,
                                         .tag = n % TAGS,
                                         .latest = 1 + n / (MESSAGES / 2)};
        car_transport_start(t, &box->messages[n]);
    }
}

static void await(mailbox *box, int count) {
    pthread_mutex_lock(&box->lock);
    while (box->count < count) {
        pthread_cond_wait(&box->changed, &box->lock);
    }
    pthread_mutex_unlock(&box->lock);
}

static const car_transport_events events_like = {
    .finished = note_arrival, .watch = watch, .urgent = is_urgent, .tell = tell};

static bool join(car_thread_rank *m, mailbox *box, car_context **context, car_transport **t) {
    car_transport_events events = events_like;
    events.user = box;
    double bytes[2] = {0, 0}; /* a rank sends to the other one only */
    bytes[1 - m->rank] = MESSAGES * sizeof(float);
    return car_context_create(NULL, context) == CAR_OK && car_hub_join(m->hub, *context, m->rank, t) == CAR_OK &&
           car_transport_prepare(*t, TAGS, 0) == CAR_OK &&
           car_transport_pace(*t, m->guarded ? bytes : NULL) == CAR_OK && car_transport_begin(*t, &events) == CAR_OK;
}

static void leave(car_context *context, car_transport *t) {
    car_transport_close(t);
    car_context_destroy(context);
}

static void *exchange(void *argument) {
    car_thread_rank *m = argument;
    car_context *context = NULL;
    car_transport *t = NULL;
    mailbox box = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    m->good = join(m, &box, &context, &t);
    if (m->good) {
        send_all(t, m->rank, &box);
        await(&box, MESSAGES);
        car_transport_end(t, false);
        m->good = is_in_order(&box);
    }
    leave(context, t);
    return NULL;
}

/* Paced to 1.1 times 64 messages in a step: the first half leaves at once when its slot comes, the rest when the loop ends. */
static void *exchange_paced(void *argument) {
    static const struct timespec step = {.tv_nsec = 400000000};
    car_thread_rank *m = argument;
    car_context *context = NULL;
    car_transport *t = NULL;
    mailbox box = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    m->good = join(m, &box, &context, &t);
    for (int s = 0; m->good && m->rank == 0 && s < 3; s++) {
        car_transport_note_slot(t, s - 2);
        car_transport_note_step(t, 0.4 * s); /* it computes all the time */
        nanosleep(s < 2 ? &step : &(struct timespec){0}, NULL);
    }
    if (m->good) {
        double start = car_clock_seconds();
        send_all(t, m->rank, &box);
        await(&box, 4);
        /* From the fourth on each waited for a 70th of a step; a little less for the depth of the bucket. */
        m->good = m->rank == 1 || car_clock_seconds() - start > 2 * 0.4 / 71;
        car_transport_note_slot(t, 1);
        await(&box, MESSAGES / 2);
        car_transport_end(t, false);
        m->good = m->good && box.count == MESSAGES;
        for (int n = 0; n < MESSAGES; n++) { /* in their order: of one rank and tag, and all due at once */
            m->good = m->good && box.arrived[n] == n && (int)box.data[n] == n;
        }
        uint64_t held = car_transport_traffic(t).held;
        m->good = m->good && (m->rank == 0 ? held >= MESSAGES / 2 : held == 0);
    }
    leave(context, t);
    return NULL;
}

static void test_paced(void **state) {
    (void)state;
    const car_thread_rank like = {.guarded = true};
    assert_true(car_thread_ranks_run(2, &like, NULL, exchange_paced, NULL, NULL));
}

/* Where links are paced, a rank that pauses holds up nobody for ever, and changes no bit. */
static void test_pause(void **state) {
    (void)state;
    for (int n = 0; n < PLACEMENTS; n++) {
        const car_thread_rank like = {.setting = setting_of(placements[n]),
                                      .model = "mlp",
                                      .rule = car_placement_rules[n % 2],
                                      .guarded = n % 2 == 0,
                                      .stop_step = CAR_NONE};
        car_trouble trouble = none;
        trouble.pauses = 1;
        trouble.pause = 0.1;
        trouble.after = 20;
        assert_true(car_thread_ranks_train(&like, &trouble));
    }
}

static void test_order(void **state) {
    (void)state;
    const car_thread_rank like = {0};
    /* A thread that does not run for some milliseconds finds all messages due, in their order: then it is tried again. */
    for (uint64_t n = 1; n <= 50 && atomic_load(&overtakings) == 0; n++) {
        const car_trouble trouble = draw(n);
        assert_true(car_thread_ranks_run(2, &like, &trouble, exchange, NULL, NULL));
    }
    assert_true(atomic_load(&overtakings) > 0);
}

/* ---- lost ------------------------------------------------------------------------------------ */

static void test_failure(void **state) {
    (void)state;
    static const int64_t moments[] = {0, 3, 9, 20};
    for (int n = 0; n < 4 * PLACEMENTS; n++) {
        car_placement_setting setting = *setting_of(placements[n % PLACEMENTS]);
        setting.snapshot_every = n % 2; /* a snapshot after every step is cut off */
        const car_thread_rank like = {.setting = &setting,
                                      .model = "mlp",
                                      .rule = car_placement_rules[n % 3],
                                      .stop_step = CAR_NONE,
                                      .patience = 60};
        car_thread_rank ended[CAR_THREAD_RANKS_MOST];
        car_trouble trouble = draw((uint64_t)n);
        trouble.fails = n % 3;
        trouble.after = moments[n / PLACEMENTS];
        assert_true(car_thread_ranks_lose(&like, &trouble, ended));
        assert_int_equal(ended[trouble.fails].status, CAR_ERROR_IO);
        assert_non_null(strstr(ended[trouble.fails].error, "the transport of rank"));
    }
}

static void test_feed_fails(void **state) {
    (void)state;
    for (int n = 0; n < PLACEMENTS; n++) {
        const car_thread_rank like = {.setting = setting_of(placements[n]),
                                      .model = "mlp",
                                      .rule = car_placement_rules[n % 3],
                                      .feed_fails = true,
                                      .patience = 60};
        assert_true(car_thread_ranks_lose(&like, &none, NULL));
    }
}

/* Rank 0 is watched by the one after it, others by rank 0 as well. With so little patience on a busy machine a rank that only
 * had no time may be named before the silent one. */
static void test_silence(void **state) {
    (void)state;
    for (int n = 0; n < PLACEMENTS; n++) {
        const car_thread_rank like = {.setting = setting_of(placements[n]),
                                      .model = "mlp",
                                      .rule = car_placement_rules[n % 2],
                                      .stop_step = CAR_NONE,
                                      .patience = 1};
        car_thread_rank ended[CAR_THREAD_RANKS_MOST];
        car_trouble trouble = none;
        int ranks = car_placement_ranks(like.setting, like.rule), named = 0;
        trouble.silent = n % 3;
        trouble.after = 5;
        double start = car_clock_seconds();
        assert_true(car_thread_ranks_lose(&like, &trouble, ended));
        assert_true(car_clock_seconds() - start < 60);
        for (int r = 0; r < ranks; r++) {
            named += strstr(ended[r].error, "does not respond") != NULL;
            assert_true(r != trouble.silent || ended[r].error[0] == '\0');
        }
        assert_true(named > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),      cmocka_unit_test(test_late),    cmocka_unit_test(test_failure),
        cmocka_unit_test(test_feed_fails), cmocka_unit_test(test_silence), cmocka_unit_test(test_paced),
        cmocka_unit_test(test_pause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
