/* The storage of a graph: creating, appending, finishing and reading it. */
#include "carousel/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "carousel/stage.h"
#include "graph/internal.h"

enum { MESSAGE_CAPACITY = 512 };

static const int64_t max_elements = (int64_t)1 << 48; /* far beyond any machine, and far below overflow */

const char *car_op_kind_text(car_op_kind kind) {
    static const char *const texts[] = {
#define OP_TEXT(code, text) text,
        CAR_OP_LIST(OP_TEXT)
#undef OP_TEXT
    };
    return kind < CAR_OP_KINDS ? texts[kind] : "unknown";
}

size_t car_dtype_bytes(car_dtype dtype) {
    return dtype == CAR_U8 ? 1 : dtype == CAR_BF16 ? 2 : dtype == CAR_F64 ? 8 : 4;
}

size_t car_dtype_size(car_dtype dtype, int64_t elements) {
    size_t bytes = (size_t)elements * car_dtype_bytes(dtype);
    return dtype == CAR_BF16 ? car_round_up(bytes, sizeof(float)) : bytes; /* messages are counted in floats */
}

const char *car_precision_text(car_precision precision) {
    return precision == CAR_PRECISION_BF16 ? "bf16" : "fp32";
}

car_status car_precision_find(car_context *context, const char *name, car_precision *out) {
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, out);
    for (int p = CAR_PRECISION_FP32; p <= CAR_PRECISION_BF16; p++) {
        if (strcmp(name, car_precision_text((car_precision)p)) == 0) {
            *out = (car_precision)p;
            return CAR_OK;
        }
    }
    return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "precision '%.64s': it must be fp32 or bf16", name);
}

int64_t car_shape_elements(car_shape shape) {
    int64_t elements = 1;
    for (int d = 0; d < shape.rank; d++) {
        elements *= shape.dim[d];
    }
    return elements;
}

size_t car_param_bytes(const car_param *param) {
    size_t bytes = (size_t)car_shape_elements(param->shape) * car_dtype_bytes(param->dtype);
    return param->filled ? car_round_up(bytes, 64) : bytes;
}

size_t car_param_copy_bytes(const car_param *param) {
    return param->copy == CAR_BF16 ? car_dtype_size(CAR_BF16, car_shape_elements(param->shape))
                                   : car_param_bytes(param);
}

/* ---- creating and destroying ----------------------------------------------------------------- */

car_status car_graph_create(car_context *context, car_graph **out) {
    CAR_REQUIRE(context, out);
    *out = NULL;
    CAR_REQUIRE(NULL, context);
    car_graph *graph = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *graph, &graph);
    if (status == CAR_OK) {
        graph->context = context;
        graph->loss = CAR_NONE;
        *out = graph;
    }
    return status;
}

/* The graph owns the names; the structs expose them as const. */
static void release_name(car_context *context, const char *name) {
    car_context_release_text(context, (char *)(uintptr_t)name);
}

void car_graph_destroy(car_graph *graph) {
    if (!graph) {
        return;
    }
    car_context *context = graph->context;
    for (int l = 0; l < graph->op_count; l++) {
        release_name(context, graph->ops[l].name);
    }
    for (int v = 0; v < graph->tensor_count; v++) {
        release_name(context, graph->tensors[v].name);
    }
    for (int p = 0; p < graph->param_count; p++) {
        release_name(context, graph->params[p].name);
    }
    car_context_release(context, graph->ops, (size_t)graph->op_capacity, sizeof *graph->ops);
    car_context_release(context, graph->tensors, (size_t)graph->tensor_capacity, sizeof *graph->tensors);
    car_context_release(context, graph->params, (size_t)graph->param_capacity, sizeof *graph->params);
    car_context_release(context, graph->uses, (size_t)graph->use_capacity, sizeof *graph->uses);
    car_context_release(context, graph->grad_buffers, (size_t)graph->grad_buffer_capacity, sizeof *graph->grad_buffers);
    car_context_release(context, graph, 1, sizeof *graph);
}

int car_graph_fail(car_graph *graph, car_status status, const char *format, ...) {
    if (graph && graph->status == CAR_OK) {
        char message[MESSAGE_CAPACITY];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        graph->status = car_context_fail(graph->context, status, "%s", message);
    }
    return CAR_NONE;
}

void car_graph_set_precision(car_graph *graph, car_precision precision) {
    if (!graph) {
        return;
    }
    if (graph->finished) {
        car_graph_fail(graph, CAR_ERROR_ARGUMENT, "the precision of a finished graph cannot be changed");
    } else {
        graph->precision = precision;
    }
}

car_precision car_graph_precision(const car_graph *graph) {
    return graph ? graph->precision : CAR_PRECISION_FP32;
}

void car_graph_settle_types(car_graph *graph) {
    for (int l = 0; graph->precision == CAR_PRECISION_BF16 && l < graph->op_count; l++) {
        car_tensor *output = &graph->tensors[graph->ops[l].output];
        car_op_kind kind = graph->ops[l].kind;
        if (kind != CAR_OP_CROSS_ENTROPY && kind != CAR_OP_HEAD_LOSS) { /* the loss stays fp32 */
            output->dtype = CAR_BF16;
            output->bytes = car_dtype_size(CAR_BF16, car_shape_elements(output->shape));
        }
    }
    for (int p = 0; p < graph->param_count; p++) {
        car_param *param = &graph->params[p];
        bool large = param->role == CAR_PARAM_WEIGHT || param->role == CAR_PARAM_EMBEDDING;
        param->copy = large && graph->precision == CAR_PRECISION_BF16 ? CAR_BF16 : param->dtype;
    }
}

static bool makes_loss(const car_op *op) {
    return op->kind == CAR_OP_CROSS_ENTROPY || op->kind == CAR_OP_HEAD_LOSS ||
           (op->kind == CAR_OP_STAGE && op->config.stage.own->output_bytes == 0);
}

car_status car_graph_finish(car_graph *graph, int loss) {
    CAR_REQUIRE(NULL, graph);
    if (graph->status != CAR_OK) {
        return graph->status;
    }
    if (graph->finished) {
        return car_context_fail(graph->context, CAR_ERROR_ARGUMENT, "the graph is already finished");
    }
    bool last = loss >= 0 && loss < graph->tensor_count && graph->tensors[loss].producer != CAR_NONE &&
                graph->tensors[loss].producer == graph->op_count - 1;
    if (!last || !makes_loss(&graph->ops[graph->op_count - 1])) {
        return car_context_fail(graph->context, CAR_ERROR_ARGUMENT,
                                "the loss must be the output of the graph's last operation: a cross-entropy, alone or "
                                "with its head, or a custom stage without an output");
    }
    for (int l = 0; graph->precision == CAR_PRECISION_BF16 && l < graph->op_count; l++) {
        if (graph->ops[l].kind == CAR_OP_STAGE || graph->ops[l].kind == CAR_OP_CARRY) {
            return car_context_fail(graph->context, CAR_ERROR_UNSUPPORTED,
                                    "%s (%s) has no bf16 kernel: custom stages compute in fp32 or fp64",
                                    graph->ops[l].name, car_op_kind_text(graph->ops[l].kind));
        }
    }
    graph->loss = loss;
    car_graph_settle_types(graph);
    graph->status = car_graph_derive(graph);
    graph->finished = graph->status == CAR_OK;
    graph->loss = graph->finished ? loss : CAR_NONE; /* nobody may take it for finished */
    return graph->status;
}

/* ---- appending ------------------------------------------------------------------------------- */

static bool may_append(car_graph *graph) {
    if (!graph) {
        return false;
    }
    if (graph->status == CAR_OK && graph->finished) {
        graph->status = car_context_fail(graph->context, CAR_ERROR_ARGUMENT, "a finished graph cannot be changed");
    }
    return graph->status == CAR_OK;
}

/* Multiplies with a check at every step, so that absurd sizes fail instead of wrapping around. */
static bool shape_is_sane(car_shape shape) {
    int64_t elements = 1;
    if (shape.rank < 1 || shape.rank > CAR_MAX_RANK) {
        return false;
    }
    for (int d = 0; d < shape.rank; d++) {
        if (shape.dim[d] < 1 || shape.dim[d] > max_elements / elements) {
            return false;
        }
        elements *= shape.dim[d];
    }
    return true;
}

int car_graph_add_tensor(car_graph *graph, const char *name, car_shape shape, car_dtype dtype) {
    if (!may_append(graph)) {
        return CAR_NONE;
    }
    if (!shape_is_sane(shape)) {
        return car_graph_fail(graph, CAR_ERROR_SHAPE,
                              "%s: a tensor needs 1 to %d dimensions of at least 1 each, and at "
                              "most 2^48 elements",
                              name, CAR_MAX_RANK);
    }
    car_context *context = graph->context;
    graph->status = car_context_grow(context, &graph->tensors, &graph->tensor_capacity, graph->tensor_count + 1,
                                     sizeof *graph->tensors);
    char *copy = NULL;
    if (graph->status == CAR_OK) {
        graph->status = car_context_copy_text(context, name, &copy);
    }
    if (graph->status != CAR_OK) {
        return CAR_NONE;
    }
    graph->tensors[graph->tensor_count] = (car_tensor){
        .name = copy,
        .shape = shape,
        .dtype = dtype,
        .bytes = car_dtype_size(dtype, car_shape_elements(shape)),
        .producer = CAR_NONE,
        .last_forward = CAR_NONE,
        .last_backward = CAR_NONE,
        .grad_buffer = CAR_NONE,
    };
    return graph->tensor_count++;
}

int car_graph_add_param(car_graph *graph, const char *name, car_shape shape, car_param_role role, car_init init) {
    if (!may_append(graph)) {
        return CAR_NONE;
    }
    if (!shape_is_sane(shape)) {
        return car_graph_fail(graph, CAR_ERROR_SHAPE, "parameter %s has an invalid shape", name);
    }
    if (car_graph_find_param(graph, name) != CAR_NONE) {
        return car_graph_fail(graph, CAR_ERROR_ARGUMENT, "there are two parameters named %s", name);
    }
    car_context *context = graph->context;
    graph->status = car_context_grow(context, &graph->params, &graph->param_capacity, graph->param_count + 1,
                                     sizeof *graph->params);
    char *copy = NULL;
    if (graph->status == CAR_OK) {
        graph->status = car_context_copy_text(context, name, &copy);
    }
    if (graph->status != CAR_OK) {
        return CAR_NONE;
    }
    graph->params[graph->param_count] = (car_param){.name = copy, .shape = shape, .role = role, .init = init};
    return graph->param_count++;
}

static car_status append_uses(car_graph *graph, const car_op *op) {
    car_status status = car_context_grow(graph->context, &graph->uses, &graph->use_capacity,
                                         graph->use_count + op->param_count, sizeof *graph->uses);
    if (status == CAR_OK) {
        for (int p = 0; p < op->param_count; p++) {
            graph->uses[graph->use_count++] = op->params[p];
        }
    }
    return status;
}

int car_graph_add_op(car_graph *graph, const car_op *op, car_shape out, car_shape aux_shape, car_dtype aux_dtype) {
    car_op copy = *op;
    char *name = NULL;
    copy.output = car_graph_add_tensor(graph, op->name, out, CAR_F32);
    copy.aux = aux_shape.rank > 0 ? car_graph_add_tensor(graph, op->name, aux_shape, aux_dtype) : CAR_NONE;
    copy.first_use = graph->use_count;
    if (graph->status == CAR_OK) {
        graph->status = append_uses(graph, op);
    }
    if (graph->status == CAR_OK) {
        graph->status =
            car_context_grow(graph->context, &graph->ops, &graph->op_capacity, graph->op_count + 1, sizeof *graph->ops);
    }
    if (graph->status == CAR_OK) {
        graph->status = car_context_copy_text(graph->context, op->name, &name);
    }
    if (graph->status != CAR_OK) {
        return CAR_NONE;
    }
    copy.name = name;
    graph->ops[graph->op_count] = copy;
    graph->tensors[copy.output].producer = graph->op_count;
    if (copy.aux != CAR_NONE) {
        graph->tensors[copy.aux].producer = graph->op_count;
    }
    graph->op_count++;
    return copy.output;
}

void car_graph_set_init(car_graph *graph, const char *param_name, car_init init) {
    if (!may_append(graph)) {
        return;
    }
    int p = car_graph_find_param(graph, param_name);
    if (p == CAR_NONE) {
        car_graph_fail(graph, CAR_ERROR_UNKNOWN_NAME, "there is no parameter named %s",
                       param_name ? param_name : "(NULL)");
        return;
    }
    graph->params[p].init = init;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_within(int index, int count) {
    return index >= 0 && index < count;
}

car_context *car_graph_context(const car_graph *graph) {
    return graph ? graph->context : NULL;
}
int car_graph_op_count(const car_graph *graph) {
    return graph ? graph->op_count : 0;
}
int car_graph_tensor_count(const car_graph *graph) {
    return graph ? graph->tensor_count : 0;
}
int car_graph_param_count(const car_graph *graph) {
    return graph ? graph->param_count : 0;
}
int car_graph_use_count(const car_graph *graph) {
    return graph ? graph->use_count : 0;
}
int car_graph_grad_buffer_count(const car_graph *graph) {
    return graph ? graph->grad_buffer_count : 0;
}
const car_op *car_graph_op(const car_graph *graph, int op) {
    return graph && is_within(op, graph->op_count) ? &graph->ops[op] : NULL;
}
const car_tensor *car_graph_tensor(const car_graph *graph, int tensor) {
    return graph && is_within(tensor, graph->tensor_count) ? &graph->tensors[tensor] : NULL;
}
const car_param *car_graph_param(const car_graph *graph, int param) {
    return graph && is_within(param, graph->param_count) ? &graph->params[param] : NULL;
}
const car_grad_buffer *car_graph_grad_buffer(const car_graph *graph, int buffer) {
    return graph && is_within(buffer, graph->grad_buffer_count) ? &graph->grad_buffers[buffer] : NULL;
}
int car_graph_use_param(const car_graph *graph, int use) {
    return graph && is_within(use, graph->use_count) ? graph->uses[use] : CAR_NONE;
}
int car_graph_loss(const car_graph *graph) {
    return graph ? graph->loss : CAR_NONE;
}
int car_graph_logits(const car_graph *graph) {
    const car_op *last = !graph || graph->loss == CAR_NONE ? NULL : &graph->ops[graph->op_count - 1];
    return last && last->kind == CAR_OP_CROSS_ENTROPY ? last->inputs[0] : CAR_NONE;
}
int car_graph_head(const car_graph *graph) {
    int logits = car_graph_logits(graph), last = car_graph_op_count(graph) - 1;
    if (logits != CAR_NONE) {
        return graph->tensors[logits].producer;
    }
    return car_graph_loss(graph) != CAR_NONE && graph->ops[last].kind == CAR_OP_HEAD_LOSS ? last : CAR_NONE;
}
int64_t car_graph_classes(const car_graph *graph) {
    int logits = car_graph_logits(graph), head = car_graph_head(graph);
    if (logits == CAR_NONE) {
        return head == CAR_NONE ? 0 : graph->ops[head].config.head_loss.classes;
    }
    return graph->tensors[logits].shape.dim[graph->tensors[logits].shape.rank - 1];
}

int car_graph_find_param(const car_graph *graph, const char *name) {
    for (int p = 0; name && p < car_graph_param_count(graph); p++) {
        if (strcmp(graph->params[p].name, name) == 0) {
            return p;
        }
    }
    return CAR_NONE;
}

int car_graph_find_tensor(const car_graph *graph, const char *name) {
    for (int v = 0; name && v < car_graph_tensor_count(graph); v++) {
        if (strcmp(graph->tensors[v].name, name) == 0) {
            return v;
        }
    }
    return CAR_NONE;
}
