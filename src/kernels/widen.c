/* Runs a kernel: directly or, if tensors are bf16 and the kernel handles only floats, on floats.
 *
 *   bf16 in, parameters, gradients ──widen──► floats in scratch space ──kernel──► floats ──round──► bf16 out
 *
 * So every operation works in bf16, with the intended rounding: once, when a result is stored. A kernel in
 * car_kernels_bf16 is faster. The reference always runs this way, so it rounds where the fast kernels do. */
#include "base/base.h"
#include "kernels/kernel.h"
#include "kernels/vector/vector.h"

enum { ALIGNMENT = 64 };

/* The places of a kernel's io that can be bf16. */
enum {
    IN,
    OUT = IN + CAR_MAX_INPUTS,
    GRAD_OUT,
    GRAD_IN,
    PARAM = GRAD_IN + CAR_MAX_INPUTS,
    PLACES = PARAM + CAR_MAX_PARAMS
};

static car_dtype dtype_of(const car_kernel *kernel, int tensor) {
    return car_graph_tensor(kernel->graph, tensor)->dtype;
}

static int64_t tensor_elements(const car_kernel *kernel, int tensor, int block) {
    const car_tensor *t = car_graph_tensor(kernel->graph, tensor);
    return t->dtype == CAR_BF16 ? car_kernel_stored_elements(t->shape, block) : 0;
}

static int64_t param_elements(const car_kernel *kernel, int index) {
    const car_param *param = car_graph_param(kernel->graph, kernel->op->params[index]);
    size_t bytes = index == 0 && kernel->own_layout ? kernel->weight_bytes : 0;
    int64_t stored = bytes > 0 ? (int64_t)(bytes / sizeof(float)) : car_shape_elements(param->shape);
    return param->copy == CAR_BF16 ? stored : 0;
}

/* Elements of a place to widen; 0 if it does not exist or holds floats. */
static int64_t elements_of(const car_kernel *kernel, int place) {
    const car_op *op = kernel->op;
    if (place == OUT || place == GRAD_OUT) {
        return tensor_elements(kernel, op->output, kernel->block_out);
    }
    if (place >= PARAM) {
        return place - PARAM < op->param_count ? param_elements(kernel, place - PARAM) : 0;
    }
    int q = place >= GRAD_IN ? place - GRAD_IN : place - IN;
    bool there = q < op->input_count &&
                 (place < GRAD_IN || op->grad_mode[q] == CAR_GRAD_WRITE || op->grad_mode[q] == CAR_GRAD_ADD);
    return there ? tensor_elements(kernel, op->inputs[q], kernel->block_in[q]) : 0;
}

static size_t bytes_of(const car_kernel *kernel, int place) {
    return car_round_up((size_t)elements_of(kernel, place) * sizeof(float), ALIGNMENT);
}

/* Offset in scratch, after the kernel's own. */
static size_t offset_of(const car_kernel *kernel, int place) {
    size_t offset = car_round_up(kernel->own_scratch_bytes, ALIGNMENT);
    for (int p = 0; p < place; p++) {
        offset += bytes_of(kernel, p);
    }
    return offset;
}

static float *room_of(const car_kernel *kernel, int place, void *scratch) {
    return (float *)(void *)((char *)scratch + offset_of(kernel, place));
}

static bool has_bf16(const car_kernel *kernel) {
    const car_op *op = kernel->op;
    bool has = dtype_of(kernel, op->output) == CAR_BF16;
    for (int q = 0; q < op->input_count; q++) {
        has = has || dtype_of(kernel, op->inputs[q]) == CAR_BF16;
    }
    return has;
}

bool car_kernel_has_bf16_inputs(const car_kernel *kernel) {
    bool floats = false;
    for (int q = 0; q < kernel->op->input_count; q++) {
        floats = floats || dtype_of(kernel, kernel->op->inputs[q]) == CAR_F32;
    }
    return has_bf16(kernel) && !floats;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static const car_kernel_class *choose(const car_kernel *kernel, const car_kernel_class *class) {
    return class && class->choose ? class->choose(kernel) : class;
}

/* The class that works on bf16 directly, or NULL. A gradient that is added to must be rounded only once, when the
 * sum is stored. So the class must handle the addition itself, or work on floats. */
static const car_kernel_class *choose_bf16(const car_kernel *kernel) {
    const car_kernel_class *class = choose(kernel, car_kernels_bf16[kernel->op->kind]);
    bool adds = false;
    for (int q = 0; q < kernel->op->input_count; q++) {
        adds = adds || kernel->op->grad_mode[q] == CAR_GRAD_ADD;
    }
    return class && (class->adds_grad || !adds) ? class : NULL;
}

car_status car_kernel_prepare(car_kernel *kernel, const car_kernel_class *const *table) {
    kernel->bf16 = kernel->engine && car_kernel_has_bf16_inputs(kernel);
    kernel->class = kernel->bf16 ? choose_bf16(kernel) : NULL;
    kernel->bf16 = kernel->class != NULL;
    kernel->widened = has_bf16(kernel) && !kernel->class;
    if (!kernel->class) {
        kernel->class = choose(kernel, table[kernel->op->kind]);
    }
    car_status status = kernel->class->prepare ? kernel->class->prepare(kernel) : CAR_OK;
    kernel->own_scratch_bytes = kernel->scratch_bytes;
    if (status == CAR_OK && kernel->widened) {
        kernel->scratch_bytes = offset_of(kernel, PLACES);
    }
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Widens `from` into its place in scratch if it is bf16. Returns where the floats are. */
static const void *widen(const car_kernel *kernel, int place, const void *from, void *scratch) {
    int64_t elements = from ? elements_of(kernel, place) : 0;
    if (elements == 0) {
        return from;
    }
    float *room = room_of(kernel, place, scratch);
    car_vector_select()->widen(room, from, elements);
    return room;
}

static void widen_params(const car_kernel *kernel, const car_kernel_io *io, car_kernel_io *own) {
    for (int p = 0; p < kernel->op->param_count; p++) {
        own->param[p] = widen(kernel, PARAM + p, io->param[p], io->scratch);
    }
}

static car_status forward_widened(const car_kernel *kernel, const car_kernel_io *io) {
    car_kernel_io own = *io;
    int64_t elements = elements_of(kernel, OUT);
    for (int q = 0; q < kernel->op->input_count; q++) {
        own.in[q] = widen(kernel, IN + q, io->in[q], io->scratch);
    }
    widen_params(kernel, io, &own);
    own.out = elements > 0 ? room_of(kernel, OUT, io->scratch) : io->out;
    car_status status = kernel->class->forward(kernel, &own);
    if (status == CAR_OK && elements > 0) {
        car_vector_select()->narrow(io->out, own.out, elements);
    }
    return status;
}

static car_status backward_widened(const car_kernel *kernel, const car_kernel_io *io) {
    const car_op *op = kernel->op;
    const car_vector *vector = car_vector_select();
    car_kernel_io own = *io;
    for (int q = 0; q < op->input_count; q++) {
        own.in[q] = widen(kernel, IN + q, io->in[q], io->scratch);
        if (io->grad_in[q] && elements_of(kernel, GRAD_IN + q) > 0) {
            bool adds = op->grad_mode[q] == CAR_GRAD_ADD && kernel->class->adds_grad;
            own.grad_in[q] = room_of(kernel, GRAD_IN + q, io->scratch);
            if (adds) {
                vector->widen(own.grad_in[q], io->grad_in[q], elements_of(kernel, GRAD_IN + q));
            }
        }
    }
    widen_params(kernel, io, &own);
    own.out = (void *)(uintptr_t)widen(kernel, OUT, io->out, io->scratch);
    own.grad_out = widen(kernel, GRAD_OUT, io->grad_out, io->scratch);
    car_status status = kernel->class->backward(kernel, &own);
    for (int q = 0; status == CAR_OK && q < op->input_count; q++) {
        int64_t elements = io->grad_in[q] ? elements_of(kernel, GRAD_IN + q) : 0;
        if (elements > 0 && op->grad_mode[q] == CAR_GRAD_ADD && !kernel->class->adds_grad) {
            vector->narrow_sum(io->grad_in[q], own.grad_in[q], elements);
        } else if (elements > 0) {
            vector->narrow(io->grad_in[q], own.grad_in[q], elements);
        }
    }
    return status;
}

car_status car_kernel_forward(const car_kernel *kernel, const car_kernel_io *io) {
    return kernel->widened ? forward_widened(kernel, io) : kernel->class->forward(kernel, io);
}

car_status car_kernel_backward(const car_kernel *kernel, const car_kernel_io *io) {
    return kernel->widened ? backward_widened(kernel, io) : kernel->class->backward(kernel, io);
}

car_status car_kernel_derive(const car_kernel *kernel, const car_kernel_io *io, void *derived) {
    const float *param[CAR_MAX_PARAMS] = {NULL};
    for (int p = 0; p < kernel->op->param_count; p++) {
        param[p] = kernel->widened ? widen(kernel, PARAM + p, io->param[p], io->scratch) : io->param[p];
    }
    return kernel->class->derive(kernel, param, derived, io->stream);
}
