/* The order of an epoch: a permutation, the same for the same seed and epoch whatever was asked before, another for
 * others, all of them equally likely, and never more of them in memory than the few that are in use. */
#include "data/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/common.h"

static car_order *open_order(uint64_t seed, int64_t samples) {
    car_order *order = NULL;
    assert_int_equal(car_order_create(car_common_context, seed, samples, &order), CAR_OK);
    return order;
}

static int64_t *get_epoch(car_order *order, int64_t epoch, int samples) {
    int64_t *got = malloc((size_t)samples * sizeof *got);
    assert_non_null(got);
    assert_int_equal(car_order_get(order, epoch, 0, samples, got), CAR_OK);
    return got;
}

static void every_sample_once(void **state) {
    (void)state;
    for (int samples = 1; samples < 300; samples += samples < 10 ? 1 : 37) {
        car_order *order = open_order(7, samples);
        for (int epoch = 0; epoch < 5; epoch++) {
            int64_t *got = get_epoch(order, epoch, samples);
            bool seen[300] = {false};
            for (int i = 0; i < samples; i++) {
                assert_in_range(got[i], 0, samples - 1);
                assert_false(seen[got[i]]);
                seen[got[i]] = true;
            }
            free(got);
        }
        car_order_destroy(order);
    }
}

/* Whether two orders of the same samples are alike. */
static bool same(uint64_t seed_a, int64_t epoch_a, uint64_t seed_b, int64_t epoch_b) {
    enum { SAMPLES = 50 };
    car_order *a = open_order(seed_a, SAMPLES), *b = open_order(seed_b, SAMPLES);
    int64_t *got_a = get_epoch(a, epoch_a, SAMPLES), *got_b = get_epoch(b, epoch_b, SAMPLES);
    bool alike = memcmp(got_a, got_b, SAMPLES * sizeof *got_a) == 0;
    free(got_a);
    free(got_b);
    car_order_destroy(a);
    car_order_destroy(b);
    return alike;
}

static void seed_and_epoch_decide(void **state) {
    (void)state;
    assert_true(same(1, 0, 1, 0));
    assert_true(same(1, 1000000007, 1, 1000000007));
    assert_false(same(1, 0, 1, 1));
    assert_false(same(1, 0, 2, 0));
    assert_false(same(1, 1, 2, 0)); /* an epoch further on is not the next seed */
}

/* What a checkpoint is resumed with must be what it was written with. These were worked out by another program. */
static void order_is_kept_between_versions(void **state) {
    (void)state;
    static const int64_t expected[10] = {3, 0, 6, 9, 7, 5, 4, 8, 1, 2};
    car_order *order = open_order(42, 10);
    int64_t *got = get_epoch(order, 3, 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(got[i], expected[i]);
    }
    free(got);
    car_order_destroy(order);
    /* So many that some draws are rejected. */
    enum { MANY = 200000 };
    order = open_order(42, MANY);
    got = get_epoch(order, 3, MANY);
    uint64_t hash = 0;
    for (int i = 0; i < MANY; i++) {
        hash = car_random_mix(hash ^ (uint64_t)got[i]);
    }
    assert_true(hash == 12809976551227779491u);
    free(got);
    car_order_destroy(order);
}

/* Slices of epochs in any order are those of the whole, and old permutations make room. */
static void slices_and_bytes(void **state) {
    (void)state;
    enum { SAMPLES = 101, EPOCHS = 7 };
    int64_t *whole[EPOCHS], slice[SAMPLES];
    car_order *fresh = open_order(3, SAMPLES), *order = open_order(3, SAMPLES);
    assert_int_equal(car_order_bytes(order), 0);
    for (int e = 0; e < EPOCHS; e++) {
        whole[e] = get_epoch(fresh, e, SAMPLES);
    }
    for (int i = 0; i < 500; i++) {
        int epoch = (int)(car_random_u64(1, (uint64_t)i) % EPOCHS);
        int first = (int)(car_random_u64(2, (uint64_t)i) % SAMPLES);
        int count = (int)(car_random_u64(3, (uint64_t)i) % (uint64_t)(SAMPLES - first + 1));
        assert_int_equal(car_order_get(order, epoch, first, count, slice), CAR_OK);
        assert_memory_equal(slice, whole[epoch] + first, (size_t)count * sizeof *slice);
        assert_in_range(car_order_bytes(order), SAMPLES * 4, (size_t)CAR_ORDER_EPOCHS * SAMPLES * 4);
    }
    assert_int_equal(car_order_bytes(order), (size_t)CAR_ORDER_EPOCHS * SAMPLES * 4);
    for (int e = 0; e < EPOCHS; e++) {
        free(whole[e]);
    }
    car_order_destroy(fresh);
    car_order_destroy(order);
}

/* Each of the 120 orders of 5 samples should come up about as often: chi-squared with 119 degrees of freedom has a
 * standard deviation of 15.4, so 180 is some 4 of them. The numbers are fixed, so it passes always or never. */
static void all_orders_are_equally_likely(void **state) {
    (void)state;
    enum { EPOCHS = 60000, ORDERS = 120 };
    static int counts[5 * 5 * 5 * 5 * 5];
    car_order *order = open_order(11, 5);
    for (int e = 0; e < EPOCHS; e++) {
        int64_t got[5];
        assert_int_equal(car_order_get(order, e, 0, 5, got), CAR_OK);
        counts[(((got[0] * 5 + got[1]) * 5 + got[2]) * 5 + got[3]) * 5 + got[4]]++;
    }
    double expected = (double)EPOCHS / ORDERS, chi_squared = 0;
    int seen = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i] > 0) {
            chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
            seen++;
        }
    }
    assert_int_equal(seen, ORDERS);
    assert_true(chi_squared < 180);
    assert_true(chi_squared > 60); /* nor suspiciously even */
    car_order_destroy(order);
}

static void too_many_samples(void **state) {
    (void)state;
    car_order *order = NULL;
    assert_int_equal(car_order_create(car_common_context, 1, (int64_t)1 << 32, &order), CAR_ERROR_ARGUMENT);
    assert_null(order);
    assert_non_null(strstr(car_context_error(car_common_context), "cannot shuffle 4294967296 samples"));
    car_context_clear_error(car_common_context);
    assert_int_equal(car_order_create(car_common_context, 1, 0, &order), CAR_ERROR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_sample_once, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(seed_and_epoch_decide, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(order_is_kept_between_versions, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(slices_and_bytes, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(all_orders_are_equally_likely, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(too_many_samples, car_common_set_up, car_common_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
