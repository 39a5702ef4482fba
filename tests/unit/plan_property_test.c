/* Properties of plans, with random settings: the validator passes what the generator makes, and it finds every mistake
 * that is put into it: small changes of the finished table, of the kinds in support/mutations.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/plan.h"
#include "support/common.h"
#include "support/mutant.h"
#include "support/plans.h"

enum { RANDOM_PLANS = 300, SEVERAL_PLANS = 150, GRAPH_PLANS = 40, MUTATED_PLANS = 500, LEAST_TIMES = 5 };

/* ---- chance --------------------------------------------------------------------------------------------- */

typedef struct dice {
    uint64_t key, count;
} dice;

static int roll(dice *d, int sides) {
    return (int)(car_random_u64(d->key, d->count++) % (uint64_t)sides);
}

/* ---- random plans --------------------------------------------------------------------------------------- */

typedef struct subject {
    car_partition *base;
    car_partition partition; /* base with bundles of our own */
    car_plan *plan;
    int64_t steps;
} subject;

static car_plan_config random_config(dice *d, int workers, int per_worker) {
    static const car_rule for_all[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_CDP_V2};
    car_plan_config c = {
        .workers = workers, .placement = (car_placement)roll(d, CAR_PLACEMENTS), .rule = for_all[roll(d, 4)]};
    if (c.placement == CAR_PLACEMENT_SHARED && roll(d, 4) == 0) {
        c.rule = CAR_RULE_ACCUMULATE;
        c.threads = 1 + roll(d, workers);
    } else if (c.placement == CAR_PLACEMENT_PIPELINE && roll(d, 2) == 0) {
        static const car_rule of_pipelines[] = {CAR_RULE_GPIPE, CAR_RULE_1F1B, CAR_RULE_2BW};
        c.rule = of_pipelines[roll(d, 3)];
    } else if (c.placement == CAR_PLACEMENT_REPLICA) {
        int ranks = 1 + roll(d, workers);
        c.ranks = workers % ranks == 0 ? ranks : workers;
        c.mapping = roll(d, 2) ? CAR_MAPPING_CONTIGUOUS : CAR_MAPPING_INTERLEAVED;
    }
    if (c.rule == CAR_RULE_CDP_V2 && roll(d, 2)) {
        c.freshness_slack = roll(d, 2 * per_worker + 1);
    }
    if (c.placement == CAR_PLACEMENT_ZERO && c.rule != CAR_RULE_DP) {
        c.zero_copies = roll(d, 3);
        c.zero_ahead = c.zero_copies != 1 && roll(d, 2) ? 1 + roll(d, 2 * per_worker * workers) : 0;
    }
    c.piece_bytes = roll(d, 2) ? 64 : 0; /* sums of one to four pieces, or uncut */
    return c;
}

/* Some stages lose their parameters, some parameters are used again later. */
static void randomize_bundles(dice *d, car_partition *partition) {
    int stages = partition->stage_count, ties = stages > 1 ? roll(d, 3) : 0;
    car_bundle *bundles = malloc((size_t)(stages + ties) * sizeof *bundles);
    assert_non_null(bundles);
    memcpy(bundles, partition->bundles, (size_t)stages * sizeof *bundles);
    for (int j = 0; j < stages; j++) {
        bundles[j].bytes = roll(d, 6) ? 1 + (size_t)roll(d, 256) : 0;
    }
    for (int n = 0; n < ties; n++) {
        int home = roll(d, stages - 1), stage = home + 1 + roll(d, stages - 1 - home);
        if (n > 0 && stage == bundles[stages].stage) {
            home = bundles[stages].home; /* a task names the version of one home besides its own */
        }
        bundles[home].bytes += 160; /* a tied parameter has a home */
        bundles[stages + n] = (car_bundle){.home = home, .stage = stage, .param = n, .bytes = roll(d, 2) ? 32 : 160};
    }
    partition->bundles = bundles;
    partition->bundle_count = stages + ties;
}

/* Not by value: the plan points at the partition. */
static void open_subject(subject *s, dice *d) {
    int workers = 1 + roll(d, 5), per_worker = 1 + roll(d, 3);
    car_plan_config config = random_config(d, workers, per_worker);
    s->base = car_plans_uniform(workers * per_worker, 2.0);
    s->partition = *s->base;
    randomize_bundles(d, &s->partition);
    s->steps = 3 + roll(d, 4);
    s->plan = car_plans_make(&s->partition, config);
}

static void close_subject(subject *s) {
    car_plan_destroy(s->plan);
    free(s->partition.bundles);
    car_partition_destroy(s->base);
}

static void describe(const subject *s, char *text, size_t capacity) {
    const car_plan_config *c = car_plan_config_of(s->plan);
    int length = snprintf(
        text, capacity, "%s %s N=%d M=%d S=%d ranks=%d %s threads=%d slack=%d pieces=%lld zero=%d:%d steps=%lld",
        car_rule_text(c->rule), car_placement_text(c->placement), c->workers, c->accumulate, s->partition.stage_count,
        c->ranks, car_mapping_text(c->mapping), c->threads, c->freshness_slack, (long long)c->piece_bytes,
        c->zero_copies, c->zero_ahead, (long long)s->steps);
    for (int b = s->partition.stage_count; b < s->partition.bundle_count; b++) {
        length += snprintf(text + length, capacity - (size_t)length, " tie %d->%d", s->partition.bundles[b].home,
                           s->partition.bundles[b].stage);
    }
}

static void expect_valid(const subject *s) {
    char text[256];
    if (car_plan_validate(s->plan, s->steps) != CAR_OK) {
        describe(s, text, sizeof text);
        fail_msg("%s: %s", text, car_context_error(car_common_context));
    }
}

static void test_random_plans(void **state) {
    (void)state;
    for (int n = 0; n < RANDOM_PLANS; n++) {
        dice d = {.key = car_random_key(1, "plans"), .count = (uint64_t)n << 32};
        subject s;
        open_subject(&s, &d);
        expect_valid(&s);
        close_subject(&s);
    }
}

/* Steps of several micro-batches, and steps that do not overlap: weights go round the ranks all the same. */
static void test_zero_with_several_micro_batches(void **state) {
    (void)state;
    static const car_rule rules[] = {CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_STAGGER};
    static const car_sum_order orders[] = {CAR_SUM_ORDER_MICRO_BATCH, CAR_SUM_ORDER_WORKER};
    for (int n = 0; n < SEVERAL_PLANS; n++) {
        dice d = {.key = car_random_key(5, "several"), .count = (uint64_t)n << 32};
        int workers = 1 + roll(&d, 4), per_worker = 1 + roll(&d, 3);
        subject s = {.steps = 2 + roll(&d, 3)};
        car_plan_config config = {.workers = workers,
                                  .accumulate = 1 + roll(&d, 3),
                                  .sum_order = orders[roll(&d, 2)],
                                  .rule = rules[n % 3],
                                  .placement = CAR_PLACEMENT_ZERO,
                                  .zero_copies = roll(&d, 3),
                                  .piece_bytes = roll(&d, 2) ? 64 : 0};
        config.zero_ahead = config.zero_copies != 1 && roll(&d, 2) ? 1 + roll(&d, 2 * per_worker * workers) : 0;
        s.base = car_plans_uniform(workers * per_worker, 2.0);
        s.partition = *s.base;
        randomize_bundles(&d, &s.partition);
        s.plan = car_plans_make(&s.partition, config);
        expect_valid(&s);
        close_subject(&s);
    }
}

/* ---- random graphs -------------------------------------------------------------------------------------- */

/* A chain of layers with residual connections over one or two of them. */
static int random_network(car_graph *graph, dice *d) {
    int width = 4 + roll(d, 12), layers = 1 + roll(d, 10);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    int x = car_graph_input(graph, "x", (car_shape){2, {2, width}}, CAR_F32), before = x;
    for (int n = 0; n < layers; n++) {
        char name[32];
        int input = x;
        snprintf(name, sizeof name, "layer%d", n);
        switch (roll(d, 4)) {
        case 0:
            x = car_graph_gelu(graph, name, x, false);
            break;
        case 1:
            x = car_graph_layernorm(graph, name, x, 1e-5);
            break;
        case 2:
            x = car_graph_add(graph, name, car_graph_gelu(graph, name, x, true), before);
            break;
        default:
            x = car_net_linear(graph, name, x, width);
        }
        before = input;
    }
    return car_graph_cross_entropy(graph, "loss", car_net_linear(graph, "head", x, CAR_NET_CLASSES), labels, 0);
}

static void test_random_graphs(void **state) {
    (void)state;
    static const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches};
    for (int n = 0; n < GRAPH_PLANS; n++) {
        dice d = {.key = car_random_key(2, "graphs"), .count = (uint64_t)n << 32};
        int workers = 1 + roll(&d, 5), per_worker = 1 + roll(&d, 3), net = roll(&d, 5);
        subject s = {.steps = 3 + roll(&d, 3)};
        car_graph *graph = NULL;
        car_partition_config how = {.stages = workers * per_worker, .measure = CAR_MEASURE_FLOPS};
        static const car_measure measures[] = {CAR_MEASURE_FLOPS, CAR_MEASURE_PARAMS, CAR_MEASURE_MEMORY};
        how.measure = measures[roll(&d, 3)];
        assert_int_equal(car_graph_create(car_common_context, &graph), CAR_OK);
        int loss = net < 3 ? nets[net](graph) : random_network(graph, &d);
        assert_int_equal(car_graph_finish(graph, loss), CAR_OK);
        assert_int_equal(car_partition_create(graph, &how, &s.base), CAR_OK);
        s.partition = *s.base;
        car_plan_config config = random_config(&d, workers, per_worker);
        s.plan = car_plans_make(s.base, config);
        expect_valid(&s);
        car_plan_destroy(s.plan);
        car_partition_destroy(s.base);
        car_graph_destroy(graph);
    }
}

/* ---- mistakes ------------------------------------------------------------------------------------------- */

/* A survivor is reported with what was done, so that it can be looked at. */
static void expect_caught(const subject *s, car_mutant *mutant, int kind) {
    car_task_source source = car_mutant_source(mutant);
    car_status status = car_plan_validate_tasks(s->plan, s->steps, &source);
    const char *message = car_context_error(car_common_context);
    if (status != CAR_ERROR_INTERNAL || strncmp(message, "plan ", 5) != 0) {
        char text[256];
        describe(s, text, sizeof text);
        fail_msg("%s (seed %llu) survives in %s: %s", car_mutation_name(kind), (unsigned long long)mutant->seed, text,
                 message);
    }
    car_context_clear_error(car_common_context);
}

static void test_mutations(void **state) {
    (void)state;
    enum { MOST_KINDS = 100 };
    int times[MOST_KINDS] = {0}, kinds = car_mutation_count();
    bool placed[MOST_KINDS][CAR_PLACEMENTS] = {{false}};
    assert_true(kinds >= 20 && kinds <= MOST_KINDS);
    for (int n = 0; n < MUTATED_PLANS; n++) {
        dice d = {.key = car_random_key(3, "mutations"), .count = (uint64_t)n << 32};
        subject s;
        open_subject(&s, &d);
        expect_valid(&s);
        for (int kind = 0; kind < kinds; kind++) {
            car_mutant mutant;
            car_mutant_open(&mutant, s.plan, s.steps, (uint64_t)n * MOST_KINDS + (uint64_t)kind);
            if (car_mutation_apply(kind, &mutant)) {
                expect_caught(&s, &mutant, kind);
                times[kind]++;
                placed[kind][mutant.placement] = true;
            }
            car_mutant_close(&mutant);
        }
        close_subject(&s);
    }
    for (int kind = 0; kind < kinds; kind++) {
        char where[64] = "";
        for (int p = 0, length = 0; p < CAR_PLACEMENTS; p++) {
            const char *text = placed[kind][p] ? car_placement_text((car_placement)p) : "";
            length += snprintf(where + length, sizeof where - (size_t)length, "%s%s", *text ? " " : "", text);
        }
        print_message("%4d x %s:%s\n", times[kind], car_mutation_name(kind), where);
    }
    for (int kind = 0; kind < kinds; kind++) {
        assert_true(times[kind] >= LEAST_TIMES);
    }
}

/* A table that is only read through a source is as good as the plan's own. */
static void test_unchanged(void **state) {
    (void)state;
    for (int n = 0; n < 20; n++) {
        dice d = {.key = car_random_key(4, "unchanged"), .count = (uint64_t)n << 32};
        subject s;
        open_subject(&s, &d);
        car_mutant mutant;
        car_mutant_open(&mutant, s.plan, s.steps, 0);
        car_task_source source = car_mutant_source(&mutant);
        if (car_plan_validate_tasks(s.plan, s.steps, &source) != CAR_OK) {
            fail_msg("%s", car_context_error(car_common_context));
        }
        car_mutant_close(&mutant);
        close_subject(&s);
    }
}

static bool is_backward_of_step_1(car_mutant *mutant, car_spot spot, const car_task *task) {
    (void)mutant;
    (void)spot;
    return task->kind == CAR_TASK_BACKWARD && task->step == 1 && task->micro_batch == 1 && task->stage == 0;
}

/* The message says which plan, what, where, and shows it. */
static void test_message(void **state) {
    (void)state;
    car_plan_config config = {.workers = 2, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_SHARED};
    subject s = {.steps = 3};
    s.base = car_plans_uniform(2, 2.0);
    s.plan = car_plans_make(s.base, config);
    car_mutant mutant;
    car_mutant_open(&mutant, s.plan, s.steps, 0);
    car_task *task = car_mutant_task(&mutant, car_mutant_find(&mutant, is_backward_of_step_1));
    task->version = 0;
    car_task_source source = car_mutant_source(&mutant);
    assert_int_equal(car_plan_validate_tasks(s.plan, s.steps, &source), CAR_ERROR_INTERNAL);
    const char *message = car_context_error(car_common_context);
    print_message("%s\n", message);
    assert_non_null(strstr(message, "plan cdp-v2 shared N=2 S=2: the rule needs version 1"));
    assert_non_null(strstr(message, "B0.1@0 on device 1 in slot 9"));
    assert_non_null(strstr(message, "[0']"));
    car_context_clear_error(car_common_context);
    car_mutant_close(&mutant);
    car_plan_destroy(s.plan);
    car_partition_destroy(s.base);
}

/* Two pipelines with the same period and the same messages: all that tells them apart is how much a rank holds. */
static void test_gpipe_is_not_1f1b(void **state) {
    (void)state;
    for (int N = 2; N <= 5; N++) {
        car_plan_config config = {.workers = N, .rule = CAR_RULE_GPIPE, .placement = CAR_PLACEMENT_PIPELINE};
        car_partition *partition = NULL;
        car_plan *gpipe = NULL, *one = NULL;
        car_mutant mutant;
        partition = car_plans_uniform(2 * N, 2.0);
        gpipe = car_plans_make(partition, config);
        config.rule = CAR_RULE_1F1B;
        one = car_plans_make(partition, config);
        car_mutant_open(&mutant, gpipe, 3, 0);
        car_task_source source = car_mutant_source(&mutant);
        assert_int_equal(car_plan_validate_tasks(one, 3, &source), CAR_ERROR_INTERNAL);
        assert_non_null(strstr(car_context_error(car_common_context), "holds the activations of"));
        car_context_clear_error(car_common_context);
        car_mutant_close(&mutant);
        car_plan_destroy(one);
        car_plan_destroy(gpipe);
        car_partition_destroy(partition);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_random_plans, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(test_zero_with_several_micro_batches, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(test_random_graphs, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(test_unchanged, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(test_mutations, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(test_gpipe_is_not_1f1b, car_common_set_up, car_common_tear_down),
        cmocka_unit_test_setup_teardown(test_message, car_common_set_up, car_common_tear_down),
    };
    return cmocka_run_group_tests_name("plan_property", tests, NULL, NULL);
}
