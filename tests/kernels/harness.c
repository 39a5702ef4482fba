/* Trials: one kernel with its buffers. See harness.h. */
#include "kernels/harness.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/bf16.h"
#include "graph/internal.h"

enum { GUARD_BYTES = 64, GUARD = 0xA5, SOIL = 0xFF /* as a float: NaN */ };

static const uint64_t dropout_key = 77;

/* ---- tables -------------------------------------------------------------------------------------------- */

car_status car_trial_open_reference(car_context *context, car_trial_table *out) {
    (void)context;
    *out = (car_trial_table){.name = "reference", .classes = car_kernels_reference, .block = 1};
    return CAR_OK;
}

car_status car_trial_open_onednn(car_context *context, car_trial_table *out) {
    *out = (car_trial_table){.name = "onednn",
                             .classes = car_kernels_onednn,
                             .block = car_kernels_onednn_block(),
                             .convolutions = CAR_CONVOLUTIONS_DIRECT};
    car_status status = car_kernels_onednn_open(context, &out->engine);
    if (status == CAR_OK) {
        status = car_kernels_onednn_open_stream(context, out->engine, &out->stream);
    }
    return status;
}

car_status car_trial_open_winograd(car_context *context, int block, car_trial_table *out) {
    car_status status = car_trial_open_onednn(context, out);
    out->name = block == 8 ? "winograd, blocks of 8" : "winograd, blocks of 16";
    out->block = block;
    out->convolutions = CAR_CONVOLUTIONS_WINOGRAD;
    return status;
}

car_trial_table car_trial_in_bf16(const car_trial_table *table) {
    car_trial_table out = *table;
    out.name = !table->engine                                     ? "reference, bf16"
               : table->convolutions == CAR_CONVOLUTIONS_WINOGRAD ? "winograd, bf16"
                                                                  : "onednn, bf16";
    out.precision = CAR_PRECISION_BF16;
    return out;
}

void car_trial_close(car_trial_table *table) {
    if (table->stream) {
        car_kernels_onednn_close_stream(table->stream);
    }
    if (table->engine) {
        car_kernels_onednn_close(table->engine);
    }
    *table = (car_trial_table){0};
}

/* ---- layouts ------------------------------------------------------------------------------------------- */

/* What a network feeds to its first convolution stays as it was fed if its channels fill no block. */
static bool stays_plain(const car_trial_table *table, const car_case *test) {
    return test->kind == CAR_OP_CONV && test->first && test->shape.dim[1] < table->block;
}

/* Where element i of the canonical layout stands. */
static int64_t stored_at(const car_trial_tensor *tensor, int64_t i) {
    if (tensor->shape.rank != 4 || tensor->block == 1) {
        return i;
    }
    const int64_t *dim = tensor->shape.dim;
    int64_t pixels = dim[2] * dim[3], block = tensor->block, blocks = (dim[1] + block - 1) / block;
    int64_t n = i / pixels / dim[1], c = i / pixels % dim[1], pixel = i % pixels;
    return ((n * blocks + c / block) * pixels + pixel) * block + c % block;
}

static size_t element_bytes(const car_trial_tensor *tensor) {
    return tensor->bf16 ? sizeof(car_bf16) : sizeof(float);
}

/* Element i as it is stored. */
static void put_element(const car_trial_tensor *tensor, int64_t i, float value) {
    unsigned char *at = tensor->stored.data + (size_t)stored_at(tensor, i) * element_bytes(tensor);
    car_bf16 half = car_bf16_round(value);
    memcpy(at, tensor->bf16 ? (void *)&half : (void *)&value, element_bytes(tensor));
}

static float get_element(const car_trial_tensor *tensor, int64_t at) {
    const unsigned char *from = tensor->stored.data + (size_t)at * element_bytes(tensor);
    car_bf16 half = 0;
    float value = 0;
    memcpy(tensor->bf16 ? (void *)&half : (void *)&value, from, element_bytes(tensor));
    return tensor->bf16 ? car_bf16_widen(half) : value;
}

/* ---- buffers ------------------------------------------------------------------------------------------- */

static car_status create_buffer(car_context *context, size_t bytes, car_trial_buffer *buffer) {
    car_status status = car_context_allocate(context, bytes + GUARD_BYTES, 1, &buffer->data);
    if (status == CAR_OK) {
        buffer->bytes = bytes;
        memset(buffer->data + bytes, GUARD, GUARD_BYTES);
    }
    return status;
}

static void destroy_buffer(car_context *context, car_trial_buffer *buffer) {
    if (!buffer->borrowed) {
        car_context_release(context, buffer->data, buffer->bytes + GUARD_BYTES, 1);
    }
}

static void soil(car_trial_buffer *buffer) {
    if (buffer->data && !buffer->borrowed) {
        memset(buffer->data, SOIL, buffer->bytes);
    }
}

static bool guard_is_whole(const car_trial_buffer *buffer) {
    for (size_t i = 0; buffer->data && i < GUARD_BYTES; i++) {
        if (buffer->data[buffer->bytes + i] != GUARD) {
            return false;
        }
    }
    return true;
}

static car_status create_tensor(car_trial *trial, int index, const char *name, int number, car_shape shape, int block) {
    car_trial_tensor *tensor = &trial->tensors[index];
    snprintf(tensor->name, sizeof tensor->name, "%s %d", name, number);
    tensor->shape = shape;
    tensor->block = block;
    tensor->elements = (size_t)car_shape_elements(shape);
    return car_context_allocate(trial->context, tensor->elements, sizeof(float), &tensor->values);
}

static bool is_bf16(const car_trial *trial, int index) {
    int tensor = index >= CAR_TRIAL_GRAD_IN && index < CAR_TRIAL_GRAD_PARAM
                     ? trial->op.inputs[index - CAR_TRIAL_GRAD_IN]
                 : index < CAR_TRIAL_PARAM ? trial->op.inputs[index]
                                           : trial->op.output;
    if (index >= CAR_TRIAL_PARAM && index < CAR_TRIAL_OUT) {
        return car_graph_param(trial->graph, trial->op.params[index - CAR_TRIAL_PARAM])->copy == CAR_BF16;
    }
    return index < CAR_TRIAL_GRAD_PARAM && car_graph_tensor(trial->graph, tensor)->dtype == CAR_BF16;
}

/* As in a network: all that is computed is bf16, and what is fed is not. */
static void settle_types(car_trial *trial) {
    car_graph_set_precision(trial->graph, trial->table->precision);
    car_graph_settle_types(trial->graph);
    for (int q = 0; trial->table->precision == CAR_PRECISION_BF16 && q < trial->op.input_count; q++) {
        car_tensor *input = &trial->graph->tensors[trial->op.inputs[q]];
        bool fed = trial->test->kind == CAR_OP_CONV && trial->test->first && trial->op.grad_mode[q] == CAR_GRAD_NONE;
        if (input->dtype == CAR_F32 && !fed) {
            input->dtype = CAR_BF16;
        }
    }
}

/* After prepare: it decides how weights are stored. */
static car_status store_tensor(car_trial *trial, int index) {
    car_trial_tensor *tensor = &trial->tensors[index];
    tensor->bf16 = tensor->values && is_bf16(trial, index);
    if (!tensor->values || tensor->stored.borrowed) {
        return CAR_OK;
    }
    bool weight = index == CAR_TRIAL_PARAM || index == CAR_TRIAL_GRAD_PARAM;
    tensor->own_layout = weight && trial->kernel.own_layout;
    size_t elements = tensor->own_layout ? trial->kernel.weight_bytes / sizeof(float)
                                         : (size_t)car_kernel_stored_elements(tensor->shape, tensor->block);
    return create_buffer(trial->context, elements * element_bytes(tensor), &tensor->stored);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

bool car_trial_works_in_place(const car_case *test, int q) {
    switch (test->kind) {
    case CAR_OP_RELU:
    case CAR_OP_GELU:
    case CAR_OP_DROPOUT:
    case CAR_OP_LAYERNORM:
    case CAR_OP_CROSS_ENTROPY:
    case CAR_OP_HEAD_LOSS:
    case CAR_OP_CONV:
    case CAR_OP_LINEAR:
        return q == 0;
    case CAR_OP_BATCHNORM:
        return q == (test->residual ? 1 : 0);
    default:
        return false;
    }
}

car_trial_config car_trial_config_default(const car_trial_table *table, const car_case *test) {
    bool none = test->kind == CAR_OP_EMBEDDING || stays_plain(table, test);
    bool second = test->kind == CAR_OP_ADD || (test->kind == CAR_OP_BATCHNORM && test->residual);
    return (car_trial_config){
        .grad_mode = {none ? CAR_GRAD_NONE : CAR_GRAD_WRITE, second ? CAR_GRAD_WRITE : CAR_GRAD_NONE},
        .in_place = CAR_NONE,
    };
}

static bool wants_gradient(const car_trial *trial, int q) {
    return trial->op.grad_mode[q] == CAR_GRAD_WRITE || trial->op.grad_mode[q] == CAR_GRAD_ADD;
}

static car_status create_inputs(car_trial *trial) {
    car_status status = CAR_OK;
    car_kernel *kernel = &trial->kernel;
    for (int q = 0; q < trial->op.input_count; q++) {
        kernel->block_in[q] = stays_plain(trial->table, trial->test) ? 1 : trial->table->block;
        car_shape shape = car_kernel_in(kernel, q);
        CAR_TRY(create_tensor(trial, CAR_TRIAL_IN + q, "input", q, shape, kernel->block_in[q]));
        car_case_fill_input(trial->test, trial->graph, &trial->op, q, trial->tensors[CAR_TRIAL_IN + q].values);
        if (wants_gradient(trial, q)) {
            CAR_TRY(create_tensor(trial, CAR_TRIAL_GRAD_IN + q, "grad input", q, shape, kernel->block_in[q]));
            for (size_t i = 0; i < trial->tensors[CAR_TRIAL_GRAD_IN + q].elements; i++) {
                trial->tensors[CAR_TRIAL_GRAD_IN + q].values[i] = car_random_uniform((uint64_t)q + 5, i) - 0.5F;
            }
        }
    }
done:
    return status;
}

static car_status create_tensors(car_trial *trial) {
    car_status status = CAR_OK;
    car_kernel *kernel = &trial->kernel;
    CAR_TRY(create_inputs(trial));
    for (int p = 0; p < trial->op.param_count; p++) {
        car_shape shape = car_kernel_param(kernel, p);
        CAR_TRY(create_tensor(trial, CAR_TRIAL_PARAM + p, "param", p, shape, 1));
        CAR_TRY(create_tensor(trial, CAR_TRIAL_GRAD_PARAM + p, "grad param", p, shape, 1));
        car_case_fill_param(trial->test, trial->graph, &trial->op, p, trial->tensors[CAR_TRIAL_PARAM + p].values);
    }
    kernel->block_out = trial->table->block;
    CAR_TRY(create_tensor(trial, CAR_TRIAL_OUT, "output", 0, car_kernel_out(kernel), kernel->block_out));
    CAR_TRY(create_tensor(trial, CAR_TRIAL_GRAD_OUT, "grad output", 0, car_kernel_out(kernel), kernel->block_out));
    car_case_fill_grad(trial->test, trial->graph, &trial->op, trial->tensors[CAR_TRIAL_GRAD_OUT].values);
done:
    return status;
}

/* The tensor whose buffer a gradient in place takes. */
static int lender(const car_trial *trial) {
    if (trial->config.in_place == CAR_NONE) {
        return CAR_NONE;
    }
    bool over_input = trial->op.kind == CAR_OP_CROSS_ENTROPY || trial->op.kind == CAR_OP_CONV ||
                      trial->op.kind == CAR_OP_LINEAR || trial->op.kind == CAR_OP_HEAD_LOSS;
    return over_input ? CAR_TRIAL_IN : CAR_TRIAL_GRAD_OUT;
}

static car_status store_everything(car_trial *trial) {
    car_status status = CAR_OK;
    int q = trial->config.in_place;
    for (int i = 0; i < CAR_TRIAL_TENSORS; i++) {
        trial->tensors[i].stored.borrowed = q != CAR_NONE && i == CAR_TRIAL_GRAD_IN + q;
        CAR_TRY(store_tensor(trial, i));
    }
    if (q != CAR_NONE) {
        const car_trial_buffer *lent = &trial->tensors[lender(trial)].stored;
        trial->tensors[CAR_TRIAL_GRAD_IN + q].stored.data = lent->data;
        trial->tensors[CAR_TRIAL_GRAD_IN + q].stored.bytes = lent->bytes;
    }
    if (trial->op.aux != CAR_NONE) {
        CAR_TRY(create_buffer(trial->context, trial->kernel.aux_bytes, &trial->aux));
    }
    if (trial->kernel.derived_bytes > 0) {
        CAR_TRY(create_buffer(trial->context, trial->kernel.derived_bytes, &trial->derived));
    }
    CAR_TRY(create_buffer(trial->context, trial->kernel.scratch_bytes, &trial->scratch));
done:
    return status;
}

car_status car_trial_create(car_context *context, const car_trial_table *table, const car_case *test,
                            const car_trial_config *config, car_trial **out) {
    car_trial *trial = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *trial, &trial));
    trial->context = context;
    trial->table = table;
    trial->test = test;
    trial->config = *config;
    CAR_TRY(car_case_build(test, config->batch, context, &trial->graph));
    trial->op = *car_graph_op(trial->graph, car_graph_op_count(trial->graph) - 1);
    memcpy(trial->op.grad_mode, config->grad_mode, sizeof config->grad_mode);
    settle_types(trial);
    if (test->kind == CAR_OP_HEAD_LOSS) {
        trial->op.config.head_loss.chunk = test->config.head_loss.chunk; /* shorter than the kernel would like */
    }
    trial->kernel = (car_kernel){.graph = trial->graph,
                                 .op = &trial->op,
                                 .context = context,
                                 .engine = table->engine,
                                 .convolutions = table->convolutions};
    if (trial->op.aux != CAR_NONE) {
        trial->kernel.aux_bytes = car_graph_tensor(trial->graph, trial->op.aux)->bytes;
    }
    CAR_TRY(create_tensors(trial));
    CAR_TRY(car_kernel_prepare(&trial->kernel, table->classes));
    CAR_TRY(store_everything(trial));
    *out = trial;
    trial = NULL;
done:
    car_trial_destroy(trial);
    return status;
}

void car_trial_destroy(car_trial *trial) {
    if (!trial) {
        return;
    }
    car_context *context = trial->context;
    if (trial->kernel.class && trial->kernel.class->release) {
        trial->kernel.class->release(&trial->kernel);
    }
    for (int i = 0; i < CAR_TRIAL_TENSORS; i++) {
        car_trial_tensor *tensor = &trial->tensors[i];
        destroy_buffer(context, &tensor->stored);
        car_context_release(context, tensor->values, tensor->elements, sizeof(float));
    }
    destroy_buffer(context, &trial->aux);
    destroy_buffer(context, &trial->derived);
    destroy_buffer(context, &trial->scratch);
    car_graph_destroy(trial->graph);
    car_context_release(context, trial, 1, sizeof *trial);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static void *stored(const car_trial *trial, int tensor) {
    return trial->tensors[tensor].stored.data;
}

/* A weight of its own layout is rounded after it was laid out. */
static car_status load_rounded(car_trial *trial, car_trial_tensor *tensor) {
    size_t elements = trial->kernel.weight_bytes / sizeof(float);
    float *floats = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(trial->context, elements, sizeof *floats, &floats));
    CAR_TRY(trial->kernel.class->import_param(&trial->kernel, tensor->values, floats));
    for (size_t i = 0; i < elements; i++) {
        car_bf16 half = car_bf16_round(floats[i]);
        memcpy(tensor->stored.data + i * sizeof half, &half, sizeof half);
    }
done:
    car_context_release(trial->context, floats, elements, sizeof *floats);
    return status;
}

static car_status load_tensor(car_trial *trial, car_trial_tensor *tensor) {
    for (size_t i = 0; tensor->bf16 && i < tensor->elements; i++) {
        tensor->values[i] = car_bf16_widen(car_bf16_round(tensor->values[i]));
    }
    if (tensor->own_layout && tensor->bf16) {
        return load_rounded(trial, tensor);
    }
    if (tensor->own_layout) {
        return trial->kernel.class->import_param(&trial->kernel, tensor->values, (float *)tensor->stored.data);
    }
    memset(tensor->stored.data, 0, tensor->stored.bytes);
    for (size_t i = 0; i < tensor->elements; i++) {
        put_element(tensor, (int64_t)i, tensor->values[i]);
    }
    return CAR_OK;
}

static bool is_given(const car_trial *trial, int tensor) {
    if (tensor >= CAR_TRIAL_GRAD_IN && tensor < CAR_TRIAL_GRAD_PARAM) {
        /* A kernel that cannot add gets a buffer to overwrite, and the program adds. */
        return trial->op.grad_mode[tensor - CAR_TRIAL_GRAD_IN] == CAR_GRAD_ADD && car_kernel_adds_grad(&trial->kernel);
    }
    return tensor < CAR_TRIAL_OUT || tensor == CAR_TRIAL_GRAD_OUT;
}

void car_trial_soil_scratch(car_trial *trial) {
    soil(&trial->scratch);
}

car_status car_trial_load(car_trial *trial) {
    car_status status = CAR_OK;
    car_kernel_io io = {.scratch = trial->scratch.data, .stream = trial->table->stream};
    for (int i = 0; i < CAR_TRIAL_TENSORS; i++) {
        if (trial->tensors[i].values) {
            soil(&trial->tensors[i].stored);
            if (is_given(trial, i)) {
                CAR_TRY(load_tensor(trial, &trial->tensors[i]));
            }
        }
    }
    soil(&trial->aux);
    soil(&trial->derived);
    soil(&trial->scratch);
    for (int p = 0; p < trial->op.param_count; p++) {
        io.param[p] = stored(trial, CAR_TRIAL_PARAM + p);
    }
    if (trial->kernel.derived_bytes > 0) {
        CAR_TRY(car_kernel_derive(&trial->kernel, &io, trial->derived.data));
    }
done:
    return status;
}

/* What forward and backward have in common. */
static car_kernel_io make_io(car_trial *trial, bool training) {
    car_kernel_io io = {.training = training, .key = dropout_key, .stream = trial->table->stream};
    io.derived = trial->derived.data;
    io.scratch = trial->scratch.data;
    io.aux = training ? trial->aux.data : NULL;
    for (int p = 0; p < trial->op.param_count; p++) {
        io.param[p] = stored(trial, CAR_TRIAL_PARAM + p);
    }
    return io;
}

car_status car_trial_forward(car_trial *trial, bool training) {
    car_kernel_io io = make_io(trial, training);
    for (int q = 0; q < trial->op.input_count; q++) {
        io.in[q] = stored(trial, CAR_TRIAL_IN + q);
    }
    io.out = stored(trial, CAR_TRIAL_OUT);
    return car_kernel_forward(&trial->kernel, &io);
}

car_status car_trial_backward(car_trial *trial) {
    car_kernel_io io = make_io(trial, true);
    for (int q = 0; q < trial->op.input_count; q++) {
        io.in[q] = trial->op.saves_input[q] ? stored(trial, CAR_TRIAL_IN + q) : NULL;
        io.grad_in[q] = stored(trial, CAR_TRIAL_GRAD_IN + q);
    }
    for (int p = 0; p < trial->op.param_count; p++) {
        io.grad_param[p] = (float *)stored(trial, CAR_TRIAL_GRAD_PARAM + p);
    }
    io.out = trial->op.saves_output ? stored(trial, CAR_TRIAL_OUT) : NULL;
    io.grad_out = stored(trial, CAR_TRIAL_GRAD_OUT);
    return car_kernel_backward(&trial->kernel, &io);
}

/* ---- results ------------------------------------------------------------------------------------------- */

car_status car_trial_read(const car_trial *trial, int index, float *values) {
    const car_trial_tensor *tensor = &trial->tensors[index];
    if (tensor->own_layout) {
        return trial->kernel.class->export_param(&trial->kernel, (const float *)tensor->stored.data, values);
    }
    for (size_t i = 0; i < tensor->elements; i++) {
        values[i] = get_element(tensor, stored_at(tensor, (int64_t)i));
    }
    return CAR_OK;
}

static bool padding_is_zero(const car_trial_tensor *tensor) {
    const int64_t *dim = tensor->shape.dim;
    if (tensor->shape.rank != 4 || tensor->own_layout || tensor->block == 1) {
        return true;
    }
    int64_t block = tensor->block, blocks = (dim[1] + block - 1) / block, pixels = dim[2] * dim[3];
    for (int64_t i = 0; i < dim[0] * blocks * pixels * block; i++) {
        int64_t channel = i / block / pixels % blocks * block + i % block;
        if (channel >= dim[1] && !(get_element(tensor, i) == 0)) {
            return false;
        }
    }
    return true;
}

/* Whether something that a kernel may only read is as it was loaded. */
static bool is_untouched(const car_trial_tensor *tensor) {
    for (size_t i = 0; i < tensor->elements && !tensor->own_layout; i++) {
        float found = get_element(tensor, stored_at(tensor, (int64_t)i));
        if (memcmp(&found, &tensor->values[i], sizeof found) != 0) {
            return false;
        }
    }
    return true;
}

bool car_trial_inspect(const car_trial *trial, char *message, size_t capacity) {
    const struct {
        const char *name;
        const car_trial_buffer *buffer;
    } others[] = {{"aux", &trial->aux}, {"derived", &trial->derived}, {"scratch", &trial->scratch}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (!guard_is_whole(others[i].buffer)) {
            snprintf(message, capacity, "%s: written beyond its %zu bytes", others[i].name, others[i].buffer->bytes);
            return false;
        }
    }
    for (int i = 0; i < CAR_TRIAL_TENSORS; i++) {
        const car_trial_tensor *tensor = &trial->tensors[i];
        bool read_only = i < CAR_TRIAL_OUT || i == CAR_TRIAL_GRAD_OUT;
        const char *fault = NULL;
        if (!tensor->values) {
            continue;
        }
        if (!guard_is_whole(&tensor->stored)) {
            fault = "written beyond its end";
        } else if (!padding_is_zero(tensor)) {
            fault = "channels that only pad are not zero";
        } else if (read_only && i != lender(trial) && !is_untouched(tensor)) {
            fault = "changed, though only to be read";
        }
        if (fault) {
            snprintf(message, capacity, "%s: %s", tensor->name, fault);
            return false;
        }
    }
    return true;
}
