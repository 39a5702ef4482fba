/* Gathers what each operation holds and costs, and traces the memory of one micro-batch over its step (the curve).
 *
 * The curve follows the tape to the byte (life.c), with the whole graph in one place.
 *
 *   bytes    during[L-1]  during[L]
 *     |         __--^--__
 *     |     __--         --__
 *     | __--                 --__
 *     +--------------------------- share of the step's cost
 *       F0 F1 ... F(L-1) B(L-1) ... B1 B0 */
#include "base/base.h"
#include "plan/life.h"
#include "plan/partition_internal.h"

/* ---- facts ----------------------------------------------------------------------------------- */

/* Parameters count for their first user, held graph inputs for their first reader. Operations are visited in
 * ascending order; `seen` marks what was counted. */
static void count_first_uses(const car_graph *graph, const car_graph_range *all, bool *tensor_seen, bool *param_seen,
                             car_op_facts *facts) {
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (!param_seen[op->params[p]]) {
                param_seen[op->params[p]] = true;
                const car_param *param = car_graph_param(graph, op->params[p]);
                facts[l].weight_bytes += car_param_bytes(param);
                facts[l].copy_bytes += car_param_copy_bytes(param);
            }
        }
        for (int q = 0; q < op->input_count; q++) {
            const car_tensor *input = car_graph_tensor(graph, op->inputs[q]);
            if (input->producer == CAR_NONE && all->held[op->inputs[q]] && !tensor_seen[op->inputs[q]]) {
                tensor_seen[op->inputs[q]] = true;
                facts[l].held_bytes += input->bytes;
            }
        }
    }
}

static void count_produced(const car_graph *graph, const car_graph_range *all, car_op_facts *facts) {
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        if (tensor->producer != CAR_NONE && all->held[v]) {
            facts[tensor->producer].held_bytes += tensor->bytes;
        }
    }
}

/* A tensor crosses the cuts before operations producer + 1 .. last_forward. Its bytes are added at the first,
 * subtracted after the last, and summed up afterwards. Unsigned sizes may wrap around in between, but not in the
 * sum. */
static void count_crossing(const car_graph *graph, car_op_facts *facts) {
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        if (tensor->producer != CAR_NONE) {
            facts[tensor->producer + 1].crossing_bytes += tensor->bytes;
            facts[tensor->last_forward + 1].crossing_bytes -= tensor->bytes;
        }
    }
    for (int l = 1; l <= car_graph_op_count(graph); l++) {
        facts[l].crossing_bytes += facts[l - 1].crossing_bytes;
    }
    for (int l = 1; l < car_graph_op_count(graph); l++) {
        facts[l].crossing_bytes += car_graph_crossing_loss(graph, l);
    }
}

/* The cost of the backward of operation l, including what is recomputed before it. */
static double backward_cost(const car_graph_range *all, const car_costs *costs, int l) {
    int first = 0, count = car_graph_range_again(all, l, &first);
    double cost = costs->backward[l];
    for (int i = first; i < first + count; i++) {
        cost += costs->forward[all->recompute->again[i]];
    }
    return cost;
}

static double total_cost(const car_graph_range *all, const car_costs *costs) {
    double total = 0;
    for (int l = 0; l < costs->count; l++) {
        total += costs->forward[l] + backward_cost(all, costs, l);
    }
    return total;
}

car_status car_curve_gather(const car_graph *graph, const car_graph_range *all, const car_costs *costs,
                            car_op_facts *facts) {
    car_context *context = car_graph_context(graph);
    size_t tensors = (size_t)car_graph_tensor_count(graph), params = (size_t)car_graph_param_count(graph);
    bool *tensor_seen = NULL, *param_seen = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, tensors, sizeof *tensor_seen, &tensor_seen));
    CAR_TRY(car_context_allocate(context, params, sizeof *param_seen, &param_seen));
    count_first_uses(graph, all, tensor_seen, param_seen, facts);
    count_produced(graph, all, facts);
    count_crossing(graph, facts);
    double total = total_cost(all, costs);
    for (int l = 0; l < costs->count; l++) {
        facts[l].forward = costs->forward[l] / total;
        facts[l].backward = backward_cost(all, costs, l) / total;
    }
done:
    car_context_release(context, param_seen, params, sizeof *param_seen);
    car_context_release(context, tensor_seen, tensors, sizeof *tensor_seen);
    return status;
}

double car_curve_limit(const car_op_facts *facts, int count) {
    double forward = 0, before = 0, held = 0, weighted = 0;
    for (int l = 0; l < count; l++) {
        forward += facts[l].forward;
    }
    for (int l = 0; l < count; l++) {
        held += (double)facts[l].held_bytes;
        weighted += (double)facts[l].held_bytes * (1 - before / forward);
        before += facts[l].forward;
    }
    return held > 0 ? weighted / held : 1;
}

/* ---- the curve ------------------------------------------------------------------------------- */

car_status car_curve_allocate(car_context *context, int operations, int again, car_curve *curve) {
    car_status status = CAR_OK;
    curve->operations = operations;
    curve->events = 2 * operations + again;
    CAR_TRY(car_context_allocate(context, (size_t)curve->events, sizeof *curve->begin, &curve->begin));
    CAR_TRY(car_context_allocate(context, (size_t)curve->events, sizeof *curve->during, &curve->during));
    CAR_TRY(car_context_allocate(context, (size_t)operations + 1, sizeof *curve->back, &curve->back));
    for (int l = -1; l < operations; l++) {
        curve->back[l + 1] = curve->events - 1 - l; /* if nothing is recomputed */
    }
done:
    return status;
}

void car_curve_release(car_context *context, car_curve *curve) {
    car_context_release(context, curve->back, (size_t)curve->operations + 1, sizeof *curve->back);
    car_context_release(context, curve->during, (size_t)curve->events, sizeof *curve->during);
    car_context_release(context, curve->begin, (size_t)curve->events, sizeof *curve->begin);
    *curve = (car_curve){0};
}

int car_curve_backward(const car_curve *curve, int l) {
    return curve->back[l + 1];
}

/* Appends events to a curve, in units of the costs. */
typedef struct pen {
    car_curve *curve;
    int event;
    double before, total;
} pen;

static void draw(pen *p, size_t during, double cost) {
    car_curve *curve = p->curve;
    curve->begin[p->event] = p->before;
    curve->during[p->event] = during;
    curve->peak = during > curve->peak ? during : curve->peak;
    p->before += cost / p->total;
    p->event++;
}

car_status car_curve_trace(const car_graph *graph, const car_graph_range *all, const car_costs *costs,
                           car_curve *curve) {
    int operations = car_graph_op_count(graph);
    pen p = {.curve = curve, .total = total_cost(all, costs)};
    car_life a = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_curve_allocate(car_graph_context(graph), operations, all->recompute ? all->recompute->again_count : 0,
                               curve));
    CAR_TRY(car_life_open(graph, all, &a));
    car_life_feed(&a);
    for (int l = 0; l < operations; l++) {
        draw(&p, car_life_forward(&a, l), costs->forward[l]);
    }
    for (int l = operations - 1; l >= 0; l--) {
        int first = 0, count = car_graph_range_again(all, l, &first);
        curve->back[l + 1] = p.event;
        for (int i = first; i < first + count; i++) {
            draw(&p, car_life_again(&a, i), costs->forward[all->recompute->again[i]]);
        }
        draw(&p, car_life_backward(&a, l), costs->backward[l]);
    }
done:
    car_life_release(&a);
    return status;
}

car_status car_curve_find_peak(const car_graph *graph, const car_graph_range *all, size_t *peak) {
    int operations = car_graph_op_count(graph);
    car_life a = {0};
    car_status status = CAR_OK;
    *peak = 0;
    CAR_TRY(car_life_open(graph, all, &a));
    car_life_feed(&a);
    for (int e = 0; e < 2 * operations; e++) {
        size_t during = e < operations ? car_life_forward(&a, e) : car_life_backward_whole(&a, 2 * operations - 1 - e);
        *peak = during > *peak ? during : *peak;
    }
done:
    car_life_release(&a);
    return status;
}
