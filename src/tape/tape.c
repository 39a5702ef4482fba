/* Runs one micro-batch: binds tensors to kernels, and frees each tensor at its last use. */
#include "carousel/tape.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "recorder/recorder.h"
#include "tape/internal.h"

/* ---- creating, making and dropping ----------------------------------------------------------- */

car_status car_tape_create(const car_program *program, car_arena *arena, car_tape **out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(car_program_context(program), arena);
    CAR_REQUIRE(car_program_context(program), out);
    car_context *context = car_program_context(program);
    const car_graph *graph = car_program_graph(program);
    car_tape *tape = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *tape, &tape));
    tape->program = program;
    tape->arena = arena;
    tape->next_backward = CAR_NONE;
    tape->loss = NAN;
    CAR_TRY(car_context_allocate(context, (size_t)car_graph_tensor_count(graph), sizeof(void *), &tape->tensors));
    CAR_TRY(
        car_context_allocate(context, (size_t)car_graph_grad_buffer_count(graph), sizeof(void *), &tape->grad_buffers));
    *out = tape;
    tape = NULL;
done:
    car_tape_destroy(tape);
    return status;
}

car_status car_tape_make(car_tape *tape, size_t bytes, void **block) {
    car_status status = car_arena_allocate(tape->arena, CAR_MEMORY_ACTIVATIONS, bytes, block);
    tape->live += status == CAR_OK ? bytes : 0;
    return status;
}

void car_tape_drop(car_tape *tape, void **block) {
    tape->live -= car_arena_release(tape->arena, *block);
    *block = NULL;
}

static void drop_all(car_tape *tape) {
    const car_graph *graph = car_program_graph(tape->program);
    for (int v = 0; tape->tensors && v < car_graph_tensor_count(graph); v++) {
        car_tape_drop(tape, &tape->tensors[v]);
    }
    for (int s = 0; tape->grad_buffers && s < car_graph_grad_buffer_count(graph); s++) {
        car_tape_drop(tape, &tape->grad_buffers[s]);
    }
}

void car_tape_destroy(car_tape *tape) {
    if (!tape) {
        return;
    }
    car_context *context = car_program_context(tape->program);
    const car_graph *graph = car_program_graph(tape->program);
    drop_all(tape);
    car_context_release(context, tape->grad_buffers, (size_t)car_graph_grad_buffer_count(graph), sizeof(void *));
    car_context_release(context, tape->tensors, (size_t)car_graph_tensor_count(graph), sizeof(void *));
    car_context_release(context, tape, 1, sizeof *tape);
}

void car_tape_begin(car_tape *tape, uint64_t key, bool training) {
    if (!tape) {
        return;
    }
    drop_all(tape);
    tape->key = key;
    tape->training = training;
    tape->next_backward = CAR_NONE;
    tape->loss = NAN;
    tape->added = 0;
}

static car_status make_tensor(car_tape *tape, int tensor) {
    assert(!tape->tensors[tensor]);
    return car_tape_make(tape, car_program_tensor_bytes(tape->program, tensor), &tape->tensors[tensor]);
}

/* Lists as many of the graph's inputs as fit: "images (0), labels (1)". */
static void list_inputs(const car_graph *graph, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int v = 0; v < car_graph_tensor_count(graph) && used < capacity; v++) {
        const car_tensor *t = car_graph_tensor(graph, v);
        if (t->producer == CAR_NONE) {
            int length = snprintf(text + used, capacity - used, "%s%s (%d)", used ? ", " : "", t->name, v);
            used += length > 0 ? (size_t)length : 0;
        }
    }
}

/* Refuses anything that is not an input, such as the CAR_NONE of a name that was not found. */
static car_status refuse_feed(const car_tape *tape, int tensor) {
    const car_graph *graph = car_program_graph(tape->program);
    const car_tensor *t = car_graph_tensor(graph, tensor);
    char inputs[256];
    list_inputs(graph, inputs, sizeof inputs);
    if (t) {
        return car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                                "%s is computed, so it cannot be fed; the inputs of the graph are %s", t->name, inputs);
    }
    return car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                            "there is no tensor %d to feed; the inputs of the graph are %s", tensor, inputs);
}

car_status car_tape_feed(car_tape *tape, int tensor, const void *data) {
    CAR_REQUIRE(NULL, tape);
    CAR_REQUIRE(car_program_context(tape->program), data);
    const car_tensor *t = car_graph_tensor(car_program_graph(tape->program), tensor);
    if (!t || t->producer != CAR_NONE) {
        return refuse_feed(tape, tensor);
    }
    if (tape->range && tape->range->last_forward[tensor] == CAR_NONE) {
        return CAR_OK; /* another rank needs it */
    }
    car_status status = tape->tensors[tensor] ? CAR_OK : make_tensor(tape, tensor);
    if (status == CAR_OK) {
        car_program_import_tensor(tape->program, tensor, data, tape->tensors[tensor]);
    }
    return status;
}

float car_tape_loss(const car_tape *tape) {
    return tape ? (float)tape->loss : NAN;
}

const void *car_tape_tensor(const car_tape *tape, int tensor) {
    bool known = tape && tensor >= 0 && tensor < car_graph_tensor_count(car_program_graph(tape->program));
    return known ? tape->tensors[tensor] : NULL;
}

car_status car_tape_logits(const car_tape *tape, const car_weights *weights, int64_t first, int64_t rows, float *out) {
    CAR_REQUIRE(NULL, tape);
    CAR_REQUIRE(car_program_context(tape->program), weights);
    CAR_REQUIRE(car_program_context(tape->program), out);
    const car_graph *graph = car_program_graph(tape->program);
    const car_op *head = car_graph_op(graph, car_graph_op_count(graph) - 1);
    int64_t classes = car_graph_classes(graph), width = 0;
    if (classes == 0) {
        return car_context_fail(car_program_context(tape->program), CAR_ERROR_UNSUPPORTED,
                                "this graph ends in a custom stage, so it has no logits");
    }
    if (car_graph_precision(graph) != CAR_PRECISION_FP32) {
        return car_context_fail(car_program_context(tape->program), CAR_ERROR_UNSUPPORTED,
                                "logits can only be read from graphs in fp32; in bf16 use car_evaluate");
    }
    int from = car_graph_logits(graph) != CAR_NONE ? car_graph_logits(graph) : head->inputs[0];
    const float *values = tape->tensors[from];
    car_shape shape = car_graph_tensor(graph, from)->shape;
    width = shape.dim[shape.rank - 1];
    if (!values || first < 0 || rows < 0 || first + rows > car_shape_elements(shape) / width) {
        return car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                                "there are no logits of rows %lld to %lld", (long long)first,
                                (long long)(first + rows - 1));
    }
    if (from == car_graph_logits(graph)) {
        memcpy(out, values + first * classes, (size_t)(rows * classes) * sizeof *out);
        return CAR_OK;
    }
    car_kernel_mode mode = car_kernels_enter(car_program_threads(tape->program));
    const float *weight = weights->param[head->params[0]];
    bool good = car_kernels_multiply('N', 'T', rows, classes, width, 1, values + first * width, width, weight, width, 0,
                                     out, classes);
    car_kernels_leave(mode);
    return good ? CAR_OK
                : car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                                   "could not compute the logits");
}

static void note(const car_tape *tape, int l, bool again, double start, size_t during) {
    if (tape->track) {
        car_track_note(tape->track, l, again, start, during, tape->live);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The loss stays for its reader. In evaluation the logits stay, too, or what a fused head and loss has read and
 * saved. */
static bool stays_to_the_end(const car_tape *tape, int tensor) {
    const car_graph *graph = car_program_graph(tape->program);
    const car_op *last = car_graph_op(graph, car_graph_op_count(graph) - 1);
    bool of_head = last->kind == CAR_OP_HEAD_LOSS &&
                   (tensor == last->aux || tensor == last->inputs[0] || tensor == last->inputs[1]);
    return tensor == car_graph_loss(graph) || (!tape->training && (tensor == car_graph_logits(graph) || of_head));
}

static int last_forward(const car_tape *tape, int tensor) {
    return tape->range ? tape->range->last_forward[tensor]
                       : car_graph_tensor(car_program_graph(tape->program), tensor)->last_forward;
}

static int last_backward(const car_tape *tape, int tensor) {
    return tape->range ? tape->range->last_backward[tensor]
                       : car_graph_tensor(car_program_graph(tape->program), tensor)->last_backward;
}

static bool is_held(const car_tape *tape, int tensor) {
    return tape->range ? tape->range->held[tensor] : last_backward(tape, tensor) != CAR_NONE;
}

/* After the forward of operation l: drops a tensor that has no further reader, unless backward needs it. */
static void drop_after_forward(car_tape *tape, int l, int tensor) {
    bool held = tape->training && is_held(tape, tensor);
    bool leaves = tape->range && tape->range->crosses[tensor];
    if (last_forward(tape, tensor) == l && !held && !leaves && !stays_to_the_end(tape, tensor)) {
        car_tape_drop(tape, &tape->tensors[tensor]);
    }
}

static car_status missing(const car_tape *tape, const car_op *op, int tensor) {
    const car_graph *graph = car_program_graph(tape->program);
    const car_tensor *t = car_graph_tensor(graph, tensor);
    return car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                            "%s (%s) needs the %s %s, which is missing", op->name, car_op_kind_text(op->kind),
                            t->producer == CAR_NONE ? "input" : "tensor", t->name);
}

static car_kernel_io io_of(const car_tape *tape, const car_weights *weights, int l) {
    const car_op *op = car_graph_op(car_program_graph(tape->program), l);
    car_kernel_io io = {.training = tape->training, .derived = weights->derived[l]};
    io.key = car_random_u64(tape->key, (uint64_t)l);
    car_engine_bind_params(weights, op, io.param);
    return io;
}

void car_tape_defer_loss(car_tape *tape) {
    tape->defers_loss = true;
}

static bool is_deferred(const car_tape *tape, const car_op *op) {
    return tape->defers_loss && tape->training && op->kind == CAR_OP_HEAD_LOSS;
}

/* The whole loss, from the output of the operation that makes it. */
static void note_loss(car_tape *tape, const car_op *op) {
    double loss = *(const float *)tape->tensors[op->output];
    tape->loss = op->kind == CAR_OP_STAGE ? tape->added : loss + tape->added;
}

/* Computes an operation's output, and what it saves for backward unless that is still held; *during is the bytes
 * alive. */
static car_status compute_output(car_tape *tape, car_lane *lane, const car_weights *weights, int l, size_t *during) {
    const car_op *op = car_graph_op(car_program_graph(tape->program), l);
    car_kernel_io io = io_of(tape, weights, l);
    car_status status = CAR_OK;
    for (int q = 0; q < op->input_count; q++) {
        io.in[q] = tape->tensors[op->inputs[q]];
        if (!io.in[q]) {
            return missing(tape, op, op->inputs[q]);
        }
    }
    if (tape->tensors[op->output]) {
        return car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                                "the forward of %s (%s) has already run", op->name, car_op_kind_text(op->kind));
    }
    CAR_TRY(make_tensor(tape, op->output));
    io.out = tape->tensors[op->output];
    if (op->aux != CAR_NONE && (tape->training || op->kind == CAR_OP_HEAD_LOSS)) {
        CAR_TRY(tape->tensors[op->aux] ? CAR_OK : make_tensor(tape, op->aux));
        io.aux = tape->tensors[op->aux];
    }
    *during = tape->live;
    io.loss = &tape->added;
    CAR_TRY(is_deferred(tape, op) ? CAR_OK : car_program_forward(tape->program, lane, l, &io));
done:
    return status;
}

static car_status forward_op(car_tape *tape, car_lane *lane, const car_weights *weights, int l) {
    const car_op *op = car_graph_op(car_program_graph(tape->program), l);
    double start = tape->track ? car_clock_seconds() : 0;
    size_t during = 0;
    car_status status = CAR_OK;
    CAR_TRY(compute_output(tape, lane, weights, l, &during));
    if (op->output == car_graph_loss(car_program_graph(tape->program)) && !is_deferred(tape, op)) {
        note_loss(tape, op);
    }
    for (int q = 0; q < op->input_count; q++) {
        drop_after_forward(tape, l, op->inputs[q]);
    }
    drop_after_forward(tape, l, op->output);
    if (op->aux != CAR_NONE) {
        drop_after_forward(tape, l, op->aux);
    }
    note(tape, l, false, start, during);
done:
    return status;
}

car_status car_tape_forward(car_tape *tape, car_lane *lane, const car_weights *weights, int begin, int end) {
    CAR_REQUIRE(NULL, tape);
    CAR_REQUIRE(car_program_context(tape->program), lane);
    CAR_REQUIRE(car_program_context(tape->program), weights);
    car_status status = car_engine_check_range(tape->program, begin, end);
    car_kernel_mode mode = car_kernels_enter(car_program_threads(tape->program));
    for (int l = begin; status == CAR_OK && l < end; l++) {
        status = forward_op(tape, lane, weights, l);
    }
    car_kernels_leave(mode);
    return status;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Allocates the buffer for the gradient of an input when its first contributor runs. */
static car_status make_grad_buffer(car_tape *tape, int l, int buffer) {
    const car_grad_buffer *s = car_graph_grad_buffer(car_program_graph(tape->program), buffer);
    if (tape->grad_buffers[buffer] || s->born != l) {
        return CAR_OK;
    }
    if (car_graph_range_takes_over(tape->range, car_program_graph(tape->program), buffer)) {
        tape->grad_buffers[buffer] = tape->tensors[s->over_tensor];
        tape->tensors[s->over_tensor] = NULL;
        return CAR_OK;
    }
    return car_tape_make(tape, car_program_grad_buffer_bytes(tape->program, buffer), &tape->grad_buffers[buffer]);
}

/* Checks that what the operation saved is still there, and gives its gradients their buffers. */
static car_status bind_backward(car_tape *tape, int l, car_kernel_io *io) {
    const car_graph *graph = car_program_graph(tape->program);
    const car_op *op = car_graph_op(graph, l);
    car_status status = CAR_OK;
    for (int q = 0; q < op->input_count; q++) {
        io->in[q] = op->saves_input[q] ? tape->tensors[op->inputs[q]] : NULL;
        if (op->saves_input[q] && !io->in[q]) {
            return missing(tape, op, op->inputs[q]);
        }
    }
    io->out = op->saves_output ? tape->tensors[op->output] : NULL;
    io->aux = op->aux != CAR_NONE ? tape->tensors[op->aux] : NULL;
    if ((op->saves_output && !io->out) || (op->aux != CAR_NONE && !io->aux)) {
        return missing(tape, op, op->output);
    }
    io->grad_out = tape->grad_buffers[car_graph_tensor(graph, op->output)->grad_buffer];
    if (!io->grad_out) {
        return car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                                "the backward of %s must come after the backward of the operations that use its output",
                                op->name);
    }
    for (int q = 0; q < op->input_count; q++) {
        if (op->grad_mode[q] == CAR_GRAD_WRITE || op->grad_mode[q] == CAR_GRAD_ADD) {
            int buffer = car_graph_tensor(graph, op->inputs[q])->grad_buffer;
            CAR_TRY(make_grad_buffer(tape, l, buffer));
            io->grad_in[q] = tape->grad_buffers[buffer];
        }
    }
done:
    return status;
}

static void drop_tensor(car_tape *tape, int l, int tensor) {
    const car_graph *graph = car_program_graph(tape->program);
    int buffer = car_graph_tensor(graph, tensor)->grad_buffer;
    if (last_backward(tape, tensor) == l) {
        car_tape_drop(tape, &tape->tensors[tensor]);
    }
    if (buffer != CAR_NONE && car_graph_grad_buffer(graph, buffer)->dies == l) {
        car_tape_drop(tape, &tape->grad_buffers[buffer]);
    }
}

static void drop_after_backward(car_tape *tape, int l) {
    const car_op *op = car_graph_op(car_program_graph(tape->program), l);
    for (int q = 0; q < op->input_count; q++) {
        drop_tensor(tape, l, op->inputs[q]);
    }
    drop_tensor(tape, l, op->output);
    if (op->aux != CAR_NONE) {
        drop_tensor(tape, l, op->aux);
    }
}

static void spoil(void *first, car_dtype dtype) {
    if (dtype == CAR_F64) {
        *(double *)first = NAN;
    } else {
        *(float *)first = NAN;
    }
}

/* A user's own stage does not know that the loss is not finite. So its gradients are made not finite here, in every
 * stage. */
static void spoil_gradients(const car_tape *tape, car_gradients *gradients, const car_kernel_io *io, const car_op *op) {
    for (int p = 0; p < op->param_count; p++) {
        spoil(gradients->use[op->first_use + p],
              car_graph_param(car_program_graph(tape->program), op->params[p])->dtype);
    }
    for (int c = 0; c < op->config.stage.carried; c++) {
        int q = op->config.stage.states + c;
        spoil(io->grad_in[q], car_graph_tensor(car_program_graph(tape->program), op->inputs[q])->dtype);
    }
}

/* Recomputes what forward dropped and the backward of l needs. The same weights and keys make the same bits. */
static car_status run_again(car_tape *tape, car_lane *lane, const car_weights *weights, int l) {
    const car_graph_range *range = tape->range;
    int first = 0, count = range ? car_graph_range_again(range, l, &first) : 0;
    car_status status = CAR_OK;
    for (int i = first; i < first + count; i++) {
        int m = range->recompute->again[i];
        const car_op *op = car_graph_op(car_program_graph(tape->program), m);
        double start = tape->track ? car_clock_seconds() : 0;
        size_t during = 0;
        CAR_TRY(compute_output(tape, lane, weights, m, &during));
        if (op->aux != CAR_NONE && !range->held[op->aux]) { /* it has no backward to free it */
            car_tape_drop(tape, &tape->tensors[op->aux]);
        }
        for (int q = 0; q < op->input_count; q++) {
            if (range->last_again[op->inputs[q]] == i) {
                car_tape_drop(tape, &tape->tensors[op->inputs[q]]);
            }
        }
        note(tape, m, true, start, during);
    }
done:
    return status;
}

/* Of a head whose forward was left out. If the loss turns out not to be finite, no gradient may be: backward runs again
 * with a NaN, as it would have run the first time. */
static car_status backward_with_loss(car_tape *tape, car_lane *lane, int l, car_kernel_io *io) {
    const car_op *op = car_graph_op(car_program_graph(tape->program), l);
    car_status status = CAR_OK;
    io->out = tape->tensors[op->output];
    io->makes_loss = true;
    CAR_TRY(car_program_backward(tape->program, lane, l, io));
    note_loss(tape, op);
    if (!isfinite(tape->loss)) {
        *(float *)tape->grad_buffers[car_graph_tensor(car_program_graph(tape->program), op->output)->grad_buffer] = NAN;
        io->makes_loss = false;
        CAR_TRY(car_program_backward(tape->program, lane, l, io));
    }
done:
    return status;
}

static car_status backward_op(car_tape *tape, car_lane *lane, const car_weights *weights, car_gradients *gradients,
                              int l) {
    const car_graph *graph = car_program_graph(tape->program);
    const car_op *op = car_graph_op(graph, l);
    int buffer = car_graph_tensor(graph, op->output)->grad_buffer;
    car_status status = CAR_OK;
    void *rebuilt = NULL;
    if (buffer == CAR_NONE) {
        return CAR_OK; /* there are no parameters before it */
    }
    CAR_TRY(run_again(tape, lane, weights, l));
    double start = tape->track ? car_clock_seconds() : 0;
    if (op->output == car_graph_loss(graph)) {
        CAR_TRY(make_grad_buffer(tape, l, buffer));
        *(float *)tape->grad_buffers[buffer] = /* so that no gradient is finite either */
            isfinite(tape->loss) || is_deferred(tape, op) ? 1.0f : NAN;
    }
    car_kernel_io io = io_of(tape, weights, l);
    CAR_TRY(bind_backward(tape, l, &io));
    for (int p = 0; p < op->param_count; p++) {
        io.grad_param[p] = gradients->use[op->first_use + p];
    }
    if (car_op_rebuilt_bytes(op) > 0) {
        CAR_TRY(car_tape_make(tape, car_op_rebuilt_bytes(op), &rebuilt));
        io.rebuilt = rebuilt;
    }
    size_t during = tape->live;
    CAR_TRY(is_deferred(tape, op) ? backward_with_loss(tape, lane, l, &io)
                                  : car_program_backward(tape->program, lane, l, &io));
    if (op->kind == CAR_OP_STAGE && !isfinite(tape->loss)) {
        spoil_gradients(tape, gradients, &io, op);
    }
    car_tape_drop(tape, &rebuilt);
    drop_after_backward(tape, l);
    note(tape, l, false, start, during);
done:
    car_tape_drop(tape, &rebuilt);
    return status;
}

car_status car_tape_backward(car_tape *tape, car_lane *lane, const car_weights *weights, car_gradients *gradients,
                             int begin, int end) {
    CAR_REQUIRE(NULL, tape);
    CAR_REQUIRE(car_program_context(tape->program), lane);
    CAR_REQUIRE(car_program_context(tape->program), weights);
    CAR_REQUIRE(car_program_context(tape->program), gradients);
    car_status status = car_engine_check_range(tape->program, begin, end);
    car_kernel_mode mode = car_kernels_enter(car_program_threads(tape->program));
    for (int l = end - 1; status == CAR_OK && l >= begin; l--) {
        if (tape->next_backward != CAR_NONE && tape->next_backward != l) {
            status = car_context_fail(car_program_context(tape->program), CAR_ERROR_ARGUMENT,
                                      "the next backward must be that of %s, not of %s",
                                      car_graph_op(car_program_graph(tape->program), tape->next_backward)->name,
                                      car_graph_op(car_program_graph(tape->program), l)->name);
            break;
        }
        status = backward_op(tape, lane, weights, gradients, l);
        tape->next_backward = status == CAR_OK ? l - 1 : tape->next_backward;
    }
    car_kernels_leave(mode);
    return status;
}
