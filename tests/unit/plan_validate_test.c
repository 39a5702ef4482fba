/* The validator on what the generator makes: every rule in every placement it can have, small numbers exhaustively.
 * That it also finds mistakes is in plan_property_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/plan.h"

enum { MOST_WORKERS = 6, MOST_PER_WORKER = 3, STEPS = 5 };

static int set_up(void **state) {
    car_context *context = NULL;
    if (car_context_create(NULL, &context) != CAR_OK) {
        return -1;
    }
    *state = context;
    return 0;
}

static int tear_down(void **state) {
    car_context_destroy(*state);
    return 0;
}

/* ---- partitions with ties ------------------------------------------------------------------------------- */

/* A uniform partition with bundles of our own: of tied parameters, or none in some stages. */
typedef struct tied_partition {
    car_partition *base;
    car_partition partition;
} tied_partition;

static tied_partition open_partition(car_context *context, int stages, const int (*ties)[2], int tie_count) {
    tied_partition t = {0};
    assert_int_equal(car_partition_create_uniform(context, stages, 2.0, &t.base), CAR_OK);
    t.partition = *t.base;
    t.partition.bundle_count = stages + tie_count;
    t.partition.bundles = malloc((size_t)(stages + tie_count) * sizeof *t.partition.bundles);
    assert_non_null(t.partition.bundles);
    memcpy(t.partition.bundles, t.base->bundles, (size_t)stages * sizeof *t.partition.bundles);
    for (int n = 0; n < tie_count; n++) {
        t.partition.bundles[stages + n] =
            (car_bundle){.home = ties[n][0], .stage = ties[n][1], .param = n, .bytes = 100};
    }
    return t;
}

static void close_partition(tied_partition *t) {
    free(t->partition.bundles);
    car_partition_destroy(t->base);
}

/* ---- one plan ------------------------------------------------------------------------------------------- */

static void expect_valid(car_context *context, const car_partition *partition, car_plan_config config, int64_t steps) {
    car_plan *plan = NULL;
    car_status status = car_plan_create(context, partition, &config, &plan);
    if (status == CAR_OK) {
        status = car_plan_validate(plan, steps);
    }
    if (status != CAR_OK) {
        fail_msg("%s %s N=%d S=%d bundles=%d ranks=%d %s threads=%d slack=%d steps=%lld: %s",
                 car_rule_text(config.rule), car_placement_text(config.placement), config.workers,
                 partition->stage_count, partition->bundle_count, config.ranks, car_mapping_text(config.mapping),
                 config.threads, config.freshness_slack, (long long)steps, car_context_error(context));
    }
    car_plan_destroy(plan);
}

/* Which rules can be placed how. */
static bool fits(car_rule rule, car_placement placement) {
    switch (rule) {
    case CAR_RULE_ACCUMULATE:
        return placement == CAR_PLACEMENT_SHARED;
    case CAR_RULE_GPIPE:
    case CAR_RULE_1F1B:
    case CAR_RULE_2BW:
        return placement == CAR_PLACEMENT_PIPELINE;
    default:
        return true;
    }
}

/* All variants of a rule and a placement: slacks, threads, ranks and their mapping. */
static void expect_variants_valid(car_context *context, const car_partition *partition, car_plan_config config,
                                  int64_t steps) {
    int N = config.workers, k = partition->stage_count / N;
    int slacks = config.rule == CAR_RULE_CDP_V2 ? 2 * k : 0;
    for (config.freshness_slack = 0; config.freshness_slack <= slacks; config.freshness_slack++) {
        expect_valid(context, partition, config, steps);
        for (int ranks = 1; ranks < N && config.placement == CAR_PLACEMENT_REPLICA; ranks++) {
            car_plan_config fewer = config;
            fewer.ranks = ranks;
            if (N % ranks == 0) {
                fewer.mapping = CAR_MAPPING_INTERLEAVED;
                expect_valid(context, partition, fewer, steps);
                fewer.mapping = CAR_MAPPING_CONTIGUOUS;
                expect_valid(context, partition, fewer, steps);
            }
        }
    }
    for (int threads = 1; threads < N && config.rule == CAR_RULE_ACCUMULATE; threads++) {
        car_plan_config fewer = config;
        fewer.threads = threads;
        fewer.freshness_slack = 0;
        expect_valid(context, partition, fewer, steps);
    }
}

/* Every rule in every placement it can have. */
static void expect_all_valid(car_context *context, const car_partition *partition, int workers) {
    for (int rule = 0; rule < CAR_RULES; rule++) {
        for (int placement = 0; placement < CAR_PLACEMENTS; placement++) {
            if (fits((car_rule)rule, (car_placement)placement)) {
                car_plan_config config = {
                    .workers = workers, .rule = (car_rule)rule, .placement = (car_placement)placement};
                expect_variants_valid(context, partition, config, STEPS);
            }
        }
    }
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

static void check_placement(car_context *context, car_placement placement) {
    for (int rule = 0; rule < CAR_RULES; rule++) {
        for (int N = 1; N <= MOST_WORKERS && fits((car_rule)rule, placement); N++) {
            for (int k = 1; k <= MOST_PER_WORKER; k++) {
                car_partition *partition = NULL;
                assert_int_equal(car_partition_create_uniform(context, k * N, 2.0, &partition), CAR_OK);
                car_plan_config config = {.workers = N, .rule = (car_rule)rule, .placement = placement};
                expect_variants_valid(context, partition, config, STEPS);
                car_partition_destroy(partition);
            }
        }
    }
}

static void test_shared(void **state) {
    check_placement(*state, CAR_PLACEMENT_SHARED);
}
static void test_replica(void **state) {
    check_placement(*state, CAR_PLACEMENT_REPLICA);
}
static void test_zero(void **state) {
    check_placement(*state, CAR_PLACEMENT_ZERO);
}
static void test_pipeline(void **state) {
    check_placement(*state, CAR_PLACEMENT_PIPELINE);
}
static void test_grid(void **state) {
    check_placement(*state, CAR_PLACEMENT_GRID);
}

/* Runs so short that filling and draining overlap, and runs until a grid's pattern comes again. */
static void test_lengths(void **state) {
    for (int rule = 0; rule < CAR_RULES; rule++) {
        for (int placement = 0; placement < CAR_PLACEMENTS; placement++) {
            for (int N = 1; N <= 4 && fits((car_rule)rule, (car_placement)placement); N++) {
                car_partition *partition = NULL;
                assert_int_equal(car_partition_create_uniform(*state, 2 * N, 2.0, &partition), CAR_OK);
                car_plan_config config = {.workers = N, .rule = (car_rule)rule, .placement = (car_placement)placement};
                for (int64_t steps = 1; steps <= 9; steps++) {
                    expect_valid(*state, partition, config, steps);
                }
                car_partition_destroy(partition);
            }
        }
    }
}

/* Every pair of stages tied, in every rule and placement. */
static void test_ties(void **state) {
    for (int N = 1; N <= 4; N++) {
        for (int k = 1; k <= 2; k++) {
            for (int pair = 0; pair < k * N * k * N; pair++) {
                const int ties[1][2] = {{pair / (k * N), pair % (k * N)}};
                if (ties[0][0] >= ties[0][1]) {
                    continue;
                }
                tied_partition t = open_partition(*state, k * N, ties, 1);
                expect_all_valid(*state, &t.partition, N);
                close_partition(&t);
            }
        }
    }
}

/* Two ties, of different homes, and stages without parameters. */
static void test_two_ties_and_empty_stages(void **state) {
    const int ties[2][2] = {{0, 5}, {1, 4}};
    for (int N = 2; N <= 6; N += N == 3 ? 3 : 1) {
        tied_partition t = open_partition(*state, 6, ties, 2);
        t.partition.bundles[2].bytes = 0;
        t.partition.bundles[5].bytes = 0;
        expect_all_valid(*state, &t.partition, N);
        close_partition(&t);
    }
}

/* The size at which it must not be felt. */
static void test_large(void **state) {
    car_partition *partition = NULL;
    assert_int_equal(car_partition_create_uniform(*state, 64, 2.0, &partition), CAR_OK);
    for (int placement = 0; placement < CAR_PLACEMENTS; placement++) {
        car_plan_config config = {.workers = 64, .rule = CAR_RULE_CDP_V2, .placement = (car_placement)placement};
        double begin = car_clock_seconds();
        expect_valid(*state, partition, config, 4);
        double seconds = car_clock_seconds() - begin;
        print_message("%s: N = S = 64 validated in %.2f s\n", car_placement_text((car_placement)placement), seconds);
        assert_true(seconds < 20); /* under a sanitizer on a busy machine; otherwise well below one second */
    }
    car_partition_destroy(partition);
}

static void test_arguments(void **state) {
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_plan_config config = {.workers = 2, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_SHARED};
    assert_int_equal(car_partition_create_uniform(*state, 2, 2.0, &partition), CAR_OK);
    assert_int_equal(car_plan_create(*state, partition, &config, &plan), CAR_OK);
    assert_int_equal(car_plan_validate(plan, 0), CAR_ERROR_ARGUMENT);
    assert_non_null(strstr(car_context_error(*state), "0 steps"));
    car_context_clear_error(*state);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_shared), TEST(test_replica),   TEST(test_zero), TEST(test_pipeline),
        TEST(test_grid),   TEST(test_lengths),   TEST(test_ties), TEST(test_two_ties_and_empty_stages),
        TEST(test_large),  TEST(test_arguments),
    };
    return cmocka_run_group_tests_name("plan_validate", tests, NULL, NULL);
}
