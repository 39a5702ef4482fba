/* The loader: destroyed at any moment, reads that fail, wrong arguments, no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/allocator.h"
#include "support/expect.h"
#include "support/made_up.h"

static car_made_up made_up;

static int set_up(void **state) {
    (void)state;
    return car_made_up_begin(&made_up);
}

static int tear_down(void **state) {
    (void)state;
    return car_made_up_end(&made_up);
}

/* ---- ends and failures --------------------------------------------------------------------------- */

/* A micro-batch takes 20 seconds to read; nobody waits for that. */
static void destroyed_while_reading(void **state) {
    (void)state;
    made_up.delay_us = 10000;
    car_loader_config config = car_made_up_config(2, 2000, 3, 0);
    car_loader *loader = car_made_up_open(&made_up, 100000, &config);
    for (int ms = 0; ms < CAR_MADE_UP_PATIENCE && atomic_load(&made_up.reads) < 4; ms++) {
        usleep(1000);
    }
    double start = car_clock_seconds();
    car_loader_destroy(loader);
    assert_true(car_clock_seconds() - start < 5);
}

static void destroyed_at_any_moment(void **state) {
    (void)state;
    for (int i = 0; i < 60; i++) {
        car_loader_config config = car_made_up_config(2, 2, 1 + i % 3, i % 5);
        car_loader *loader = car_made_up_open(&made_up, 100, &config);
        car_made_up_expectation e = car_made_up_expect(&made_up, 100, &config);
        for (int n = 0; n < i % 8; n++) {
            car_made_up_take(loader, &e, n / 2, n % 2);
            if (n % 3 > 0) { /* some are never given back */
                car_loader_give_back(loader, n / 2, n % 2);
            }
        }
        usleep((useconds_t)(i % 4) * 50);
        car_loader_destroy(loader);
        car_order_destroy(e.order);
    }
    car_loader_destroy(NULL);
}

/* A failure is told to whoever takes that micro-batch, and as often as it is taken; to nobody else. */
static void failures_reach_who_takes(void **state) {
    (void)state;
    for (int threads = 0; threads <= 3; threads++) {
        car_loader_config config = car_made_up_config(1, 3, threads, 0);
        const void *inputs = NULL;
        const int32_t *labels = NULL;
        car_made_up_reset(&made_up, made_up.context);
        config.sequential = true;
        atomic_store(&made_up.broken_at, 3 * 5 + 1);
        car_loader *loader = car_made_up_open(&made_up, 90, &config);
        car_made_up_expectation e = car_made_up_expect(&made_up, 90, &config);
        for (int step = 0; step < 12; step++) {
            if (step != 5) {
                car_made_up_take_and_give_back(loader, &e, step, 0);
                continue;
            }
            /* Long before, a thread has found out, and whatever it said was forgotten. */
            for (int ms = 0; ms < CAR_MADE_UP_PATIENCE && threads > 0 && atomic_load(&made_up.failures) == 0; ms++) {
                usleep(1000);
            }
            car_context_clear_error(made_up.context);
            for (int times = 0; times < 2; times++) {
                assert_int_equal(car_loader_take(loader, step, 0, &inputs, &labels), CAR_ERROR_IO);
                assert_string_equal(car_context_error(made_up.context), "sample 16 is broken");
                car_context_clear_error(made_up.context);
            }
        }
        assert_int_equal(car_loader_bytes(loader), car_made_up_bytes(1 + threads, 3));
        car_loader_destroy(loader);
    }
}

static void refuse(int64_t samples, const car_loader_config *config, const char *message) {
    car_loader *loader = NULL;
    car_status status = car_made_up_try_open(&made_up, samples, config, &loader);
    assert_null(loader);
    car_expect_failure(made_up.context, status, CAR_ERROR_ARGUMENT, message);
}

static void wrong_arguments(void **state) {
    (void)state;
    car_loader_config config = car_made_up_config(4, 8, 1, 0);
    refuse(31, &config, "31 samples to train on; a step of 4 micro-batches of 8 samples needs at least 32");
    config.split = CAR_SPLIT_EVALUATION;
    refuse(0, &config, "0 samples to evaluate on");
    config = car_made_up_config(0, 8, 1, 0);
    refuse(31, &config, "at least one micro-batch");
    config = car_made_up_config(1, 8, -1, 0);
    refuse(31, &config, "threads");
    config = car_made_up_config(2, 8, 1, 0);
    car_loader *loader = car_made_up_open(&made_up, 31, &config);
    const void *inputs = NULL;
    const int32_t *labels = NULL;
    assert_int_equal(car_loader_take(loader, -1, 0, &inputs, &labels), CAR_ERROR_ARGUMENT);
    assert_int_equal(car_loader_take(loader, 0, 2, &inputs, &labels), CAR_ERROR_ARGUMENT);
    assert_int_equal(car_loader_take(loader, INT64_MAX, 0, &inputs, &labels), CAR_ERROR_ARGUMENT);
    car_loader_destroy(loader);
}

/* The n-th allocation fails, for every n: a status, and everything is given back. */
static void out_of_memory(void **state) {
    (void)state;
    car_context *own = made_up.context;
    bool failed = true;
    for (long n = 1; failed; n++) {
        /* The first is the context itself. */
        car_checking checking = {.fail_at = n + 1};
        car_context_config hooks = {.allocator = car_checking_hooks(&checking)};
        car_loader_config config = car_made_up_config(2, 2, 0, 2);
        const void *inputs = NULL;
        const int32_t *labels = NULL;
        car_loader *loader = NULL;
        assert_int_equal(car_context_create(&hooks, &made_up.context), CAR_OK);
        car_status status = car_made_up_try_open(&made_up, 10, &config, &loader);
        for (int i = 0; i < 3 && status == CAR_OK; i++) {
            status = car_loader_take(loader, i, 0, &inputs, &labels);
        }
        failed = checking.failures > 0;
        assert_int_equal(status, failed ? CAR_ERROR_MEMORY : CAR_OK);
        car_loader_destroy(loader);
        car_context_destroy(made_up.context);
        assert_int_equal(checking.live_blocks, 0);
        assert_int_equal(checking.wrong_sizes, 0);
        assert_true(failed || n > 10);
    }
    made_up.context = own;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(destroyed_while_reading), TEST(destroyed_at_any_moment), TEST(failures_reach_who_takes),
        TEST(wrong_arguments),         TEST(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
