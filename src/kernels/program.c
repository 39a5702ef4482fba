/* Prepares a graph for a table of kernels: layouts, primitives, scratch space. */
#include "kernels/program.h"

#include <string.h>

#include "base/base.h"
#include "kernels/vector/vector.h"

enum { ALIGNMENT = 64 };

struct car_program {
    car_context *context;
    const car_graph *graph;
    car_program_config config;
    void *engine;
    car_kernel *kernels; /* per operation */
    int prepared;        /* number of kernels to release */
    int *blocks;         /* per tensor: channel block if it has rank 4, else 1 */
    int *layout_owner;   /* per parameter: the operation that chose its layout, or CAR_NONE */
    size_t *tensor_bytes, *grad_buffer_bytes, *param_bytes;
    size_t scratch_bytes;
};

car_program_config car_program_config_default(void) {
#ifdef NDEBUG
    const bool guards = false;
#else
    const bool guards = true;
#endif
    return (car_program_config){.kernels = CAR_KERNELS_ONEDNN, .threads = 1, .guards = guards};
}

static const char *const convolution_names[] = {
    [CAR_CONVOLUTIONS_AUTO] = "auto",
    [CAR_CONVOLUTIONS_DIRECT] = "direct",
    [CAR_CONVOLUTIONS_WINOGRAD] = "winograd",
};

car_status car_convolutions_find(car_context *context, const char *name, car_convolutions *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, out);
    for (int c = 0; c < (int)(sizeof convolution_names / sizeof convolution_names[0]); c++) {
        if (strcmp(name, convolution_names[c]) == 0) {
            *out = (car_convolutions)c;
            return CAR_OK;
        }
    }
    return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "convolutions '%s': it must be auto, direct or winograd",
                            name);
}

car_status car_convolutions_find_memory(car_context *context, const char *name, bool *tight) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, tight);
    *tight = strcmp(name, "tight") == 0;
    if (!*tight && strcmp(name, "normal") != 0) {
        return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "memory '%s': it must be normal or tight", name);
    }
    return CAR_OK;
}

const char *car_convolutions_text(car_convolutions convolutions) {
    return convolution_names[convolutions];
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* A fed image keeps its layout if all its readers accept it: first convolutions have few channels, and special
 * kernels for that. */
static bool stays_plain(const car_graph *graph, int tensor, int block) {
    const car_tensor *t = car_graph_tensor(graph, tensor);
    if (t->producer != CAR_NONE) {
        return false;
    }
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int q = 0; q < op->input_count; q++) {
            bool narrow_conv = op->kind == CAR_OP_CONV && t->shape.dim[1] < block;
            if (op->inputs[q] == tensor && !narrow_conv && op->kind != CAR_OP_FLATTEN) {
                return false;
            }
        }
    }
    return true;
}

static size_t blocked_bytes(const car_tensor *tensor, int block) {
    if (tensor->shape.rank != 4) {
        return tensor->bytes;
    }
    size_t channels = (size_t)tensor->shape.dim[1];
    size_t elements = (size_t)car_shape_elements(tensor->shape) / channels * car_round_up(channels, (size_t)block);
    return car_dtype_size(tensor->dtype, (int64_t)elements);
}

static int block_of_table(car_kernels kernels) {
    return kernels == CAR_KERNELS_ONEDNN ? car_kernels_onednn_block() : 1;
}

static int block_of_tensor(const car_graph *graph, int tensor, int block) {
    bool plain = car_graph_tensor(graph, tensor)->shape.rank != 4 || stays_plain(graph, tensor, block);
    return plain ? 1 : block;
}

static void choose_layouts(car_program *program) {
    const car_graph *graph = program->graph;
    int block = block_of_table(program->config.kernels);
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        program->blocks[v] = block_of_tensor(graph, v, block);
        program->tensor_bytes[v] = blocked_bytes(tensor, program->blocks[v]);
        if (tensor->grad_buffer != CAR_NONE &&
            program->grad_buffer_bytes[tensor->grad_buffer] < program->tensor_bytes[v]) {
            program->grad_buffer_bytes[tensor->grad_buffer] = program->tensor_bytes[v];
        }
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Offset in scratch, after the kernel's own, of contributions that the program adds to a gradient. */
static size_t addend_offset(const car_program *program, int op, int input) {
    const car_kernel *kernel = &program->kernels[op];
    size_t offset = car_round_up(kernel->scratch_bytes, ALIGNMENT);
    for (int q = 0; q < input; q++) {
        if (kernel->op->grad_mode[q] == CAR_GRAD_ADD && !car_kernel_adds_grad(kernel)) {
            offset += car_round_up(program->tensor_bytes[kernel->op->inputs[q]], ALIGNMENT);
        }
    }
    return offset;
}

/* Our own convolutions use one thread; oneDNN's can use several. */
static car_convolutions convolutions_of(const car_program_config *config) {
    return config->threads > 1 ? CAR_CONVOLUTIONS_DIRECT : config->convolutions;
}

/* As much of a convolution's kernel as is needed to decide how to compute it. */
static car_kernel sketch(const car_graph *graph, const car_program_config *config, int op) {
    const car_op *o = car_graph_op(graph, op);
    int block = block_of_table(config->kernels);
    car_kernel kernel = {.graph = graph,
                         .op = o,
                         .convolutions = convolutions_of(config),
                         .block_in = {block_of_tensor(graph, o->inputs[0], block)},
                         .block_out = block_of_tensor(graph, o->output, block)};
    kernel.bf16 = car_kernel_has_bf16_inputs(&kernel);
    return kernel;
}

static bool suits(const car_graph *graph, const car_program_config *config, int op, car_kernel *kernel) {
    if (car_graph_op(graph, op)->kind != CAR_OP_CONV || config->kernels != CAR_KERNELS_ONEDNN) {
        return false;
    }
    *kernel = sketch(graph, config, op);
    return car_winograd_suits(kernel);
}

/* With tight memory, all convolutions use Winograd or none. They share a lane's scratch space, and each saves the
 * second layout of the weights that direct backward by data needs, in two versions. */
static void settle_convolutions(const car_graph *graph, car_program_config *config) {
    enum { VERSIONS = 2 };
    size_t scratch = 0, spared = 0;
    car_kernel kernel;
    for (int l = 0; config->tight && l < car_graph_op_count(graph); l++) {
        if (suits(graph, config, l, &kernel)) {
            size_t bytes = car_winograd_scratch_bytes(&kernel);
            scratch = bytes > scratch ? bytes : scratch;
            spared += kernel.op->grad_mode[0] != CAR_GRAD_NONE ? VERSIONS * car_winograd_weight_bytes(&kernel) : 0;
        }
    }
    if (config->convolutions == CAR_CONVOLUTIONS_AUTO && scratch > spared) {
        config->convolutions = CAR_CONVOLUTIONS_DIRECT;
    }
}

bool car_program_uses_winograd(const car_graph *graph, const car_program_config *config, int op) {
    car_program_config chosen = config ? *config : car_program_config_default();
    car_kernel kernel;
    settle_convolutions(graph, &chosen);
    return suits(graph, &chosen, op, &kernel);
}

static car_status prepare_kernel(car_program *program, int l) {
    const car_graph *graph = program->graph;
    const car_op *op = car_graph_op(graph, l);
    const car_kernel_class *const *table =
        program->config.kernels == CAR_KERNELS_ONEDNN ? car_kernels_onednn : car_kernels_reference;
    car_kernel *kernel = &program->kernels[l];
    kernel->graph = graph;
    kernel->op = op;
    kernel->context = program->context;
    kernel->engine = program->engine;
    kernel->convolutions = convolutions_of(&program->config);
    kernel->guards = program->config.guards;
    kernel->block_out = program->blocks[op->output];
    kernel->aux_bytes = op->aux != CAR_NONE ? car_graph_tensor(graph, op->aux)->bytes : 0;
    for (int q = 0; q < op->input_count; q++) {
        kernel->block_in[q] = program->blocks[op->inputs[q]];
    }
    program->prepared = l + 1;
    car_status status = car_kernel_prepare(kernel, table);
    if (status != CAR_OK) {
        return status;
    }
    if (op->aux != CAR_NONE) {
        program->tensor_bytes[op->aux] = kernel->aux_bytes;
    }
    if (kernel->own_layout) {
        program->layout_owner[op->params[0]] = l;
        program->param_bytes[op->params[0]] = kernel->weight_bytes;
    }
    size_t scratch = addend_offset(program, l, op->input_count);
    if (scratch > program->scratch_bytes) {
        program->scratch_bytes = scratch;
    }
    return CAR_OK;
}

static car_status allocate_tables(car_program *program) {
    car_context *context = program->context;
    const car_graph *graph = program->graph;
    size_t ops = (size_t)car_graph_op_count(graph), tensors = (size_t)car_graph_tensor_count(graph);
    size_t params = (size_t)car_graph_param_count(graph), grad_buffers = (size_t)car_graph_grad_buffer_count(graph);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, ops, sizeof *program->kernels, &program->kernels));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *program->blocks, &program->blocks));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *program->tensor_bytes, &program->tensor_bytes));
    CAR_TRY(
        car_context_allocate(context, grad_buffers, sizeof *program->grad_buffer_bytes, &program->grad_buffer_bytes));
    CAR_TRY(car_context_allocate(context, params, sizeof *program->param_bytes, &program->param_bytes));
    CAR_TRY(car_context_allocate(context, params, sizeof *program->layout_owner, &program->layout_owner));
    for (size_t p = 0; p < params; p++) {
        program->layout_owner[p] = CAR_NONE;
        program->param_bytes[p] = car_param_bytes(car_graph_param(graph, (int)p));
    }
done:
    return status;
}

car_status car_program_create(const car_graph *graph, const car_program_config *config, car_program **out) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(car_graph_context(graph), out);
    car_context *context = car_graph_context(graph);
    car_program_config chosen = config ? *config : car_program_config_default();
    car_program *program = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (car_graph_loss(graph) == CAR_NONE || chosen.threads < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a program needs a finished graph and at least one thread per kernel");
    }
    car_kernel_mode mode = car_kernels_enter(chosen.threads);
    CAR_TRY(car_context_allocate(context, 1, sizeof *program, &program));
    program->context = context;
    program->graph = graph;
    settle_convolutions(graph, &chosen);
    program->config = chosen;
    CAR_TRY(allocate_tables(program));
    if (chosen.kernels == CAR_KERNELS_ONEDNN) {
        CAR_TRY(car_kernels_onednn_open(context, &program->engine));
    }
    choose_layouts(program);
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        CAR_TRY(prepare_kernel(program, l));
    }
    *out = program;
    program = NULL;
done:
    car_program_destroy(program);
    car_kernels_leave(mode);
    return status;
}

void car_program_destroy(car_program *program) {
    if (!program) {
        return;
    }
    car_context *context = program->context;
    const car_graph *graph = program->graph;
    for (int l = program->prepared - 1; l >= 0; l--) {
        if (program->kernels[l].class && program->kernels[l].class->release) {
            program->kernels[l].class->release(&program->kernels[l]);
        }
    }
    car_kernels_onednn_close(program->engine);
    size_t ops = (size_t)car_graph_op_count(graph), tensors = (size_t)car_graph_tensor_count(graph);
    size_t params = (size_t)car_graph_param_count(graph), grad_buffers = (size_t)car_graph_grad_buffer_count(graph);
    car_context_release(context, program->layout_owner, params, sizeof *program->layout_owner);
    car_context_release(context, program->param_bytes, params, sizeof *program->param_bytes);
    car_context_release(context, program->grad_buffer_bytes, grad_buffers, sizeof *program->grad_buffer_bytes);
    car_context_release(context, program->tensor_bytes, tensors, sizeof *program->tensor_bytes);
    car_context_release(context, program->blocks, tensors, sizeof *program->blocks);
    car_context_release(context, program->kernels, ops, sizeof *program->kernels);
    car_context_release(context, program, 1, sizeof *program);
}

/* ---- reading --------------------------------------------------------------------------------- */

const car_graph *car_program_graph(const car_program *program) {
    return program->graph;
}
car_context *car_program_context(const car_program *program) {
    return program->context;
}
int car_program_threads(const car_program *program) {
    return program->config.threads;
}
const car_kernel *car_program_kernel(const car_program *program, int op) {
    return &program->kernels[op];
}
size_t car_program_tensor_bytes(const car_program *program, int tensor) {
    return program->tensor_bytes[tensor];
}
size_t car_program_grad_buffer_bytes(const car_program *program, int buffer) {
    return program->grad_buffer_bytes[buffer];
}
size_t car_program_param_bytes(const car_program *program, int param) {
    return program->param_bytes[param];
}
size_t car_program_copy_bytes(const car_program *program, int param) {
    bool rounded = car_graph_param(program->graph, param)->copy == CAR_BF16;
    size_t bytes = program->param_bytes[param];
    return rounded ? car_dtype_size(CAR_BF16, (int64_t)(bytes / sizeof(float))) : bytes;
}
size_t car_program_derived_bytes(const car_program *program, int op) {
    return program->kernels[op].derived_bytes;
}
size_t car_program_scratch_bytes(const car_program *program) {
    return program->scratch_bytes;
}
const char *car_program_kernel_name(const car_program *program, int op) {
    return program->kernels[op].name;
}

uint64_t car_program_fingerprint(const car_program *program) {
    uint64_t print = (uint64_t)program->config.threads;
    for (int l = 0; l < car_graph_op_count(program->graph); l++) {
        const char *name = program->kernels[l].name;
        print = car_random_key(print, name ? name : "");
        print = car_random_u64(print, program->kernels[l].widened);
    }
    return print;
}

/* ---- conversions ----------------------------------------------------------------------------- */

bool car_program_is_double(const car_program *program, int param) {
    return car_graph_param(program->graph, param)->dtype == CAR_F64;
}

/* Without the padding of user-defined stages. */
static size_t value_bytes(const car_program *program, int param) {
    const car_param *p = car_graph_param(program->graph, param);
    return (size_t)car_shape_elements(p->shape) * car_dtype_bytes(p->dtype);
}

car_status car_program_import_param(const car_program *program, int param, const void *canonical, void *stored) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(NULL, canonical);
    CAR_REQUIRE(NULL, stored);
    int owner = program->layout_owner[param];
    if (owner == CAR_NONE) {
        size_t bytes = value_bytes(program, param);
        memcpy(stored, canonical, bytes);
        memset((char *)stored + bytes, 0, program->param_bytes[param] - bytes);
        return CAR_OK;
    }
    const car_kernel *kernel = &program->kernels[owner];
    car_kernel_mode mode = car_kernels_enter(program->config.threads);
    car_status status = kernel->class->import_param(kernel, canonical, stored);
    car_kernels_leave(mode);
    return status;
}

bool car_program_has_own_layout(const car_program *program, int param) {
    return program->layout_owner[param] != CAR_NONE;
}

car_status car_program_export_param(const car_program *program, int param, const void *stored, void *canonical) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(NULL, stored);
    CAR_REQUIRE(NULL, canonical);
    int owner = program->layout_owner[param];
    if (owner == CAR_NONE) {
        memcpy(canonical, stored, value_bytes(program, param));
        return CAR_OK;
    }
    const car_kernel *kernel = &program->kernels[owner];
    car_kernel_mode mode = car_kernels_enter(program->config.threads);
    car_status status = kernel->class->export_param(kernel, stored, canonical);
    car_kernels_leave(mode);
    return status;
}

/* Index of element (n, c, pixel) in a blocked image. */
static size_t blocked_index(car_shape shape, int block, int64_t n, int64_t c, int64_t pixel) {
    int64_t blocks = (shape.dim[1] + block - 1) / block, pixels = shape.dim[2] * shape.dim[3];
    return (size_t)(((n * blocks + c / block) * pixels + pixel) * block + c % block);
}

void car_program_import_tensor(const car_program *program, int tensor, const void *canonical, void *stored) {
    const car_tensor *t = car_graph_tensor(program->graph, tensor);
    int block = program->blocks[tensor];
    if (block == 1) {
        memcpy(stored, canonical, t->bytes);
        return;
    }
    const float *from = canonical;
    float *to = stored;
    int64_t pixels = t->shape.dim[2] * t->shape.dim[3];
    memset(to, 0, program->tensor_bytes[tensor]);
    for (int64_t n = 0; n < t->shape.dim[0]; n++) {
        for (int64_t c = 0; c < t->shape.dim[1]; c++) {
            for (int64_t p = 0; p < pixels; p++) {
                to[blocked_index(t->shape, block, n, c, p)] = from[(n * t->shape.dim[1] + c) * pixels + p];
            }
        }
    }
}

car_status car_program_export_tensor(const car_program *program, int tensor, const void *stored, float *canonical) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(NULL, stored);
    CAR_REQUIRE(NULL, canonical);
    const car_tensor *t = car_graph_tensor(program->graph, tensor);
    int block = program->blocks[tensor];
    if (t->dtype != CAR_F32 && t->dtype != CAR_BF16) {
        return car_context_fail(program->context, CAR_ERROR_ARGUMENT, "tensor %s does not hold floats", t->name);
    }
    if (block == 1 && t->dtype == CAR_F32) {
        memcpy(canonical, stored, t->bytes);
        return CAR_OK;
    }
    if (block == 1) {
        car_vector_select()->widen(canonical, stored, car_shape_elements(t->shape));
        return CAR_OK;
    }
    const float *from = stored;
    const car_bf16 *halves = stored;
    int64_t pixels = t->shape.dim[2] * t->shape.dim[3];
    for (int64_t n = 0; n < t->shape.dim[0]; n++) {
        for (int64_t c = 0; c < t->shape.dim[1]; c++) {
            for (int64_t p = 0; p < pixels; p++) {
                size_t at = blocked_index(t->shape, block, n, c, p);
                canonical[(n * t->shape.dim[1] + c) * pixels + p] =
                    t->dtype == CAR_F32 ? from[at] : car_bf16_widen(halves[at]);
            }
        }
    }
    return CAR_OK;
}

/* ---- lanes and running ----------------------------------------------------------------------- */

car_status car_lane_create(const car_program *program, car_arena *arena, car_lane **out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(program->context, arena);
    CAR_REQUIRE(program->context, out);
    car_lane *lane = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(program->context, 1, sizeof *lane, &lane));
    lane->program = program;
    lane->arena = arena;
    CAR_TRY(car_arena_allocate(arena, CAR_MEMORY_WORKSPACE, program->scratch_bytes, &lane->scratch));
    if (program->engine) {
        CAR_TRY(car_kernels_onednn_open_stream(program->context, program->engine, &lane->stream));
    }
    *out = lane;
    lane = NULL;
done:
    car_lane_destroy(lane);
    return status;
}

void car_lane_destroy(car_lane *lane) {
    if (!lane) {
        return;
    }
    car_kernels_onednn_close_stream(lane->stream);
    car_arena_release(lane->arena, lane->scratch);
    car_context_release(lane->program->context, lane, 1, sizeof *lane);
}

car_status car_program_forward(const car_program *program, car_lane *lane, int op, car_kernel_io *io) {
    io->scratch = lane->scratch;
    io->stream = lane->stream;
    return car_kernel_forward(&program->kernels[op], io);
}

car_status car_program_backward(const car_program *program, car_lane *lane, int op, car_kernel_io *io) {
    const car_kernel *kernel = &program->kernels[op];
    void *sums[CAR_MAX_INPUTS] = {NULL};
    io->scratch = lane->scratch;
    io->stream = lane->stream;
    for (int q = 0; q < kernel->op->input_count; q++) {
        if (kernel->op->grad_mode[q] == CAR_GRAD_ADD && !car_kernel_adds_grad(kernel)) {
            sums[q] = io->grad_in[q];
            io->grad_in[q] = (char *)lane->scratch + addend_offset(program, op, q);
        }
    }
    car_status status = car_kernel_backward(kernel, io);
    for (int q = 0; status == CAR_OK && q < kernel->op->input_count; q++) {
        if (sums[q]) {
            size_t bytes = program->tensor_bytes[kernel->op->inputs[q]];
            car_vector_select()->accumulate(sums[q], io->grad_in[q], (int64_t)(bytes / sizeof(float)));
        }
    }
    return status;
}
