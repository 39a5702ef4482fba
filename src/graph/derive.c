/* Derives everything that follows from the list of operations: which tensors need gradients, where gradients live,
 * how long everything lives, and the totals that a plan needs.
 *
 * Backward visits the operations in descending order. When it reaches operation l, the gradient of l's output is
 * complete, because all readers of the output have higher numbers. So the first contribution to a gradient
 * overwrites, later ones add, and the buffer of the output's gradient is free after l. Where the arithmetic allows,
 * an operation writes its input's gradient over its output's, and an addition passes its gradient on without
 * copying. */
#include "graph/internal.h"

/* The state of the walk. */
typedef struct walk {
    car_graph *graph;
    int *holders; /* by buffer: how many gradients in it are not consumed yet */
    int capacity;
} walk;

static car_tensor *tensor_of(walk *w, int id) {
    return &w->graph->tensors[id];
}

static car_status new_buffer(walk *w, int tensor, int born) {
    car_graph *graph = w->graph;
    car_status status = CAR_OK;
    CAR_TRY(
        car_context_grow(graph->context, &w->holders, &w->capacity, graph->grad_buffer_count + 1, sizeof *w->holders));
    CAR_TRY(car_context_grow(graph->context, &graph->grad_buffers, &graph->grad_buffer_capacity,
                             graph->grad_buffer_count + 1, sizeof *graph->grad_buffers));
    graph->grad_buffers[graph->grad_buffer_count] =
        (car_grad_buffer){.bytes = tensor_of(w, tensor)->bytes, .born = born, .dies = born, .over_tensor = CAR_NONE};
    w->holders[graph->grad_buffer_count] = 1;
    tensor_of(w, tensor)->grad_buffer = graph->grad_buffer_count++;
done:
    return status;
}

static void share_buffer(walk *w, int tensor, int buffer) {
    tensor_of(w, tensor)->grad_buffer = buffer;
    w->holders[buffer]++;
}

/* The highest operation below l that touches the gradient of `tensor` after l: another reader, which adds to it, or
 * else the producer, which consumes it. */
static int next_touch(const car_graph *graph, int tensor, int l) {
    for (int m = l - 1; m > graph->tensors[tensor].producer; m--) {
        for (int q = 0; q < graph->ops[m].input_count; q++) {
            if (graph->ops[m].inputs[q] == tensor) {
                return m;
            }
        }
    }
    return graph->tensors[tensor].producer;
}

/* True if backward may write the gradient of input q over that of the output: each element must depend only on the
 * same element (or row, or channel), which is read before it is written. */
static bool works_in_place(const car_op *op, int q) {
    switch (op->kind) {
    case CAR_OP_RELU:
    case CAR_OP_GELU:
    case CAR_OP_DROPOUT:
    case CAR_OP_LAYERNORM:
        return true;
    case CAR_OP_BATCHNORM:
        /* The residual's gradient is the masked gradient of the output, so with a residual it takes the buffer. */
        return q == op->input_count - 1;
    default:
        return false;
    }
}

/* An addition passes its gradient on to both inputs. Both may share the output's buffer if one of them is consumed
 * before the other is touched: then nobody sees the wrong value. */
static car_status derive_addition(walk *w, int l) {
    car_graph *graph = w->graph;
    car_op *op = &graph->ops[l];
    int buffer = tensor_of(w, op->output)->grad_buffer;
    bool alone = w->holders[buffer] == 1;
    bool both = tensor_of(w, op->inputs[0])->grad_buffer == CAR_NONE &&
                tensor_of(w, op->inputs[1])->grad_buffer == CAR_NONE && op->inputs[0] != op->inputs[1] &&
                tensor_of(w, op->inputs[0])->needs_grad && tensor_of(w, op->inputs[1])->needs_grad;
    bool shared = false;
    if (both && alone) {
        for (int q = 0; q < 2 && !shared; q++) {
            int first = op->inputs[q];
            int producer = tensor_of(w, first)->producer;
            bool only_reader = next_touch(graph, first, l) == producer;
            shared = only_reader && producer > next_touch(graph, op->inputs[1 - q], l);
        }
    }
    car_status status = CAR_OK;
    bool taken = false;
    for (int q = 0; q < 2; q++) {
        int input = op->inputs[q];
        if (!tensor_of(w, input)->needs_grad) {
            op->grad_mode[q] = CAR_GRAD_NONE;
        } else if (tensor_of(w, input)->grad_buffer != CAR_NONE) {
            op->grad_mode[q] = CAR_GRAD_ADD;
        } else if (shared || (alone && !taken)) {
            share_buffer(w, input, buffer);
            op->grad_mode[q] = CAR_GRAD_SHARED;
            taken = true;
        } else {
            CAR_TRY(new_buffer(w, input, l));
            op->grad_mode[q] = CAR_GRAD_WRITE;
        }
    }
done:
    return status;
}

/* True if backward may write the gradient of its input over the input itself: all reading of the input (for the
 * gradients of weights, or of the same row) must come before the writing. */
static bool works_over_input(const car_op *op, int q) {
    bool suits = op->kind == CAR_OP_CROSS_ENTROPY || op->kind == CAR_OP_CONV || op->kind == CAR_OP_LINEAR ||
                 op->kind == CAR_OP_HEAD_LOSS;
    return suits && q == 0;
}

/* True if another operation's backward also reads the tensor. */
static bool is_saved_elsewhere(const car_graph *graph, int tensor, int l) {
    for (int m = 0; m < graph->op_count; m++) {
        const car_op *op = &graph->ops[m];
        bool saved = op->saves_output && op->output == tensor;
        for (int q = 0; q < op->input_count; q++) {
            saved = saved || (op->saves_input[q] && op->inputs[q] == tensor);
        }
        if (saved && m != l) {
            return true;
        }
    }
    return false;
}

static car_status derive_inputs(walk *w, int l) {
    car_graph *graph = w->graph;
    car_op *op = &graph->ops[l];
    int buffer = tensor_of(w, op->output)->grad_buffer;
    car_status status = CAR_OK;
    for (int q = 0; q < op->input_count; q++) {
        int input = op->inputs[q];
        if (!tensor_of(w, input)->needs_grad) {
            op->grad_mode[q] = CAR_GRAD_NONE;
        } else if (tensor_of(w, input)->grad_buffer != CAR_NONE) {
            op->grad_mode[q] = CAR_GRAD_ADD;
        } else {
            op->grad_mode[q] = CAR_GRAD_WRITE;
            if (works_in_place(op, q) && w->holders[buffer] == 1) {
                share_buffer(w, input, buffer);
            } else {
                CAR_TRY(new_buffer(w, input, l));
                if (works_over_input(op, q) && !is_saved_elsewhere(graph, input, l)) {
                    /* This is the last use of the input, so its gradient takes over the memory. */
                    graph->grad_buffers[tensor_of(w, input)->grad_buffer].over_tensor = input;
                }
            }
        }
    }
done:
    return status;
}

/* A tensor needs a gradient if a parameter affects it. */
static void mark_needs_grad(car_graph *graph) {
    for (int l = 0; l < graph->op_count; l++) {
        car_op *op = &graph->ops[l];
        bool needs = op->param_count > 0;
        for (int q = 0; q < op->input_count; q++) {
            needs = needs || graph->tensors[op->inputs[q]].needs_grad;
        }
        graph->tensors[op->output].needs_grad = needs;
    }
}

static car_status derive_gradients(car_graph *graph) {
    walk w = {.graph = graph};
    car_status status = CAR_OK;
    CAR_TRY(new_buffer(&w, graph->loss, graph->op_count - 1));
    for (int l = graph->op_count - 1; l >= 0; l--) {
        car_op *op = &graph->ops[l];
        int buffer = graph->tensors[op->output].grad_buffer;
        if (buffer == CAR_NONE) {
            if (graph->tensors[op->output].needs_grad) {
                status = car_context_fail(graph->context, CAR_ERROR_ARGUMENT,
                                          "the output of %s (%s) does not contribute to the loss: remove the operation",
                                          op->name, car_op_kind_text(op->kind));
                goto done;
            }
            continue; /* before the first parameter: nothing to do in backward */
        }
        CAR_TRY(op->kind == CAR_OP_ADD ? derive_addition(&w, l) : derive_inputs(&w, l));
        graph->grad_buffers[buffer].dies = l; /* decreases with each tensor that uses the buffer */
        w.holders[buffer]--;
    }
done:
    car_context_release(graph->context, w.holders, (size_t)w.capacity, sizeof *w.holders);
    return status;
}

/* An operation takes part in backward if its output has a gradient. */
static bool runs_backward(const car_graph *graph, const car_op *op) {
    return graph->tensors[op->output].grad_buffer != CAR_NONE;
}

static void derive_lifetimes(car_graph *graph) {
    for (int l = 0; l < graph->op_count; l++) {
        const car_op *op = &graph->ops[l];
        graph->tensors[op->output].last_forward = l;
        for (int q = 0; q < op->input_count; q++) {
            graph->tensors[op->inputs[q]].last_forward = l;
        }
        if (op->aux != CAR_NONE) {
            graph->tensors[op->aux].last_forward = l;
        }
    }
    /* In descending order, so that the lowest operation that needs a tensor decides. */
    for (int l = graph->op_count - 1; l >= 0; l--) {
        const car_op *op = &graph->ops[l];
        if (!runs_backward(graph, op)) {
            continue;
        }
        for (int q = 0; q < op->input_count; q++) {
            if (op->saves_input[q]) {
                graph->tensors[op->inputs[q]].last_backward = l;
            }
        }
        if (op->saves_output) {
            graph->tensors[op->output].last_backward = l;
        }
        if (op->aux != CAR_NONE) {
            graph->tensors[op->aux].last_backward = l;
        }
    }
}

/* If an operation passes no gradient on, its backward by data is not computed: subtracts that share. */
static void correct_flops(car_graph *graph) {
    for (int l = 0; l < graph->op_count; l++) {
        car_op *op = &graph->ops[l];
        bool by_data = op->grad_mode[0] != CAR_GRAD_NONE;
        if (!runs_backward(graph, op)) {
            op->flops_backward = 0;
        } else if (!by_data && (op->kind == CAR_OP_CONV || op->kind == CAR_OP_LINEAR)) {
            op->flops_backward /= 2;
        }
    }
}

car_status car_graph_derive(car_graph *graph) {
    mark_needs_grad(graph);
    if (!graph->tensors[graph->loss].needs_grad) {
        return car_context_fail(graph->context, CAR_ERROR_ARGUMENT, "the graph has no parameters to train");
    }
    car_status status = derive_gradients(graph);
    if (status == CAR_OK) {
        derive_lifetimes(graph);
        correct_flops(graph);
    }
    return status;
}

/* ---- totals for the plan --------------------------------------------------------------------- */

static int first_reader(const car_graph *graph, int tensor) {
    for (int l = 0; l < graph->op_count; l++) {
        for (int q = 0; q < graph->ops[l].input_count; q++) {
            if (graph->ops[l].inputs[q] == tensor) {
                return l;
            }
        }
    }
    return CAR_NONE;
}

int car_graph_crossing(const car_graph *graph, int cut, int *tensors, int capacity) {
    int count = 0;
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = &graph->tensors[v];
        if (tensor->producer != CAR_NONE && tensor->producer < cut && tensor->last_forward >= cut) {
            if (tensors && count < capacity) {
                tensors[count] = v;
            }
            count++;
        }
    }
    return count;
}

size_t car_graph_held_bytes(const car_graph *graph, int begin, int end) {
    size_t bytes = 0;
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = &graph->tensors[v];
        if (tensor->last_backward == CAR_NONE) {
            continue;
        }
        int home = tensor->producer != CAR_NONE ? tensor->producer : first_reader(graph, v);
        if (home >= begin && home < end) {
            bytes += tensor->bytes;
        }
    }
    return bytes;
}

double car_graph_flops(const car_graph *graph, bool backward) {
    double flops = 0;
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        flops += backward ? graph->ops[l].flops_backward : graph->ops[l].flops_forward;
    }
    return flops;
}

size_t car_graph_copy_bytes(const car_graph *graph) {
    size_t bytes = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        bytes += car_param_copy_bytes(&graph->params[p]);
    }
    return bytes;
}

size_t car_graph_param_bytes(const car_graph *graph) {
    size_t bytes = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        bytes += car_param_bytes(&graph->params[p]);
    }
    return bytes;
}
