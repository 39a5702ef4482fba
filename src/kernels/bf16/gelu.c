/* GELU in bf16, by oneDNN: computed in floats, rounded when it is stored. */
#include "kernels/bf16/bf16.h"

typedef struct gelu_state {
    car_onednn_step forward, backward;
    dnnl_memory_desc_t layout;
} gelu_state;

/* oneDNN's backward cannot add to a gradient; the way over floats can. */
static const car_kernel_class *choose(const car_kernel *kernel) {
    bool adds = kernel->op->grad_mode[0] == CAR_GRAD_ADD;
    return car_program_multiplies_bf16() && !adds ? &car_bf16_gelu : NULL;
}

static void release(car_kernel *kernel) {
    gelu_state *state = kernel->state;
    if (state) {
        car_onednn_step_destroy(&state->backward);
        car_onednn_step_destroy(&state->forward);
        car_context_release(kernel->context, state, 1, sizeof *state);
    }
}

static car_status prepare(car_kernel *kernel) {
    dnnl_alg_kind_t algorithm = kernel->op->config.gelu.tanh ? dnnl_eltwise_gelu_tanh : dnnl_eltwise_gelu_erf;
    const dnnl_dims_t elements = {car_kernel_stored_elements(car_kernel_out(kernel), kernel->block_out)};
    gelu_state *s = NULL;
    dnnl_eltwise_desc_t descriptor;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(kernel->context, 1, sizeof *s, &s));
    kernel->state = s;
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(&s->layout, 1, elements, dnnl_bf16, dnnl_x), "describe a tensor");
    CAR_DNNL(kernel, dnnl_eltwise_forward_desc_init(&descriptor, dnnl_forward_training, algorithm, &s->layout, 0, 0),
             "describe GELU");
    CAR_TRY(car_onednn_step_create(kernel, &descriptor, NULL, &s->forward));
    CAR_DNNL(kernel, dnnl_eltwise_backward_desc_init(&descriptor, algorithm, &s->layout, &s->layout, 0, 0),
             "describe GELU's backward");
    CAR_TRY(car_onednn_step_create(kernel, &descriptor, s->forward.description, &s->backward));
    kernel->scratch_bytes =
        s->forward.scratch_bytes > s->backward.scratch_bytes ? s->forward.scratch_bytes : s->backward.scratch_bytes;
    kernel->name = car_onednn_step_name(&s->forward);
done:
    return status;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const gelu_state *s = kernel->state;
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &s->layout, io->in[0]},
        {DNNL_ARG_DST, &s->layout, io->out},
        {DNNL_ARG_SCRATCHPAD, &s->forward.scratch, io->scratch},
    };
    return car_onednn_execute(kernel, s->forward.primitive, io->stream, arguments, 3);
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const gelu_state *s = kernel->state;
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &s->layout, io->in[0]},
        {DNNL_ARG_DIFF_DST, &s->layout, io->grad_out},
        {DNNL_ARG_DIFF_SRC, &s->layout, io->grad_in[0]},
        {DNNL_ARG_SCRATCHPAD, &s->backward.scratch, io->scratch},
    };
    return io->grad_in[0] ? car_onednn_execute(kernel, s->backward.primitive, io->stream, arguments, 4) : CAR_OK;
}

const car_kernel_class car_bf16_gelu = {.choose = choose,
                                        .prepare = prepare,
                                        .release = release,
                                        .forward = forward,
                                        .backward = backward,
                                        .adds_grad = true};
