/* Builders of operations on rows, sequences and single elements, and of the loss. ops_image.c explains how costs are
 * counted. */
#include <math.h>
#include <string.h>

#include "graph/internal.h"
#include "graph/ops.h"

bool car_graph_same_shape(car_graph *graph, const char *name, int a, int b) {
    const car_shape left = graph->tensors[a].shape, right = graph->tensors[b].shape;
    bool same = left.rank == right.rank;
    for (int d = 0; same && d < left.rank; d++) {
        same = left.dim[d] == right.dim[d];
    }
    if (!same) {
        car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: its inputs %s and %s differ in shape", name, graph->tensors[a].name,
                       graph->tensors[b].name);
    }
    return same;
}

static int64_t last_dim(car_shape shape) {
    return shape.dim[shape.rank - 1];
}

/* ---- single elements ------------------------------------------------------------------------- */

/* An operation with one input whose output has the same shape. */
static int add_elementwise(car_graph *graph, car_op *op, int x, double flops_per_element) {
    if (!car_graph_check_input(graph, op->name, x, 0, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape shape = graph->tensors[x].shape;
    op->input_count = 1;
    op->inputs[0] = x;
    op->flops_forward = flops_per_element * (double)car_shape_elements(shape);
    op->flops_backward = op->flops_forward;
    return car_graph_add_op(graph, op, shape, CAR_NO_AUX, CAR_F32);
}

int car_graph_relu(car_graph *graph, const char *name, int x) {
    /* The output serves as the mask, and the next operation usually holds it anyway. */
    car_op op = {.kind = CAR_OP_RELU, .name = name, .saves_output = true};
    return add_elementwise(graph, &op, x, 1);
}

int car_graph_gelu(car_graph *graph, const char *name, int x, bool tanh) {
    car_op op = {.kind = CAR_OP_GELU, .name = name, .saves_input = {true}};
    op.config.gelu.tanh = tanh;
    return add_elementwise(graph, &op, x, 20);
}

int car_graph_dropout(car_graph *graph, const char *name, int x, double p) {
    CAR_GRAPH_REQUIRE(graph, name);
    if (!(p >= 0 && p < 1)) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: dropout is %g, but must be at least 0 and less than 1",
                              name, p);
    }
    car_op op = {.kind = CAR_OP_DROPOUT, .name = name};
    op.config.dropout.p = p;
    return add_elementwise(graph, &op, x, 4);
}

int car_graph_add(car_graph *graph, const char *name, int a, int b) {
    if (!car_graph_check_input(graph, name, a, 0, CAR_F32) || !car_graph_check_input(graph, name, b, 0, CAR_F32) ||
        !car_graph_same_shape(graph, name, a, b)) {
        return CAR_NONE;
    }
    if (a == b) {
        return car_graph_fail(graph, CAR_ERROR_UNSUPPORTED, "%s: adding a tensor to itself is not supported", name);
    }
    car_shape shape = graph->tensors[a].shape;
    car_op op = {.kind = CAR_OP_ADD, .name = name, .input_count = 2, .inputs = {a, b}};
    op.flops_forward = (double)car_shape_elements(shape);
    op.flops_backward = op.flops_forward;
    return car_graph_add_op(graph, &op, shape, CAR_NO_AUX, CAR_F32);
}

int car_graph_flatten(car_graph *graph, const char *name, int x) {
    if (!car_graph_check_input(graph, name, x, 0, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape in = graph->tensors[x].shape;
    car_op op = {.kind = CAR_OP_FLATTEN, .name = name, .input_count = 1, .inputs = {x}};
    car_shape out = {2, {in.dim[0], car_shape_elements(in) / in.dim[0]}};
    return car_graph_add_op(graph, &op, out, CAR_NO_AUX, CAR_F32);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* torchvision's attention names its joint projection in_proj_weight; everything else is NAME.weight. */
static const char *separator_of(const char *name, const char *dotted, const char *underscored) {
    static const char joint[] = "in_proj";
    size_t length = strlen(name), tail = sizeof joint - 1;
    return length >= tail && strcmp(name + length - tail, joint) == 0 ? underscored : dotted;
}

static int linear_weight(car_graph *graph, const char *name, const car_linear_config *config, int64_t in,
                         car_init init) {
    if (!config->tied) {
        car_shape shape = {2, {config->out_features, in}};
        if (config->in_by_out) {
            shape = (car_shape){2, {in, config->out_features}};
        }
        return car_graph_named_param(graph, name, separator_of(name, ".weight", "_weight"), shape, CAR_PARAM_WEIGHT,
                                     init);
    }
    int param = car_graph_find_param(graph, config->tied);
    if (param == CAR_NONE) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: there is no parameter %s to tie to", name, config->tied);
    }
    const car_param *tied = &graph->params[param];
    if (config->in_by_out || tied->shape.rank != 2 || tied->shape.dim[0] != config->out_features ||
        tied->shape.dim[1] != in) {
        return car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: the parameter %s that it is tied to has another shape", name,
                              tied->name);
    }
    return param;
}

int car_graph_linear(car_graph *graph, const char *name, int x, const car_linear_config *config) {
    CAR_GRAPH_REQUIRE(graph, config);
    if (!car_graph_check_input(graph, name, x, 0, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape shape = graph->tensors[x].shape;
    if (shape.rank < 2 || shape.rank > 3 || config->out_features < 1) {
        return car_graph_fail(
            graph, CAR_ERROR_SHAPE,
            "%s: needs an input of shape [batch, features] or [batch, tokens, features], and at least one output",
            name);
    }
    int64_t in = last_dim(shape);
    car_init init = {CAR_INIT_UNIFORM, 1.0 / sqrt((double)in)};
    car_op op = {.kind = CAR_OP_LINEAR, .name = name, .input_count = 1, .inputs = {x}, .saves_input = {true}};
    op.config.linear = *config;
    op.config.linear.tied = NULL; /* its text is the caller's; the parameter is in op.params */
    op.params[op.param_count++] = linear_weight(graph, name, config, in, init);
    if (config->bias) {
        op.params[op.param_count++] =
            car_graph_named_param(graph, name, separator_of(name, ".bias", "_bias"),
                                  (car_shape){1, {config->out_features}}, CAR_PARAM_BIAS, init);
    }
    shape.dim[shape.rank - 1] = config->out_features;
    op.flops_forward = 2.0 * (double)car_shape_elements(shape) * (double)in;
    op.flops_backward = 2 * op.flops_forward;
    return car_graph_add_op(graph, &op, shape, CAR_NO_AUX, CAR_F32);
}

int car_graph_layernorm(car_graph *graph, const char *name, int x, double eps) {
    if (!car_graph_check_input(graph, name, x, 0, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape shape = graph->tensors[x].shape;
    if (shape.rank < 2 || shape.rank > 3 || !(eps > 0)) {
        return car_graph_fail(
            graph, CAR_ERROR_SHAPE,
            "%s: needs an input of shape [batch, features] or [batch, tokens, features], and a positive eps", name);
    }
    int64_t width = last_dim(shape);
    car_op op = {.kind = CAR_OP_LAYERNORM, .name = name, .input_count = 1, .inputs = {x}, .saves_input = {true}};
    op.config.layernorm.eps = eps;
    op.params[op.param_count++] = car_graph_named_param(graph, name, ".weight", (car_shape){1, {width}}, CAR_PARAM_NORM,
                                                        (car_init){CAR_INIT_CONSTANT, 1});
    op.params[op.param_count++] = car_graph_named_param(graph, name, ".bias", (car_shape){1, {width}}, CAR_PARAM_NORM,
                                                        (car_init){CAR_INIT_CONSTANT, 0});
    op.flops_forward = 8.0 * (double)car_shape_elements(shape);
    op.flops_backward = 12.0 * (double)car_shape_elements(shape);
    return car_graph_add_op(graph, &op, shape, (car_shape){2, {car_shape_elements(shape) / width, 2}}, CAR_F32);
}

/* ---- sequences ------------------------------------------------------------------------------- */

int car_graph_attention(car_graph *graph, const char *name, int x, int heads, bool causal) {
    if (!car_graph_check_input(graph, name, x, 3, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape shape = graph->tensors[x].shape;
    int64_t tokens = shape.dim[1], width = shape.dim[2] / 3;
    if (heads < 1 || shape.dim[2] % 3 != 0 || width % heads != 0) {
        return car_graph_fail(graph, CAR_ERROR_SHAPE,
                              "%s: %lld features cannot be divided into queries, keys and values of %d heads", name,
                              (long long)shape.dim[2], heads);
    }
    /* Backward recomputes the scores from x and the saved log-sum-exp of each row: T x T is never stored. */
    car_op op = {.kind = CAR_OP_ATTENTION,
                 .name = name,
                 .input_count = 1,
                 .inputs = {x},
                 .saves_input = {true},
                 .saves_output = true};
    op.config.attention.heads = heads;
    op.config.attention.causal = causal;
    shape.dim[2] = width;
    double pairs = (double)shape.dim[0] * (double)tokens * (double)tokens * (causal ? 0.5 : 1.0);
    op.flops_forward = 4.0 * pairs * (double)width;
    op.flops_backward = 2.5 * op.flops_forward;
    return car_graph_add_op(graph, &op, shape, (car_shape){3, {shape.dim[0], heads, tokens}}, CAR_F32);
}

int car_graph_embedding(car_graph *graph, const char *token_name, const char *position_name, int tokens, int vocabulary,
                        int positions, int width) {
    CAR_GRAPH_REQUIRE(graph, position_name);
    if (!car_graph_check_input(graph, token_name, tokens, 2, CAR_I32)) {
        return CAR_NONE;
    }
    car_shape in = graph->tensors[tokens].shape;
    if (vocabulary < 1 || width < 1 || positions < in.dim[1]) {
        return car_graph_fail(
            graph, CAR_ERROR_ARGUMENT,
            "%s: %lld tokens need as many positions, but there are %d; vocabulary and width must be at least 1",
            token_name, (long long)in.dim[1], positions);
    }
    car_op op = {
        .kind = CAR_OP_EMBEDDING, .name = token_name, .input_count = 1, .inputs = {tokens}, .saves_input = {true}};
    car_init init = {CAR_INIT_NORMAL, 1};
    op.params[op.param_count++] = car_graph_named_param(graph, token_name, ".weight",
                                                        (car_shape){2, {vocabulary, width}}, CAR_PARAM_EMBEDDING, init);
    op.params[op.param_count++] = car_graph_named_param(graph, position_name, ".weight",
                                                        (car_shape){2, {positions, width}}, CAR_PARAM_EMBEDDING, init);
    car_shape out = {3, {in.dim[0], in.dim[1], width}};
    op.flops_forward = (double)car_shape_elements(out);
    op.flops_backward = op.flops_forward;
    return car_graph_add_op(graph, &op, out, CAR_NO_AUX, CAR_F32);
}

int car_graph_patch_tokens(car_graph *graph, const char *class_name, const char *position_name, int x) {
    CAR_GRAPH_REQUIRE(graph, position_name);
    if (!car_graph_check_input(graph, class_name, x, 4, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape in = graph->tensors[x].shape;
    int64_t tokens = 1 + in.dim[2] * in.dim[3], width = in.dim[1];
    car_op op = {.kind = CAR_OP_PATCH_TOKENS, .name = class_name, .input_count = 1, .inputs = {x}};
    op.params[op.param_count++] = car_graph_named_param(graph, class_name, "", (car_shape){3, {1, 1, width}},
                                                        CAR_PARAM_EMBEDDING, (car_init){CAR_INIT_CONSTANT, 0});
    op.params[op.param_count++] = car_graph_named_param(graph, position_name, "", (car_shape){3, {1, tokens, width}},
                                                        CAR_PARAM_EMBEDDING, (car_init){CAR_INIT_NORMAL, 0.02});
    car_shape out = {3, {in.dim[0], tokens, width}};
    op.flops_forward = (double)car_shape_elements(out);
    op.flops_backward = op.flops_forward;
    return car_graph_add_op(graph, &op, out, CAR_NO_AUX, CAR_F32);
}

int car_graph_select_token(car_graph *graph, const char *name, int x, int index) {
    if (!car_graph_check_input(graph, name, x, 3, CAR_F32)) {
        return CAR_NONE;
    }
    car_shape in = graph->tensors[x].shape;
    if (index < 0 || index >= in.dim[1]) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: there is no token %d; the input has %lld", name, index,
                              (long long)in.dim[1]);
    }
    car_op op = {.kind = CAR_OP_SELECT_TOKEN, .name = name, .input_count = 1, .inputs = {x}};
    op.config.select_token.index = index;
    return car_graph_add_op(graph, &op, (car_shape){2, {in.dim[0], in.dim[2]}}, CAR_NO_AUX, CAR_F32);
}

/* ---- the loss -------------------------------------------------------------------------------- */

/* Checks that there is a label per row, and that the smoothing is valid. */
static bool check_loss(car_graph *graph, const char *name, int x, int labels, double smoothing) {
    if (!car_graph_check_input(graph, name, x, 0, CAR_F32) || !car_graph_check_input(graph, name, labels, 0, CAR_I32)) {
        return false;
    }
    car_shape shape = graph->tensors[x].shape;
    int64_t rows = car_shape_elements(shape) / last_dim(shape);
    if (shape.rank < 2 || shape.rank > 3 || graph->tensors[labels].shape.rank > 2 ||
        car_shape_elements(graph->tensors[labels].shape) != rows) {
        car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: %lld rows of logits need as many labels, but there are %lld", name,
                       (long long)rows, (long long)car_shape_elements(graph->tensors[labels].shape));
        return false;
    }
    if (!(smoothing >= 0 && smoothing < 1)) {
        car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: label smoothing must be at least 0 and less than 1", name);
        return false;
    }
    return true;
}

int car_graph_cross_entropy(car_graph *graph, const char *name, int logits, int labels, double smoothing) {
    if (!check_loss(graph, name, logits, labels, smoothing)) {
        return CAR_NONE;
    }
    car_shape shape = graph->tensors[logits].shape;
    car_op op = {.kind = CAR_OP_CROSS_ENTROPY,
                 .name = name,
                 .input_count = 2,
                 .inputs = {logits, labels},
                 .saves_input = {true, true}};
    op.config.cross_entropy.smoothing = smoothing;
    op.flops_forward = 10.0 * (double)car_shape_elements(shape);
    op.flops_backward = 5.0 * (double)car_shape_elements(shape);
    int64_t rows = car_shape_elements(shape) / last_dim(shape);
    return car_graph_add_op(graph, &op, (car_shape){1, {1}}, (car_shape){1, {rows}}, CAR_F32);
}

/* In training the logits are computed when backward begins (car_tape_defer_loss). They are counted as forward's all the
 * same: backward follows at once, and stages are cut where forwards are even. */
int car_graph_head_loss(car_graph *graph, const char *name, int x, int labels, int classes, const char *tied,
                        double smoothing) {
    if (!check_loss(graph, name, x, labels, smoothing)) {
        return CAR_NONE;
    }
    int64_t width = last_dim(graph->tensors[x].shape), rows = car_shape_elements(graph->tensors[x].shape) / width;
    car_linear_config linear = {.out_features = classes, .tied = tied};
    if (classes < 1) {
        return car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: needs at least one class", name);
    }
    car_op op = {
        .kind = CAR_OP_HEAD_LOSS, .name = name, .input_count = 2, .inputs = {x, labels}, .saves_input = {true, true}};
    op.config.head_loss.classes = classes;
    op.config.head_loss.smoothing = smoothing;
    op.params[op.param_count++] =
        linear_weight(graph, name, &linear, width, (car_init){CAR_INIT_UNIFORM, 1.0 / sqrt((double)width)});
    double logits = (double)rows * classes, product = 2 * logits * (double)width;
    op.flops_forward = product + 10 * logits;
    op.flops_backward = 2 * product + 5 * logits;
    return car_graph_add_op(graph, &op, (car_shape){1, {1}}, (car_shape){2, {rows, CAR_HEAD_AUX}}, CAR_F32);
}
