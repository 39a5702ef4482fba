/* Predictions: against brute force over the clock, against what is known of uniform stages and of real models, and
 * against what the table must say about states and traffic. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "carousel/predict.h"
#include "support/allocator.h"
#include "support/common.h"
#include "support/expect.h"
#include "support/plans.h"

static car_prediction predict(const car_partition *partition, car_plan_config config) {
    car_plan *plan = car_plans_make(partition, config);
    car_prediction prediction;
    car_common_expect_ok(car_plan_predict(plan, 2, &prediction));
    car_plan_destroy(plan);
    return prediction;
}

/* ---- activations in slots -------------------------------------------------------------------- */

/* Stages alive in each slot of a window in the middle of a run, straight from the definition of the clock. */
static void count_alive(int workers, int k, bool cyclic, long *peak, double *mean) {
    int S = k * workers, period = 2 * S;
    long total = 0;
    *peak = 0;
    for (int slot = 4 * period; slot < 5 * period; slot++) {
        long alive = 0;
        for (int t = 0; t < 8; t++) {
            for (int i = 0; i < workers; i++) {
                int start = period * t + (cyclic ? 2 * k * i : 0);
                for (int j = 0; j < S; j++) {
                    alive += start + j <= slot && slot <= start + 2 * S - 1 - j;
                }
            }
        }
        total += alive;
        *peak = alive > *peak ? alive : *peak;
    }
    *mean = (double)total / period;
}

static void check_slots(int N, int k) {
    car_partition *partition = car_plans_uniform(k * N, 1);
    double held = (double)partition->stages[0].held_bytes, A = (double)partition->held_bytes;
    for (car_rule rule = CAR_RULE_DP; rule <= CAR_RULE_CDP_V2; rule++) {
        car_prediction p = predict(partition, (car_plan_config){.workers = N, .rule = rule});
        long peak;
        double mean;
        count_alive(N, k, rule != CAR_RULE_DP, &peak, &mean);
        car_expect_near((double)p.slots_peak, (double)peak * held, 0.5);
        car_expect_near((double)p.slots_mean, mean * held, 1);
        assert_int_equal(p.slots_device_peak, p.slots_peak);
        double flat = (N + 1.0 / k) / 2 * A;
        car_expect_near((double)p.slots_mean, flat, 1);
        if (rule == CAR_RULE_DP) {
            car_expect_near((double)p.slots_peak, N * A, 0.5);
        } else if (k == 1 || N % 2 == 0) {
            car_expect_near((double)p.slots_peak, flat, 0.5);
        } else {
            assert_true((double)p.slots_peak > flat);
            car_expect_near((double)p.slots_peak, (N + 1.0 / N) / 2 * A, A / (2 * k));
        }
    }
    car_partition_destroy(partition);
}

static void slots_are_those_of_the_clock(void **state) {
    (void)state;
    for (int N = 1; N <= 12; N++) {
        for (int k = 1; k <= 4; k++) {
            check_slots(N, k);
        }
    }
}

static void odd_workers_tend_to_their_limit(void **state) {
    (void)state;
    car_partition *partition = car_plans_uniform(3 * 100, 1);
    car_prediction p = predict(partition, (car_plan_config){.workers = 3, .rule = CAR_RULE_CDP_V1});
    car_expect_near((double)p.slots_peak / (double)partition->held_bytes, (3 + 1.0 / 3) / 2, 0.01);
    car_partition_destroy(partition);
}

static void slots_by_device(void **state) {
    (void)state;
    enum { N = 4 };
    car_partition *partition = car_plans_uniform(N, 1);
    size_t A = partition->held_bytes, stage = A / N;
    struct {
        car_rule rule;
        car_placement placement;
        int ranks;
        car_mapping mapping;
        size_t device_peak;
    } cases[] = {
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 0, 0, A},
        {CAR_RULE_DP, CAR_PLACEMENT_REPLICA, 0, 0, A},
        {CAR_RULE_DP, CAR_PLACEMENT_REPLICA, 2, 0, 2 * A},
        /* Two workers half a cycle apart fill each other's gaps, two neighbours do not. */
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 2, CAR_MAPPING_INTERLEAVED, A + stage},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 2, CAR_MAPPING_CONTIGUOUS, 2 * A - stage},
        {CAR_RULE_CDP_V1, CAR_PLACEMENT_ZERO, 0, 0, A},
        {CAR_RULE_2BW, CAR_PLACEMENT_PIPELINE, 0, 0, N * stage}, /* stage 0 of N micro-batches */
        {CAR_RULE_GPIPE, CAR_PLACEMENT_PIPELINE, 0, 0, N * stage},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_GRID, 0, 0, stage},
        {CAR_RULE_DP, CAR_PLACEMENT_GRID, 0, 0, stage},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        car_prediction p = predict(partition, (car_plan_config){.workers = N,
                                                                .rule = cases[c].rule,
                                                                .placement = cases[c].placement,
                                                                .ranks = cases[c].ranks,
                                                                .mapping = cases[c].mapping});
        assert_int_equal(p.slots_device_peak, cases[c].device_peak);
    }
    car_partition_destroy(partition);
}

/* ---- free running ---------------------------------------------------------------------------- */

/* The sum of N shifted curves on a fine raster that no beginning falls on. */
static double raster_peak(const car_curve *curve, int workers) {
    enum { POINTS = 20000 };
    double most = 0;
    for (int p = 0; p < POINTS; p++) {
        double sum = 0;
        for (int i = 0; i < workers; i++) {
            double share = fmod((p + 0.4142) / POINTS + (double)i / workers, 1);
            int e = 0;
            while (e + 1 < curve->events && curve->begin[e + 1] <= share) {
                e++;
            }
            sum += (double)curve->during[e];
        }
        most = sum > most ? sum : most;
    }
    return most / ((double)workers * (double)curve->peak);
}

static void free_running_is_the_sum_of_shifts(void **state) {
    (void)state;
    double ratios[] = {0.5, 1, 2};
    for (int r = 0; r < 3; r++) {
        for (int N = 1; N <= 7; N++) {
            car_partition *partition = car_plans_uniform(2 * N, ratios[r]);
            car_expect_near(car_predict_free_running(partition, N), raster_peak(&partition->curve, N), 1e-9);
            car_expect_near(car_predict_free_running(partition, 1), 1, 0);
            car_partition_destroy(partition);
        }
    }
}

static void any_curve_will_do(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        car_partition *partition = car_plans_uniform(6, 1.5);
        car_curve *curve = &partition->curve;
        unsigned draw = seed;
        curve->peak = 0;
        for (int e = 0; e < curve->events; e++) {
            draw = draw * 1103515245u + 12345u;
            curve->during[e] = (draw >> 16) % 1000;
            curve->peak = curve->during[e] > curve->peak ? curve->during[e] : curve->peak;
        }
        for (int N = 1; N <= 6; N++) {
            car_expect_near(car_predict_free_running(partition, N), raster_peak(curve, N), 1e-9);
        }
        car_partition_destroy(partition);
    }
}

static void models_run_freely_as_computed_by_hand(void **state) {
    (void)state;
    static const struct {
        const char *model;
        double four, eight; /* for 4 and 8 workers */
    } cases[] = {{"vit-b16", 0.54, 0.515}, {"resnet50", 0.73, 0.71}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        car_plans_model s = car_plans_open_model(cases[c].model, 1);
        car_expect_near(car_predict_free_running(s.partition, 1), 1, 0);
        car_expect_near(car_predict_free_running(s.partition, 4), cases[c].four, 0.02);
        car_expect_near(car_predict_free_running(s.partition, 8), cases[c].eight, 0.02);
        car_expect_near(car_predict_free_running(s.partition, 4), raster_peak(&s.partition->curve, 4), 2e-3);
        car_plans_close_model(&s);
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct states_case {
    car_rule rule;
    car_placement placement;
    int versions;
    double weights_device, weights_total, gradients_device, gradients_total, optimizer_device, optimizer_total;
    int zero_copies;
} states_case;

/* Four workers and four stages, in units of all weights. A second version of stage j is alive while the 3 - j workers
 * that are stale for it finish: for 6, 4, 2 and 0 of 8 slots, never more than two stages at once. */
static void states_are_what_the_table_keeps_alive(void **state) {
    (void)state;
    static const states_case cases[] = {
        {CAR_RULE_DP, CAR_PLACEMENT_SHARED, 1, 1, 1, 4, 4, 2, 2, 0},
        {CAR_RULE_CDP_V1, CAR_PLACEMENT_SHARED, 2, 2, 2, 1, 1, 2, 2, 0},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, 2, 2, 2, 1, 1, 2, 2, 0}, /* two stores, kept for good */
        {CAR_RULE_DP, CAR_PLACEMENT_REPLICA, 1, 1, 4, 0.25, 1, 2, 8, 0},
        {CAR_RULE_CDP_V1, CAR_PLACEMENT_REPLICA, 1, 1, 4, -1, -1, 2, 8, 0},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 1, 1, 4, -1, -1, 2, 8, 0},
        {CAR_RULE_DP, CAR_PLACEMENT_ZERO, 1, 0.5, 1.75, 0.25, 1, 0.5, 2, 0},
        /* Each rank has what it uses, an owner also what it has just made; what is in flight comes on top. Under v1 rank 0
         * keeps the last stage's until it uses it. */
        {CAR_RULE_CDP_V1, CAR_PLACEMENT_ZERO, -1, 0.5, 1.5, 0.25, 0.75, 0.5, 2, 1},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_ZERO, -1, 0.5, 1.25, 0.25, 0.75, 0.5, 2, 1},
        /* With two copies an owner keeps its stage, and each rank has what it uses. Under v1 an owner may update in the slot of
         * a backward: it has two sums then. */
        {CAR_RULE_CDP_V1, CAR_PLACEMENT_ZERO, -1, 0.5, 2, 0.5, 0.75, 0.5, 2, 2},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_ZERO, -1, 0.5, 2, 0.25, 0.75, 0.5, 2, 2},
        {CAR_RULE_GPIPE, CAR_PLACEMENT_PIPELINE, 1, 0.25, 1, 0.25, 1, 0.5, 2, 0},
        {CAR_RULE_1F1B, CAR_PLACEMENT_PIPELINE, 1, 0.25, 1, 0.25, 1, 0.5, 2, 0},
        {CAR_RULE_2BW, CAR_PLACEMENT_PIPELINE, 2, 0.5, 2, 0.25, 1, 0.5, 2, 0},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_PIPELINE, 2, 0.5, 1.5, 0.25, 1, 0.5, 2, 0},
        {CAR_RULE_DP, CAR_PLACEMENT_GRID, 1, 0.25, 4, 0.25, 1, 0.5, 8, 0},
        {CAR_RULE_CDP_V2, CAR_PLACEMENT_GRID, 2, 0.5, -1, -1, -1, 0.5, 5, 0}, /* all 10 ranks make their updates */
    };
    car_partition *partition = car_plans_uniform(4, 1);
    double all = 4.0 * (double)partition->bundles[0].bytes;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const states_case *expected = &cases[c];
        car_prediction p = predict(partition, (car_plan_config){.workers = 4,
                                                                .rule = expected->rule,
                                                                .placement = expected->placement,
                                                                .zero_copies = expected->zero_copies});
        double pairs[][2] = {
            {p.versions, expected->versions},
            {(double)p.weights_device / all, expected->weights_device},
            {(double)p.weights_total / all, expected->weights_total},
            {(double)p.gradients_device / all, expected->gradients_device},
            {(double)p.gradients_total / all, expected->gradients_total},
            {(double)p.optimizer_device / all, expected->optimizer_device},
            {(double)p.optimizer_total / all, expected->optimizer_total},
        };
        for (size_t q = 0; q < sizeof pairs / sizeof *pairs; q++) {
            if (pairs[q][1] >= 0 && fabs(pairs[q][0] - pairs[q][1]) > 1e-9) {
                fail_msg("%s over %s: number %zu is %g, not %g", car_rule_text(expected->rule),
                         car_placement_text(expected->placement), q, pairs[q][0], pairs[q][1]);
            }
        }
        assert_true(p.versions >= 1 && p.versions <= 2);
    }
    car_partition_destroy(partition);
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void traffic_of_replicas(void **state) {
    (void)state;
    for (int N = 2; N <= 8; N++) {
        for (int k = 1; k <= 2; k++) {
            int S = k * N;
            car_partition *partition = car_plans_uniform(S, 1);
            double all = (double)S * (double)partition->bundles[0].bytes;
            car_plan_config config = {.workers = N, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA};
            car_prediction p = predict(partition, config);
            /* Every sum makes N - 1 hops to be finished and N - 1 to be known. */
            car_expect_near(p.bytes_sent, 2 * (N - 1) * all, 1e-6 * all);
            car_expect_near(p.messages, 2.0 * (N - 1) * S, 1e-9);
            car_expect_near(p.collectives, 0, 0);
            assert_int_equal(p.rounds_between_slots, 1);
            assert_int_equal(p.gradient_delay, 1);
            assert_true(p.max_messages_per_slot <= 2); /* of a kind one, and the jump */
            assert_true(p.burst >= 1 && (N == 2 ? p.burst <= 2 : p.burst < 2));
            config.rule = CAR_RULE_DP;
            p = predict(partition, config);
            car_expect_near(p.bytes_sent, 2 * (N - 1) * all, 1e-6 * all);
            car_expect_near(p.bytes_sent_device, 2.0 * (N - 1) / N * all, 1e-6 * all);
            car_expect_near(p.collectives, (double)N * S, 1e-9);
            car_expect_near(p.messages, 0, 0);
            assert_int_equal(p.rounds_between_slots, (int)ceil(log2(N) - 1e-9));
            assert_int_equal(p.gradient_delay, 0);
            car_expect_near(p.burst, 2, 1e-9); /* all in the backward half of the slots */
            car_partition_destroy(partition);
        }
    }
}

static void traffic_of_other_placements(void **state) {
    (void)state;
    enum { N = 4 };
    car_partition *partition = car_plans_uniform(N, 1);
    double cut = (double)partition->stages[1].boundary_bytes, all = N * (double)partition->bundles[0].bytes;
    car_plan_config config = {.workers = N, .placement = CAR_PLACEMENT_PIPELINE};
    for (car_rule rule = CAR_RULE_DP; rule < CAR_RULES; rule++) {
        if (rule == CAR_RULE_ACCUMULATE) {
            continue;
        }
        config.rule = rule;
        car_prediction p = predict(partition, config);
        car_expect_near(p.messages, 2.0 * N * (N - 1), 1e-9);
        car_expect_near(p.bytes_sent, 2.0 * N * (N - 1) * cut, 1e-6);
        car_expect_near(p.bytes_sent_device, 2.0 * N * cut, 1e-6); /* one in the middle, in both directions */
        assert_int_equal(p.max_messages_per_slot, 1);
        assert_int_equal(p.rounds_between_slots, 1);
    }
    config.placement = CAR_PLACEMENT_ZERO;
    config.rule = CAR_RULE_DP;
    car_prediction p = predict(partition, config);
    car_expect_near(p.collectives, 3.0 * N * N, 1e-9); /* weights for forward, for backward, and gradients */
    car_expect_near(p.bytes_sent, 3 * (N - 1) * all, 1e-6 * all);
    config.rule = CAR_RULE_CDP_V1;
    p = predict(partition, config);
    assert_int_equal(p.max_messages_per_slot, 3); /* weights passed on and sent by their owner, and a sum */
    config.zero_copies = 1;
    p = predict(partition, config);
    assert_int_equal(p.max_messages_per_slot, 2); /* weights and a sum */
    config.zero_copies = 0;
    config.placement = CAR_PLACEMENT_SHARED;
    p = predict(partition, config);
    car_expect_near(p.bytes_sent + p.messages + p.collectives + p.burst, 0, 0);
    assert_int_equal(p.rounds_between_slots, 0);
    car_partition_destroy(partition);
}

/* zero's weights over all ranks, and what a rank sends, in units of all weights: with L = 2k at most 4 where a copy has left by
 * the end of its use and 5 where sends last until they are due; at most 3 + 2/N sent. */
static void weights_that_go_round_are_bounded(void **state) {
    (void)state;
    static const car_rule rules[] = {CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_STAGGER};
    for (int c = 0; c < 3 * 8 * 2; c++) {
        int N = 2 + c / 3 % 8, k = 1 + c / 24;
        car_partition *partition = car_plans_uniform(k * N, 1);
        double all = k * N * (double)partition->bundles[0].bytes;
        car_plan_config config = {.workers = N, .rule = rules[c % 3], .placement = CAR_PLACEMENT_ZERO};
        car_weights_ledger ledger[3]; /* L = 2k, 4k; a single copy */
        for (int form = 0; form < 3; form++) {
            config.zero_copies = form < 2 ? 2 : 1;
            config.zero_ahead = form == 1 ? 4 * k : 0;
            car_plan *plan = car_plans_make(partition, config);
            car_common_expect_ok(car_plan_count_weights(plan, &ledger[form]));
            car_plan_destroy(plan);
        }
        assert_int_equal(ledger[0].parameters, (size_t)all);
        print_message("%s N=%d k=%d: %.2f %.2f, L=4k %.2f %.2f, one copy %.2f %.2f\n", car_rule_text(config.rule), N, k,
                      (double)ledger[0].left / all, (double)ledger[0].lasting / all, (double)ledger[1].left / all,
                      (double)ledger[1].lasting / all, (double)ledger[2].left / all, (double)ledger[2].lasting / all);
        assert_true((double)ledger[0].left <= 4 * all && (double)ledger[0].lasting <= 5 * all);
        assert_true(ledger[0].left + (N > 3) <= ledger[0].lasting && ledger[2].left <= ledger[0].left);
        assert_true(N < 4 || (double)ledger[1].left > 4 * all); /* it can be told apart */
        config.zero_copies = config.zero_ahead = 0;
        assert_true(predict(partition, config).bytes_sent_device <= (3 + 2.0 / N) * all * (1 + 1e-9));
        config.rule = CAR_RULE_DP;
        car_expect_near(predict(partition, config).bytes_sent_device, 3.0 * (N - 1) / N * all, 1e-6 * all);
        car_partition_destroy(partition);
    }
    car_partition *partition = car_plans_uniform(2, 1);
    car_plan *plan = car_plans_make(partition, (car_plan_config){.workers = 2, .placement = CAR_PLACEMENT_REPLICA});
    car_weights_ledger none;
    assert_int_equal(car_plan_count_weights(plan, &none), CAR_ERROR_UNSUPPORTED);
    car_context_clear_error(car_common_context);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bool is_possible(car_rule rule, car_placement placement) {
    bool pipeline = rule == CAR_RULE_GPIPE || rule == CAR_RULE_1F1B || rule == CAR_RULE_2BW;
    return (!pipeline || placement == CAR_PLACEMENT_PIPELINE) &&
           (rule != CAR_RULE_ACCUMULATE || placement == CAR_PLACEMENT_SHARED);
}

/* Operations without cost, empty stages, ties: everything that the small networks have, everywhere. */
static void every_plan_is_predicted(void **state) {
    (void)state;
    static const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches, car_net_pool_first};
    for (size_t n = 0; n < sizeof nets / sizeof *nets; n++) {
        car_plans_model s = car_plans_open_net(nets[n], 12);
        for (int c = 0; c < CAR_RULES * CAR_PLACEMENTS; c++) {
            car_plan_config config = {.workers = 4, .rule = c % CAR_RULES, .placement = c / CAR_RULES};
            if (!is_possible(config.rule, config.placement)) {
                continue;
            }
            car_prediction p = predict(s.partition, config);
            assert_int_equal(p.dp_peak, 4 * s.partition->curve.peak);
            assert_true(p.timed.peak <= p.dp_peak && p.timed.mean <= p.timed.peak && p.timed.device_peak > 0);
            assert_true(p.timed.step_time >= 1 - 1e-9 && p.timed.idle >= 0 && p.timed.idle < 1);
            assert_true(p.slots_mean <= p.slots_peak && p.slots_device_peak <= p.slots_peak);
            assert_true(p.weights_device > 0 && p.weights_device <= p.weights_total);
            assert_true(p.optimizer_device <= p.optimizer_total && p.gradients_device <= p.gradients_total);
            assert_true(p.versions >= 1 && p.versions <= 2);
            car_expect_near(p.peak_ratio_to_dp, (double)p.timed.peak / (double)p.dp_peak, 1e-12);
            double allowed = 4 * (double)s.partition->held_bytes * s.partition->limit;
            car_expect_near(p.above_limit, (double)p.timed.peak / allowed - 1, 1e-9);
        }
        car_plans_close_model(&s);
    }
}

/* A tied parameter is no second copy where its home is, unless weights move: then it is on its way alone. */
static void one_worker_has_all_weights_once(void **state) {
    (void)state;
    car_plans_model s = car_plans_open_net(car_net_language, 4);
    assert_true(s.partition->bundle_count > s.partition->stage_count);
    size_t own = car_graph_param_bytes(s.graph), tied = 0;
    for (int b = s.partition->stage_count; b < s.partition->bundle_count; b++) {
        tied += s.partition->bundles[b].bytes;
    }
    for (car_placement placement = 0; placement < CAR_PLACEMENTS; placement++) {
        size_t all = own + (placement == CAR_PLACEMENT_ZERO ? tied : 0);
        car_prediction p =
            predict(s.partition, (car_plan_config){.workers = 1, .rule = CAR_RULE_CDP_V2, .placement = placement});
        assert_int_equal(p.weights_device, all);
        assert_int_equal(p.weights_total, all);
        assert_int_equal(p.versions, 1);
        car_expect_near(p.bytes_sent, 0, 0);
    }
    car_plans_close_model(&s);
}

static void many_workers(void **state) {
    (void)state;
    enum { N = 256 };
    car_plans_model vit = car_plans_open_model("vit-b16", N);
    car_plan_config config = {.workers = N, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA};
    car_prediction p = predict(vit.partition, config);
    car_expect_near(p.timed.step_time, 1, 0.01);
    car_expect_near(p.peak_ratio_to_dp, p.free_running, 0.01);
    car_expect_near(p.above_limit, 0, 0.03); /* so many that they average out */
    /* In one process all add to one sum of a stage, one after the other: the longest backward is what a step takes. */
    config.placement = CAR_PLACEMENT_SHARED;
    p = predict(vit.partition, config);
    double longest = 0;
    for (int j = 0; j < N; j++) {
        longest = fmax(longest, vit.partition->stages[j].backward);
    }
    car_expect_near(p.timed.step_time, N * longest, N * 0.01 * longest);
    assert_int_equal(p.versions, 2);
    car_plans_close_model(&vit);
}

static void memory_may_run_out(void **state) {
    (void)state;
    static const car_placement placements[] = {CAR_PLACEMENT_SHARED, CAR_PLACEMENT_ZERO, CAR_PLACEMENT_GRID};
    for (size_t c = 0; c < sizeof placements / sizeof *placements; c++) {
        car_checking checking = {0};
        car_context_config config = car_context_config_default();
        config.allocator = car_checking_hooks(&checking);
        car_context *own = NULL;
        assert_int_equal(car_context_create(&config, &own), CAR_OK);
        car_partition *partition = NULL;
        assert_int_equal(car_partition_create_uniform(own, 3, 1, &partition), CAR_OK);
        car_plan_config plan_config = {.workers = 3, .rule = CAR_RULE_CDP_V2, .placement = placements[c]};
        car_plan *plan = NULL;
        assert_int_equal(car_plan_create(own, partition, &plan_config, &plan), CAR_OK);
        long live = checking.live_blocks, calls = checking.calls;
        car_prediction prediction;
        assert_int_equal(car_plan_predict(plan, 1, &prediction), CAR_OK);
        long needed = checking.calls - calls;
        assert_int_equal(checking.live_blocks, live);
        for (long at = 1; at <= needed; at++) {
            checking.fail_at = checking.calls + at;
            assert_int_equal(car_plan_predict(plan, 1, &prediction), CAR_ERROR_MEMORY);
            car_context_clear_error(own);
            assert_int_equal(checking.live_blocks, live);
        }
        assert_int_equal(checking.wrong_sizes, 0);
        car_plan_destroy(plan);
        car_partition_destroy(partition);
        car_context_destroy(own);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_those_of_the_clock),
        cmocka_unit_test(odd_workers_tend_to_their_limit),
        cmocka_unit_test(slots_by_device),
        cmocka_unit_test(free_running_is_the_sum_of_shifts),
        cmocka_unit_test(any_curve_will_do),
        cmocka_unit_test(models_run_freely_as_computed_by_hand),
        cmocka_unit_test(states_are_what_the_table_keeps_alive),
        cmocka_unit_test(traffic_of_replicas),
        cmocka_unit_test(traffic_of_other_placements),
        cmocka_unit_test(weights_that_go_round_are_bounded),
        cmocka_unit_test(every_plan_is_predicted),
        cmocka_unit_test(one_worker_has_all_weights_once),
        cmocka_unit_test(many_workers),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
