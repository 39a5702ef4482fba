/* Builders of operations on images: shapes, parameters, costs, and what backward needs.
 *
 * A multiplication and an addition count as two FLOPs. Backward of a convolution or a matrix product costs twice its
 * forward (by data and by weights); for everything else it costs about as much as forward. */
#include <math.h>
#include <stdio.h>

#include "graph/internal.h"
#include "graph/ops.h"

bool car_graph_check_input(car_graph *graph, const char *name, int x, int rank, car_dtype dtype) {
    if (!graph || graph->status != CAR_OK) {
        return false;
    }
    if (!name) {
        car_graph_fail(graph, CAR_ERROR_ARGUMENT, "the name of an operation is NULL");
        return false;
    }
    if (x < 0 || x >= graph->tensor_count) {
        car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: there is no tensor %d", name, x);
        return false;
    }
    const car_tensor *tensor = &graph->tensors[x];
    if (rank != 0 && tensor->shape.rank != rank) {
        car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: its input %s has %d dimensions, but %d are needed", name,
                       tensor->name, tensor->shape.rank, rank);
        return false;
    }
    if (tensor->dtype != dtype) {
        car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: its input %s has the wrong element type", name, tensor->name);
        return false;
    }
    return true;
}

int car_graph_named_param(car_graph *graph, const char *name, const char *suffix, car_shape shape, car_param_role role,
                          car_init init) {
    char full[CAR_GRAPH_NAME_CAPACITY];
    int length = snprintf(full, sizeof full, "%s%s", name, suffix);
    if (length < 0 || (size_t)length >= sizeof full) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "the name %s is too long", name);
    }
    return car_graph_add_param(graph, full, shape, role, init);
}

int car_graph_input(car_graph *graph, const char *name, car_shape shape, car_dtype dtype) {
    CAR_GRAPH_REQUIRE(graph, graph);
    CAR_GRAPH_REQUIRE(graph, name);
    return car_graph_add_tensor(graph, name, shape, dtype);
}

/* The number of positions of a window of `kernel` along `size`; 0 if it does not fit. */
static int64_t window_count(int64_t size, int kernel, int stride, int pad) {
    int64_t room = size + 2 * (int64_t)pad - kernel;
    return room < 0 ? 0 : room / stride + 1;
}

static bool window_output(car_graph *graph, const char *name, int x, const car_pool_config *window, car_shape *out) {
    const car_shape in = graph->tensors[x].shape;
    if (window->kernel < 1 || window->stride < 1 || window->pad < 0 || window->pad >= window->kernel) {
        car_graph_fail(graph, CAR_ERROR_ARGUMENT,
                       "%s: kernel %d, stride %d and padding %d are not a valid window; kernel and stride must be at "
                       "least 1, and the padding smaller than the kernel",
                       name, window->kernel, window->stride, window->pad);
        return false;
    }
    *out = in;
    for (int d = 2; d < 4; d++) {
        out->dim[d] = window_count(in.dim[d], window->kernel, window->stride, window->pad);
    }
    if (out->dim[2] < 1 || out->dim[3] < 1) {
        car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: a window of %d does not fit into %lld x %lld pixels", name,
                       window->kernel, (long long)in.dim[2], (long long)in.dim[3]);
        return false;
    }
    return true;
}

int car_graph_conv(car_graph *graph, const char *name, int x, const car_conv_config *config) {
    CAR_GRAPH_REQUIRE(graph, config);
    car_shape out;
    car_pool_config window = {.kernel = config->kernel, .stride = config->stride, .pad = config->pad};
    if (!car_graph_check_input(graph, name, x, 4, CAR_F32) || !window_output(graph, name, x, &window, &out)) {
        return CAR_NONE;
    }
    if (config->out_channels < 1) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: invalid number of output channels: %d", name,
                              config->out_channels);
    }
    int64_t in_channels = graph->tensors[x].shape.dim[1];
    double fan_in = (double)in_channels * config->kernel * config->kernel;
    car_init init = {CAR_INIT_UNIFORM, 1.0 / sqrt(fan_in)};
    out.dim[1] = config->out_channels;
    car_op op = {.kind = CAR_OP_CONV, .name = name, .input_count = 1, .inputs = {x}, .saves_input = {true}};
    op.config.conv = *config;
    op.params[op.param_count++] = car_graph_named_param(
        graph, name, ".weight", (car_shape){4, {config->out_channels, in_channels, config->kernel, config->kernel}},
        CAR_PARAM_WEIGHT, init);
    if (config->bias) {
        op.params[op.param_count++] =
            car_graph_named_param(graph, name, ".bias", (car_shape){1, {config->out_channels}}, CAR_PARAM_BIAS, init);
    }
    op.flops_forward = 2.0 * (double)car_shape_elements(out) * fan_in;
    op.flops_backward = 2 * op.flops_forward;
    return car_graph_add_op(graph, &op, out, CAR_NO_AUX, CAR_F32);
}

int car_graph_batchnorm(car_graph *graph, const char *name, int x, int residual, const car_batchnorm_config *config) {
    CAR_GRAPH_REQUIRE(graph, config);
    if (!car_graph_check_input(graph, name, x, 4, CAR_F32)) {
        return CAR_NONE;
    }
    if (!(config->eps > 0) || !(config->momentum >= 0 && config->momentum <= 1)) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: eps must be positive and momentum in 0..1", name);
    }
    car_shape shape = graph->tensors[x].shape;
    car_op op = {.kind = CAR_OP_BATCHNORM, .name = name, .input_count = 1, .inputs = {x}, .saves_input = {true}};
    op.config.batchnorm = *config;
    if (residual != CAR_NONE) {
        if (!car_graph_check_input(graph, name, residual, 4, CAR_F32) ||
            !car_graph_same_shape(graph, name, x, residual)) {
            return CAR_NONE;
        }
        op.inputs[op.input_count++] = residual;
        op.saves_output = config->relu; /* its sign is the mask; without a residual the mask is recomputed from x */
    }
    static const struct {
        const char *suffix;
        car_param_role role;
        double initial;
    } params[] = {
        {".weight", CAR_PARAM_NORM, 1},
        {".bias", CAR_PARAM_NORM, 0},
        {".running_mean", CAR_PARAM_STATISTIC, 0},
        {".running_var", CAR_PARAM_STATISTIC, 1},
    };
    for (int p = 0; p < 4; p++) {
        op.params[op.param_count++] =
            car_graph_named_param(graph, name, params[p].suffix, (car_shape){1, {shape.dim[1]}}, params[p].role,
                                  (car_init){CAR_INIT_CONSTANT, params[p].initial});
    }
    op.flops_forward = 7.0 * (double)car_shape_elements(shape);
    op.flops_backward = 10.0 * (double)car_shape_elements(shape);
    return car_graph_add_op(graph, &op, shape, (car_shape){2, {2, shape.dim[1]}}, CAR_F32);
}

int car_graph_maxpool(car_graph *graph, const char *name, int x, const car_pool_config *config) {
    CAR_GRAPH_REQUIRE(graph, config);
    car_shape out;
    if (!car_graph_check_input(graph, name, x, 4, CAR_F32) || !window_output(graph, name, x, config, &out)) {
        return CAR_NONE;
    }
    if (config->pad > config->kernel / 2) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: the padding must be at most half the window", name);
    }
    if (config->kernel > 16) {
        return car_graph_fail(graph, CAR_ERROR_UNSUPPORTED, "%s: windows of more than 16 x 16 pixels are not supported",
                              name);
    }
    car_op op = {.kind = CAR_OP_MAXPOOL, .name = name, .input_count = 1, .inputs = {x}};
    op.config.pool = *config;
    op.flops_forward = (double)car_shape_elements(out) * config->kernel * config->kernel;
    op.flops_backward = op.flops_forward;
    return car_graph_add_op(graph, &op, out, out, CAR_U8); /* where in its window the maximum was */
}

int car_graph_avgpool(car_graph *graph, const char *name, int x, const car_pool_config *config) {
    CAR_GRAPH_REQUIRE(graph, config);
    car_shape out;
    if (!car_graph_check_input(graph, name, x, 4, CAR_F32) || !window_output(graph, name, x, config, &out)) {
        return CAR_NONE;
    }
    car_op op = {.kind = CAR_OP_AVGPOOL, .name = name, .input_count = 1, .inputs = {x}};
    op.config.pool = *config;
    op.flops_forward = (double)car_shape_elements(out) * config->kernel * config->kernel;
    op.flops_backward = op.flops_forward;
    return car_graph_add_op(graph, &op, out, CAR_NO_AUX, CAR_F32);
}

int car_graph_global_avgpool(car_graph *graph, const char *name, int x) {
    if (!car_graph_check_input(graph, name, x, 4, CAR_F32)) {
        return CAR_NONE;
    }
    const car_shape in = graph->tensors[x].shape;
    car_op op = {.kind = CAR_OP_GLOBAL_AVGPOOL, .name = name, .input_count = 1, .inputs = {x}};
    op.flops_forward = (double)car_shape_elements(in);
    op.flops_backward = op.flops_forward;
    return car_graph_add_op(graph, &op, (car_shape){2, {in.dim[0], in.dim[1]}}, CAR_NO_AUX, CAR_F32);
}

int car_graph_shortcut(car_graph *graph, const char *name, int x, int out_channels, int stride) {
    if (!car_graph_check_input(graph, name, x, 4, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape out = graph->tensors[x].shape;
    if (stride < 1 || out_channels < out.dim[1]) {
        return car_graph_fail(
            graph, CAR_ERROR_ARGUMENT,
            "%s: a shortcut needs a stride of at least 1, and at least as many output channels as its input has", name);
    }
    out.dim[1] = out_channels;
    out.dim[2] = (out.dim[2] - 1) / stride + 1;
    out.dim[3] = (out.dim[3] - 1) / stride + 1;
    car_op op = {.kind = CAR_OP_SHORTCUT, .name = name, .input_count = 1, .inputs = {x}};
    op.config.shortcut.stride = stride;
    op.flops_forward = (double)car_shape_elements(out);
    op.flops_backward = op.flops_forward;
    return car_graph_add_op(graph, &op, out, CAR_NO_AUX, CAR_F32);
}
