/* Part of the graph on one rank: how long tensors live there, and what crosses to the neighbours.
 *
 *   ops   0 ... first ........ end ...
 *   a     ======|==r                      read here for the last time: dropped then, unless backward wants it
 *   b           p====|=====r              made here, read above: held until it was sent, or longer for backward
 *   c     ======|====|=====r              passes through
 */
#include <string.h>

#include "base/base.h"
#include "engine/internal.h"

static void note_forward(car_tape_range *range, int tensor, int l) {
    if (tensor != CAR_NONE) {
        range->last_forward[tensor] = l;
    }
}

static void note_backward(car_tape_range *range, int tensor, int l) {
    range->last_backward[tensor] = l; /* called in descending order: the lowest has the last word */
}

static void find_lifetimes(const car_graph *graph, car_tape_range *range) {
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        range->last_forward[v] = range->last_backward[v] = CAR_NONE;
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
        if (car_graph_tensor(graph, op->output)->grad_slot == CAR_NONE) {
            continue; /* has no backward */
        }
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
}

static car_status list_crossing(car_context *context, const car_graph *graph, int cut, int **out, int *count) {
    *count = car_graph_crossing(graph, cut, NULL, 0);
    car_status status = car_context_allocate(context, (size_t)*count, sizeof **out, out);
    if (status == CAR_OK) {
        car_graph_crossing(graph, cut, *out, *count);
    }
    return status;
}

car_status car_tape_range_create(const car_program *program, int first, int end, car_tape_range **out) {
    car_context *context = car_program_context(program);
    const car_graph *graph = car_program_graph(program);
    size_t tensors = (size_t)car_graph_tensor_count(graph);
    car_tape_range *range = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *range, &range));
    range->first = first;
    range->end = end;
    CAR_TRY(car_context_allocate(context, tensors, sizeof(int), &range->last_forward));
    CAR_TRY(car_context_allocate(context, tensors, sizeof(int), &range->last_backward));
    CAR_TRY(car_context_allocate(context, tensors, sizeof(bool), &range->crosses));
    CAR_TRY(list_crossing(context, graph, first, &range->below, &range->below_count));
    CAR_TRY(list_crossing(context, graph, end, &range->above, &range->above_count));
    find_lifetimes(graph, range);
    *out = range;
    range = NULL;
done:
    car_tape_range_destroy(program, range);
    return status;
}

void car_tape_range_destroy(const car_program *program, car_tape_range *range) {
    if (!range) {
        return;
    }
    car_context *context = car_program_context(program);
    size_t tensors = (size_t)car_graph_tensor_count(car_program_graph(program));
    car_context_release(context, range->above, (size_t)range->above_count, sizeof(int));
    car_context_release(context, range->below, (size_t)range->below_count, sizeof(int));
    car_context_release(context, range->crosses, tensors, sizeof(bool));
    car_context_release(context, range->last_backward, tensors, sizeof(int));
    car_context_release(context, range->last_forward, tensors, sizeof(int));
    car_context_release(context, range, 1, sizeof *range);
}

bool car_tape_range_reads_inputs(const car_program *program, const car_tape_range *range) {
    const car_graph *graph = car_program_graph(program);
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        if (car_graph_tensor(graph, v)->producer == CAR_NONE && range->last_forward[v] != CAR_NONE) {
            return true;
        }
    }
    return false;
}

size_t car_tape_range_bytes(const car_program *program, const car_tape_range *range, bool above) {
    const int *tensors = above ? range->above : range->below;
    size_t bytes = 0;
    for (int c = 0; c < (above ? range->above_count : range->below_count); c++) {
        bytes += car_program_tensor_bytes(program, tensors[c]);
    }
    return bytes;
}

/* ---- crossing -------------------------------------------------------------------------------- */

static car_status import_tensor(car_tape *tape, int tensor, const void *data, size_t bytes) {
    car_status status = car_arena_allocate(tape->arena, CAR_MEMORY_ACTIVATIONS, bytes, &tape->tensors[tensor]);
    if (status == CAR_OK) {
        memcpy(tape->tensors[tensor], data, bytes);
    }
    return status;
}

/* Two tensors may share the buffer of their gradient; then both parts of the message are the same. */
static car_status import_gradient(car_tape *tape, int tensor, const void *data, size_t bytes) {
    int slot = car_graph_tensor(car_program_graph(tape->program), tensor)->grad_slot;
    if (slot == CAR_NONE || tape->slots[slot]) {
        return CAR_OK;
    }
    car_status status = car_arena_allocate(tape->arena, CAR_MEMORY_ACTIVATIONS,
                                           car_program_slot_bytes(tape->program, slot), &tape->slots[slot]);
    if (status == CAR_OK) {
        memcpy(tape->slots[slot], data, bytes);
    }
    return status;
}

car_status car_tape_import(car_tape *tape, bool gradient, const void *data) {
    const car_tape_range *range = tape->range;
    const int *tensors = gradient ? range->above : range->below;
    const char *at = data;
    car_status status = CAR_OK;
    for (int c = 0; status == CAR_OK && c < (gradient ? range->above_count : range->below_count); c++) {
        size_t bytes = car_program_tensor_bytes(tape->program, tensors[c]);
        status = gradient ? import_gradient(tape, tensors[c], at, bytes) : import_tensor(tape, tensors[c], at, bytes);
        at += bytes;
    }
    return status;
}

static void drop(car_tape *tape, void **block) {
    car_arena_release(tape->arena, *block);
    *block = NULL;
}

void car_tape_export(car_tape *tape, bool gradient, void *data) {
    const car_tape_range *range = tape->range;
    const car_graph *graph = car_program_graph(tape->program);
    const int *tensors = gradient ? range->below : range->above;
    int count = gradient ? range->below_count : range->above_count;
    char *at = data;
    for (int c = 0; c < count; c++) {
        size_t bytes = car_program_tensor_bytes(tape->program, tensors[c]);
        int slot = car_graph_tensor(graph, tensors[c])->grad_slot;
        const void *from = !gradient ? tape->tensors[tensors[c]] : slot != CAR_NONE ? tape->slots[slot] : NULL;
        if (from) {
            memcpy(at, from, bytes);
        } else {
            memset(at, 0, bytes); /* nobody needs its gradient */
        }
        at += bytes;
    }
    for (int c = 0; c < count; c++) {
        int slot = car_graph_tensor(graph, tensors[c])->grad_slot;
        if (gradient && slot != CAR_NONE) {
            drop(tape, &tape->slots[slot]);
        } else if (!gradient && range->last_backward[tensors[c]] == CAR_NONE) {
            drop(tape, &tape->tensors[tensors[c]]);
        }
    }
}
