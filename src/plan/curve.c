/* What operations hold and cost, and the life of one micro-batch in bytes.
 *
 * The curve follows the tape to the byte: inputs of the graph are fed before the first forward, an
 * operation's output and what it leaves for backward appear with its forward, gradients get their
 * buffers with the first operation that contributes to them, and everything goes at its last use.
 *
 *   bytes    during[L-1]  during[L]
 *     |         __--^--__
 *     |     __--         --__
 *     | __--                 --__
 *     +--------------------------- share of the step's cost
 *       F0 F1 ... F(L-1) B(L-1) ... B1 B0
 */
#include "base/base.h"
#include "plan/partition_internal.h"

/* ---- facts ----------------------------------------------------------------------------------- */

static size_t param_bytes(const car_graph *graph, int param) {
    return (size_t)car_shape_elements(car_graph_param(graph, param)->shape) * sizeof(float);
}

/* Parameters belong to their first user, held inputs of the graph to their first reader. One pass in
 * ascending order sees those first; `seen` marks what has been counted. */
static void count_first_uses(const car_graph *graph, bool *tensor_seen, bool *param_seen, car_op_facts *facts) {
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (!param_seen[op->params[p]]) {
                param_seen[op->params[p]] = true;
                facts[l].weight_bytes += param_bytes(graph, op->params[p]);
            }
        }
        for (int q = 0; q < op->input_count; q++) {
            const car_tensor *input = car_graph_tensor(graph, op->inputs[q]);
            if (input->producer == CAR_NONE && input->last_backward != CAR_NONE && !tensor_seen[op->inputs[q]]) {
                tensor_seen[op->inputs[q]] = true;
                facts[l].held_bytes += input->bytes;
            }
        }
    }
}

static void count_produced(const car_graph *graph, car_op_facts *facts) {
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        if (tensor->producer != CAR_NONE && tensor->last_backward != CAR_NONE) {
            facts[tensor->producer].held_bytes += tensor->bytes;
        }
    }
}

/* A tensor crosses the cuts in front of operations producer + 1 .. last_forward: it is added at the first and
 * taken away behind the last, and a running sum does the rest. Sizes wrap around on the way, not at the end. */
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
}

car_status car_curve_gather(const car_graph *graph, const car_costs *costs, car_op_facts *facts) {
    car_context *context = car_graph_context(graph);
    size_t tensors = (size_t)car_graph_tensor_count(graph), params = (size_t)car_graph_param_count(graph);
    bool *tensor_seen = NULL, *param_seen = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, tensors, sizeof *tensor_seen, &tensor_seen));
    CAR_TRY(car_context_allocate(context, params, sizeof *param_seen, &param_seen));
    count_first_uses(graph, tensor_seen, param_seen, facts);
    count_produced(graph, facts);
    count_crossing(graph, facts);
    double total = 0;
    for (int l = 0; l < costs->count; l++) {
        total += costs->forward[l] + costs->backward[l];
    }
    for (int l = 0; l < costs->count; l++) {
        facts[l].forward = costs->forward[l] / total;
        facts[l].backward = costs->backward[l] / total;
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

/* ---- the micro-batch ------------------------------------------------------------------------- */

/* Bytes of everything alive; 0 where it is not. */
typedef struct life {
    const car_graph *graph;
    size_t *tensors, *slots;
    size_t live;
} life;

static void make(life *a, size_t *block, size_t bytes) {
    *block = bytes;
    a->live += bytes;
}

static void drop(life *a, size_t *block) {
    a->live -= *block;
    *block = 0;
}

static void feed(life *a) {
    for (int v = 0; v < car_graph_tensor_count(a->graph); v++) {
        const car_tensor *tensor = car_graph_tensor(a->graph, v);
        if (tensor->producer == CAR_NONE) {
            make(a, &a->tensors[v], tensor->bytes);
        }
    }
}

static void drop_after_forward(life *a, int l, int tensor) {
    const car_tensor *t = car_graph_tensor(a->graph, tensor);
    if (t->last_forward == l && t->last_backward == CAR_NONE && tensor != car_graph_loss(a->graph)) {
        drop(a, &a->tensors[tensor]);
    }
}

static size_t forward(life *a, int l) {
    const car_op *op = car_graph_op(a->graph, l);
    make(a, &a->tensors[op->output], car_graph_tensor(a->graph, op->output)->bytes);
    if (op->aux != CAR_NONE) {
        make(a, &a->tensors[op->aux], car_graph_tensor(a->graph, op->aux)->bytes);
    }
    size_t during = a->live;
    for (int q = 0; q < op->input_count; q++) {
        drop_after_forward(a, l, op->inputs[q]);
    }
    drop_after_forward(a, l, op->output);
    if (op->aux != CAR_NONE) {
        drop_after_forward(a, l, op->aux);
    }
    return during;
}

/* The first contributor to a gradient finds no buffer and makes it. */
static void make_slot(life *a, int slot) {
    const car_grad_slot *s = car_graph_slot(a->graph, slot);
    if (a->slots[slot]) {
        return;
    }
    if (s->over_tensor != CAR_NONE) {
        a->slots[slot] = a->tensors[s->over_tensor]; /* changes hands, stays alive */
        a->tensors[s->over_tensor] = 0;
        return;
    }
    make(a, &a->slots[slot], s->bytes);
}

static void drop_after_backward(life *a, int l, int tensor) {
    const car_tensor *t = car_graph_tensor(a->graph, tensor);
    if (t->last_backward == l) {
        drop(a, &a->tensors[tensor]);
    }
    if (t->grad_slot != CAR_NONE && car_graph_slot(a->graph, t->grad_slot)->dies == l) {
        drop(a, &a->slots[t->grad_slot]);
    }
}

/* Operations in front of the first parameter make no gradients, and nothing is held for them: bytes stay as they are. */
static size_t backward(life *a, int l) {
    const car_op *op = car_graph_op(a->graph, l);
    if (op->output == car_graph_loss(a->graph)) {
        make_slot(a, car_graph_tensor(a->graph, op->output)->grad_slot);
    }
    for (int q = 0; q < op->input_count; q++) {
        if (op->grad_mode[q] == CAR_GRAD_WRITE || op->grad_mode[q] == CAR_GRAD_ADD) {
            make_slot(a, car_graph_tensor(a->graph, op->inputs[q])->grad_slot);
        }
    }
    size_t during = a->live;
    for (int q = 0; q < op->input_count; q++) {
        drop_after_backward(a, l, op->inputs[q]);
    }
    drop_after_backward(a, l, op->output);
    if (op->aux != CAR_NONE) {
        drop_after_backward(a, l, op->aux);
    }
    return during;
}

/* ---- the curve ------------------------------------------------------------------------------- */

car_status car_curve_allocate(car_context *context, int operations, car_curve *curve) {
    car_status status = CAR_OK;
    curve->events = 2 * operations;
    CAR_TRY(car_context_allocate(context, (size_t)curve->events, sizeof *curve->begin, &curve->begin));
    CAR_TRY(car_context_allocate(context, (size_t)curve->events, sizeof *curve->during, &curve->during));
done:
    return status;
}

void car_curve_release(car_context *context, car_curve *curve) {
    car_context_release(context, curve->during, (size_t)curve->events, sizeof *curve->during);
    car_context_release(context, curve->begin, (size_t)curve->events, sizeof *curve->begin);
    *curve = (car_curve){0};
}

car_status car_curve_trace(const car_graph *graph, const car_op_facts *facts, car_curve *curve) {
    car_context *context = car_graph_context(graph);
    size_t tensors = (size_t)car_graph_tensor_count(graph), slots = (size_t)car_graph_slot_count(graph);
    int operations = car_graph_op_count(graph);
    life a = {.graph = graph};
    car_status status = CAR_OK;
    CAR_TRY(car_curve_allocate(context, operations, curve));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *a.tensors, &a.tensors));
    CAR_TRY(car_context_allocate(context, slots, sizeof *a.slots, &a.slots));
    feed(&a);
    double before = 0;
    for (int e = 0; e < curve->events; e++) {
        bool is_forward = e < operations;
        int l = is_forward ? e : curve->events - 1 - e;
        curve->begin[e] = before;
        curve->during[e] = is_forward ? forward(&a, l) : backward(&a, l);
        curve->peak = curve->during[e] > curve->peak ? curve->during[e] : curve->peak;
        before += is_forward ? facts[l].forward : facts[l].backward;
    }
done:
    car_context_release(context, a.slots, slots, sizeof *a.slots);
    car_context_release(context, a.tensors, tensors, sizeof *a.tensors);
    return status;
}
