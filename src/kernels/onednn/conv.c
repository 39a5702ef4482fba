/* Convolutions with oneDNN, on blocked channels throughout, in floats or bf16.
 *
 * Forward and backward by weights share one layout of the weights, which is how they are stored. Backward by data
 * usually needs another one. That copy is the kernel's derived form: made once for each version of the weights, not
 * once for each worker.
 *
 * In bf16, forward needs pairs of inputs side by side. Gradients of weights are floats, which oneDNN produces
 * without pairs; they are rearranged in place. Sums are in floats. */
#include <string.h>

#include "kernels/onednn/onednn.h"

typedef struct conv_state {
    car_onednn_step forward, by_data, by_weights;
    dnnl_memory_desc_t source, target, stored, canonical, bias;
    dnnl_memory_desc_t floats;                 /* in the layout of `stored` */
    dnnl_memory_desc_t for_data, for_gradient; /* weight layouts for the two backward steps */
    dnnl_memory_desc_t grad_source;            /* like source, but floats if a bf16 gradient is added to */
    bool has_bias, wants_data, adds_data, reorders_gradient, pairs_gradient;
} conv_state;

typedef struct window {
    dnnl_dims_t strides, left, right;
} window;

/* Pixels to the right of the last window are cut off, not padded. */
static window window_of(const car_kernel *kernel) {
    const car_conv_config *config = &kernel->op->config.conv;
    car_shape in = car_kernel_in(kernel, 0), out = car_kernel_out(kernel);
    window w = {.strides = {config->stride, config->stride}, .left = {config->pad, config->pad}};
    for (int d = 0; d < 2; d++) {
        w.right[d] = (out.dim[d + 2] - 1) * config->stride + config->kernel - in.dim[d + 2] - config->pad;
    }
    return w;
}

static car_status describe_tensors(const car_kernel *kernel, conv_state *state, dnnl_memory_desc_t *any) {
    car_shape weight = car_kernel_param(kernel, 0);
    dnnl_dims_t dims = {weight.dim[0], weight.dim[1], weight.dim[2], weight.dim[3]};
    car_status status = CAR_OK;
    state->has_bias = kernel->op->config.conv.bias;
    state->wants_data = kernel->op->grad_mode[0] != CAR_GRAD_NONE;
    CAR_TRY(car_onednn_image(kernel, car_kernel_in(kernel, 0), kernel->block_in[0], &state->source));
    CAR_TRY(car_onednn_image(kernel, car_kernel_out(kernel), kernel->block_out, &state->target));
    state->adds_data = kernel->bf16 && kernel->op->grad_mode[0] == CAR_GRAD_ADD;
    state->grad_source = state->source;
    state->grad_source.data_type = state->adds_data ? dnnl_f32 : state->source.data_type;
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(&state->canonical, 4, dims, dnnl_f32, dnnl_oihw), "describe weights");
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(any, 4, dims, car_onednn_type(kernel), dnnl_format_tag_any),
             "describe weights");
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(&state->bias, 1, dims, dnnl_f32, dnnl_x), "describe a bias");
done:
    return status;
}

static car_status create_forward(const car_kernel *kernel, conv_state *state, const dnnl_memory_desc_t *any) {
    window w = window_of(kernel);
    dnnl_convolution_desc_t descriptor;
    car_status status = CAR_OK;
    CAR_DNNL(kernel,
             dnnl_convolution_forward_desc_init(&descriptor, dnnl_forward_training, dnnl_convolution_direct,
                                                &state->source, any, state->has_bias ? &state->bias : NULL,
                                                &state->target, w.strides, w.left, w.right),
             "describe the convolution");
    CAR_TRY(car_onednn_step_create(kernel, &descriptor, NULL, &state->forward));
    state->stored = *car_onednn_step_layout(&state->forward, dnnl_query_weights_md);
    state->floats = state->stored;
    state->floats.data_type = dnnl_f32;
done:
    return status;
}

static car_status create_by_data(const car_kernel *kernel, conv_state *state, const dnnl_memory_desc_t *any) {
    window w = window_of(kernel);
    dnnl_convolution_desc_t descriptor;
    car_status status = CAR_OK;
    CAR_DNNL(kernel,
             dnnl_convolution_backward_data_desc_init(&descriptor, dnnl_convolution_direct, &state->grad_source, any,
                                                      &state->target, w.strides, w.left, w.right),
             "describe the backward by data");
    CAR_TRY(car_onednn_step_create(kernel, &descriptor, state->forward.description, &state->by_data));
    state->for_data = *car_onednn_step_layout(&state->by_data, dnnl_query_weights_md);
done:
    return status;
}

static bool is_slow(const car_onednn_step *step) {
    return strncmp(car_onednn_step_name(step), "ref", 3) == 0;
}

/* Whether two layouts differ only in pairs: each pair of inputs, with 16 outputs per row, is row after row in
 * `plain` and interleaved in `paired`. */
static bool differs_by_pairs(const dnnl_memory_desc_t *plain, const dnnl_memory_desc_t *paired) {
    enum { OUTPUT, INPUT };
    const dnnl_blocking_desc_t *a = &plain->format_desc.blocking, *b = &paired->format_desc.blocking;
    bool like = plain->format_kind == dnnl_blocked && paired->format_kind == dnnl_blocked &&
                memcmp(plain->padded_dims, paired->padded_dims, sizeof plain->padded_dims) == 0 &&
                memcmp(a->strides, b->strides, (size_t)plain->ndims * sizeof a->strides[0]) == 0;
    return like && a->inner_nblks == 2 && a->inner_blks[0] == 16 && a->inner_blks[1] == 16 &&
           a->inner_idxs[0] == INPUT && a->inner_idxs[1] == OUTPUT && b->inner_nblks == 3 && b->inner_blks[0] == 8 &&
           b->inner_blks[1] == 16 && b->inner_blks[2] == 2 && b->inner_idxs[0] == INPUT && b->inner_idxs[1] == OUTPUT &&
           b->inner_idxs[2] == INPUT;
}

/* Requests gradients in the stored layout. If only a reference kernel can produce that, or in bf16, uses oneDNN's
 * preferred layout and reorders. */
static car_status create_by_weights(const car_kernel *kernel, conv_state *state) {
    window w = window_of(kernel);
    dnnl_memory_desc_t any;
    car_status status = CAR_OK;
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(&any, 4, state->canonical.dims, dnnl_f32, dnnl_format_tag_any),
             "describe weights");
    for (int attempt = kernel->bf16 ? 1 : 0; attempt < 2; attempt++) {
        dnnl_convolution_desc_t descriptor;
        car_onednn_step_destroy(&state->by_weights);
        CAR_DNNL(kernel,
                 dnnl_convolution_backward_weights_desc_init(
                     &descriptor, dnnl_convolution_direct, &state->source, attempt == 0 ? &state->stored : &any,
                     state->has_bias ? &state->bias : NULL, &state->target, w.strides, w.left, w.right),
                 "describe the backward by weights");
        CAR_TRY(car_onednn_step_describe(kernel, &descriptor, state->forward.description, &state->by_weights));
        if (!is_slow(&state->by_weights)) {
            break;
        }
    }
    CAR_TRY(car_onednn_step_compile(kernel, &state->by_weights));
    state->for_gradient = *car_onednn_step_layout(&state->by_weights, dnnl_query_diff_weights_md);
    state->pairs_gradient = differs_by_pairs(&state->for_gradient, &state->floats);
    state->reorders_gradient = !state->pairs_gradient && !dnnl_memory_desc_equal(&state->for_gradient, &state->floats);
done:
    return status;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Offset in scratch of the gradient in oneDNN's layout. */
static size_t gradient_offset(const conv_state *state) {
    return car_round_up(state->by_weights.scratch_bytes, 64);
}

/* Offset in scratch of what is added to a bf16 gradient. */
static size_t addend_offset(const conv_state *state) {
    return car_round_up(state->by_data.scratch_bytes, 64);
}

static size_t scratch_of(const conv_state *state) {
    size_t by_weights = state->by_weights.scratch_bytes, by_data = state->by_data.scratch_bytes;
    if (state->reorders_gradient) {
        by_weights = gradient_offset(state) + dnnl_memory_desc_get_size(&state->for_gradient);
    }
    if (state->adds_data) {
        by_data = addend_offset(state) + dnnl_memory_desc_get_size(&state->grad_source);
    }
    return larger(larger(state->forward.scratch_bytes, by_data), by_weights);
}

static car_status prepare(car_kernel *kernel) {
    conv_state *state = NULL;
    dnnl_memory_desc_t any;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(kernel->context, 1, sizeof *state, &state));
    kernel->state = state;
    CAR_TRY(describe_tensors(kernel, state, &any));
    CAR_TRY(create_forward(kernel, state, &any));
    if (state->wants_data) {
        CAR_TRY(create_by_data(kernel, state, &any));
        if (!dnnl_memory_desc_equal(&state->for_data, &state->stored)) {
            kernel->derived_bytes = dnnl_memory_desc_get_size(&state->for_data);
        }
    }
    CAR_TRY(create_by_weights(kernel, state));
    kernel->scratch_bytes = scratch_of(state);
    kernel->weight_bytes = dnnl_memory_desc_get_size(&state->floats);
    kernel->own_layout = true;
    kernel->name = car_onednn_step_name(&state->forward);
done:
    return status;
}

static void release(car_kernel *kernel) {
    conv_state *state = kernel->state;
    if (state) {
        car_onednn_step_destroy(&state->by_weights);
        car_onednn_step_destroy(&state->by_data);
        car_onednn_step_destroy(&state->forward);
        car_context_release(kernel->context, state, 1, sizeof *state);
    }
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const conv_state *state = kernel->state;
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &state->source, io->in[0]},   {DNNL_ARG_WEIGHTS, &state->stored, io->param[0]},
        {DNNL_ARG_DST, &state->target, io->out},     {DNNL_ARG_SCRATCHPAD, &state->forward.scratch, io->scratch},
        {DNNL_ARG_BIAS, &state->bias, io->param[1]},
    };
    return car_onednn_execute(kernel, state->forward.primitive, io->stream, arguments, state->has_bias ? 5 : 4);
}

/* Interleaves two rows of 16 into 16 pairs. */
static void pair_rows(float *gradient, size_t count) {
    enum { ROW = 16, BOTH = 2 * ROW };
    for (float *rows = gradient; rows < gradient + count; rows += BOTH) {
        float pairs[BOTH];
        for (int o = 0; o < ROW; o++) {
            pairs[2 * o] = rows[o];
            pairs[2 * o + 1] = rows[ROW + o];
        }
        memcpy(rows, pairs, sizeof pairs);
    }
}

static car_status backward_by_weights(const car_kernel *kernel, const car_kernel_io *io) {
    const conv_state *state = kernel->state;
    void *gradient =
        state->reorders_gradient ? (char *)io->scratch + gradient_offset(state) : (void *)io->grad_param[0];
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &state->source, io->in[0]},
        {DNNL_ARG_DIFF_DST, &state->target, io->grad_out},
        {DNNL_ARG_DIFF_WEIGHTS, &state->for_gradient, gradient},
        {DNNL_ARG_SCRATCHPAD, &state->by_weights.scratch, io->scratch},
        {DNNL_ARG_DIFF_BIAS, &state->bias, io->grad_param[1]},
    };
    car_status status =
        car_onednn_execute(kernel, state->by_weights.primitive, io->stream, arguments, state->has_bias ? 5 : 4);
    if (status == CAR_OK && state->pairs_gradient) {
        pair_rows(gradient, kernel->weight_bytes / sizeof(float));
    } else if (status == CAR_OK && state->reorders_gradient) {
        status =
            car_onednn_reorder(kernel, io->stream, &state->for_gradient, gradient, &state->floats, io->grad_param[0]);
    }
    return status;
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const conv_state *state = kernel->state;
    car_status status = backward_by_weights(kernel, io);
    if (status != CAR_OK || !io->grad_in[0]) {
        return status;
    }
    void *gradient = state->adds_data ? (char *)io->scratch + addend_offset(state) : io->grad_in[0];
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_DIFF_DST, &state->target, io->grad_out},
        {DNNL_ARG_WEIGHTS, &state->for_data, kernel->derived_bytes ? io->derived : io->param[0]},
        {DNNL_ARG_DIFF_SRC, &state->grad_source, gradient},
        {DNNL_ARG_SCRATCHPAD, &state->by_data.scratch, io->scratch},
    };
    status = car_onednn_execute(kernel, state->by_data.primitive, io->stream, arguments, 4);
    if (status == CAR_OK && state->adds_data) {
        car_vector_select()->narrow_sum(io->grad_in[0], gradient,
                                        car_kernel_stored_elements(car_kernel_in(kernel, 0), kernel->block_in[0]));
    }
    return status;
}

static car_status derive(const car_kernel *kernel, const float *const *param, void *derived, void *stream) {
    const conv_state *state = kernel->state;
    return car_onednn_reorder(kernel, stream, &state->stored, param[0], &state->for_data, derived);
}

/* Import and export run outside of any lane, so they create their own stream. */
static car_status convert(const car_kernel *kernel, const dnnl_memory_desc_t *from, const void *source,
                          const dnnl_memory_desc_t *to, void *target) {
    void *stream = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_kernels_onednn_open_stream(kernel->context, kernel->engine, &stream));
    CAR_TRY(car_onednn_reorder(kernel, stream, from, source, to, target));
done:
    car_kernels_onednn_close_stream(stream);
    return status;
}

static car_status import_param(const car_kernel *kernel, const float *canonical, float *stored) {
    const conv_state *state = kernel->state;
    memset(stored, 0, kernel->weight_bytes);
    return convert(kernel, &state->canonical, canonical, &state->floats, stored);
}

static car_status export_param(const car_kernel *kernel, const float *stored, float *canonical) {
    const conv_state *state = kernel->state;
    return convert(kernel, &state->floats, stored, &state->canonical, canonical);
}

const car_kernel_class car_onednn_conv = {
    .choose = car_onednn_choose_conv,
    .prepare = prepare,
    .release = release,
    .forward = forward,
    .backward = backward,
    .derive = derive,
    .import_param = import_param,
    .export_param = export_param,
};

const car_kernel_class car_onednn_conv_bf16 = {
    .prepare = prepare,
    .release = release,
    .forward = forward,
    .backward = backward,
    .derive = derive,
    .import_param = import_param,
    .export_param = export_param,
    .adds_grad = true,
};
