/* The memory of one micro-batch over time.
 *
 * It follows the tape to the byte. Graph inputs are fed before the first forward. An operation's output and what it
 * saves for backward appear with its forward. A gradient gets its buffer with the first operation that contributes
 * to it. Everything is freed at its last use in the range; what crosses to another rank is freed once it was handed
 * on, unless backward needs it. */
#include "plan/life.h"

#include "base/base.h"

car_status car_life_open(const car_graph *graph, const car_graph_range *range, car_life *out) {
    car_context *context = car_graph_context(graph);
    car_status status = CAR_OK;
    *out = (car_life){.graph = graph, .range = range};
    CAR_TRY(car_context_allocate(context, (size_t)car_graph_tensor_count(graph), sizeof *out->tensors, &out->tensors));
    CAR_TRY(
        car_context_allocate(context, (size_t)car_graph_grad_buffer_count(graph), sizeof *out->buffers, &out->buffers));
done:
    return status;
}

void car_life_release(car_life *life) {
    if (!life->graph) {
        return;
    }
    car_context *context = car_graph_context(life->graph);
    car_context_release(context, life->buffers, (size_t)car_graph_grad_buffer_count(life->graph),
                        sizeof *life->buffers);
    car_context_release(context, life->tensors, (size_t)car_graph_tensor_count(life->graph), sizeof *life->tensors);
    *life = (car_life){0};
}

static void make(car_life *life, size_t *block, size_t bytes) {
    life->live += bytes - *block;
    *block = bytes;
}

static void drop(car_life *life, size_t *block) {
    make(life, block, 0);
}

void car_life_clear(car_life *life) {
    for (int v = 0; v < car_graph_tensor_count(life->graph); v++) {
        life->tensors[v] = 0;
    }
    for (int s = 0; s < car_graph_grad_buffer_count(life->graph); s++) {
        life->buffers[s] = 0;
    }
    life->live = 0;
}

void car_life_feed(car_life *life) {
    for (int v = 0; v < car_graph_tensor_count(life->graph); v++) {
        const car_tensor *tensor = car_graph_tensor(life->graph, v);
        if (tensor->producer == CAR_NONE && life->range->last_forward[v] != CAR_NONE) {
            make(life, &life->tensors[v], tensor->bytes);
        }
    }
}

/* ---- operations ------------------------------------------------------------------------------- */

static void drop_after_forward(car_life *life, int l, int tensor) {
    bool held = life->range->held[tensor], leaves = life->range->crosses[tensor];
    if (life->range->last_forward[tensor] == l && !held && !leaves && tensor != car_graph_loss(life->graph)) {
        drop(life, &life->tensors[tensor]);
    }
}

size_t car_life_forward(car_life *life, int l) {
    const car_op *op = car_graph_op(life->graph, l);
    make(life, &life->tensors[op->output], car_graph_tensor(life->graph, op->output)->bytes);
    if (op->aux != CAR_NONE) {
        make(life, &life->tensors[op->aux], car_graph_tensor(life->graph, op->aux)->bytes);
    }
    size_t during = life->live;
    for (int q = 0; q < op->input_count; q++) {
        drop_after_forward(life, l, op->inputs[q]);
    }
    drop_after_forward(life, l, op->output);
    if (op->aux != CAR_NONE) {
        drop_after_forward(life, l, op->aux);
    }
    return during;
}

/* The first operation that contributes to a gradient allocates its buffer. */
static void make_buffer(car_life *life, int l, int buffer) {
    const car_grad_buffer *s = car_graph_grad_buffer(life->graph, buffer);
    if (life->buffers[buffer] || s->born != l) {
        return;
    }
    if (car_graph_range_takes_over(life->range, life->graph, buffer)) {
        life->buffers[buffer] = life->tensors[s->over_tensor]; /* the memory is reused, so it stays alive */
        life->tensors[s->over_tensor] = 0;
        return;
    }
    make(life, &life->buffers[buffer], s->bytes);
}

static void drop_after_backward(car_life *life, int l, int tensor) {
    const car_tensor *t = car_graph_tensor(life->graph, tensor);
    if (life->range->last_backward[tensor] == l) {
        drop(life, &life->tensors[tensor]);
    }
    if (t->grad_buffer != CAR_NONE && car_graph_grad_buffer(life->graph, t->grad_buffer)->dies == l) {
        drop(life, &life->buffers[t->grad_buffer]);
    }
}

/* Operations before the first parameter make no gradients and hold nothing, so the bytes do not change for them. */
size_t car_life_backward(car_life *life, int l) {
    const car_op *op = car_graph_op(life->graph, l);
    if (op->output == car_graph_loss(life->graph)) {
        make_buffer(life, l, car_graph_tensor(life->graph, op->output)->grad_buffer);
    }
    for (int q = 0; q < op->input_count; q++) {
        if (op->grad_mode[q] == CAR_GRAD_WRITE || op->grad_mode[q] == CAR_GRAD_ADD) {
            make_buffer(life, l, car_graph_tensor(life->graph, op->inputs[q])->grad_buffer);
        }
    }
    size_t during = life->live + car_op_rebuilt_bytes(op);
    for (int q = 0; q < op->input_count; q++) {
        drop_after_backward(life, l, op->inputs[q]);
    }
    drop_after_backward(life, l, op->output);
    if (op->aux != CAR_NONE) {
        drop_after_backward(life, l, op->aux);
    }
    return during;
}

size_t car_life_again(car_life *life, int index) {
    const car_op *op = car_graph_op(life->graph, life->range->recompute->again[index]);
    make(life, &life->tensors[op->output], car_graph_tensor(life->graph, op->output)->bytes);
    if (op->aux != CAR_NONE) {
        make(life, &life->tensors[op->aux], car_graph_tensor(life->graph, op->aux)->bytes);
    }
    size_t during = life->live;
    if (op->aux != CAR_NONE && !life->range->held[op->aux]) { /* it has no backward to free it */
        drop(life, &life->tensors[op->aux]);
    }
    for (int q = 0; q < op->input_count; q++) {
        if (life->range->last_again[op->inputs[q]] == index) {
            drop(life, &life->tensors[op->inputs[q]]);
        }
    }
    return during;
}

size_t car_life_backward_whole(car_life *life, int l) {
    int first = 0, count = car_graph_range_again(life->range, l, &first);
    size_t most = 0;
    for (int i = first; i < first + count; i++) {
        size_t during = car_life_again(life, i);
        most = during > most ? during : most;
    }
    size_t during = car_life_backward(life, l);
    return during > most ? during : most;
}

/* ---- crossing --------------------------------------------------------------------------------- */

void car_life_import(car_life *life, bool gradient) {
    const int *tensors = gradient ? life->range->above : life->range->below;
    for (int c = 0; c < (gradient ? life->range->above_count : life->range->below_count); c++) {
        const car_tensor *tensor = car_graph_tensor(life->graph, tensors[c]);
        if (!gradient) {
            make(life, &life->tensors[tensors[c]], tensor->bytes);
        } else if (tensor->grad_buffer != CAR_NONE && !life->buffers[tensor->grad_buffer]) {
            make(life, &life->buffers[tensor->grad_buffer],
                 car_graph_grad_buffer(life->graph, tensor->grad_buffer)->bytes);
        }
    }
}

void car_life_export(car_life *life, bool gradient) {
    const int *tensors = gradient ? life->range->below : life->range->above;
    for (int c = 0; c < (gradient ? life->range->below_count : life->range->above_count); c++) {
        int buffer = car_graph_tensor(life->graph, tensors[c])->grad_buffer;
        if (gradient && buffer != CAR_NONE) {
            drop(life, &life->buffers[buffer]);
        } else if (!gradient && !life->range->held[tensors[c]]) {
            drop(life, &life->tensors[tensors[c]]);
        }
    }
}
