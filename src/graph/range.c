/* The part of a graph that one rank runs: how long tensors live there, and what crosses to the neighbours.
 *
 *   ops   0 ... first ........ end ...
 *   a     ======|==r                      read here for the last time: then dropped, unless backward needs it
 *   b           p====|=====r              made here, read above: held until it was sent, or longer for backward
 *   c     ======|====|=====r              passes through */
#include "graph/range.h"

#include "base/base.h"
#include "carousel/stage.h"

static void note_forward(car_graph_range *range, int tensor, int l) {
    if (tensor != CAR_NONE) {
        range->last_forward[tensor] = l;
    }
}

static void note_backward(car_graph_range *range, int tensor, int l) {
    range->last_backward[tensor] = l; /* called in descending order: the lowest decides */
    range->last_again[tensor] = CAR_NONE;
}

/* The operations that run again before the backward of l read their inputs once more. */
static void note_again(const car_graph *graph, car_graph_range *range, int l) {
    int first = 0, count = car_graph_range_again(range, l, &first);
    for (int i = first; i < first + count; i++) {
        const car_op *op = car_graph_op(graph, range->recompute->again[i]);
        for (int q = 0; q < op->input_count; q++) {
            range->last_again[op->inputs[q]] = i;
            range->last_backward[op->inputs[q]] = CAR_NONE;
        }
    }
}

/* What backward needs is held, unless it is recomputed here. */
static bool is_held(const car_graph *graph, const car_graph_range *range, int tensor) {
    int producer = car_graph_tensor(graph, tensor)->producer;
    bool needed = range->last_backward[tensor] != CAR_NONE || range->last_again[tensor] != CAR_NONE;
    bool made_again = range->recompute && producer >= range->first && producer < range->end &&
                      range->recompute->made_at[producer] != CAR_NONE &&
                      car_graph_op(graph, producer)->output == tensor;
    return needed && !made_again;
}

static void find_lifetimes(const car_graph *graph, car_graph_range *range) {
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        range->last_forward[v] = range->last_backward[v] = range->last_again[v] = CAR_NONE;
        range->crosses[v] =
            tensor->producer != CAR_NONE && tensor->producer < range->end && tensor->last_forward >= range->end;
    }
    for (int l = range->first; l < range->end; l++) {
        const car_op *op = car_graph_op(graph, l);
        note_forward(range, op->output, l);
        note_forward(range, op->aux, l);
        for (int q = 0; q < op->input_count; q++) {
            note_forward(range, op->inputs[q], l);
        }
    }
    for (int l = range->end - 1; l >= range->first; l--) {
        const car_op *op = car_graph_op(graph, l);
        if (car_graph_tensor(graph, op->output)->grad_buffer == CAR_NONE) {
            continue; /* has no backward */
        }
        note_again(graph, range, l);
        for (int q = 0; q < op->input_count; q++) {
            if (op->saves_input[q]) {
                note_backward(range, op->inputs[q], l);
            }
        }
        if (op->saves_output) {
            note_backward(range, op->output, l);
        }
        if (op->aux != CAR_NONE) {
            note_backward(range, op->aux, l);
        }
    }
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        range->held[v] = is_held(graph, range, v);
    }
}

static car_status list_crossing(car_context *context, const car_graph *graph, int cut, int **out, int *count) {
    *count = car_graph_crossing(graph, cut, NULL, 0);
    car_status status = car_context_allocate(context, (size_t)*count, sizeof **out, out);
    if (status == CAR_OK) {
        car_graph_crossing(graph, cut, *out, *count);
    }
    return status;
}

car_status car_graph_range_create(const car_graph *graph, int first, int end, const car_recompute *recompute,
                                  car_graph_range **out) {
    car_context *context = car_graph_context(graph);
    size_t tensors = (size_t)car_graph_tensor_count(graph);
    car_graph_range *range = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *range, &range));
    range->first = first;
    range->end = end;
    range->recompute = recompute;
    CAR_TRY(car_context_allocate(context, tensors, sizeof(int), &range->last_forward));
    CAR_TRY(car_context_allocate(context, tensors, sizeof(int), &range->last_backward));
    CAR_TRY(car_context_allocate(context, tensors, sizeof(int), &range->last_again));
    CAR_TRY(car_context_allocate(context, tensors, sizeof(bool), &range->held));
    CAR_TRY(car_context_allocate(context, tensors, sizeof(bool), &range->crosses));
    CAR_TRY(list_crossing(context, graph, first, &range->below, &range->below_count));
    CAR_TRY(list_crossing(context, graph, end, &range->above, &range->above_count));
    find_lifetimes(graph, range);
    *out = range;
    range = NULL;
done:
    car_graph_range_destroy(graph, range);
    return status;
}

void car_graph_range_destroy(const car_graph *graph, car_graph_range *range) {
    if (!range) {
        return;
    }
    car_context *context = car_graph_context(graph);
    size_t tensors = (size_t)car_graph_tensor_count(graph);
    car_context_release(context, range->above, (size_t)range->above_count, sizeof(int));
    car_context_release(context, range->below, (size_t)range->below_count, sizeof(int));
    car_context_release(context, range->crosses, tensors, sizeof(bool));
    car_context_release(context, range->held, tensors, sizeof(bool));
    car_context_release(context, range->last_again, tensors, sizeof(int));
    car_context_release(context, range->last_backward, tensors, sizeof(int));
    car_context_release(context, range->last_forward, tensors, sizeof(int));
    car_context_release(context, range, 1, sizeof *range);
}

size_t car_graph_crossing_loss(const car_graph *graph, int cut) {
    for (int l = 0; l < car_graph_op_count(graph) && cut > 0 && cut < car_graph_op_count(graph); l++) {
        if (car_graph_op(graph, l)->kind == CAR_OP_STAGE) {
            return sizeof(double);
        }
    }
    return 0;
}

size_t car_op_rebuilt_bytes(const car_op *op) {
    return op->kind == CAR_OP_STAGE ? op->config.stage.own->rebuilt_bytes : 0;
}

bool car_graph_range_reads_inputs(const car_graph *graph, const car_graph_range *range) {
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        if (car_graph_tensor(graph, v)->producer == CAR_NONE && range->last_forward[v] != CAR_NONE) {
            return true;
        }
    }
    return false;
}

int car_graph_range_again(const car_graph_range *range, int l, int *first) {
    *first = range->recompute ? range->recompute->first_again[l] : 0;
    return range->recompute ? range->recompute->counts[l] : 0;
}

bool car_graph_range_takes_over(const car_graph_range *range, const car_graph *graph, int buffer) {
    bool own = range && range->recompute && range->recompute->own_grad_buffer[buffer];
    return car_graph_grad_buffer(graph, buffer)->over_tensor != CAR_NONE && !own;
}
