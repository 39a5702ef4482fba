/* Finds the operations that run again from the tensors that are dropped; see recompute.h.
 *
 *   forward    x ─► norm ─► a ─► linear ─► b ─► gelu ─► c ─► linear       a, b, c are dropped, x is held
 *   backward   of the last linear: norm, linear and gelu run again, in this order, then c is there
 *              of gelu, of the first linear, of norm: b and a are there already, and are dropped one after the other */
#include "graph/recompute.h"

#include "base/base.h"

/* The state of the walk through the backward pass. */
typedef struct walk {
    car_recompute *r;
    const int *stage_first;
    bool *wanted; /* by operation: it must run again before the current backward */
} walk;

static bool runs_backward(const car_graph *graph, const car_op *op) {
    return car_graph_tensor(graph, op->output)->grad_buffer != CAR_NONE;
}

/* True if a tensor must be recomputed before the backward of an operation whose stage begins at `first`. */
static bool is_missing(const walk *w, int tensor, int first) {
    const car_tensor *t = car_graph_tensor(w->r->graph, tensor);
    if (t->producer == CAR_NONE || t->producer < first || w->r->made_at[t->producer] != CAR_NONE ||
        !car_recompute_may_run(car_graph_op(w->r->graph, t->producer))) {
        return false;
    }
    return t->last_backward == CAR_NONE || w->r->dropped[tensor];
}

/* Marks the producer of a tensor. Returns the number of newly marked operations. */
static int want(walk *w, int tensor, int first) {
    if (!is_missing(w, tensor, first)) {
        return 0;
    }
    bool *wanted = &w->wanted[car_graph_tensor(w->r->graph, tensor)->producer];
    int more = !*wanted;
    *wanted = true;
    return more;
}

/* The tensor's gradient would be written over it at the backward of `born`. With recomputation the tensor may be
 * read later than that, so the gradient then needs its own buffer. */
static void keep_apart(walk *w, int tensor, int l) {
    int buffer = car_graph_tensor(w->r->graph, tensor)->grad_buffer;
    if (buffer != CAR_NONE) {
        const car_grad_buffer *s = car_graph_grad_buffer(w->r->graph, buffer);
        w->r->own_grad_buffer[buffer] = w->r->own_grad_buffer[buffer] || (s->over_tensor == tensor && s->born > l);
    }
}

/* Lists what runs again before the backward of operation l. It marks operations downwards, from what the backward
 * reads to what is there, and then lists them upwards. */
static void list_before(walk *w, int l) {
    car_recompute *r = w->r;
    const car_op *op = car_graph_op(r->graph, l);
    int first = w->stage_first[l], open = 0, lowest = l + 1;
    for (int q = 0; q < op->input_count; q++) {
        open += op->saves_input[q] ? want(w, op->inputs[q], first) : 0;
    }
    open += op->saves_output ? want(w, op->output, first) : 0;
    for (int m = l; open > 0; m--) {
        if (w->wanted[m]) {
            const car_op *again = car_graph_op(r->graph, m);
            for (int q = 0; q < again->input_count; q++) {
                open += want(w, again->inputs[q], first);
            }
            open--;
            lowest = m;
        }
    }
    r->first_again[l] = r->again_count;
    for (int m = lowest; m <= l; m++) {
        if (w->wanted[m]) {
            const car_op *again = car_graph_op(r->graph, m);
            for (int q = 0; q < again->input_count; q++) {
                keep_apart(w, again->inputs[q], l);
            }
            w->wanted[m] = false;
            r->made_at[m] = r->again_count;
            r->again[r->again_count++] = m;
        }
    }
    r->counts[l] = r->again_count - r->first_again[l];
}

car_status car_recompute_create(const car_graph *graph, const bool *dropped, const int *stage_first,
                                car_recompute **out) {
    car_context *context = car_graph_context(graph);
    size_t ops = (size_t)car_graph_op_count(graph), tensors = (size_t)car_graph_tensor_count(graph);
    size_t grad_buffers = (size_t)car_graph_grad_buffer_count(graph);
    car_recompute *r = NULL;
    walk w = {.stage_first = stage_first};
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *r, &r));
    r->graph = graph;
    CAR_TRY(car_context_allocate(context, tensors, sizeof *r->dropped, &r->dropped));
    CAR_TRY(car_context_allocate(context, ops, sizeof *r->again, &r->again));
    CAR_TRY(car_context_allocate(context, ops, sizeof *r->first_again, &r->first_again));
    CAR_TRY(car_context_allocate(context, ops, sizeof *r->counts, &r->counts));
    CAR_TRY(car_context_allocate(context, ops, sizeof *r->made_at, &r->made_at));
    CAR_TRY(car_context_allocate(context, grad_buffers, sizeof *r->own_grad_buffer, &r->own_grad_buffer));
    CAR_TRY(car_context_allocate(context, ops, sizeof *w.wanted, &w.wanted));
    for (size_t v = 0; v < tensors; v++) {
        r->dropped[v] = dropped[v];
    }
    for (size_t l = 0; l < ops; l++) {
        r->made_at[l] = CAR_NONE;
    }
    w.r = r;
    for (int l = (int)ops - 1; l >= 0; l--) {
        if (runs_backward(graph, car_graph_op(graph, l))) {
            list_before(&w, l);
        }
    }
    *out = r;
    r = NULL;
done:
    car_context_release(context, w.wanted, ops, sizeof *w.wanted);
    car_recompute_destroy(r);
    return status;
}

void car_recompute_destroy(car_recompute *recompute) {
    if (!recompute) {
        return;
    }
    const car_graph *graph = recompute->graph;
    car_context *context = car_graph_context(graph);
    size_t ops = (size_t)car_graph_op_count(graph), tensors = (size_t)car_graph_tensor_count(graph);
    car_context_release(context, recompute->own_grad_buffer, (size_t)car_graph_grad_buffer_count(graph),
                        sizeof *recompute->own_grad_buffer);
    car_context_release(context, recompute->made_at, ops, sizeof *recompute->made_at);
    car_context_release(context, recompute->counts, ops, sizeof *recompute->counts);
    car_context_release(context, recompute->first_again, ops, sizeof *recompute->first_again);
    car_context_release(context, recompute->again, ops, sizeof *recompute->again);
    car_context_release(context, recompute->dropped, tensors, sizeof *recompute->dropped);
    car_context_release(context, recompute, 1, sizeof *recompute);
}

bool car_recompute_may_run(const car_op *op) {
    return op->kind != CAR_OP_STAGE && op->kind != CAR_OP_CARRY;
}

bool car_recompute_may_drop(const car_graph *graph, int tensor, int stage_end) {
    const car_tensor *t = car_graph_tensor(graph, tensor);
    const car_op *op = t->producer != CAR_NONE ? car_graph_op(graph, t->producer) : NULL;
    bool made = op && op->output == tensor && car_recompute_may_run(op);
    return made && t->last_backward != CAR_NONE && t->last_forward < stage_end;
}
