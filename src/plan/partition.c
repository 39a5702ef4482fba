/* Cuts a graph into stages and computes what each stage costs, holds and owns.
 *
 * The measure is laid out on a line from 0 to 1, operation after operation, and the line is cut into S equal parts.
 * An operation goes to the part in which it begins:
 *
 *   operations   0    1  2         3           4
 *                |----|--|---------|-----------|-|
 *   S = 4        0          1          2          3      0, 1, 2 | 3 | 4 | none
 *
 * With time as the measure, the freshness rule of cdp-v2 is then exactly what timing allows. The price is that a
 * stage after a long operation may be empty. */
#include <math.h>

#include "base/base.h"
#include "plan/partition_internal.h"

enum { MAX_STAGES = 1 << 20 };

/* An operation that begins this little before a cut counts as beginning at it, because the sum of S equal parts may
 * fall short of 1 by rounding. */
static const double tolerance = 1e-9;

/* Invented numbers for a partition without a model, chosen so that they are easy to tell apart. */
enum { UNIFORM_HELD = 1000, UNIFORM_WEIGHTS = 100, UNIFORM_BOUNDARY = 10 };

const char *car_measure_text(car_measure measure) {
    static const char *const texts[] = {
#define MEASURE_TEXT(code, text) text,
        CAR_MEASURE_LIST(MEASURE_TEXT)
#undef MEASURE_TEXT
    };
    return measure < CAR_MEASURES ? texts[measure] : "unknown";
}

/* ---- cutting --------------------------------------------------------------------------------- */

static double measure_op(const car_partition *partition, const car_op_facts *facts, int l) {
    switch (partition->measure) {
    case CAR_MEASURE_TIME:
        return facts[l].forward;
    case CAR_MEASURE_PARAMS:
        return (double)facts[l].weight_bytes;
    case CAR_MEASURE_MEMORY:
        return (double)facts[l].held_bytes;
    default:
        return car_graph_op(partition->graph, l)->flops_forward;
    }
}

static void cut_by_measure(car_partition *partition, const car_op_facts *facts) {
    int operations = car_graph_op_count(partition->graph), S = partition->stage_count;
    double total = 0, before = 0;
    for (int l = 0; l < operations; l++) {
        total += measure_op(partition, facts, l);
    }
    int known = 0; /* number of stages whose first operation is known */
    for (int l = 0; l < operations; l++) {
        double share = total > 0 ? before / total : 0;
        double part = floor(S * (share + tolerance));
        int stage = part < S - 1 ? (int)part : S - 1; /* an operation that costs nothing may begin at the very end */
        while (known <= stage) {
            partition->stages[known++].first = l;
        }
        before += measure_op(partition, facts, l);
    }
    while (known < S) {
        partition->stages[known++].first = operations;
    }
}

static car_status cut_by_list(car_partition *partition, const int *cuts) {
    int operations = car_graph_op_count(partition->graph);
    if (!cuts && partition->stage_count > 1) {
        return car_context_fail(partition->context, CAR_ERROR_ARGUMENT,
                                "a partition into %d stages by cuts needs a list of %d cuts", partition->stage_count,
                                partition->stage_count - 1);
    }
    for (int j = 1; j < partition->stage_count; j++) {
        int cut = cuts[j - 1];
        if (cut < 0 || cut > operations) {
            return car_context_fail(partition->context, CAR_ERROR_ARGUMENT,
                                    "cut %d is at operation %d, but the model has operations 0 to %d; use 0 to %d", j,
                                    cut, operations - 1, operations);
        }
        if (cut < partition->stages[j - 1].first) {
            return car_context_fail(
                partition->context, CAR_ERROR_ARGUMENT,
                "cut %d is at operation %d, before the previous cut at %d; give cuts in ascending order", j, cut,
                partition->stages[j - 1].first);
        }
        partition->stages[j].first = cut;
    }
    return CAR_OK;
}

/* ---- stages and bundles ---------------------------------------------------------------------- */

static double larger(double a, double b) {
    return a > b ? a : b;
}

static void close_stages(car_partition *partition) {
    for (int j = 0; j < partition->stage_count; j++) {
        bool last = j == partition->stage_count - 1;
        partition->stages[j].end = last ? car_graph_op_count(partition->graph) : partition->stages[j + 1].first;
    }
}

static void fill_stages(car_partition *partition, const car_op_facts *facts) {
    close_stages(partition);
    for (int j = 0; j < partition->stage_count; j++) {
        car_stage *stage = &partition->stages[j];
        stage->boundary_bytes = facts[stage->first].crossing_bytes;
        for (int l = stage->first; l < stage->end; l++) {
            stage->forward += facts[l].forward;
            stage->backward += facts[l].backward;
            stage->held_bytes += facts[l].held_bytes;
            stage->weight_bytes += facts[l].weight_bytes;
            stage->copy_bytes += facts[l].copy_bytes;
        }
        partition->held_bytes += stage->held_bytes;
        partition->longest_task = larger(partition->longest_task, larger(stage->forward, stage->backward));
    }
}

/* For each parameter: */
typedef struct param_place {
    int home, last; /* the stage of its first use, and of the latest use found; CAR_NONE before */
} param_place;

/* Counts the pairs of a parameter and a stage after its home that also uses it; writes them to `out` unless it is
 * NULL. Stages are visited in ascending order, so a repeated pair equals the last one of its parameter. */
static int list_ties(const car_partition *partition, param_place *places, car_bundle *out) {
    const car_graph *graph = partition->graph;
    int count = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        places[p] = (param_place){CAR_NONE, CAR_NONE};
    }
    for (int j = 0; j < partition->stage_count; j++) {
        for (int l = partition->stages[j].first; l < partition->stages[j].end; l++) {
            const car_op *op = car_graph_op(graph, l);
            for (int q = 0; q < op->param_count; q++) {
                int param = op->params[q];
                param_place *place = &places[param];
                bool tie = place->home != CAR_NONE && place->last != j;
                if (tie && out) {
                    const car_param *tied = car_graph_param(graph, param);
                    out[count] = (car_bundle){j, place->home, param, car_param_bytes(tied), car_param_copy_bytes(tied)};
                }
                count += tie;
                place->home = place->home == CAR_NONE ? j : place->home;
                place->last = j;
            }
        }
    }
    return count;
}

static void bundle_stages(car_partition *partition) {
    for (int j = 0; j < partition->stage_count; j++) {
        const car_stage *stage = &partition->stages[j];
        partition->bundles[j] = (car_bundle){j, j, CAR_NONE, stage->weight_bytes, stage->copy_bytes};
    }
}

static car_status make_bundles(car_partition *partition) {
    car_context *context = partition->context;
    size_t params = (size_t)car_graph_param_count(partition->graph);
    param_place *places = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, params, sizeof *places, &places));
    partition->bundle_count = partition->stage_count + list_ties(partition, places, NULL);
    CAR_TRY(car_context_allocate(context, (size_t)partition->bundle_count, sizeof *partition->bundles,
                                 &partition->bundles));
    bundle_stages(partition);
    list_ties(partition, places, partition->bundles + partition->stage_count);
done:
    car_context_release(context, places, params, sizeof *places);
    return status;
}

/* ---- creating and destroying ------------------------------------------------------------------- */

static car_status check_count(car_context *context, int stages) {
    if (stages < 1 || stages > MAX_STAGES) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "there cannot be %d stages; use 1 to %d", stages,
                                MAX_STAGES);
    }
    return CAR_OK;
}

static car_status create_empty(car_context *context, int stages, car_partition **out) {
    car_partition *partition = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, 1, sizeof *partition, &partition));
    partition->context = context;
    partition->stage_count = stages;
    CAR_TRY(car_context_allocate(context, (size_t)stages, sizeof *partition->stages, &partition->stages));
    *out = partition;
    partition = NULL;
done:
    car_partition_destroy(partition);
    return status;
}

static car_status check_config(const car_graph *graph, const car_partition_config *config) {
    car_context *context = car_graph_context(graph);
    if (car_graph_loss(graph) == CAR_NONE) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a partition needs a finished graph");
    }
    if ((unsigned)config->measure >= CAR_MEASURES) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "there is no measure %d to cut by", (int)config->measure);
    }
    if (config->measure == CAR_MEASURE_TIME && !config->costs) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a partition by time needs measured costs; measure a profile, or cut by flops");
    }
    return config->costs ? car_costs_check(graph, config->costs, CAR_ERROR_ARGUMENT, "the costs") : CAR_OK;
}

/* The peak during a stage's backward, beyond what it and the stages below hold. */
static void find_again_bytes(car_partition *partition) {
    const car_curve *curve = &partition->curve;
    size_t held = 0;
    for (int j = 0; j < partition->stage_count; j++) {
        car_stage *stage = &partition->stages[j];
        held += stage->held_bytes;
        for (int e = car_curve_backward(curve, stage->end - 1); e < car_curve_backward(curve, stage->first - 1); e++) {
            size_t over = curve->during[e] > held ? curve->during[e] - held : 0;
            stage->again_bytes = over > stage->again_bytes ? over : stage->again_bytes;
        }
    }
}

/* Chooses what is recomputed inside the stages, and gathers the facts again with that choice. */
static car_status recompute(car_partition *partition, const car_partition_config *config, const car_costs *costs,
                            car_op_facts *facts, car_graph_range **all) {
    const car_graph *graph = partition->graph;
    int operations = car_graph_op_count(graph);
    car_recomputation *r = &partition->recomputation;
    double cost = 0;
    car_status status = CAR_OK;
    close_stages(partition);
    CAR_TRY(car_partition_choose_recompute(partition, facts, &config->recompute));
    if (!partition->recompute) {
        return CAR_OK;
    }
    for (int l = 0; l < operations; l++) {
        cost += costs->forward[l] + costs->backward[l];
        facts[l] = (car_op_facts){0};
    }
    facts[operations] = (car_op_facts){0};
    for (int i = 0; i < partition->recompute->again_count; i++) {
        r->cost += costs->forward[partition->recompute->again[i]] / cost;
    }
    car_graph_range_destroy(graph, *all);
    *all = NULL;
    CAR_TRY(car_graph_range_create(graph, 0, operations, partition->recompute, all));
    CAR_TRY(car_curve_gather(graph, *all, costs, facts));
done:
    return status;
}

car_status car_partition_create(const car_graph *graph, const car_partition_config *config, car_partition **out) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(car_graph_context(graph), config);
    CAR_REQUIRE(car_graph_context(graph), out);
    car_context *context = car_graph_context(graph);
    size_t cuts = (size_t)car_graph_op_count(graph) + 1;
    car_op_facts *facts = NULL;
    car_partition *partition = NULL;
    car_graph_range *all = NULL;
    car_costs flops = {0};
    const car_costs *costs = config->costs ? config->costs : &flops;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(check_config(graph, config));
    CAR_TRY(check_count(context, config->stages));
    CAR_TRY(create_empty(context, config->stages, &partition));
    partition->graph = graph;
    partition->measure = config->measure;
    if (!config->costs) {
        CAR_TRY(car_costs_from_flops(graph, &flops));
    }
    CAR_TRY(car_context_allocate(context, cuts, sizeof *facts, &facts));
    CAR_TRY(car_graph_range_create(graph, 0, car_graph_op_count(graph), NULL, &all));
    CAR_TRY(car_curve_gather(graph, all, costs, facts));
    if (config->measure == CAR_MEASURE_CUTS) {
        CAR_TRY(cut_by_list(partition, config->cuts));
    } else {
        cut_by_measure(partition, facts);
    }
    if (config->recompute.how != CAR_RECOMPUTE_OFF) {
        CAR_TRY(recompute(partition, config, costs, facts, &all));
    }
    fill_stages(partition, facts);
    CAR_TRY(make_bundles(partition));
    CAR_TRY(car_curve_trace(graph, all, costs, &partition->curve));
    if (partition->recompute) {
        find_again_bytes(partition);
    }
    partition->limit = car_curve_limit(facts, car_graph_op_count(graph));
    *out = partition;
    partition = NULL;
done:
    car_graph_range_destroy(graph, all);
    car_context_release(context, facts, cuts, sizeof *facts);
    car_costs_release(graph, &flops);
    car_partition_destroy(partition);
    return status;
}

/* Each stage is one operation, which holds its bytes from the start of its forward to the end of its backward. */
static void fill_uniform(car_partition *partition, double ratio) {
    int S = partition->stage_count;
    double forward = 1 / (S * (1 + ratio)), backward = ratio * forward;
    for (int j = 0; j < S; j++) {
        partition->stages[j] = (car_stage){.first = j,
                                           .end = j + 1,
                                           .forward = forward,
                                           .backward = backward,
                                           .held_bytes = UNIFORM_HELD,
                                           .boundary_bytes = j > 0 ? UNIFORM_BOUNDARY : 0,
                                           .weight_bytes = UNIFORM_WEIGHTS,
                                           .copy_bytes = UNIFORM_WEIGHTS};
        car_curve *curve = &partition->curve;
        int mirror = curve->events - 1 - j;
        curve->begin[j] = j * forward;
        curve->begin[mirror] = S * forward + (S - 1 - j) * backward;
        curve->during[j] = curve->during[mirror] = (size_t)(j + 1) * UNIFORM_HELD;
    }
    partition->held_bytes = partition->curve.peak = (size_t)S * UNIFORM_HELD;
    partition->longest_task = larger(forward, backward);
    partition->limit = (S + 1) / (2.0 * S);
    bundle_stages(partition);
}

car_status car_partition_create_uniform(car_context *context, int stages, double ratio, car_partition **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_partition *partition = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (!(ratio >= 0 && ratio <= 1e6)) { /* a backward of zero length is a useful limit to draw; NaN is not */
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "the ratio of backward to forward is %g; use 0 to 1e6",
                                ratio);
    }
    CAR_TRY(check_count(context, stages));
    CAR_TRY(create_empty(context, stages, &partition));
    partition->measure = CAR_MEASURE_FLOPS;
    partition->bundle_count = stages;
    CAR_TRY(car_context_allocate(context, (size_t)stages, sizeof *partition->bundles, &partition->bundles));
    CAR_TRY(car_curve_allocate(context, stages, 0, &partition->curve));
    fill_uniform(partition, ratio);
    *out = partition;
    partition = NULL;
done:
    car_partition_destroy(partition);
    return status;
}

void car_partition_destroy(car_partition *partition) {
    if (!partition) {
        return;
    }
    car_context *context = partition->context;
    car_curve_release(context, &partition->curve);
    car_recompute_destroy(partition->recompute);
    car_context_release(context, partition->bundles, (size_t)partition->bundle_count, sizeof *partition->bundles);
    car_context_release(context, partition->stages, (size_t)partition->stage_count, sizeof *partition->stages);
    car_context_release(context, partition, 1, sizeof *partition);
}
