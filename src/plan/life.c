/* The life of a micro-batch in bytes.
 *
 * It follows the tape to the byte: inputs of the graph are fed before the first forward, an operation's
 * output and what it leaves for backward appear with its forward, gradients get their buffers with the
 * first operation that contributes to them, and everything goes at its last use here. What crosses to
 * another rank goes when it was handed on, unless backward wants it. */
#include "plan/life.h"

#include "base/base.h"

car_status car_life_open(const car_graph *graph, const car_graph_range *range, car_life *out) {
    car_context *context = car_graph_context(graph);
    car_status status = CAR_OK;
    *out = (car_life){.graph = graph, .range = range};
    CAR_TRY(car_context_allocate(context, (size_t)car_graph_tensor_count(graph), sizeof *out->tensors, &out->tensors));
    CAR_TRY(car_context_allocate(context, (size_t)car_graph_slot_count(graph), sizeof *out->slots, &out->slots));
done:
    return status;
}

void car_life_release(car_life *life) {
    if (!life->graph) {
        return;
    }
    car_context *context = car_graph_context(life->graph);
    car_context_release(context, life->slots, (size_t)car_graph_slot_count(life->graph), sizeof *life->slots);
    car_context_release(context, life->tensors, (size_t)car_graph_tensor_count(life->graph), sizeof *life->tensors);
    *life = (car_life){0};
}

static void make(car_life *a, size_t *block, size_t bytes) {
    a->live += bytes - *block;
    *block = bytes;
}

static void drop(car_life *a, size_t *block) {
    make(a, block, 0);
}

void car_life_clear(car_life *a) {
    for (int v = 0; v < car_graph_tensor_count(a->graph); v++) {
        a->tensors[v] = 0;
    }
    for (int s = 0; s < car_graph_slot_count(a->graph); s++) {
        a->slots[s] = 0;
    }
    a->live = 0;
}

void car_life_feed(car_life *a) {
    for (int v = 0; v < car_graph_tensor_count(a->graph); v++) {
        const car_tensor *tensor = car_graph_tensor(a->graph, v);
        if (tensor->producer == CAR_NONE && a->range->last_forward[v] != CAR_NONE) {
            make(a, &a->tensors[v], tensor->bytes);
        }
    }
}

/* ---- operations ------------------------------------------------------------------------------- */

static void drop_after_forward(car_life *a, int l, int tensor) {
    bool held = a->range->last_backward[tensor] != CAR_NONE, leaves = a->range->crosses[tensor];
    if (a->range->last_forward[tensor] == l && !held && !leaves && tensor != car_graph_loss(a->graph)) {
        drop(a, &a->tensors[tensor]);
    }
}

size_t car_life_forward(car_life *a, int l) {
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
static void make_slot(car_life *a, int l, int slot) {
    const car_grad_slot *s = car_graph_slot(a->graph, slot);
    if (a->slots[slot] || s->born != l) {
        return;
    }
    if (s->over_tensor != CAR_NONE) {
        a->slots[slot] = a->tensors[s->over_tensor]; /* changes hands, stays alive */
        a->tensors[s->over_tensor] = 0;
        return;
    }
    make(a, &a->slots[slot], s->bytes);
}

static void drop_after_backward(car_life *a, int l, int tensor) {
    const car_tensor *t = car_graph_tensor(a->graph, tensor);
    if (a->range->last_backward[tensor] == l) {
        drop(a, &a->tensors[tensor]);
    }
    if (t->grad_slot != CAR_NONE && car_graph_slot(a->graph, t->grad_slot)->dies == l) {
        drop(a, &a->slots[t->grad_slot]);
    }
}

/* Operations in front of the first parameter make no gradients, and nothing is held for them: bytes stay as they are. */
size_t car_life_backward(car_life *a, int l) {
    const car_op *op = car_graph_op(a->graph, l);
    if (op->output == car_graph_loss(a->graph)) {
        make_slot(a, l, car_graph_tensor(a->graph, op->output)->grad_slot);
    }
    for (int q = 0; q < op->input_count; q++) {
        if (op->grad_mode[q] == CAR_GRAD_WRITE || op->grad_mode[q] == CAR_GRAD_ADD) {
            make_slot(a, l, car_graph_tensor(a->graph, op->inputs[q])->grad_slot);
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

/* ---- crossing --------------------------------------------------------------------------------- */

void car_life_import(car_life *a, bool gradient) {
    const int *tensors = gradient ? a->range->above : a->range->below;
    for (int c = 0; c < (gradient ? a->range->above_count : a->range->below_count); c++) {
        const car_tensor *tensor = car_graph_tensor(a->graph, tensors[c]);
        if (!gradient) {
            make(a, &a->tensors[tensors[c]], tensor->bytes);
        } else if (tensor->grad_slot != CAR_NONE && !a->slots[tensor->grad_slot]) {
            make(a, &a->slots[tensor->grad_slot], car_graph_slot(a->graph, tensor->grad_slot)->bytes);
        }
    }
}

void car_life_export(car_life *a, bool gradient) {
    const int *tensors = gradient ? a->range->below : a->range->above;
    for (int c = 0; c < (gradient ? a->range->below_count : a->range->above_count); c++) {
        int slot = car_graph_tensor(a->graph, tensors[c])->grad_slot;
        if (gradient && slot != CAR_NONE) {
            drop(a, &a->slots[slot]);
        } else if (!gradient && a->range->last_backward[tensors[c]] == CAR_NONE) {
            drop(a, &a->tensors[tensors[c]]);
        }
    }
}
