/* The graph of a kernel case and the values of its tensors.
 *
 * Operations with a kink (ReLU, maximum) get values that keep a distance from it, so that finite differences
 * see a smooth function and two implementations cannot fall on different sides of it by rounding:
 * - ReLU and batch normalisation: signs alternate, magnitudes are in 1..2. Then each channel's mean is near zero
 *   and so is the place of the kink; a normalised value is below 3.
 * - the residual of a batch normalisation: magnitudes in 4..5, so that it decides the sign of the sum.
 * - max pooling: the values of one plane are a permutation of equidistant ones. */
#include <string.h>

#include "base/base.h"
#include "kernels/cases.h"

static const double distance = 0.25; /* of the values that max pooling compares */
static const int64_t prime = 7919;   /* coprime to the pixels of any plane in the list */

/* ---- the graph ----------------------------------------------------------------------------------------- */

static int build_batchnorm(car_graph *graph, const car_case *test, int x, car_shape shape) {
    int residual = test->residual ? car_graph_input(graph, "residual", shape, CAR_F32) : CAR_NONE;
    return car_graph_batchnorm(graph, "op", x, residual, &test->config.batchnorm);
}

static int build_linear(car_graph *graph, const car_case *test, int x, car_shape shape) {
    car_linear_config config = test->config.linear;
    if (test->tied) {
        int tokens = car_graph_input(graph, "tokens", (car_shape){2, {1, 1}}, CAR_I32);
        car_graph_embedding(graph, "wte", "wpe", tokens, config.out_features, 1, (int)shape.dim[shape.rank - 1]);
        config.tied = "wte.weight";
    }
    return car_graph_linear(graph, "op", x, &config);
}

static int build_head_loss(car_graph *graph, const car_case *test, int x, car_shape shape) {
    shape.rank--; /* a label for each row */
    int labels = car_graph_input(graph, "labels", shape, CAR_I32);
    return car_graph_head_loss(graph, "op", x, labels, test->config.head_loss.classes, NULL,
                               test->config.head_loss.smoothing);
}

static int build_loss(car_graph *graph, const car_case *test, int x, car_shape shape) {
    shape.rank--; /* a label for each row */
    int labels = car_graph_input(graph, "labels", shape, CAR_I32);
    return car_graph_cross_entropy(graph, "op", x, labels, test->config.cross_entropy.smoothing);
}

static int build_op(car_graph *graph, const car_case *test, int x, car_shape shape) {
    const car_op_config *config = &test->config;
    switch (test->kind) {
    case CAR_OP_CONV:
        return car_graph_conv(graph, "op", x, &config->conv);
    case CAR_OP_BATCHNORM:
        return build_batchnorm(graph, test, x, shape);
    case CAR_OP_RELU:
        return car_graph_relu(graph, "op", x);
    case CAR_OP_MAXPOOL:
        return car_graph_maxpool(graph, "op", x, &config->pool);
    case CAR_OP_AVGPOOL:
        return car_graph_avgpool(graph, "op", x, &config->pool);
    case CAR_OP_GLOBAL_AVGPOOL:
        return car_graph_global_avgpool(graph, "op", x);
    case CAR_OP_SHORTCUT:
        return car_graph_shortcut(graph, "op", x, test->channels, config->shortcut.stride);
    case CAR_OP_ADD:
        return car_graph_add(graph, "op", x, car_graph_input(graph, "y", shape, CAR_F32));
    case CAR_OP_FLATTEN:
        return car_graph_flatten(graph, "op", x);
    case CAR_OP_LINEAR:
        return build_linear(graph, test, x, shape);
    case CAR_OP_LAYERNORM:
        return car_graph_layernorm(graph, "op", x, config->layernorm.eps);
    case CAR_OP_GELU:
        return car_graph_gelu(graph, "op", x, config->gelu.tanh);
    case CAR_OP_ATTENTION:
        return car_graph_attention(graph, "op", x, config->attention.heads, config->attention.causal);
    case CAR_OP_EMBEDDING:
        return car_graph_embedding(graph, "op", "positions", x, test->vocabulary, test->positions, test->width);
    case CAR_OP_PATCH_TOKENS:
        return car_graph_patch_tokens(graph, "op", "positions", x);
    case CAR_OP_SELECT_TOKEN:
        return car_graph_select_token(graph, "op", x, config->select_token.index);
    case CAR_OP_DROPOUT:
        return car_graph_dropout(graph, "op", x, config->dropout.p);
    case CAR_OP_CROSS_ENTROPY:
        return build_loss(graph, test, x, shape);
    case CAR_OP_HEAD_LOSS:
        return build_head_loss(graph, test, x, shape);
    case CAR_OP_CARRY:
    case CAR_OP_STAGE:
    case CAR_OP_KINDS:
        break;
    }
    return CAR_NONE;
}

car_status car_case_build(const car_case *test, int batch, car_context *context, car_graph **out) {
    car_graph *graph = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_graph_create(context, &graph));
    car_shape shape = test->shape;
    if (batch > 0) {
        shape.dim[0] = batch;
    }
    int x = car_graph_input(graph, "x", shape, test->kind == CAR_OP_EMBEDDING ? CAR_I32 : CAR_F32);
    if (build_op(graph, test, x, shape) == CAR_NONE) {
        /* The graph has recorded why; finishing it is how one asks. */
        status = car_graph_finish(graph, CAR_NONE);
        goto done;
    }
    *out = graph;
    graph = NULL;
done:
    car_graph_destroy(graph);
    return status;
}

/* ---- values -------------------------------------------------------------------------------------------- */

static uint64_t key_of(const car_case *test, const char *tensor) {
    return car_random_key(car_random_key(1, test->name), tensor);
}

static double between(uint64_t key, int64_t i, double low, double high) {
    return low + (high - low) * (double)car_random_uniform(key, (uint64_t)i);
}

static double random_sign(uint64_t key, int64_t i) {
    return car_random_u64(key + 1, (uint64_t)i) & 1 ? 1 : -1;
}

static void fill_uniform(uint64_t key, int64_t count, double low, double high, float *values) {
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)between(key, i, low, high);
    }
}

/* Magnitudes in low..high; signs alternate within a plane and from plane to plane, or are random. */
static void fill_signed(uint64_t key, car_shape shape, bool alternate, double low, double high, double offset,
                        float *values) {
    int64_t count = car_shape_elements(shape), plane = shape.rank == 4 ? shape.dim[2] * shape.dim[3] : count;
    int64_t channels = shape.rank == 4 ? shape.dim[1] : 1;
    for (int64_t i = 0; i < count; i++) {
        bool odd = (i % plane + i / plane / channels) % 2;
        double sign = alternate ? (odd ? -1 : 1) : random_sign(key, i);
        values[i] = (float)(offset + sign * between(key, i, low, high));
    }
}

static void fill_distinct(uint64_t key, car_shape shape, float *values) {
    int64_t count = car_shape_elements(shape), plane = shape.dim[2] * shape.dim[3];
    for (int64_t i = 0; i < count; i++) {
        int64_t start = (int64_t)(car_random_u64(key, (uint64_t)(i / plane)) % (uint64_t)plane);
        int64_t rank = (i % plane * prime + start) % plane;
        values[i] = (float)(distance * (double)(rank - plane / 2));
    }
}

static void fill_tokens(uint64_t key, int64_t count, int64_t below, bool ignores, int32_t *values) {
    for (int64_t i = 0; i < count; i++) {
        values[i] = (int32_t)(car_random_u64(key, (uint64_t)i) % (uint64_t)below);
        if (ignores && i % 3 == 0) {
            values[i] = i % 2 ? -100 : -1;
        }
    }
}

void car_case_fill_input(const car_case *test, const car_graph *graph, const car_op *op, int q, void *values) {
    const car_tensor *tensor = car_graph_tensor(graph, op->inputs[q]);
    const car_shape first = car_graph_tensor(graph, op->inputs[0])->shape;
    int64_t count = car_shape_elements(tensor->shape);
    uint64_t key = key_of(test, tensor->name);
    double range = test->range > 0 ? test->range : 1;
    if (test->kind == CAR_OP_EMBEDDING) {
        fill_tokens(key, count, test->vocabulary, false, values);
    } else if (tensor->dtype == CAR_I32) {
        bool head = test->kind == CAR_OP_HEAD_LOSS;
        fill_tokens(key, count, head ? test->config.head_loss.classes : first.dim[first.rank - 1], test->ignores,
                    values);
    } else if (test->kind == CAR_OP_BATCHNORM && q == 1) {
        fill_signed(key, tensor->shape, false, 4, 5, 0, values);
    } else if (test->kind == CAR_OP_BATCHNORM || test->kind == CAR_OP_RELU) {
        fill_signed(key, tensor->shape, test->kind == CAR_OP_BATCHNORM, 1, 2, test->offset, values);
    } else if (test->kind == CAR_OP_MAXPOOL) {
        fill_distinct(key, tensor->shape, values);
    } else {
        fill_uniform(key, count, test->offset - range, test->offset + range, values);
    }
}

void car_case_fill_param(const car_case *test, const car_graph *graph, const car_op *op, int p, float *values) {
    const car_param *param = car_graph_param(graph, op->params[p]);
    int64_t count = car_shape_elements(param->shape);
    uint64_t key = key_of(test, param->name);
    if (param->role == CAR_PARAM_NORM && p == 0) {
        for (int64_t i = 0; i < count; i++) {
            values[i] = (float)(random_sign(key, i) * between(key, i, 0.5, 1.5));
        }
    } else if (param->role == CAR_PARAM_NORM) {
        fill_uniform(key, count, -0.1, 0.1, values);
    } else if (param->role == CAR_PARAM_STATISTIC) {
        fill_uniform(key, count, p == 2 ? -0.1 : 0.5, p == 2 ? 0.1 : 1.5, values);
    } else {
        fill_uniform(key, count, -1, 1, values);
    }
}

void car_case_fill_grad(const car_case *test, const car_graph *graph, const car_op *op, float *values) {
    const car_tensor *out = car_graph_tensor(graph, op->output);
    if (test->kind == CAR_OP_CROSS_ENTROPY || test->kind == CAR_OP_HEAD_LOSS) {
        values[0] = 0.75F; /* not the 1 that it mostly is, so that a kernel must look */
    } else {
        fill_uniform(key_of(test, "gradient"), car_shape_elements(out->shape), -1, 1, values);
    }
}
