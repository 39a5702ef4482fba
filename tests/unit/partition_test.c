/* The partition against its definition, counted out operation by operation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/partition.h"
#include "support/allocator.h"
#include "support/expect.h"
#include "support/rig.h"

static int set_up(void **state) {
    return car_context_create(NULL, (car_context **)state) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    car_context_destroy(*state);
    return 0;
}

static car_graph *build(car_context *context, const char *model, const car_model_config *config) {
    car_graph *graph = NULL;
    if (car_model_build(context, model, config, &graph) != CAR_OK) {
        fail_msg("%s: %s", model, car_context_error(context));
    }
    return graph;
}

/* A chain of `operations` operations, the last of which is the loss. */
static car_graph *build_chain(car_context *context, int operations) {
    car_graph *graph = NULL;
    assert_int_equal(car_graph_create(context, &graph), CAR_OK);
    int x = car_graph_input(graph, "x", (car_shape){2, {2, 3}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    for (int l = 0; l < operations - 1; l++) {
        char name[32];
        snprintf(name, sizeof name, "fc%d", l);
        x = car_net_linear(graph, name, x, 3);
    }
    assert_int_equal(car_graph_finish(graph, car_graph_cross_entropy(graph, "loss", x, labels, 0)), CAR_OK);
    return graph;
}

static car_partition *cut(const car_graph *graph, const car_partition_config *config) {
    car_partition *partition = NULL;
    car_expect_ok(car_graph_context(graph), car_partition_create(graph, config, &partition));
    return partition;
}

/* ---- the definition -------------------------------------------------------------------------- */

static int first_user(const car_graph *graph, int param) {
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        for (int p = 0; p < car_graph_op(graph, l)->param_count; p++) {
            if (car_graph_op(graph, l)->params[p] == param) {
                return l;
            }
        }
    }
    return CAR_NONE;
}

static size_t bytes_of_param(const car_graph *graph, int param) {
    return (size_t)car_shape_elements(car_graph_param(graph, param)->shape) * sizeof(float);
}

static size_t weights_of(const car_graph *graph, int begin, int end) {
    size_t bytes = 0;
    for (int l = begin; l < end; l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; p < op->param_count; p++) {
            bytes += first_user(graph, op->params[p]) == l ? bytes_of_param(graph, op->params[p]) : 0;
        }
    }
    return bytes;
}

static size_t crossing_bytes(const car_graph *graph, int before) {
    enum { CAPACITY = 16 };
    int tensors[CAPACITY], count = car_graph_crossing(graph, before, tensors, CAPACITY);
    size_t bytes = 0;
    assert_true(count <= CAPACITY);
    for (int i = 0; i < count; i++) {
        bytes += car_graph_tensor(graph, tensors[i])->bytes;
    }
    return bytes;
}

static long double measure_of(const car_graph *graph, const car_partition_config *config, int l) {
    switch (config->measure) {
    case CAR_MEASURE_TIME:
        return config->costs->forward[l];
    case CAR_MEASURE_PARAMS:
        return weights_of(graph, l, l + 1);
    case CAR_MEASURE_MEMORY:
        return car_graph_held_bytes(graph, l, l + 1);
    default:
        return car_graph_op(graph, l)->flops_forward;
    }
}

/* Every operation is in exactly one stage, the one that its share says. */
static void check_cuts(const car_graph *graph, const car_partition_config *config, const car_partition *partition) {
    int operations = car_graph_op_count(graph), S = config->stages;
    long double total = 0, before = 0;
    for (int l = 0; l < operations; l++) {
        total += measure_of(graph, config, l);
    }
    assert_int_equal(partition->stages[0].first, 0);
    assert_int_equal(partition->stages[S - 1].end, operations);
    for (int j = 0; j < S; j++) {
        const car_stage *stage = &partition->stages[j];
        assert_true(stage->first <= stage->end);
        assert_int_equal(stage->end, j + 1 < S ? partition->stages[j + 1].first : operations);
        for (int l = stage->first; l < stage->end; l++) {
            long double place = S * before / total;
            bool above = place >= j - 1e-5L || j == 0, below = place < j + 1 || j == S - 1;
            if (!above || !below) {
                fail_msg("%s into %d: operation %d at %.9Lf is in stage %d", car_measure_text(config->measure), S, l,
                         place, j);
            }
            before += measure_of(graph, config, l);
        }
    }
}

static void check_stages(const car_graph *graph, const car_costs *costs, const car_partition *partition) {
    long double total = 0, sum = 0, longest = 0;
    size_t held = 0, weights = 0;
    for (int l = 0; l < costs->count; l++) {
        total += costs->forward[l] + costs->backward[l];
    }
    for (int j = 0; j < partition->stage_count; j++) {
        const car_stage *stage = &partition->stages[j];
        long double forward = 0, backward = 0;
        for (int l = stage->first; l < stage->end; l++) {
            forward += costs->forward[l];
            backward += costs->backward[l];
        }
        assert_true(fabsl(stage->forward - forward / total) < 1e-12L);
        assert_true(fabsl(stage->backward - backward / total) < 1e-12L);
        assert_int_equal(stage->held_bytes, car_graph_held_bytes(graph, stage->first, stage->end));
        assert_int_equal(stage->weight_bytes, weights_of(graph, stage->first, stage->end));
        assert_int_equal(stage->boundary_bytes, crossing_bytes(graph, stage->first));
        sum += stage->forward + stage->backward;
        longest = fmaxl(longest, fmaxl(forward, backward) / total);
        held += stage->held_bytes;
        weights += stage->weight_bytes;
    }
    assert_true(fabsl(sum - 1) < 1e-12L);
    assert_true(fabsl(partition->longest_task - longest) < 1e-12L);
    assert_int_equal(partition->stages[0].boundary_bytes, 0);
    assert_int_equal(partition->held_bytes, held);
    assert_int_equal(held, car_graph_held_bytes(graph, 0, car_graph_op_count(graph)));
    assert_int_equal(weights, car_graph_param_bytes(graph));
}

static bool stage_uses(const car_graph *graph, const car_stage *stage, int param) {
    for (int l = stage->first; l < stage->end; l++) {
        for (int p = 0; p < car_graph_op(graph, l)->param_count; p++) {
            if (car_graph_op(graph, l)->params[p] == param) {
                return true;
            }
        }
    }
    return false;
}

static void expect_bundle(const car_bundle *bundle, car_bundle expected) {
    assert_int_equal(bundle->stage, expected.stage);
    assert_int_equal(bundle->home, expected.home);
    assert_int_equal(bundle->param, expected.param);
    assert_int_equal(bundle->bytes, expected.bytes);
    assert_int_equal(bundle->copy_bytes, expected.copy_bytes);
}

static void check_bundles(const car_graph *graph, const car_partition *partition) {
    int S = partition->stage_count, next = S;
    for (int j = 0; j < S; j++) {
        expect_bundle(&partition->bundles[j],
                      (car_bundle){j, j, CAR_NONE, partition->stages[j].weight_bytes, partition->stages[j].copy_bytes});
    }
    for (int j = 0; j < S; j++) {
        for (int p = 0; p < car_graph_param_count(graph); p++) {
            if (!stage_uses(graph, &partition->stages[j], p) || first_user(graph, p) >= partition->stages[j].first) {
                continue;
            }
            assert_true(next < partition->bundle_count);
            const car_bundle *tie = &partition->bundles[next++];
            assert_int_equal(tie->stage, j);
            assert_int_equal(tie->param, p);
            assert_int_equal(tie->bytes, bytes_of_param(graph, p));
            assert_true(stage_uses(graph, &partition->stages[tie->home], p));
            assert_true(first_user(graph, p) >= partition->stages[tie->home].first);
        }
    }
    assert_int_equal(next, partition->bundle_count);
}

static void check_curve(const car_graph *graph, const car_costs *costs, const car_partition *partition) {
    int operations = car_graph_op_count(graph);
    const car_curve *curve = &partition->curve;
    long double total = 0, before = 0, forward = 0, all_forward = 0, limit = 0;
    size_t peak = 0;
    assert_int_equal(curve->events, 2 * operations);
    for (int l = 0; l < operations; l++) {
        total += costs->forward[l] + costs->backward[l];
        all_forward += costs->forward[l];
    }
    for (int e = 0; e < curve->events; e++) {
        assert_true(fabsl(curve->begin[e] - before / total) < 1e-12L);
        before += e < operations ? costs->forward[e] : costs->backward[2 * operations - 1 - e];
        peak = curve->during[e] > peak ? curve->during[e] : peak;
    }
    assert_int_equal(curve->peak, peak);
    assert_true(peak >= partition->held_bytes);
    for (int l = 0; l < operations; l++) {
        limit += car_graph_held_bytes(graph, l, l + 1) * (1 - forward / all_forward);
        forward += costs->forward[l];
    }
    assert_true(fabsl(partition->limit - limit / partition->held_bytes) < 1e-9L);
}

/* ---- all measures on all models -------------------------------------------------------------- */

/* Seconds that nothing else looks like; some operations cost nothing. */
static void invent_costs(const car_graph *graph, car_costs *costs) {
    assert_int_equal(car_costs_from_flops(graph, costs), CAR_OK);
    for (int l = 0; l < costs->count; l++) {
        costs->forward[l] = l % 5 == 3 ? 0 : 1e-3 * (double)car_random_uniform(11, (uint64_t)l);
        costs->backward[l] = 2e-3 * (double)car_random_uniform(12, (uint64_t)l);
    }
}

static void check_all(const car_graph *graph, const car_partition_config *config, const car_costs *costs) {
    car_partition *partition = cut(graph, config);
    assert_ptr_equal(partition->graph, graph);
    assert_int_equal(partition->measure, config->measure);
    assert_int_equal(partition->stage_count, config->stages);
    check_cuts(graph, config, partition);
    check_stages(graph, costs, partition);
    check_bundles(graph, partition);
    check_curve(graph, costs, partition);
    car_partition_destroy(partition);
}

static void test_measures(void **state) {
    static const car_measure measures[] = {CAR_MEASURE_FLOPS, CAR_MEASURE_TIME, CAR_MEASURE_PARAMS, CAR_MEASURE_MEMORY};
    for (int m = 0; m < car_model_count(); m++) {
        car_model_config model = {.batch = 2};
        car_graph *graph = build(*state, car_model_info_at(m)->name, &model);
        car_costs flops, seconds;
        int operations = car_graph_op_count(graph);
        const int counts[] = {1, 2, 3, 4, 8, 13, operations, operations + 7, 1024};
        assert_int_equal(car_costs_from_flops(graph, &flops), CAR_OK);
        invent_costs(graph, &seconds);
        for (int i = 0; i < 4; i++) {
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                car_partition_config config = {.stages = counts[c], .measure = measures[i], .costs = &seconds};
                check_all(graph, &config, &seconds);
                if (measures[i] != CAR_MEASURE_TIME) {
                    config.costs = NULL;
                    check_all(graph, &config, &flops);
                }
            }
        }
        car_costs_release(graph, &seconds);
        car_costs_release(graph, &flops);
        car_graph_destroy(graph);
    }
}

/* S equal operations are S stages, whatever rounding does to the sum of the shares. */
static void test_equal_operations(void **state) {
    static const double prices[] = {0.1, 1.0 / 3, 1, 7e-7, 1.1e9};
    enum { MOST = 64 };
    for (int S = 2; S <= MOST; S++) {
        for (int each = 1; each <= 3; each++) {
            car_graph *graph = build_chain(*state, S * each);
            double forward[3 * MOST], backward[3 * MOST];
            car_costs costs = {forward, backward, S * each};
            for (size_t i = 0; i < sizeof prices / sizeof prices[0]; i++) {
                for (int l = 0; l < costs.count; l++) {
                    forward[l] = prices[i];
                    backward[l] = 2 * prices[i];
                }
                car_partition *partition =
                    cut(graph, &(car_partition_config){.stages = S, .measure = CAR_MEASURE_TIME, .costs = &costs});
                for (int j = 0; j < S; j++) {
                    assert_int_equal(partition->stages[j].first, j * each);
                    assert_int_equal(partition->stages[j].end, (j + 1) * each);
                }
                car_partition_destroy(partition);
            }
            car_graph_destroy(graph);
        }
    }
}

static void expect_stages(const car_partition *partition, const int *first) {
    for (int j = 0; j < partition->stage_count; j++) {
        assert_int_equal(partition->stages[j].first, first[j]);
    }
}

/* Behind one long operation stages are empty; each has the boundary of its place. */
static void test_empty_stages(void **state) {
    car_graph *graph = build_chain(*state, 4);
    double forward[] = {1, 17, 1, 1}, backward[] = {2, 34, 2, 2};
    car_costs costs = {forward, backward, 4};
    car_partition *partition =
        cut(graph, &(car_partition_config){.stages = 5, .measure = CAR_MEASURE_TIME, .costs = &costs});
    expect_stages(partition, (const int[]){0, 2, 2, 2, 2});
    assert_int_equal(partition->stages[1].end, 2);
    assert_int_equal(partition->stages[2].boundary_bytes, 2 * 3 * sizeof(float));
    assert_int_equal(partition->stages[2].weight_bytes, 0);
    assert_true(partition->stages[2].forward == 0);
    assert_true(fabs(partition->longest_task - 0.6) < 1e-12);
    assert_int_equal(partition->bundle_count, 5);
    car_partition_destroy(partition);
    /* The head of the model is the measure: everything behind it is at the very end. */
    partition = cut(graph, &(car_partition_config){.stages = 6, .measure = CAR_MEASURE_PARAMS});
    expect_stages(partition, (const int[]){0, 1, 1, 2, 2, 3});
    car_partition_destroy(partition);
    car_graph_destroy(graph);
}

/* ---- cuts and bad input ---------------------------------------------------------------------- */

static void test_cuts(void **state) {
    car_graph *graph = build_chain(*state, 6);
    const int cuts[] = {0, 2, 2, 5, 6};
    car_costs flops;
    car_partition *partition =
        cut(graph, &(car_partition_config){.stages = 6, .measure = CAR_MEASURE_CUTS, .cuts = cuts});
    assert_int_equal(car_costs_from_flops(graph, &flops), CAR_OK);
    expect_stages(partition, (const int[]){0, 0, 2, 2, 5, 6});
    assert_int_equal(partition->stages[5].end, 6);
    assert_int_equal(partition->stages[5].boundary_bytes, 0);
    check_stages(graph, &flops, partition);
    check_bundles(graph, partition);
    car_costs_release(graph, &flops);
    car_partition_destroy(partition);
    partition = cut(graph, &(car_partition_config){.stages = 1, .measure = CAR_MEASURE_CUTS});
    assert_int_equal(partition->stages[0].end, 6);
    car_partition_destroy(partition);
    car_graph_destroy(graph);
}

static void refuse(const car_graph *graph, const car_partition_config *config, const char *part) {
    car_context *context = car_graph_context(graph);
    car_partition *partition = (car_partition *)context; /* anything: it must be overwritten */
    car_status status = car_partition_create(graph, config, &partition);
    assert_null(partition);
    car_expect_failure(context, status, CAR_ERROR_ARGUMENT, part);
}

static void refuse_costs(const car_graph *graph, double bad, const char *part) {
    double forward[6] = {1, 1, 1, 1, 1, 1}, backward[6] = {1, 1, 1, 1, 1, 1};
    car_costs costs = {forward, backward, 6};
    forward[2] = bad;
    refuse(graph, &(car_partition_config){.stages = 2, .costs = &costs}, part);
    forward[2] = 1;
    backward[5] = bad;
    refuse(graph, &(car_partition_config){.stages = 2, .measure = CAR_MEASURE_PARAMS, .costs = &costs}, part);
}

static void test_bad_input(void **state) {
    car_graph *graph = build_chain(*state, 6), *unfinished = NULL;
    double zeros[6] = {0}, ones[6] = {1, 1, 1, 1, 1, 1};
    car_partition *partition = NULL;
    refuse(graph, &(car_partition_config){.stages = 0}, "0 stages; use 1 to");
    refuse(graph, &(car_partition_config){.stages = -3}, "cannot be -3 stages");
    refuse(graph, &(car_partition_config){.stages = 1 << 30}, "use 1 to 1048576");
    refuse(graph, &(car_partition_config){.stages = 2, .measure = CAR_MEASURE_TIME}, "needs measured costs");
    refuse(graph, &(car_partition_config){.stages = 2, .measure = CAR_MEASURES}, "no measure 5");
    refuse(graph, &(car_partition_config){.stages = 4, .measure = CAR_MEASURE_CUTS}, "needs a list of 3 cuts");
    car_partition_config cuts = {.stages = 4, .measure = CAR_MEASURE_CUTS};
    refuse(graph, (cuts.cuts = (const int[]){1, 4, 3}, &cuts), "cut 3 is at operation 3, before the previous cut");
    refuse(graph, (cuts.cuts = (const int[]){-1, 4, 3}, &cuts), "cut 1 is at operation -1");
    refuse(graph, (cuts.cuts = (const int[]){1, 7, 7}, &cuts),
           "cut 2 is at operation 7, but the model has operations 0 to 5");
    refuse_costs(graph, -1, "negative or invalid cost");
    refuse_costs(graph, NAN, "nan");
    refuse_costs(graph, INFINITY, "inf");
    car_costs costs = {zeros, ones, 6};
    refuse(graph, &(car_partition_config){.stages = 2, .costs = &costs}, "the total costs are invalid: forward 0");
    costs = (car_costs){ones, ones, 5};
    refuse(graph, &(car_partition_config){.stages = 2, .costs = &costs}, "of 5 operations, but the graph has 6");
    assert_int_equal(car_graph_create(*state, &unfinished), CAR_OK);
    refuse(unfinished, &(car_partition_config){.stages = 2}, "finished graph");
    car_graph_destroy(unfinished);
    car_graph_destroy(graph);
    for (int i = 0; i < 3; i++) {
        const double ratios[] = {NAN, -1, INFINITY};
        assert_int_equal(car_partition_create_uniform(*state, 2, ratios[i], &partition), CAR_ERROR_ARGUMENT);
        assert_null(partition);
    }
    assert_int_equal(car_partition_create_uniform(*state, 0, 2, &partition), CAR_ERROR_ARGUMENT);
    car_context_clear_error(*state);
    assert_string_equal(car_measure_text(CAR_MEASURE_MEMORY), "memory");
    assert_string_equal(car_measure_text(CAR_MEASURES), "unknown");
}

/* ---- ties ------------------------------------------------------------------------------------ */

/* Operations: 0 embedding, 1 head, 2 back, 3 head again, 4 back, 5 head again, 6 loss. */
static car_graph *build_tied(car_context *context) {
    enum { VOCABULARY = 5, WIDTH = 3 };
    car_graph *graph = NULL;
    assert_int_equal(car_graph_create(context, &graph), CAR_OK);
    int tokens = car_graph_input(graph, "tokens", (car_shape){2, {1, 2}}, CAR_I32);
    int labels = car_graph_input(graph, "labels", (car_shape){2, {1, 2}}, CAR_I32);
    int x = car_graph_embedding(graph, "wte", "wpe", tokens, VOCABULARY, 2, WIDTH);
    car_linear_config tied = {VOCABULARY, false, false, "wte.weight"};
    x = car_graph_linear(graph, "head0", x, &tied);
    x = car_graph_linear(graph, "head1", car_net_linear(graph, "back0", x, WIDTH), &tied);
    x = car_graph_linear(graph, "head2", car_net_linear(graph, "back1", x, WIDTH), &tied);
    assert_int_equal(car_graph_finish(graph, car_graph_cross_entropy(graph, "loss", x, labels, 0)), CAR_OK);
    return graph;
}

static void test_ties(void **state) {
    enum { TIED_BYTES = 5 * 3 * sizeof(float) };
    static const struct {
        int cuts[2], ties, stages[2];
    } known[] = {
        {{6, 6}, 0, {0}},    /* all uses at home */
        {{2, 6}, 1, {1}},    /* two uses in one later stage */
        {{1, 4}, 2, {1, 2}}, /* two later stages */
        {{0, 3}, 1, {2}},    /* home is not stage 0 */
    };
    car_graph *graph = build_tied(*state);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        car_partition *partition =
            cut(graph, &(car_partition_config){.stages = 3, .measure = CAR_MEASURE_CUTS, .cuts = known[i].cuts});
        check_bundles(graph, partition);
        assert_int_equal(partition->bundle_count, 3 + known[i].ties);
        for (int b = 0; b < known[i].ties; b++) {
            expect_bundle(&partition->bundles[3 + b],
                          (car_bundle){known[i].stages[b], known[i].cuts[0] == 0, 0, TIED_BYTES, TIED_BYTES});
        }
        car_partition_destroy(partition);
    }
    car_graph_destroy(graph);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Wherever memory runs out, the status says so and everything is given back. */
static void test_out_of_memory(void **state) {
    (void)state;
    car_checking checking = {0};
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    config.allocator = car_checking_hooks(&checking);
    assert_int_equal(car_context_create(&config, &context), CAR_OK);
    car_graph *graph = build_tied(context);
    long blocks = checking.live_blocks;
    for (int uniform = 0; uniform < 2; uniform++) {
        car_status status = CAR_ERROR_MEMORY;
        for (int allowed = 0; status != CAR_OK; allowed++) {
            car_partition *partition = NULL;
            assert_true(allowed < 100);
            checking.fail_at = checking.calls + allowed + 1;
            status = uniform ? car_partition_create_uniform(context, 4, 2, &partition)
                             : car_partition_create(graph, &(car_partition_config){.stages = 3}, &partition);
            assert_true(status == CAR_OK || status == CAR_ERROR_MEMORY);
            assert_true((status == CAR_OK) == (partition != NULL));
            car_context_clear_error(context);
            car_partition_destroy(partition);
            assert_int_equal(checking.live_blocks, blocks);
        }
    }
    assert_int_equal(checking.wrong_sizes, 0);
    car_graph_destroy(graph);
    car_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measures),      cmocka_unit_test(test_equal_operations),
        cmocka_unit_test(test_empty_stages),  cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_bad_input),     cmocka_unit_test(test_ties),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("partition", tests, set_up, tear_down);
}
