/* Convolutions by oneDNN, on blocked channels end to end.
 *
 * Forward and backward by weights share one layout of the weights, which is how they are stored.
 * Backward by data mostly wants another one; that copy is the kernel's derived form, made once for
 * each version of the weights and not once for each worker. */
#include <string.h>

#include "kernels/onednn/onednn.h"

typedef struct conv_state {
    car_onednn_step forward, by_data, by_weights;
    dnnl_memory_desc_t source, target, stored, canonical, bias;
    dnnl_memory_desc_t for_data, for_gradient; /* layouts of the weights that the backward steps want */
    bool has_bias, wants_data, reorders_gradient;
} conv_state;

typedef struct window {
    dnnl_dims_t strides, left, right;
} window;

/* What lies behind the last window on the right is cut off, not padded. */
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
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(&state->canonical, 4, dims, dnnl_f32, dnnl_oihw), "describe weights");
    CAR_DNNL(kernel, dnnl_memory_desc_init_by_tag(any, 4, dims, dnnl_f32, dnnl_format_tag_any), "describe weights");
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
done:
    return status;
}

static car_status create_by_data(const car_kernel *kernel, conv_state *state, const dnnl_memory_desc_t *any) {
    window w = window_of(kernel);
    dnnl_convolution_desc_t descriptor;
    car_status status = CAR_OK;
    CAR_DNNL(kernel,
             dnnl_convolution_backward_data_desc_init(&descriptor, dnnl_convolution_direct, &state->source, any,
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

/* Asks for gradients in the stored layout; where only a reference kernel can give that, takes what
 * oneDNN likes and reorders. */
static car_status create_by_weights(const car_kernel *kernel, conv_state *state, const dnnl_memory_desc_t *any) {
    window w = window_of(kernel);
    car_status status = CAR_OK;
    for (int attempt = 0; attempt < 2; attempt++) {
        dnnl_convolution_desc_t descriptor;
        car_onednn_step_destroy(&state->by_weights);
        CAR_DNNL(kernel,
                 dnnl_convolution_backward_weights_desc_init(
                     &descriptor, dnnl_convolution_direct, &state->source, attempt == 0 ? &state->stored : any,
                     state->has_bias ? &state->bias : NULL, &state->target, w.strides, w.left, w.right),
                 "describe the backward by weights");
        CAR_TRY(car_onednn_step_describe(kernel, &descriptor, state->forward.description, &state->by_weights));
        if (!is_slow(&state->by_weights)) {
            break;
        }
    }
    CAR_TRY(car_onednn_step_compile(kernel, &state->by_weights));
    state->for_gradient = *car_onednn_step_layout(&state->by_weights, dnnl_query_diff_weights_md);
    state->reorders_gradient = !dnnl_memory_desc_equal(&state->for_gradient, &state->stored);
done:
    return status;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Where the gradient in oneDNN's own layout stands in the scratch space. */
static size_t gradient_offset(const conv_state *state) {
    return car_round_up(state->by_weights.scratch_bytes, 64);
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
    CAR_TRY(create_by_weights(kernel, state, &any));
    size_t by_weights = state->by_weights.scratch_bytes;
    if (state->reorders_gradient) {
        by_weights = gradient_offset(state) + dnnl_memory_desc_get_size(&state->for_gradient);
    }
    kernel->scratch_bytes = larger(larger(state->forward.scratch_bytes, state->by_data.scratch_bytes), by_weights);
    kernel->weight_bytes = dnnl_memory_desc_get_size(&state->stored);
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
    if (status == CAR_OK && state->reorders_gradient) {
        status =
            car_onednn_reorder(kernel, io->stream, &state->for_gradient, gradient, &state->stored, io->grad_param[0]);
    }
    return status;
}

static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const conv_state *state = kernel->state;
    car_status status = backward_by_weights(kernel, io);
    if (status != CAR_OK || !io->grad_in[0]) {
        return status;
    }
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_DIFF_DST, &state->target, io->grad_out},
        {DNNL_ARG_WEIGHTS, &state->for_data, kernel->derived_bytes ? io->derived : io->param[0]},
        {DNNL_ARG_DIFF_SRC, &state->source, io->grad_in[0]},
        {DNNL_ARG_SCRATCHPAD, &state->by_data.scratch, io->scratch},
    };
    return car_onednn_execute(kernel, state->by_data.primitive, io->stream, arguments, 4);
}

static car_status derive(const car_kernel *kernel, const float *const *param, void *derived, void *stream) {
    const conv_state *state = kernel->state;
    return car_onednn_reorder(kernel, stream, &state->stored, param[0], &state->for_data, derived);
}

/* Import and export happen outside of any lane, so they bring a stream of their own. */
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
    return convert(kernel, &state->canonical, canonical, &state->stored, stored);
}

static car_status export_param(const car_kernel *kernel, const float *stored, float *canonical) {
    const conv_state *state = kernel->state;
    return convert(kernel, &state->stored, stored, &state->canonical, canonical);
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
