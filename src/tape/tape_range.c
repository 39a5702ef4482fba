/* Copies what crosses between the tapes of two ranks that run neighbouring parts of the graph (graph/range.h). */
#include <string.h>

#include "base/base.h"
#include "tape/internal.h"

size_t car_tape_range_bytes(const car_program *program, const car_graph_range *range, bool above) {
    const int *tensors = above ? range->above : range->below;
    size_t bytes = 0;
    for (int c = 0; c < (above ? range->above_count : range->below_count); c++) {
        bytes += car_program_tensor_bytes(program, tensors[c]);
    }
    return bytes + car_graph_crossing_loss(car_program_graph(program), above ? range->end : range->first);
}

/* ---- crossing -------------------------------------------------------------------------------- */

static car_status import_tensor(car_tape *tape, int tensor, const void *data, size_t bytes) {
    car_status status = car_tape_make(tape, bytes, &tape->tensors[tensor]);
    if (status == CAR_OK) {
        memcpy(tape->tensors[tensor], data, bytes);
    }
    return status;
}

/* Two tensors may share the buffer of their gradient; then both parts of the message are the same. */
static car_status import_gradient(car_tape *tape, int tensor, const void *data, size_t bytes) {
    int buffer = car_graph_tensor(car_program_graph(tape->program), tensor)->grad_buffer;
    if (buffer == CAR_NONE || tape->grad_buffers[buffer]) {
        return CAR_OK;
    }
    car_status status =
        car_tape_make(tape, car_program_grad_buffer_bytes(tape->program, buffer), &tape->grad_buffers[buffer]);
    if (status == CAR_OK) {
        memcpy(tape->grad_buffers[buffer], data, bytes);
    }
    return status;
}

car_status car_tape_import(car_tape *tape, bool gradient, const void *data) {
    const car_graph_range *range = tape->range;
    const int *tensors = gradient ? range->above : range->below;
    const char *at = data;
    car_status status = CAR_OK;
    for (int c = 0; status == CAR_OK && c < (gradient ? range->above_count : range->below_count); c++) {
        size_t bytes = car_program_tensor_bytes(tape->program, tensors[c]);
        status = gradient ? import_gradient(tape, tensors[c], at, bytes) : import_tensor(tape, tensors[c], at, bytes);
        at += bytes;
    }
    int cut = gradient ? range->end : range->first;
    if (car_graph_crossing_loss(car_program_graph(tape->program), cut) > 0) {
        memcpy(gradient ? &tape->loss : &tape->added, at, sizeof tape->added);
    }
    return status;
}

void car_tape_export(car_tape *tape, bool gradient, void *data) {
    const car_graph_range *range = tape->range;
    const car_graph *graph = car_program_graph(tape->program);
    const int *tensors = gradient ? range->below : range->above;
    int count = gradient ? range->below_count : range->above_count;
    char *at = data;
    for (int c = 0; c < count; c++) {
        size_t bytes = car_program_tensor_bytes(tape->program, tensors[c]);
        int buffer = car_graph_tensor(graph, tensors[c])->grad_buffer;
        const void *from = !gradient            ? tape->tensors[tensors[c]]
                           : buffer != CAR_NONE ? tape->grad_buffers[buffer]
                                                : NULL;
        if (from) {
            memcpy(at, from, bytes);
        } else {
            memset(at, 0, bytes); /* nobody needs its gradient */
        }
        at += bytes;
    }
    if (car_graph_crossing_loss(graph, gradient ? range->first : range->end) > 0) {
        /* Forward carries what was added so far. Backward carries the whole loss, which tells whether gradients are
         * finite. */
        memcpy(at, gradient ? &tape->loss : &tape->added, sizeof tape->added);
    }
    for (int c = 0; c < count; c++) {
        int buffer = car_graph_tensor(graph, tensors[c])->grad_buffer;
        if (gradient && buffer != CAR_NONE) {
            car_tape_drop(tape, &tape->grad_buffers[buffer]);
        } else if (!gradient && !range->held[tensors[c]]) {
            car_tape_drop(tape, &tape->tensors[tensors[c]]);
        }
    }
}
