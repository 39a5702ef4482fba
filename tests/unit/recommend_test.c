/* The search for a plan against all plans: what it recommends takes at most 3 % longer than the fastest that fits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "carousel/correction.h"
#include "carousel/predict.h"
#include "carousel/recommend.h"
#include "support/common.h"
#include "support/expect.h"
#include "support/plans.h"

static const double tolerance = 1.03;

typedef struct setting {
    const char *model;
    car_model_config shape;
    int global_batch;
    bool exact;
    car_cluster cluster;
} setting;

static car_recommend_config config_of(const setting *s) {
    car_recommend_config config = car_recommend_config_default();
    config.model = s->model;
    config.shape = s->shape;
    config.global_batch = s->global_batch;
    config.exact = s->exact;
    config.cluster = &s->cluster;
    return config;
}

static car_recommendation recommend(const car_recommend_config *config) {
    car_recommendation found;
    car_common_expect_ok(car_recommend(car_common_context, config, &found));
    return found;
}

/* ---- all plans ------------------------------------------------------------------------------- */

/* The step of a plan if it can be made and fits, else INFINITY. */
static double time_plan(const setting *s, const car_partition *partition, car_plan_config plan_config) {
    car_optimizer_config optimizer = car_optimizer_config_default();
    car_plan *plan = NULL;
    car_prediction prediction;
    car_timing timing = {.step = INFINITY};
    double flops = 0;
    optimizer.correction = car_correction_choose(&plan_config, &optimizer);
    if (car_plan_create(car_common_context, partition, &plan_config, &plan) != CAR_OK) {
        car_context_clear_error(car_common_context);
        return INFINITY;
    }
    for (int l = 0; l < car_graph_op_count(partition->graph); l++) {
        const car_op *op = car_graph_op(partition->graph, l);
        flops += op->flops_forward + op->flops_backward;
    }
    car_common_expect_ok(car_plan_predict_optimizer(plan, &optimizer, &prediction));
    bool fits = car_plan_devices(plan) <= s->cluster.devices &&
                (s->cluster.memory == 0 || (double)car_prediction_memory(&prediction) <= s->cluster.memory);
    if (fits) {
        car_common_expect_ok(car_plan_time(plan, &s->cluster, flops / s->cluster.flops, &timing));
    }
    car_plan_destroy(plan);
    return timing.step;
}

/* zero in its other forms: one copy of a version, and two that go earlier. */
static double time_forms(const setting *s, const car_partition *partition, car_plan_config config) {
    if (config.placement != CAR_PLACEMENT_ZERO || !car_rule_info_of(config.rule)->spaced ||
        config.freshness_slack > 0) {
        return INFINITY;
    }
    config.zero_copies = 1;
    double best = time_plan(s, partition, config);
    config.zero_copies = 2;
    config.zero_ahead = 4 * partition->stage_count / config.workers;
    return fmin(best, time_plan(s, partition, config));
}

/* Every rule and placement over ranks, every number of ranks for the workers, both mappings. */
static double time_all(const setting *s, const car_partition *partition, int workers, int accumulate,
                       car_sum_order order, int slack) {
    double best = INFINITY;
    for (int rule = 0; rule < CAR_RULES; rule++) {
        bool late = car_rule_info_of((car_rule)rule)->late != CAR_LATE_NEVER;
        bool seen = slack > 0 && rule != CAR_RULE_CDP_V2;
        for (int placement = CAR_PLACEMENT_SHARED + 1; placement < CAR_PLACEMENTS && !seen && !(late && s->exact);
             placement++) {
            bool hosts = placement == CAR_PLACEMENT_REPLICA;
            for (int ranks = hosts ? 1 : workers; ranks <= workers; ranks++) {
                car_plan_config config = {.workers = workers,
                                          .accumulate = accumulate,
                                          .sum_order = order,
                                          .rule = (car_rule)rule,
                                          .placement = (car_placement)placement,
                                          .mapping = CAR_MAPPING_CONTIGUOUS,
                                          .ranks = hosts ? ranks : 0,
                                          .freshness_slack = rule == CAR_RULE_CDP_V2 ? slack : 0};
                best = fmin(best, workers % ranks == 0 ? time_plan(s, partition, config) : INFINITY);
                best = fmin(best, time_forms(s, partition, config));
                config.mapping = CAR_MAPPING_INTERLEAVED;
                best = fmin(best, workers % ranks == 0 && ranks < workers ? time_plan(s, partition, config) : INFINITY);
            }
        }
    }
    return best;
}

/* Up to 2 stages a worker, and slacks up to 2: with more of them the test takes half a minute. */
static double time_sizes(const setting *s, int workers, int accumulate) {
    double best = INFINITY;
    for (int k = 1; k <= 2; k++) {
        car_model_config shape = s->shape;
        car_graph *graph = NULL;
        car_partition *partition = NULL;
        shape.batch = s->global_batch / workers / accumulate;
        car_common_expect_ok(car_model_build(car_common_context, s->model, &shape, &graph));
        const car_partition_config cut = {.stages = k * workers};
        car_common_expect_ok(car_partition_create(graph, &cut, &partition));
        for (int slack = 0; slack <= 2; slack++) {
            best = fmin(best, time_all(s, partition, workers, accumulate, CAR_SUM_ORDER_MICRO_BATCH, slack));
            best = fmin(best, accumulate > 1 ? time_all(s, partition, workers, accumulate, CAR_SUM_ORDER_WORKER, slack)
                                             : best);
        }
        car_partition_destroy(partition);
        car_graph_destroy(graph);
    }
    return best;
}

static double find_fastest(const setting *s) {
    double best = INFINITY;
    for (int workers = 1; workers <= s->global_batch; workers++) {
        for (int accumulate = 1; accumulate * workers <= s->global_batch; accumulate++) {
            best = s->global_batch % (accumulate * workers) ? best : fmin(best, time_sizes(s, workers, accumulate));
        }
    }
    return best;
}

static void it_is_as_fast_as_any(void **state) {
    (void)state;
    const setting settings[] = {
        /* Messages that cost nothing; a network that is what counts; nodes; little memory; no delay. */
        {"mlp", {0}, 4, false, {.devices = 4, .devices_per_node = 1, .flops = 1e9, .between = {1e12, 0}}},
        {"mlp", {0}, 4, false, {.devices = 4, .devices_per_node = 1, .flops = 1e11, .between = {1e9, 1e-5}}},
        {"mlp", {0}, 8, true, {.devices = 4, .devices_per_node = 1, .flops = 1e11, .between = {1e9, 1e-4}}},
        {"gpt2-nano",
         {.depth = 2, .width = 32, .heads = 2, .seq_len = 16, .vocabulary = 64},
         4,
         false,
         {.devices = 6,
          .devices_per_node = 2,
          .flops = 1e10,
          .memory = 4.6e5,
          .inside = {1e10, 1e-6},
          .between = {1e8, 1e-5}}},
    };
    for (size_t n = 0; n < sizeof settings / sizeof settings[0]; n++) {
        car_recommend_config config = config_of(&settings[n]);
        car_recommendation found = recommend(&config);
        double fastest = find_fastest(&settings[n]);
        assert_true(found.fits);
        assert_true(settings[n].cluster.memory == 0 || found.over_memory > 0);
        assert_true(found.rows[0].timed && found.rows[0].reason == CAR_REASON_BEST);
        if (!(found.rows[0].step <= tolerance * fastest)) {
            fail_msg("setting %zu: %s over %s takes %g, and %g is possible", n,
                     car_rule_text(found.rows[0].choice.plan.rule),
                     car_placement_text(found.rows[0].choice.plan.placement), found.rows[0].step, fastest);
        }
        car_recommendation_release(&found);
    }
}

/* ---- what bounds say ------------------------------------------------------------------------- */

/* What a plan is predicted to need is enough for it. */
static void expect_enough(const car_recommend_config *config, const car_recommended *row) {
    car_recommend_config narrow = *config;
    car_cluster cluster = *config->cluster;
    cluster.memory = row->memory;
    narrow.cluster = &cluster;
    narrow.fixed =
        (car_choice_fixed){true, true, true, true, true, true, true, true, true, true, true, true, true, true};
    narrow.given = row->choice;
    car_recommendation found = recommend(&narrow);
    assert_true(found.fits);
    car_recommendation_release(&found);
}

static void expect_bounds(const car_recommend_config *config) {
    car_recommendation all = recommend(config);
    assert_int_equal(all.timed, all.candidates);
    for (int row = 0; row < all.count; row++) {
        const car_recommended *r = &all.rows[row];
        const car_plan_config *p = &r->choice.plan;
        if (!(r->step >= 0.999 * r->computes && r->step >= 0.999 * r->links)) {
            fail_msg("%s over %s, %d workers with %d each, %d stages: takes %g, bounds %g and %g",
                     car_rule_text(p->rule), car_placement_text(p->placement), p->workers, p->accumulate,
                     r->choice.stages, r->step, r->computes, r->links);
        }
        expect_enough(config, r);
    }
    car_recommendation_release(&all);
}

/* A bound that is more than what is timed or predicted would leave out what could win. */
static void bounds_are_bounds(void **state) {
    (void)state;
    const car_cluster clusters[] = {
        {.devices = 8, .devices_per_node = 2, .flops = 1e10, .inside = {1e10, 1e-6}, .between = {1e8, 1e-5}},
        {.devices = 8,
         .devices_per_node = 2,
         .flops = 1e14,
         .inside = {1e8, 1e-9},
         .between = {1e10, 1e-9}}, /* links */
        {.devices = 8,
         .devices_per_node = 2,
         .flops = 1e14,
         .inside = {1e10, 1e-9},
         .between = {1e8, 1e-9}}, /* nodes */
    };
    static const struct {
        int accumulate;
        car_sum_order order;
    } several[] = {{1, CAR_SUM_ORDER_AUTO}, {2, CAR_SUM_ORDER_MICRO_BATCH}, {2, CAR_SUM_ORDER_WORKER}};
    setting s = {.model = "gpt2-nano", .shape = {.depth = 2, .width = 32, .heads = 2, .seq_len = 16, .vocabulary = 64}};
    for (int at = 0; at < 3 * 3; at++) {
        int accumulate = several[at % 3].accumulate, per_worker = 1 + at % 2, workers = 4;
        s.cluster = clusters[at / 3];
        s.global_batch = workers * accumulate;
        car_recommend_config config = config_of(&s);
        config.thorough = true;
        config.fixed = (car_choice_fixed){.workers = true, .accumulate = true, .sum_order = true, .stages = true};
        config.given =
            (car_choice){.plan = {.workers = workers, .accumulate = accumulate, .sum_order = several[at % 3].order},
                         .stages = per_worker * workers};
        config.fixed.zero_ahead = at % 3 > 0; /* every form of zero with one micro-batch each, then L = 2k */
        config.given.plan.zero_ahead = config.fixed.zero_ahead ? 2 * per_worker : 0;
        expect_bounds(&config);
    }
}

/* ---- what is fixed, and what does not fit ---------------------------------------------------- */

static void what_is_fixed_stays(void **state) {
    (void)state;
    const setting s = {
        "mlp", {0}, 8, false, {.devices = 8, .devices_per_node = 1, .flops = 1e11, .between = {1e9, 1e-5}}};
    car_recommend_config config = config_of(&s);
    config.fixed = (car_choice_fixed){.rule = true, .batch = true, .stages = true};
    config.given = (car_choice){.plan = {.rule = CAR_RULE_CDP_V1}, .stages = 8, .batch = 2};
    car_recommendation found = recommend(&config);
    for (int row = 0; row < found.count; row++) {
        assert_int_equal(found.rows[row].choice.plan.rule, CAR_RULE_CDP_V1);
        assert_int_equal(found.rows[row].choice.plan.workers * found.rows[row].choice.plan.accumulate, 4);
        assert_int_equal(found.rows[row].choice.stages, 8);
    }
    car_recommendation_release(&found);
    config.given.batch = 3; /* does not divide 8 */
    assert_int_equal(car_recommend(car_common_context, &config, &found), CAR_ERROR_ARGUMENT);
    car_context_clear_error(car_common_context);
    config.given.batch = 2;
    config.exact = true;
    assert_int_equal(car_recommend(car_common_context, &config, &found), CAR_ERROR_ARGUMENT);
    car_context_clear_error(car_common_context);
}

static void what_does_not_fit_says_by_how_much(void **state) {
    (void)state;
    const setting s = {"mlp",
                       {0},
                       4,
                       false,
                       {.devices = 4, .devices_per_node = 1, .flops = 1e11, .memory = 1000, .between = {1e9, 1e-5}}};
    car_recommend_config config = config_of(&s);
    car_recommendation found = recommend(&config);
    assert_false(found.fits);
    assert_true(found.bf16_guessed && !found.bf16_not_timed); /* memory asked for it */
    assert_int_equal(found.rows[0].reason, CAR_REASON_MEMORY);
    for (int row = 0; row < found.count; row++) {
        assert_true(found.rows[row].memory >= found.rows[0].memory && found.rows[0].memory > 1000);
    }
    car_recommendation_release(&found);
}

/* In bf16 only where it is known how fast that is; then it wins if it is faster. */
static void bf16_takes_part_where_it_is_timed(void **state) {
    (void)state;
    setting s = {"mlp", {0}, 4, false, {.devices = 4, .devices_per_node = 1, .flops = 1e9, .between = {1e12, 0}}};
    for (int faster = 0; faster <= 2; faster++) {
        s.cluster.bf16_flops = faster * 1e9;
        car_recommend_config config = config_of(&s);
        car_recommendation found = recommend(&config);
        assert_int_equal(found.bf16_not_timed, faster == 0);
        assert_false(found.bf16_guessed);
        assert_int_equal(found.rows[0].choice.precision, faster == 2 ? CAR_PRECISION_BF16 : CAR_PRECISION_FP32);
        car_recommendation_release(&found);
    }
}

/* A step of very many samples: what could not be timed is not listed. */
static void a_huge_step_is_bounded(void **state) {
    (void)state;
    const setting s = {
        "mlp", {0}, 1 << 19, false, {.devices = 32, .devices_per_node = 1, .flops = 1e9, .between = {1e13, 0}}};
    car_recommend_config config = config_of(&s);
    config.fixed = (car_choice_fixed){.rule = true, .placement = true, .workers = true, .slack = true, .ranks = true};
    config.given =
        (car_choice){.plan = {.rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_REPLICA, .workers = 32, .ranks = 32}};
    car_recommendation found = recommend(&config);
    assert_true(found.cut_short && found.fits);
    car_recommendation_release(&found);
}

/* On one machine nothing is late that need not be. */
static void one_process_takes_what_is_not_late(void **state) {
    (void)state;
    car_recommend_config config = car_recommend_config_default();
    config.model = "mlp";
    config.threads = 2;
    config.global_batch = 8;
    car_recommendation found = recommend(&config);
    assert_true(found.fits);
    assert_int_equal(found.rows[0].gradient_delay, 0);
    assert_int_equal(found.rows[0].devices, 1);
    car_recommendation_release(&found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_as_fast_as_any),
        cmocka_unit_test(bounds_are_bounds),
        cmocka_unit_test(what_is_fixed_stays),
        cmocka_unit_test(what_does_not_fit_says_by_how_much),
        cmocka_unit_test(bf16_takes_part_where_it_is_timed),
        cmocka_unit_test(a_huge_step_is_bounded),
        cmocka_unit_test(one_process_takes_what_is_not_late),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
