/* Kernels for user-defined stages: they assemble what a callback works on, and can guard what it may write.
 *
 * With guards, a callback gets copies in scratch space, surrounded by bytes that nobody else writes:
 *
 *     scratch   [its own][guard][output][guard][held][guard]...
 *
 * The guards are checked after each call, so an out-of-bounds write is reported for the stage that did it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "carousel/stage.h"
#include "kernels/kernel.h"
#include "kernels/vector/vector.h"

enum { GUARD = 64, GUARD_BYTE = 0xa5, MESSAGE_CAPACITY = 512 };

car_status car_stage_fail(const car_stage_io *io, const char *format, ...) {
    char message[MESSAGE_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return car_context_fail(io->context, CAR_ERROR_STAGE, "stage %s: %s", io->name, message);
}

static const car_stage_class *class_of(const car_kernel *kernel) {
    return kernel->op->config.stage.own;
}

static size_t input_bytes(const car_kernel *kernel, int q) {
    return car_graph_tensor(kernel->graph, kernel->op->inputs[q])->bytes;
}

static size_t param_bytes(const car_kernel *kernel) {
    const car_stage_class *stage = class_of(kernel);
    return (size_t)stage->param_count * car_dtype_bytes(stage->dtype);
}

/* Whether the gradient of its input is added to another reader's. */
static bool adds_state(const car_kernel *kernel) {
    return kernel->op->config.stage.states && kernel->op->grad_mode[0] == CAR_GRAD_ADD;
}

/* ---- guards ---------------------------------------------------------------------------------- */

/* A buffer that a callback may write. */
typedef struct buffer {
    const char *name;
    void **place; /* where the io points to it */
    size_t bytes;
    void *real;
} buffer;

enum { MAX_BUFFERS = 6 + CAR_STAGE_MAX_CARRIED };

static int list_buffers(const car_kernel *kernel, car_stage_io *io, buffer *buffers) {
    const car_stage_class *stage = class_of(kernel);
    int count = 0;
    buffers[count++] = (buffer){"scratch", &io->scratch, stage->scratch_bytes, NULL};
    buffers[count++] = (buffer){"output", &io->output, stage->output_bytes, NULL};
    buffers[count++] = (buffer){"held", &io->held, stage->held_bytes, NULL};
    buffers[count++] = (buffer){"rebuilt", &io->rebuilt, stage->rebuilt_bytes, NULL};
    buffers[count++] = (buffer){"param_gradients", &io->param_gradients, param_bytes(kernel), NULL};
    buffers[count++] = (buffer){"input_gradient", &io->input_gradient, stage->input_bytes, NULL};
    for (int c = 0; c < kernel->op->config.stage.carried; c++) {
        size_t bytes = input_bytes(kernel, kernel->op->config.stage.states + c);
        buffers[count++] = (buffer){"carried_gradients", &io->carried_gradients[c], bytes, NULL};
    }
    return count;
}

static size_t guarded_bytes(const car_kernel *kernel) {
    car_stage_io io = {0};
    buffer buffers[MAX_BUFFERS];
    int count = list_buffers(kernel, &io, buffers);
    size_t bytes = 0;
    for (int b = 0; b < count; b++) {
        bytes += 2 * GUARD + car_round_up(buffers[b].bytes, GUARD);
    }
    return bytes;
}

/* Replaces the buffers of the callback by copies between guards. */
static void raise_guards(buffer *buffers, int count, char *room) {
    for (int b = 0; b < count; b++) {
        buffer *buffer = &buffers[b];
        buffer->real = *buffer->place;
        if (buffer->real) {
            memset(room, GUARD_BYTE, 2 * GUARD + car_round_up(buffer->bytes, GUARD));
            memcpy(room + GUARD, buffer->real, buffer->bytes);
            *buffer->place = room + GUARD;
        }
        room += 2 * GUARD + car_round_up(buffer->bytes, GUARD);
    }
}

static bool is_intact(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != GUARD_BYTE) {
            return false;
        }
    }
    return true;
}

static car_status lower_guards(const car_stage_io *io, buffer *buffers, int count, const char *call) {
    car_status status = CAR_OK;
    for (int b = 0; b < count; b++) {
        buffer *buffer = &buffers[b];
        if (!buffer->real) {
            continue;
        }
        const unsigned char *data = *buffer->place;
        bool before = is_intact(data - GUARD, GUARD);
        bool behind = is_intact(data + buffer->bytes, GUARD + car_round_up(buffer->bytes, GUARD) - buffer->bytes);
        if (status == CAR_OK && !(before && behind)) {
            status = car_stage_fail(io, "its %s wrote %s the %zu bytes of %s", call,
                                    before ? "past the end of" : "before", buffer->bytes, buffer->name);
        }
        memcpy(buffer->real, data, buffer->bytes);
        *buffer->place = buffer->real;
    }
    return status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef car_status (*callback)(const car_stage_io *io);

static car_status call(const car_kernel *kernel, car_stage_io *io, callback function, const char *name) {
    buffer buffers[MAX_BUFFERS];
    int count = 0;
    char *room = (char *)io->scratch;
    car_status guards = CAR_OK;
    if (kernel->guards) {
        count = list_buffers(kernel, io, buffers);
        io->scratch = class_of(kernel)->scratch_bytes > 0 ? room : NULL;
        raise_guards(buffers, count, room + car_round_up(class_of(kernel)->scratch_bytes, GUARD));
    }
    car_status status = function(io);
    if (kernel->guards) {
        guards = lower_guards(io, buffers, count, name);
        io->scratch = room;
    }
    if (status != CAR_OK) { /* used unless the callback left its own message */
        return car_context_fail(kernel->context, status, "stage %s: its %s failed: %s", io->name, name,
                                car_status_text(status));
    }
    return guards;
}

static car_stage_io io_of(const car_kernel *kernel, const car_kernel_io *io) {
    const car_op *op = kernel->op;
    int states = op->config.stage.states, carried = op->config.stage.carried;
    car_stage_io out = {.user = op->config.stage.user,
                        .input = states > 0 ? io->in[0] : NULL,
                        .output = class_of(kernel)->output_bytes > 0 ? io->out : NULL,
                        .held = io->aux,
                        .rebuilt = io->rebuilt,
                        .scratch = io->scratch,
                        .params = op->param_count > 0 ? io->param[0] : NULL,
                        .context = kernel->context,
                        .name = op->name};
    for (int c = 0; c < carried; c++) {
        out.carried[c] = io->in[states + c];
    }
    for (int d = 0; d < op->config.stage.data; d++) {
        out.data[d] = io->in[states + carried + d];
    }
    return out;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    car_stage_io stage = io_of(kernel, io);
    double loss = 0;
    stage.loss = &loss;
    car_status status = call(kernel, &stage, class_of(kernel)->forward, "forward");
    *io->loss += loss;
    if (!stage.output) {
        *(float *)io->out = (float)*io->loss; /* the graph's loss */
    }
    return status;
}

/* Zeroes gradients that this stage is the first to contribute to. */
static void begin_gradients(const car_kernel *kernel, const car_kernel_io *io, car_stage_io *stage) {
    const car_op *op = kernel->op;
    int states = op->config.stage.states;
    if (op->param_count > 0) {
        stage->param_gradients = io->grad_param[0];
        memset(stage->param_gradients, 0, param_bytes(kernel));
    }
    for (int c = 0; c < op->config.stage.carried; c++) {
        stage->carried_gradients[c] = io->grad_in[states + c];
        if (op->grad_mode[states + c] == CAR_GRAD_WRITE) {
            memset(stage->carried_gradients[c], 0, input_bytes(kernel, states + c));
        }
    }
    if (states > 0 && io->grad_in[0]) {
        stage->input_gradient = adds_state(kernel) ? (char *)io->scratch + kernel->scratch_bytes -
                                                         car_round_up(input_bytes(kernel, 0), GUARD)
                                                   : io->grad_in[0];
        memset(stage->input_gradient, 0, input_bytes(kernel, 0));
    }
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const car_stage_class *class = class_of(kernel);
    car_stage_io stage = io_of(kernel, io);
    car_status status = CAR_OK;
    stage.output_gradient = class->output_bytes > 0 ? io->grad_out : NULL;
    begin_gradients(kernel, io, &stage);
    for (stage.segment = class->segments > 1 ? class->segments - 1 : 0; stage.segment >= 0; stage.segment--) {
        if (class->recompute) {
            CAR_TRY(call(kernel, &stage, class->recompute, "recompute"));
        }
        CAR_TRY(call(kernel, &stage, class->backward, "backward"));
    }
    if (adds_state(kernel) && io->grad_in[0]) {
        car_vector_select()->accumulate(io->grad_in[0], stage.input_gradient,
                                        (int64_t)(input_bytes(kernel, 0) / sizeof(float)));
    }
done:
    return status;
}

static car_status prepare(car_kernel *kernel) {
    const car_op *op = kernel->op;
    kernel->name = "own";
    kernel->scratch_bytes = car_round_up(class_of(kernel)->scratch_bytes, GUARD);
    kernel->scratch_bytes += kernel->guards ? guarded_bytes(kernel) : 0;
    if (!adds_state(kernel)) {
        return CAR_OK;
    }
    kernel->scratch_bytes += car_round_up(input_bytes(kernel, 0), GUARD);
    const car_tensor *state = car_graph_tensor(kernel->graph, op->inputs[0]);
    return state->dtype == CAR_F32
               ? CAR_OK
               : car_context_fail(
                     kernel->context, CAR_ERROR_UNSUPPORTED,
                     "stage %s: other operations read %s too, but the runtime cannot add gradients of its type",
                     op->name, state->name);
}

const car_kernel_class car_stage_kernel = {
    .prepare = prepare, .forward = forward, .backward = backward, .adds_grad = true};

/* ---- what is carried ------------------------------------------------------------------------- */

static car_status prepare_carry(car_kernel *kernel) {
    kernel->name = "copy";
    return CAR_OK;
}

static size_t carried_bytes(const car_kernel *kernel) {
    return car_graph_tensor(kernel->graph, kernel->op->output)->bytes;
}

static car_status carry_forward(const car_kernel *kernel, const car_kernel_io *io) {
    memcpy(io->out, io->param[0], carried_bytes(kernel));
    return CAR_OK;
}

static car_status carry_backward(const car_kernel *kernel, const car_kernel_io *io) {
    memcpy(io->grad_param[0], io->grad_out, carried_bytes(kernel));
    return CAR_OK;
}

const car_kernel_class car_carry_kernel = {
    .prepare = prepare_carry, .forward = carry_forward, .backward = carry_backward};
