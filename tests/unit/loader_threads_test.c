/* The loader: the same micro-batches whoever reads them, every sample once in an epoch, no more memory than was asked
 * for, and nobody left waiting: not by threads that are stuck, not out of order, not at the end. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

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

/* ---- order -------------------------------------------------------------------------------------- */

static void run_in_order(int64_t samples, const car_loader_config *config, int64_t steps) {
    car_made_up_reset(&made_up, made_up.context);
    car_loader *loader = car_made_up_open(&made_up, samples, config);
    car_made_up_expectation e = car_made_up_expect(&made_up, samples, config);
    size_t bound =
        car_made_up_bytes(config->depth > 0 ? config->depth : config->micro_batches + config->threads, config->batch);
    for (int64_t step = config->first_step; step < steps; step++) {
        for (int worker = 0; worker < config->micro_batches; worker++) {
            car_made_up_take_and_give_back(loader, &e, step, worker);
            assert_in_range(car_loader_bytes(loader), 1, bound);
        }
    }
    car_loader_destroy(loader);
    car_order_destroy(e.order);
}

/* The same micro-batches for any number of threads and any depth; two epochs and a half of 7 steps each, with samples
 * left over. Nothing is read twice. */
static void same_batches_for_all(void **state) {
    (void)state;
    static const int threads[] = {0, 1, 3}, depths[] = {0, 1, 2, 7};
    for (int workers = 1; workers <= 3; workers += 2) {
        for (int t = 0; t < 3; t++) {
            for (int d = 0; d < 4; d++) {
                car_loader_config config = car_made_up_config(workers, 2, threads[t], depths[d]);
                config.steps = 18;
                run_in_order(7 * 2 * workers + 1, &config, config.steps);
                assert_int_equal(atomic_load(&made_up.reads), 18 * 2 * workers);
                config.sequential = true;
                config.first_step = 5;
                run_in_order(7 * 2 * workers + 1, &config, config.steps);
            }
        }
    }
}

static void every_sample_once_in_an_epoch(void **state) {
    (void)state;
    enum { SAMPLES = 48, EPOCHS = 3 };
    car_loader_config config = car_made_up_config(4, 3, 2, 0);
    car_loader *loader = car_made_up_open(&made_up, SAMPLES, &config);
    int64_t steps = car_loader_epoch_steps(loader);
    assert_int_equal(steps, 4);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int seen[SAMPLES] = {0};
        for (int64_t n = 0; n < steps * 4; n++) {
            const void *inputs = NULL;
            const int32_t *labels = NULL;
            int64_t step = epoch * steps + n / 4;
            assert_int_equal(car_loader_take(loader, step, (int)(n % 4), &inputs, &labels), CAR_OK);
            for (int b = 0; b < 3; b++) {
                seen[labels[b * CAR_MADE_UP_LABELS]]++;
            }
            car_loader_give_back(loader, step, (int)(n % 4));
        }
        for (int s = 0; s < SAMPLES; s++) {
            assert_int_equal(seen[s], 1);
        }
    }
    car_loader_destroy(loader);
}

static void endless_samples(void **state) {
    (void)state;
    car_loader_config config = car_made_up_config(3, 2, 1, 0);
    run_in_order(CAR_DATASET_ENDLESS, &config, 10);
    car_loader *loader = car_made_up_open(&made_up, CAR_DATASET_ENDLESS, &config);
    assert_true(car_loader_epoch_steps(loader) == INT64_MAX);
    car_loader_destroy(loader);
}

static void partial_batch_of_evaluation(void **state) {
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        for (int workers = 1; workers <= 3; workers += 2) {
            car_loader_config config = car_made_up_config(workers, 4, threads, 0);
            config.split = CAR_SPLIT_EVALUATION;
            config.steps = 5;
            car_loader *loader = car_made_up_open(&made_up, 25, &config);
            assert_int_equal(car_loader_epoch_steps(loader), workers == 1 ? 7 : 3);
            car_loader_destroy(loader);
            run_in_order(25, &config, 15);
            run_in_order(1, &config, 2);
        }
    }
}

/* An evaluation of some of the samples has them from everywhere, and the same ones in every epoch. */
static void part_of_an_evaluation_is_spread(void **state) {
    (void)state;
    static const int spread[] = {0, 2, 5, 8, 11, 14};
    for (int threads = 0; threads < 2; threads++) {
        car_loader_config config = car_made_up_config(1, 3, threads, 0);
        config.split = CAR_SPLIT_EVALUATION;
        config.steps = 2;
        config.evenly = true;
        car_loader *loader = car_made_up_open(&made_up, 17, &config);
        for (int64_t step = 0; step < 4; step++) {
            const void *inputs = NULL;
            const int32_t *labels = NULL;
            assert_int_equal(car_loader_take(loader, step, 0, &inputs, &labels), CAR_OK);
            for (int b = 0; b < 3; b++) {
                assert_int_equal(labels[b * CAR_MADE_UP_LABELS], spread[step % 2 * 3 + b]);
            }
            car_loader_give_back(loader, step, 0);
        }
        car_loader_destroy(loader);
        config.steps = 6; /* all there are */
        run_in_order(17, &config, 6);
    }
}

/* One of several processes that share the workers: threads read what is its own, and nothing else; others can be taken. */
static void only_what_is_wanted(void **state) {
    (void)state;
    enum { WORKERS = 4, BATCH = 2, STEPS = 18 };
    static const bool second[] = {false, true, false, false}, nobody[WORKERS] = {false};
    car_loader_config config = car_made_up_config(WORKERS, BATCH, 2, 3);
    config.steps = STEPS;
    config.wanted = second;
    car_loader *loader = car_made_up_open(&made_up, 100, &config);
    car_made_up_expectation e = car_made_up_expect(&made_up, 100, &config);
    car_made_up_wait(&made_up, 3 * BATCH);
    assert_int_equal(atomic_load(&made_up.reads), 3 * BATCH);
    for (int64_t step = 0; step < STEPS; step++) {
        car_made_up_take_and_give_back(loader, &e, step, 1);
    }
    car_made_up_take_and_give_back(loader, &e, STEPS - 1, 2);
    assert_int_equal(atomic_load(&made_up.reads), (STEPS + 1) * BATCH);
    car_loader_destroy(loader);
    config.wanted = nobody;
    loader = car_made_up_open(&made_up, 100, &config);
    for (int64_t step = 0; step < STEPS; step++) {
        car_made_up_take_and_give_back(loader, &e, step, 3);
    }
    assert_int_equal(atomic_load(&made_up.reads), (2 * STEPS + 1) * BATCH);
    car_loader_destroy(loader);
    car_order_destroy(e.order);
}

/* ---- any order, several at once ------------------------------------------------------------------ */

typedef struct crowd {
    car_loader *loader;
    car_made_up_expectation expected;
    int *numbers; /* what is taken, in this order */
    int count;
    atomic_int next, wrong;
} crowd;

/* Takes two at once, and gives them back in the other order. */
static void *take_some(void *argument) {
    crowd *c = argument;
    int workers = c->expected.config.micro_batches;
    for (int at; (at = atomic_fetch_add(&c->next, 2)) < c->count;) {
        for (int i = at; i < at + 2; i++) {
            const void *inputs = NULL;
            const int32_t *labels = NULL;
            int64_t step = c->numbers[i] / workers;
            int worker = c->numbers[i] % workers;
            if (car_loader_take(c->loader, step, worker, &inputs, &labels) != CAR_OK ||
                !car_made_up_is_expected(&c->expected, step, worker, inputs, labels)) {
                atomic_fetch_add(&c->wrong, 1);
            }
        }
        for (int i = at + 1; i >= at; i--) {
            car_loader_give_back(c->loader, c->numbers[i] / workers, c->numbers[i] % workers);
        }
    }
    return NULL;
}

/* `span`: how far a number may be from its place. */
static void run_crowd(int threads, int depth, int span) {
    enum { TAKERS = 4, STEPS = 50, WORKERS = 4 };
    car_loader_config config = car_made_up_config(WORKERS, 2, threads, depth);
    crowd c = {.count = STEPS * WORKERS, .numbers = calloc(STEPS * WORKERS, sizeof *c.numbers)};
    pthread_t takers[TAKERS];
    assert_non_null(c.numbers);
    for (int i = 0; i < c.count; i++) {
        int j = i - (int)(car_random_u64(9, (uint64_t)i) % (uint64_t)((i < span ? i : span) + 1));
        c.numbers[i] = c.numbers[j];
        c.numbers[j] = i;
    }
    config.steps = STEPS;
    c.loader = car_made_up_open(&made_up, 100, &config);
    c.expected = car_made_up_expect(&made_up, 100, &config);
    for (int i = 0; i < TAKERS; i++) {
        assert_int_equal(pthread_create(&takers[i], NULL, take_some, &c), 0);
    }
    for (int i = 0; i < TAKERS; i++) {
        assert_int_equal(pthread_join(takers[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&c.wrong), 0);
    int resting = depth > 0 ? depth : WORKERS + threads;
    assert_int_equal(car_loader_bytes(c.loader), car_made_up_bytes(resting, 2));
    car_loader_destroy(c.loader);
    car_order_destroy(c.expected.order);
    free(c.numbers);
}

static void any_order_and_several_at_once(void **state) {
    (void)state;
    static const int threads[] = {0, 1, 3}, depths[] = {0, 1, 3, 20}, spans[] = {0, 6, 200};
    for (int t = 0; t < 3; t++) {
        for (int d = 0; d < 4; d++) {
            for (int s = 0; s < 3; s++) {
                run_crowd(threads[t], depths[d], spans[s]);
            }
        }
    }
}

/* Those who hold more than the depth get more, and only as long as they hold it. The same one can be taken twice. */
static void more_are_held_than_the_depth(void **state) {
    (void)state;
    car_loader_config config = car_made_up_config(2, 4, 1, 2);
    car_loader *loader = car_made_up_open(&made_up, 64, &config);
    car_made_up_expectation e = car_made_up_expect(&made_up, 64, &config);
    for (int n = 0; n < 6; n++) {
        car_made_up_take(loader, &e, n / 2, n % 2);
        assert_in_range(car_loader_bytes(loader), 1, car_made_up_bytes(n < 2 ? 2 : n + 1, 4));
    }
    assert_int_equal(car_loader_bytes(loader), car_made_up_bytes(6, 4));
    car_made_up_take(loader, &e, 1, 1);
    assert_int_equal(car_loader_bytes(loader), car_made_up_bytes(6, 4));
    car_loader_give_back(loader, 1, 1);
    assert_int_equal(car_loader_bytes(loader), car_made_up_bytes(6, 4)); /* it is still held */
    for (int n = 0; n < 6; n++) {
        car_made_up_take(loader, &e, 1, 1);
        car_loader_give_back(loader, 1, 1);
        if (n != 3) {
            car_loader_give_back(loader, n / 2, n % 2);
        }
    }
    car_loader_give_back(loader, 1, 1);
    assert_int_equal(car_loader_bytes(loader), car_made_up_bytes(2, 4));
    car_loader_destroy(loader);
    car_order_destroy(e.order);
}

/* ---- what threads read --------------------------------------------------------------------------- */

/* Threads fill the queue and no more, and nothing outside of the run. */
static void reads_ahead_as_far_as_the_depth(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2) {
        car_loader_config config = car_made_up_config(2, 3, threads, 5);
        car_made_up_reset(&made_up, made_up.context);
        config.sequential = true;
        config.first_step = 2;
        config.steps = 6;
        car_loader *loader = car_made_up_open(&made_up, 60, &config);
        car_made_up_expectation e = car_made_up_expect(&made_up, 60, &config);
        car_made_up_wait(&made_up, 5 * 3);
        assert_int_equal(atomic_load(&made_up.lowest), 2 * 2 * 3);
        assert_int_equal(atomic_load(&made_up.highest), (2 * 2 + 5) * 3 - 1);
        car_made_up_take_and_give_back(loader, &e, 2, 0);
        car_made_up_wait(&made_up, 6 * 3);
        for (int n = 5; n < 12; n++) {
            car_made_up_take_and_give_back(loader, &e, n / 2, n % 2);
        }
        car_made_up_wait(&made_up, 8 * 3);
        assert_int_equal(atomic_load(&made_up.highest), 6 * 2 * 3 - 1);
        /* What is beyond the run can be had all the same. */
        car_made_up_take_and_give_back(loader, &e, 6, 0);
        car_made_up_wait(&made_up, 9 * 3);
        car_loader_destroy(loader);
    }
}

/* Whoever comes out of turn while the queue is full gets a place in it, not one beside it. */
static void a_full_queue_makes_room(void **state) {
    (void)state;
    car_loader_config config = car_made_up_config(2, 3, 1, 2);
    config.sequential = true;
    config.steps = 3;
    car_loader *loader = car_made_up_open(&made_up, 60, &config);
    car_made_up_expectation e = car_made_up_expect(&made_up, 60, &config);
    car_made_up_wait(&made_up, 2 * 3);
    car_made_up_take(loader, &e, 1, 1);
    assert_int_equal(car_loader_bytes(loader), car_made_up_bytes(2, 3));
    car_loader_give_back(loader, 1, 1);
    car_made_up_wait(&made_up, 4 * 3); /* by the taker, and by the thread in its stead again */
    car_made_up_take_and_give_back(loader, &e, 0, 0);
    car_made_up_take_and_give_back(loader, &e, 0, 1);
    car_loader_destroy(loader);
}

/* A thread that is stuck stops nobody but those who want what it reads. */
static void a_stuck_thread_stops_nobody(void **state) {
    (void)state;
    for (int depth = 2; depth <= 4; depth++) {
        car_loader_config config = car_made_up_config(1, 2, 1, depth);
        car_made_up_reset(&made_up, made_up.context);
        config.sequential = true;
        atomic_store(&made_up.stuck_at, 3);
        car_loader *loader = car_made_up_open(&made_up, 1000, &config);
        car_made_up_expectation e = car_made_up_expect(&made_up, 1000, &config);
        for (int ms = 0; ms < CAR_MADE_UP_PATIENCE && atomic_load(&made_up.stuck_in) == 0; ms++) {
            usleep(1000);
        }
        assert_int_equal(atomic_load(&made_up.stuck_in), 1); /* the first is there, the second is not */
        for (int step = 0; step < 30; step++) {
            if (step != 1) {
                car_made_up_take_and_give_back(loader, &e, step, 0);
                assert_int_equal(car_loader_bytes(loader), car_made_up_bytes(depth, 2));
            }
        }
        atomic_store(&made_up.stuck_at, CAR_MADE_UP_NOBODY);
        car_made_up_take_and_give_back(loader, &e, 1, 0);
        car_loader_destroy(loader);
    }
}

/* Threads follow whoever goes somewhere else, forward or back, and what they had read makes room. */
static void threads_follow_a_jump(void **state) {
    (void)state;
    car_loader_config config = car_made_up_config(1, 1, 2, 4);
    config.sequential = true;
    car_loader *loader = car_made_up_open(&made_up, 100000, &config);
    car_made_up_expectation e = car_made_up_expect(&made_up, 100000, &config);
    car_made_up_wait(&made_up, 4);
    car_made_up_take_and_give_back(loader, &e, 5000, 0);
    car_made_up_wait(&made_up, 9);
    assert_int_equal(atomic_load(&made_up.highest), 5004);
    for (int step = 5001; step < 5005; step++) {
        car_made_up_take_and_give_back(loader, &e, step, 0);
    }
    car_made_up_wait(&made_up, 13);
    car_made_up_take_and_give_back(loader, &e, 70, 0);
    car_made_up_wait(&made_up, 18);
    car_made_up_take_and_give_back(loader, &e, 74, 0);
    car_made_up_wait(&made_up, 19); /* not by the taker: it was there */
    car_loader_destroy(loader);
}

static void waiting_is_counted(void **state) {
    (void)state;
    made_up.delay_us = 2000;
    car_loader_config config = car_made_up_config(1, 5, 0, 0);
    car_loader *loader = car_made_up_open(&made_up, 50, &config);
    car_made_up_expectation e = car_made_up_expect(&made_up, 50, &config);
    assert_true(car_loader_waited(loader) == 0);
    car_made_up_take_and_give_back(loader, &e, 0, 0);
    double first = car_loader_waited(loader);
    assert_true(first > 0.009 && first < 5);
    car_made_up_take_and_give_back(loader, &e, 1, 0);
    assert_true(car_loader_waited(loader) > first + 0.009);
    car_loader_destroy(loader);
    /* With a thread that had its time, nobody waits. */
    atomic_store(&made_up.reads, 0);
    config.threads = 1;
    config.depth = 3;
    loader = car_made_up_open(&made_up, 50, &config);
    car_made_up_wait(&made_up, 15);
    usleep(300000); /* the last read has begun, and ends even if the machine is busy */
    for (int step = 0; step < 3; step++) {
        car_made_up_take_and_give_back(loader, &e, step, 0);
    }
    assert_true(car_loader_waited(loader) == 0);
    car_loader_destroy(loader);
    car_order_destroy(e.order);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(same_batches_for_all),
        TEST(every_sample_once_in_an_epoch),
        TEST(endless_samples),
        TEST(partial_batch_of_evaluation),
        TEST(part_of_an_evaluation_is_spread),
        TEST(only_what_is_wanted),
        TEST(any_order_and_several_at_once),
        TEST(more_are_held_than_the_depth),
        TEST(reads_ahead_as_far_as_the_depth),
        TEST(a_full_queue_makes_room),
        TEST(a_stuck_thread_stops_nobody),
        TEST(threads_follow_a_jump),
        TEST(waiting_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
