/* Pooling and GELU with oneDNN, in floats or bf16: a forward and a backward primitive each. bf16 is computed in
 * floats and rounded when stored. The exception is backward of pooling: oneDNN would round each window's share of a
 * gradient, so it gets floats. */
#include "kernels/onednn/onednn.h"

typedef struct pair_state {
    car_onednn_step forward, inference, backward;
    dnnl_memory_desc_t source, target, index;
    dnnl_memory_desc_t grad_source, grad_target; /* floats, also for pooling in bf16 */
    bool has_index;
} pair_state;

static void release(car_kernel *kernel) {
    pair_state *state = kernel->state;
    if (state) {
        car_onednn_step_destroy(&state->backward);
        car_onednn_step_destroy(&state->inference);
        car_onednn_step_destroy(&state->forward);
        car_context_release(kernel->context, state, 1, sizeof *state);
    }
}

static void note_scratch(car_kernel *kernel, const car_onednn_step *step) {
    if (step->scratch_bytes > kernel->scratch_bytes) {
        kernel->scratch_bytes = step->scratch_bytes;
    }
}

static const car_kernel_class *if_possible(const car_kernel *kernel, const car_kernel_class *class) {
    return !kernel->bf16 || car_program_multiplies_bf16() ? class : NULL;
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* Offsets in scratch of the floats of both gradients. */
static size_t grad_source_offset(const pair_state *state) {
    return car_round_up(state->backward.scratch_bytes, 64);
}
static size_t grad_target_offset(const pair_state *state) {
    return grad_source_offset(state) + car_round_up(dnnl_memory_desc_get_size(&state->grad_source), 64);
}

static car_status prepare_pool(car_kernel *kernel, dnnl_alg_kind_t algorithm) {
    const car_pool_config *config = &kernel->op->config.pool;
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    const dnnl_dims_t strides = {config->stride, config->stride}, window = {config->kernel, config->kernel};
    const dnnl_dims_t left = {config->pad, config->pad};
    dnnl_dims_t right = {0};
    for (int d = 0; d < 2; d++) {
        right[d] = (out.dim[d + 2] - 1) * config->stride + config->kernel - in.dim[d + 2] - config->pad;
    }
    pair_state *state = NULL;
    dnnl_pooling_desc_t descriptor;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(kernel->context, 1, sizeof *state, &state));
    kernel->state = state;
    CAR_TRY(car_onednn_image(kernel, in, kernel->block_in[0], &state->source));
    CAR_TRY(car_onednn_image(kernel, out, kernel->block_out, &state->target));
    const dnnl_prop_kind_t kinds[] = {dnnl_forward_training, dnnl_forward_inference};
    car_onednn_step *steps[] = {&state->forward, &state->inference};
    for (int f = 0; f < 2; f++) {
        CAR_DNNL(kernel,
                 dnnl_pooling_forward_desc_init(&descriptor, kinds[f], algorithm, &state->source, &state->target,
                                                strides, window, left, right),
                 "describe the pooling");
        CAR_TRY(car_onednn_step_create(kernel, &descriptor, NULL, steps[f]));
    }
    state->grad_source = state->source;
    state->grad_target = state->target;
    state->grad_source.data_type = state->grad_target.data_type = dnnl_f32;
    CAR_DNNL(kernel,
             dnnl_pooling_backward_desc_init(&descriptor, algorithm, &state->grad_source, &state->grad_target, strides,
                                             window, left, right),
             "describe the pooling's backward");
    CAR_TRY(car_onednn_step_create(kernel, &descriptor, state->forward.description, &state->backward));
    const dnnl_memory_desc_t *index = car_onednn_step_layout(&state->forward, dnnl_query_workspace_md);
    state->has_index = algorithm == dnnl_pooling_max && index != NULL;
    if (state->has_index) {
        state->index = *index;
        kernel->aux_bytes = dnnl_memory_desc_get_size(index);
    }
    note_scratch(kernel, &state->forward);
    note_scratch(kernel, &state->inference);
    note_scratch(kernel, &state->backward);
    if (kernel->bf16) {
        size_t floats = grad_target_offset(state) + dnnl_memory_desc_get_size(&state->grad_target);
        kernel->scratch_bytes = floats > kernel->scratch_bytes ? floats : kernel->scratch_bytes;
    }
    kernel->name = car_onednn_step_name(&state->forward);
done:
    return status;
}

static car_status prepare_maxpool(car_kernel *kernel) {
    return prepare_pool(kernel, dnnl_pooling_max);
}

static car_status prepare_avgpool(car_kernel *kernel) {
    return prepare_pool(kernel, dnnl_pooling_avg_include_padding);
}

static car_status forward_pool(const car_kernel *kernel, const car_kernel_io *io) {
    const pair_state *state = kernel->state;
    const car_onednn_step *step = io->training ? &state->forward : &state->inference;
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &state->source, io->in[0]},
        {DNNL_ARG_DST, &state->target, io->out},
        {DNNL_ARG_SCRATCHPAD, &step->scratch, io->scratch},
        {DNNL_ARG_WORKSPACE, &state->index, io->aux},
    };
    return car_onednn_execute(kernel, step->primitive, io->stream, arguments, io->training && state->has_index ? 4 : 3);
}

static car_status backward_pool(const car_kernel *kernel, const car_kernel_io *io) {
    const pair_state *state = kernel->state;
    if (!io->grad_in[0]) {
        return CAR_OK;
    }
    const car_vector *vector = car_vector_select();
    void *grad_source = kernel->bf16 ? (char *)io->scratch + grad_source_offset(state) : io->grad_in[0];
    const void *grad_target = io->grad_out;
    if (kernel->bf16) {
        float *floats = (float *)(void *)((char *)io->scratch + grad_target_offset(state));
        vector->widen(floats, io->grad_out, car_kernel_stored_elements(car_kernel_out(kernel), kernel->block_out));
        grad_target = floats;
    }
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_DIFF_DST, &state->grad_target, grad_target},
        {DNNL_ARG_DIFF_SRC, &state->grad_source, grad_source},
        {DNNL_ARG_SCRATCHPAD, &state->backward.scratch, io->scratch},
        {DNNL_ARG_WORKSPACE, &state->index, io->aux},
    };
    car_status status =
        car_onednn_execute(kernel, state->backward.primitive, io->stream, arguments, state->has_index ? 4 : 3);
    if (status == CAR_OK && kernel->bf16) {
        vector->narrow(io->grad_in[0], grad_source,
                       car_kernel_stored_elements(car_kernel_in(kernel, 0), kernel->block_in[0]));
    }
    return status;
}

static const car_kernel_class *choose_maxpool(const car_kernel *kernel) {
    return if_possible(kernel, &car_onednn_maxpool);
}

static const car_kernel_class *choose_avgpool(const car_kernel *kernel) {
    return if_possible(kernel, &car_onednn_avgpool);
}

const car_kernel_class car_onednn_maxpool = {.choose = choose_maxpool,
                                             .prepare = prepare_maxpool,
                                             .release = release,
                                             .forward = forward_pool,
                                             .backward = backward_pool};
const car_kernel_class car_onednn_avgpool = {.choose = choose_avgpool,
                                             .prepare = prepare_avgpool,
                                             .release = release,
                                             .forward = forward_pool,
                                             .backward = backward_pool};

/* ---- GELU ------------------------------------------------------------------------------------ */

static car_status prepare_gelu(car_kernel *kernel) {
    dnnl_alg_kind_t algorithm = kernel->op->config.gelu.tanh ? dnnl_eltwise_gelu_tanh : dnnl_eltwise_gelu_erf;
    const dnnl_dims_t elements = {car_kernel_stored_elements(car_kernel_out(kernel), kernel->block_out)};
    pair_state *state = NULL;
    dnnl_eltwise_desc_t descriptor;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(kernel->context, 1, sizeof *state, &state));
    kernel->state = state;
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(&state->source, 1, elements, car_onednn_type(kernel), dnnl_x),
             "describe a tensor");
    CAR_DNNL(kernel,
             dnnl_eltwise_forward_desc_init(&descriptor, dnnl_forward_training, algorithm, &state->source, 0, 0),
             "describe GELU");
    CAR_TRY(car_onednn_step_create(kernel, &descriptor, NULL, &state->forward));
    CAR_DNNL(kernel, dnnl_eltwise_backward_desc_init(&descriptor, algorithm, &state->source, &state->source, 0, 0),
             "describe GELU's backward");
    CAR_TRY(car_onednn_step_create(kernel, &descriptor, state->forward.description, &state->backward));
    note_scratch(kernel, &state->forward);
    note_scratch(kernel, &state->backward);
    kernel->name = car_onednn_step_name(&state->forward);
done:
    return status;
}

static car_status forward_gelu(const car_kernel *kernel, const car_kernel_io *io) {
    const pair_state *state = kernel->state;
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &state->source, io->in[0]},
        {DNNL_ARG_DST, &state->source, io->out},
        {DNNL_ARG_SCRATCHPAD, &state->forward.scratch, io->scratch},
    };
    return car_onednn_execute(kernel, state->forward.primitive, io->stream, arguments, 3);
}

static car_status backward_gelu(const car_kernel *kernel, const car_kernel_io *io) {
    const pair_state *state = kernel->state;
    if (!io->grad_in[0]) {
        return CAR_OK;
    }
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &state->source, io->in[0]},
        {DNNL_ARG_DIFF_DST, &state->source, io->grad_out},
        {DNNL_ARG_DIFF_SRC, &state->source, io->grad_in[0]},
        {DNNL_ARG_SCRATCHPAD, &state->backward.scratch, io->scratch},
    };
    return car_onednn_execute(kernel, state->backward.primitive, io->stream, arguments, 4);
}

static const car_kernel_class *choose_gelu(const car_kernel *kernel) {
    return if_possible(kernel, &car_onednn_gelu);
}

const car_kernel_class car_onednn_gelu = {.choose = choose_gelu,
                                          .prepare = prepare_gelu,
                                          .release = release,
                                          .forward = forward_gelu,
                                          .backward = backward_gelu};
