/* The base: statuses, the message of the first failure, the allocator's hooks, the log, random numbers, the clock. */
#include "carousel/context.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/allocator.h"

static int set_up(void **state) {
    return car_context_create(NULL, (car_context **)state) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    car_context_destroy(*state);
    return 0;
}

/* ---- statuses ------------------------------------------------------------------------------------------ */

static void every_status_has_its_own_text(void **state) {
    (void)state;
#define STATUS_CODE(code, text) code,
    static const car_status codes[] = {CAR_STATUS_LIST(STATUS_CODE)};
#undef STATUS_CODE
    enum { COUNT = sizeof codes / sizeof codes[0] };
    assert_int_equal(CAR_OK, 0);
    for (int i = 0; i < COUNT; i++) {
        assert_true(strlen(car_status_text(codes[i])) > 0);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(car_status_text(codes[i]), car_status_text(codes[j]));
        }
    }
    assert_string_equal(car_status_text(CAR_ERROR_MEMORY), "out of memory");
    assert_string_not_equal(car_status_text((car_status)COUNT),
                            car_status_text(CAR_OK)); /* none of ours, still a text */
    assert_string_equal(car_status_text((car_status)COUNT), car_status_text((car_status)INT_MAX));
}

/* ---- the first failure --------------------------------------------------------------------------------- */

static void first_failure_wins_until_cleared(void **state) {
    car_context *context = *state;
    assert_string_equal(car_context_error(context), "");
    assert_int_equal(car_context_fail(context, CAR_ERROR_SHAPE, "first %d", 1), CAR_ERROR_SHAPE);
    const char *message = car_context_error(context);
    assert_string_equal(message, "first 1");
    assert_int_equal(car_context_fail(context, CAR_ERROR_IO, "second"), CAR_ERROR_IO);
    assert_ptr_equal(car_context_error(context), message);
    assert_string_equal(message, "first 1");
    car_context_clear_error(context);
    assert_string_equal(car_context_error(context), "");
    assert_int_equal(car_context_fail(context, CAR_ERROR_IO, "third"), CAR_ERROR_IO);
    assert_string_equal(car_context_error(context), "third");
    car_context_clear_error(context);
}

static void long_message_is_cut(void **state) {
    enum { LENGTH = 10000 };
    char *text = malloc(LENGTH + 1);
    assert_non_null(text);
    memset(text, 'x', LENGTH);
    text[LENGTH] = '\0';
    car_context_fail(*state, CAR_ERROR_FORMAT, "start %s", text);
    const char *message = car_context_error(*state);
    assert_true(strlen(message) > 500 && strlen(message) < LENGTH);
    assert_memory_equal(message, "start xxx", 9);
    car_context_clear_error(*state);
    free(text);
}

/* A thread with a scope: its failures are nobody else's, and it sees nobody else's. */
static void *fail_apart(void *argument) {
    car_context *context = argument;
    car_error_scope scope;
    car_context_open_scope(context, &scope);
    bool clean = car_context_error(context)[0] == '\0';
    car_context_fail(context, CAR_ERROR_IO, "apart");
    clean = clean && strcmp(car_context_error(context), "apart") == 0;
    car_context_clear_error(context);
    car_context_fail(context, CAR_ERROR_IO, "again");
    clean = clean && strcmp(car_context_error(context), "again") == 0;
    car_context_publish_error(context);
    car_context_close_scope(context, &scope);
    return clean ? context : NULL;
}

static void run_apart(car_context *context) {
    pthread_t thread;
    void *clean = NULL;
    assert_int_equal(pthread_create(&thread, NULL, fail_apart, context), 0);
    assert_int_equal(pthread_join(thread, &clean), 0);
    assert_non_null(clean);
}

static void a_scope_keeps_failures_apart(void **state) {
    car_context *context = *state;
    car_context_fail(context, CAR_ERROR_SHAPE, "ours");
    run_apart(context);
    assert_string_equal(car_context_error(context), "ours"); /* neither cleared nor written over */
    car_context_clear_error(context);
    run_apart(context);
    assert_string_equal(car_context_error(context), "again"); /* published */
    car_context_clear_error(context);
}

enum { THREADS = 2, ROUNDS = 3000, LENGTH = 900 };

typedef struct failing_thread {
    car_context *context;
    atomic_int *arrivals;
    char text[LENGTH + 1]; /* one letter, a thread's own, as often as its message is long */
    int faults;            /* messages that were mixed from two, or changed after a thread had seen them */
} failing_thread;

/* Waits for the others in a loop: threads that sleep do not wake up at the same time. */
static void meet(atomic_int *arrivals, int meeting) {
    atomic_fetch_add(arrivals, 1);
    for (int turns = 1; atomic_load(arrivals) < THREADS * meeting; turns++) {
        if (turns % 4096 == 0) {
            sched_yield(); /* the other may have no processor */
        }
    }
}

/* All fail at once and look at what came of it. */
static void *fail_often(void *argument) {
    failing_thread *me = argument;
    for (int i = 0; i < ROUNDS; i++) {
        meet(me->arrivals, 3 * i + 1);
        car_context_fail(me->context, CAR_ERROR_INTERNAL, "%s", me->text);
        const char *message = car_context_error(me->context);
        char letter[] = {message[0], '\0'};
        meet(me->arrivals, 3 * i + 2);
        size_t length = strlen(message), expected = LENGTH - (size_t)(letter[0] - 'a') * 100;
        me->faults += length != expected || strspn(message, letter) != length;
        meet(me->arrivals, 3 * i + 3);
        if (me->text[0] == 'a') {
            car_context_clear_error(me->context);
        }
    }
    return NULL;
}

/* One message survives, whole. */
static void threads_fail_at_once(void **state) {
    static failing_thread arguments[THREADS];
    pthread_t threads[THREADS];
    atomic_int arrivals = 0;
    for (int i = 0; i < THREADS; i++) {
        arguments[i] = (failing_thread){.context = *state, .arrivals = &arrivals};
        memset(arguments[i].text, 'a' + i, LENGTH - (size_t)i * 100);
        assert_int_equal(pthread_create(&threads[i], NULL, fail_often, &arguments[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(arguments[0].faults + arguments[1].faults, 0);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static void hooks_serve_everything(void **state) {
    (void)state;
    car_checking checking = {0};
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    unsigned char *block = NULL;
    char *text = NULL;
    config.allocator = car_checking_hooks(&checking);
    assert_int_equal(car_context_create(&config, &context), CAR_OK);
    assert_int_equal(checking.live_blocks, 1);

    size_t before = checking.live_bytes;
    assert_int_equal(car_context_allocate(context, 30, 7, &block), CAR_OK);
    assert_int_equal(checking.live_bytes, before + 210);
    for (int i = 0; i < 210; i++) {
        assert_int_equal(block[i], 0); /* the hook hands out dirt */
    }
    assert_int_equal(car_context_copy_text(context, "a text", &text), CAR_OK);
    assert_string_equal(text, "a text");
    assert_int_equal(checking.live_blocks, 3);
    car_context_release_text(context, text);
    car_context_release(context, block, 30, 7);
    car_context_release(context, NULL, 1, 1);
    car_context_release_text(context, NULL);
    car_context_destroy(context);
    assert_int_equal(checking.live_blocks, 0);
    assert_int_equal(checking.live_bytes, 0);
    assert_int_equal(checking.wrong_sizes, 0);
}

static void default_blocks_are_aligned(void **state) {
    for (size_t bytes = 1; bytes < 300; bytes += 37) {
        void *block = NULL;
        assert_int_equal(car_context_allocate(*state, bytes, 1, &block), CAR_OK);
        assert_int_equal((uintptr_t)block % 64, 0);
        car_context_release(*state, block, bytes, 1);
    }
}

static void failed_allocation_is_reported(void **state) {
    (void)state;
    car_checking checking = {.fail_at = 1};
    car_context_config config = car_context_config_default();
    car_context *context = (car_context *)&checking; /* anything but NULL */
    void *block = &checking;
    config.allocator = car_checking_hooks(&checking);
    assert_int_equal(car_context_create(&config, &context), CAR_ERROR_MEMORY);
    assert_null(context);

    checking = (car_checking){.fail_at = 2};
    assert_int_equal(car_context_create(&config, &context), CAR_OK);
    assert_int_equal(car_context_allocate(context, 3, 4, &block), CAR_ERROR_MEMORY);
    assert_null(block);
    assert_non_null(strstr(car_context_error(context), "3 x 4 bytes"));

    /* A product that wraps must not reach the hook as something small. */
    long calls = checking.calls;
    block = &checking;
    assert_int_equal(car_context_allocate(context, SIZE_MAX / 2, 4, &block), CAR_ERROR_MEMORY);
    assert_null(block);
    assert_int_equal(checking.calls, calls);

    /* Nothing is no failure. */
    block = &checking;
    assert_int_equal(car_context_allocate(context, 0, 4, &block), CAR_OK);
    assert_null(block);
    car_context_destroy(context);
    assert_int_equal(checking.live_blocks, 0);
}

static void growing_keeps_contents(void **state) {
    (void)state;
    car_checking checking = {0};
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    int *numbers = NULL, capacity = 0, reallocations = 0;
    config.allocator = car_checking_hooks(&checking);
    assert_int_equal(car_context_create(&config, &context), CAR_OK);
    for (int i = 0; i < 5000; i++) {
        int before = capacity;
        assert_int_equal(car_context_grow(context, &numbers, &capacity, i + 1, sizeof *numbers), CAR_OK);
        assert_true(capacity > i);
        reallocations += capacity != before;
        numbers[i] = i;
    }
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(numbers[i], i);
    }
    assert_true(reallocations < 12); /* by doubling */

    /* A failure leaves the array as it was. */
    int *old = numbers, old_capacity = capacity;
    checking.fail_at = checking.calls + 1;
    assert_int_equal(car_context_grow(context, &numbers, &capacity, capacity + 1, sizeof *numbers), CAR_ERROR_MEMORY);
    assert_ptr_equal(numbers, old);
    assert_int_equal(capacity, old_capacity);
    car_context_release(context, numbers, (size_t)capacity, sizeof *numbers);
    car_context_destroy(context);
    assert_int_equal(checking.live_blocks, 0);
    assert_int_equal(checking.wrong_sizes, 0);
}

/* ---- the log ------------------------------------------------------------------------------------------- */

typedef struct log_book {
    int lines;
    car_log_level last_level;
    char last_line[2048];
} log_book;

static void note(void *user, car_log_level level, const char *line) {
    log_book *book = user;
    book->lines++;
    book->last_level = level;
    snprintf(book->last_line, sizeof book->last_line, "%s", line);
}

static void log_honours_levels(void **state) {
    (void)state;
    static const car_log_level levels[] = {CAR_LOG_ERROR, CAR_LOG_WARNING, CAR_LOG_INFO, CAR_LOG_DEBUG};
    for (int allowed = 0; allowed < 4; allowed++) {
        log_book book = {0};
        car_context_config config = car_context_config_default();
        car_context *context = NULL;
        config.log = note;
        config.log_user = &book;
        config.log_level = levels[allowed];
        assert_int_equal(car_context_create(&config, &context), CAR_OK);
        for (int sent = 0; sent < 4; sent++) {
            int before = book.lines;
            car_context_log(context, levels[sent], "level %d of %s", sent, "four");
            assert_int_equal(book.lines - before, sent <= allowed ? 1 : 0);
            if (sent <= allowed) {
                char expected[64];
                snprintf(expected, sizeof expected, "level %d of four", sent);
                assert_string_equal(book.last_line, expected);
                assert_int_equal(book.last_level, levels[sent]);
            }
        }
        car_context_destroy(context);
    }
    assert_int_equal(car_context_config_default().log_level, CAR_LOG_INFO);
}

static void log_survives_no_logger_and_long_lines(void **state) {
    char text[5000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    car_context_log(*state, CAR_LOG_ERROR, "nobody hears %s", text);

    log_book book = {0};
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    config.log = note;
    config.log_user = &book;
    assert_int_equal(car_context_create(&config, &context), CAR_OK);
    car_context_log(context, CAR_LOG_ERROR, "%s", text);
    assert_true(strlen(book.last_line) > 500);
    assert_int_equal(strspn(book.last_line, "y"), strlen(book.last_line));
    assert_string_equal(car_context_error(context), ""); /* a log line is no failure */
    car_context_destroy(context);
}

/* ---- random numbers and the clock ---------------------------------------------------------------------- */

/* Mean and deviation within six standard errors; neighbouring counters and keys must not look alike. */
static void random_numbers_are_spread(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    double sum = 0, squares = 0, product = 0, normal_sum = 0, normal_squares = 0;
    int bits[64] = {0};
    for (uint64_t i = 0; i < COUNT; i++) {
        double u = (double)car_random_uniform(7, i), n = car_random_normal(7, i);
        assert_true(u >= 0 && u < 1);
        sum += u - 0.5;
        squares += (u - 0.5) * (u - 0.5);
        product += (u - 0.5) * ((double)car_random_uniform(8, i) - 0.5);
        normal_sum += n;
        normal_squares += n * n;
        for (int b = 0; b < 64; b++) {
            bits[b] += (int)(car_random_u64(7, i) >> b & 1);
        }
    }
    assert_true(fabs(sum / COUNT) < 6 * sqrt(1.0 / 12 / COUNT));
    assert_true(fabs(squares / COUNT - 1.0 / 12) < 6 * sqrt(1.0 / 180 / COUNT));
    assert_true(fabs(product / COUNT) < 6.0 / 12 / sqrt(COUNT));
    assert_true(fabs(normal_sum / COUNT) < 6 / sqrt(COUNT));
    assert_true(fabs(normal_squares / COUNT - 1) < 6 * sqrt(2.0 / COUNT));
    for (int b = 0; b < 64; b++) {
        assert_true(fabs(bits[b] - COUNT / 2.0) < 6 * sqrt(COUNT / 4.0));
    }
}

static void random_numbers_depend_on_key_and_counter_alone(void **state) {
    (void)state;
    uint64_t once = car_random_u64(3, 4);
    car_random_u64(3, 5);
    assert_true(car_random_u64(3, 4) == once);
    assert_true(car_random_u64(3, 5) != once && car_random_u64(4, 4) != once && car_random_u64(4, 3) != once);
    assert_true(car_random_key(1, "a") == car_random_key(1, "a"));
    assert_true(car_random_key(1, "a") != car_random_key(2, "a"));
    assert_true(car_random_key(1, "ab") != car_random_key(1, "ba"));
    assert_true(car_random_key(1, "") != car_random_key(1, "a"));
}

static void clock_does_not_go_back(void **state) {
    (void)state;
    double first = car_clock_seconds(), now = first;
    for (int i = 0; i < 1000; i++) {
        double next = car_clock_seconds();
        assert_true(next >= now);
        now = next;
    }
    assert_true(now > first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_own_text),
        cmocka_unit_test_setup_teardown(first_failure_wins_until_cleared, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_scope_keeps_failures_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_message_is_cut, set_up, tear_down),
        cmocka_unit_test_setup_teardown(threads_fail_at_once, set_up, tear_down),
        cmocka_unit_test(hooks_serve_everything),
        cmocka_unit_test_setup_teardown(default_blocks_are_aligned, set_up, tear_down),
        cmocka_unit_test(failed_allocation_is_reported),
        cmocka_unit_test(growing_keeps_contents),
        cmocka_unit_test(log_honours_levels),
        cmocka_unit_test_setup_teardown(log_survives_no_logger_and_long_lines, set_up, tear_down),
        cmocka_unit_test(random_numbers_are_spread),
        cmocka_unit_test(random_numbers_depend_on_key_and_counter_alone),
        cmocka_unit_test(clock_does_not_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
