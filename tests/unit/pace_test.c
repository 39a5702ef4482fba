/* Links that are paced: the arithmetic of the bucket, and who is held back when. All in virtual time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "transport/transport.h"

static void assert_near(double value, double expected) {
    assert_true(fabs(value - expected) <= 1e-9 * fmax(1, fabs(expected)));
}

/* ---- the bucket ------------------------------------------------------------------------------ */

static void test_rate(void **state) {
    (void)state;
    car_bucket bucket = {0};
    car_bucket_set(&bucket, 1000, 0, 10);
    assert_true(car_bucket_ready(&bucket) <= 5); /* nothing was sent yet */
    for (int n = 0; n < 100; n++) {              /* whenever it is ready */
        double now = n == 0 ? 5 : car_bucket_ready(&bucket);
        car_bucket_take(&bucket, 50, now);
        assert_near(car_bucket_ready(&bucket), 5 + 0.05 * (n + 1));
    }
}

static void test_depth(void **state) {
    (void)state;
    car_bucket bucket = {0};
    car_bucket_set(&bucket, 1000, 0.5, 10);
    car_bucket_take(&bucket, 300, 100); /* a quiet link has saved up half a second: 500 bytes */
    assert_near(car_bucket_ready(&bucket), 99.8);
    car_bucket_take(&bucket, 300, 100);
    assert_near(car_bucket_ready(&bucket), 100.1);
    car_bucket_take(&bucket, 100, 100.1); /* who is late by a little does not lose it */
    car_bucket_take(&bucket, 100, 100.25);
    assert_near(car_bucket_ready(&bucket), 100.3);
    car_bucket_take(&bucket, 100, 200); /* but no more than that is saved */
    assert_near(car_bucket_ready(&bucket), 199.6);
}

/* However much is sent regardless, the next one waits for a bounded time. */
static void test_debt(void **state) {
    (void)state;
    car_bucket bucket = {0};
    car_bucket_set(&bucket, 1000, 0, 2);
    for (int n = 0; n < 100; n++) {
        car_bucket_take(&bucket, 500, 10);
    }
    assert_near(car_bucket_ready(&bucket), 12);
    car_bucket_set(&bucket, 0, 0, 2); /* no limit */
    assert_true(car_bucket_ready(&bucket) < 0);
    car_bucket_take(&bucket, 1e12, 10);
    assert_true(car_bucket_ready(&bucket) < 0);
}

/* ---- links ----------------------------------------------------------------------------------- */

enum { RANKS = 3, FAR = 1000 };

static const double bytes[RANKS] = {0, 1000, 2000}, RATE = 1.1 * 3000;

static car_message send_to(int peer, size_t size, int64_t latest) {
    return (car_message){.kind = CAR_MESSAGE_SEND, .bytes = size, .peer = peer, .latest = latest};
}

static bool leaves(car_pace *pace, double now, bool ending, const car_message *message) {
    car_pace_moment moment = car_pace_look(pace, now, ending);
    bool may = car_pace_may_leave(pace, &moment, message);
    if (may) {
        car_pace_take(pace, message, now);
    }
    return may;
}

/* Steps of 1 s, the newest of which begins now. */
static void begin_steps(car_pace *pace, int steps, double now) {
    for (int s = 0; s < steps; s++) {
        car_pace_note_step(pace, now - (steps - 1 - s), now - (steps - 1 - s)); /* it computes all the time */
        car_pace_note_slot(pace, 8 * s);
    }
}

static void test_links(void **state) {
    car_pace *pace = *state;
    const car_message message = send_to(1, 100, FAR), other = send_to(2, 100, FAR), none = send_to(0, 100, FAR);
    begin_steps(pace, 2, 10);
    for (int n = 0; n < 20; n++) { /* the first steps */
        assert_true(leaves(pace, 10, false, &message));
    }
    begin_steps(pace, 1, 11);
    assert_true(leaves(pace, 11, false, &message)); /* 1.1 times 3000 bytes in a second, to both together */
    double ready = 11 - 0.002 + 100 / RATE;
    assert_false(leaves(pace, ready - 0.001, false, &message));
    assert_true(leaves(pace, ready + 0.0001, false, &message));
    assert_false(leaves(pace, ready + 0.0002, false, &message));
    assert_false(leaves(pace, ready + 0.0002, false, &other)); /* on the same link of this rank's */
    for (int n = 0; n < 20; n++) {
        assert_true(leaves(pace, ready, false, &none)); /* one of which the plan knows nothing */
    }
}

static void test_slot(void **state) {
    car_pace *pace = *state;
    const car_message due = send_to(1, 100, 20), later = send_to(1, 100, 21), never = send_to(1, 100, 0);
    begin_steps(pace, 3, 10); /* at slot 16 */
    assert_true(leaves(pace, 10, false, &due));
    assert_false(leaves(pace, 10, false, &due));
    assert_true(leaves(pace, 10, false, &never));
    car_pace_note_slot(pace, 20);
    car_pace_note_slot(pace, 18); /* another worker is a little behind: the clock does not go back */
    for (int n = 0; n < 50; n++) {
        assert_true(leaves(pace, 10, false, &due));
    }
    assert_false(leaves(pace, 10.2, false, &later)); /* they count, but a quarter of a step is the longest wait */
    assert_true(leaves(pace, 10.25, false, &later));
    assert_false(leaves(pace, 10.25, false, &later));
    assert_true(leaves(pace, 10.25, true, &later)); /* the loop ends */
    car_pace_rewind(pace);
    assert_true(leaves(pace, 10.25, false, &later));
    assert_true(leaves(pace, 10.25, false, &later));
}

/* Nothing is held back while ranks mostly wait for the network. */
static void test_saturated(void **state) {
    car_pace *pace = *state;
    const car_message message = send_to(1, 100, FAR);
    for (int s = 0; s < 8; s++) { /* steps of 5 s that compute for 1 s; the first ones do not count */
        assert_int_equal(car_pace_note_step(pace, 5 * s, s), s > 1);
    }
    for (int n = 0; n < 20; n++) {
        assert_true(leaves(pace, 35, false, &message));
    }
    assert_false(car_pace_note_step(pace, 36, 8)); /* the network has become faster */
    assert_true(leaves(pace, 36, false, &message));
    assert_false(leaves(pace, 36, false, &message));
}

/* A step in which a rank paused does not slow down those after it; a run that has become slower does. */
static void test_pause(void **state) {
    car_pace *pace = *state;
    const car_message message = send_to(1, 60, FAR);
    begin_steps(pace, 4, 10);
    car_pace_note_step(pace, 15, 11);
    assert_true(leaves(pace, 15, false, &message));
    assert_true(leaves(pace, 15 + 60 / RATE, false, &message));
    for (int s = 1; s <= CAR_PACE_STEPS; s++) {
        car_pace_note_step(pace, 15 + 2 * s, 11 + 2 * s);
    }
    assert_true(leaves(pace, 30, false, &message));
    assert_false(leaves(pace, 30 + 60 / RATE, false, &message));
    assert_true(leaves(pace, 30 + 120 / RATE, false, &message));
}

typedef struct fixture {
    car_pace pace; /* first: tests get it by the fixture's address */
    car_context *context;
} fixture;

static int set_up(void **state) {
    static fixture f;
    f = (fixture){.context = NULL};
    *state = &f.pace;
    bool good =
        car_context_create(NULL, &f.context) == CAR_OK && car_pace_create(&f.pace, f.context, bytes, RANKS) == CAR_OK;
    car_pace_rewind(&f.pace);
    return good ? 0 : 1;
}

static int tear_down(void **state) {
    fixture *f = *state;
    car_pace_destroy(&f->pace, f->context);
    car_context_destroy(f->context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_debt),
        cmocka_unit_test_setup_teardown(test_links, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_slot, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_saturated, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_pause, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
