/* Builders of the user's own stages (stage.h), and of parameters that are carried through them.
 *
 *     carry ──┬─────────┬─────────┐       a parameter as a tensor: its gradient is added up from the top down, and is
 *             ▼         ▼         ▼       complete when backward reaches `carry`
 *          stage 0 ─► stage 1 ─► stage 2 */
#include <math.h>

#include "carousel/stage.h"
#include "graph/internal.h"
#include "graph/ops.h"

enum { BYTES = 8 }; /* what crosses between ranks is a multiple of this */

car_stage_config car_stage_config_default(void) {
    return (car_stage_config){.input = CAR_NONE};
}

/* ---- checks ---------------------------------------------------------------------------------- */

static bool refuse(car_graph *graph, const char *name, const char *why) {
    car_graph_fail(graph, CAR_ERROR_ARGUMENT, "stage %s: %s", name, why);
    return false;
}

/* Far more than any machine has. A larger size is a mistake, and sums of sizes cannot overflow. */
static const size_t most_bytes = (size_t)1 << 48;

static bool is_possible(const car_stage_class *stage) {
    const size_t sizes[] = {stage->input_bytes,   stage->output_bytes,  stage->held_bytes,
                            stage->rebuilt_bytes, stage->scratch_bytes, (size_t)stage->param_count * sizeof(double)};
    bool possible = stage->param_count <= (int64_t)(most_bytes / sizeof(double));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        possible = possible && sizes[s] <= most_bytes;
    }
    return possible;
}

static bool check_class(car_graph *graph, const char *name, const car_stage_class *stage) {
    if (!stage || !stage->forward || !stage->backward) {
        return refuse(graph, name, "its class needs a forward and a backward");
    }
    if (stage->rebuilt_bytes > 0 && !stage->recompute) {
        return refuse(graph, name, "its class has rebuilt_bytes but no recompute function that writes them");
    }
    if (stage->segments < 0 || (stage->segments > 1 && !stage->recompute)) {
        return refuse(graph, name,
                      "a backward in segments needs a recompute function, and segments must not be negative");
    }
    if (stage->dtype != CAR_F32 && stage->dtype != CAR_F64) {
        return refuse(graph, name, "its parameters must be of type CAR_F32 or CAR_F64");
    }
    if (stage->param_count < 0 || !(stage->forward_cost >= 0 && isfinite(stage->forward_cost)) ||
        !(stage->backward_cost >= 0 && isfinite(stage->backward_cost))) {
        return refuse(graph, name, "its param_count and costs must be finite and not negative");
    }
    if (!is_possible(stage)) {
        return refuse(graph, name, "a size of its class is above 2^48 bytes: was it computed from a negative number?");
    }
    car_shape shape = stage->output_shape;
    if (shape.rank < 0 || shape.rank > 3) {
        return refuse(graph, name, "output_shape must be of rank 1 to 3, or of rank 0 for bytes of any type");
    }
    size_t bytes = (size_t)car_shape_elements(shape) * sizeof(float);
    if (shape.rank > 0 && bytes != stage->output_bytes) {
        car_graph_fail(graph, CAR_ERROR_SHAPE, "stage %s: its output_shape has %zu bytes, but its output_bytes is %zu",
                       name, bytes, stage->output_bytes);
        return false;
    }
    return true;
}

/* Images are stored in blocks of channels, which a stage could not read. */
static bool check_state(car_graph *graph, const char *name, const car_stage_class *stage, int input) {
    if (input == CAR_NONE && stage->input_bytes > 0) {
        return refuse(graph, name, "it has input_bytes, but its config names no input");
    }
    if (input == CAR_NONE) {
        return true;
    }
    if (input < 0 || input >= graph->tensor_count) {
        return refuse(graph, name, "its input is not a tensor of this graph");
    }
    const car_tensor *tensor = &graph->tensors[input];
    if (tensor->shape.rank == 4) {
        return refuse(graph, name, "its input is an image: put car_graph_flatten before it");
    }
    size_t wanted = tensor->dtype == CAR_U8 ? car_round_up(stage->input_bytes, BYTES) : stage->input_bytes;
    if (tensor->bytes != wanted) {
        car_graph_fail(graph, CAR_ERROR_SHAPE, "stage %s takes an input of %zu bytes, but %s has %zu", name,
                       stage->input_bytes, tensor->name, tensor->bytes);
        return false;
    }
    return true;
}

static bool check_others(car_graph *graph, const char *name, const car_stage_config *config) {
    if (config->carried_count < 0 || config->carried_count > CAR_STAGE_MAX_CARRIED || config->data_count < 0 ||
        config->data_count > CAR_STAGE_MAX_DATA) {
        car_graph_fail(graph, CAR_ERROR_ARGUMENT,
                       "stage %s: it names %d carried tensors and %d data tensors; at most %d and %d are supported",
                       name, config->carried_count, config->data_count, CAR_STAGE_MAX_CARRIED, CAR_STAGE_MAX_DATA);
        return false;
    }
    for (int c = 0; c < config->carried_count; c++) {
        int tensor = config->carried[c];
        int producer = tensor >= 0 && tensor < graph->tensor_count ? graph->tensors[tensor].producer : CAR_NONE;
        if (producer == CAR_NONE || graph->ops[producer].kind != CAR_OP_CARRY) {
            return refuse(graph, name, "one of its carried tensors was not made by car_graph_carry");
        }
        for (int other = 0; other < c; other++) {
            if (config->carried[other] == tensor) {
                return refuse(graph, name, "it names a carried tensor twice");
            }
        }
    }
    for (int d = 0; d < config->data_count; d++) {
        int tensor = config->data[d];
        if (tensor < 0 || tensor >= graph->tensor_count || graph->tensors[tensor].producer != CAR_NONE) {
            return refuse(graph, name, "one of its data tensors is not an input of the graph (car_graph_input)");
        }
        if (graph->tensors[tensor].shape.rank == 4) {
            return refuse(graph, name, "data of rank 4 is stored in blocks of channels: give it rank 1 to 3");
        }
    }
    return true;
}

/* ---- builders -------------------------------------------------------------------------------- */

static void add_input(car_op *op, int tensor, bool saved) {
    op->saves_input[op->input_count] = saved;
    op->inputs[op->input_count++] = tensor;
}

static car_shape bytes_shape(size_t bytes) {
    return bytes > 0 ? (car_shape){1, {(int64_t)car_round_up(bytes, BYTES)}} : CAR_NO_AUX;
}

static int typed(car_graph *graph, int tensor, car_dtype dtype) {
    if (tensor != CAR_NONE && graph->status == CAR_OK) {
        car_tensor *t = &graph->tensors[tensor];
        t->dtype = dtype;
        t->bytes = (size_t)car_shape_elements(t->shape) * car_dtype_bytes(dtype);
    }
    return tensor;
}

static void add_params(car_graph *graph, const car_stage_class *stage, car_op *op) {
    int param = car_graph_named_param(graph, op->name, ".params", (car_shape){1, {stage->param_count}},
                                      CAR_PARAM_WEIGHT, stage->init);
    if (param != CAR_NONE) {
        graph->params[param].dtype = stage->dtype;
        graph->params[param].filled = true;
        op->params[op->param_count++] = param;
    }
}

int car_graph_stage(car_graph *graph, const char *name, const car_stage_class *stage, const car_stage_config *config) {
    CAR_GRAPH_REQUIRE(graph, graph);
    CAR_GRAPH_REQUIRE(graph, name);
    if (!config) {
        refuse(graph, name, "it needs a config (car_stage_config_default)");
        return CAR_NONE;
    }
    bool fits = check_class(graph, name, stage) && check_state(graph, name, stage, config->input) &&
                check_others(graph, name, config);
    if (!fits) {
        return CAR_NONE;
    }
    car_op op = {.kind = CAR_OP_STAGE, .name = name, .saves_output = stage->keeps_output && stage->output_bytes > 0};
    op.config.stage.own = stage;
    op.config.stage.user = config->user;
    op.config.stage.states = config->input != CAR_NONE;
    op.config.stage.carried = config->carried_count;
    op.config.stage.data = config->data_count;
    if (config->input != CAR_NONE) {
        add_input(&op, config->input, stage->keeps_input);
    }
    for (int c = 0; c < config->carried_count; c++) {
        add_input(&op, config->carried[c], true);
    }
    for (int d = 0; d < config->data_count; d++) {
        add_input(&op, config->data[d], true);
    }
    if (stage->param_count > 0) {
        add_params(graph, stage, &op);
    }
    op.flops_forward = stage->forward_cost > 0 ? stage->forward_cost : 1;
    op.flops_backward = stage->backward_cost > 0 ? stage->backward_cost : 2 * op.flops_forward;
    /* The loss, or floats for the graph's own operations. */
    if (stage->output_bytes == 0 || stage->output_shape.rank > 0) {
        car_shape shape = stage->output_bytes == 0 ? (car_shape){1, {1}} : stage->output_shape;
        return car_graph_add_op(graph, &op, shape, bytes_shape(stage->held_bytes), CAR_U8);
    }
    int output = car_graph_add_op(graph, &op, bytes_shape(stage->output_bytes), bytes_shape(stage->held_bytes), CAR_U8);
    return typed(graph, output, CAR_U8);
}

int car_graph_carry(car_graph *graph, const char *name, car_shape shape, car_dtype dtype, car_init init) {
    CAR_GRAPH_REQUIRE(graph, graph);
    CAR_GRAPH_REQUIRE(graph, name);
    if (dtype != CAR_F32 && dtype != CAR_F64) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "%s: a carried tensor must be of type CAR_F32 or CAR_F64",
                              name);
    }
    if (shape.rank == 4) {
        return car_graph_fail(graph, CAR_ERROR_SHAPE, "%s: a carried tensor must be of rank 1 to 3", name);
    }
    car_op op = {.kind = CAR_OP_CARRY, .name = name};
    int param = car_graph_add_param(graph, name, shape, CAR_PARAM_WEIGHT, init);
    if (param == CAR_NONE) {
        return CAR_NONE;
    }
    graph->params[param].dtype = dtype;
    graph->params[param].filled = true;
    op.params[op.param_count++] = param;
    return typed(graph, car_graph_add_op(graph, &op, shape, CAR_NO_AUX, CAR_F32), dtype);
}
