/* One version of all parameters with the forms derived from them, and one gradient per use of a parameter. */
#include <string.h>

#include "base/base.h"
#include "carousel/tape.h"
#include "engine/arithmetic.h"
#include "kernels/vector/vector.h"
#include "tape/internal.h"

/* ---- copies used for computing --------------------------------------------------------------------- */

void car_engine_round(const car_program *program, int param, const void *from, void *to) {
    size_t bytes = car_program_param_bytes(program, param);
    if (car_engine_is_rounded(program, param)) {
        car_vector_select()->narrow(to, from, (int64_t)(bytes / sizeof(float)));
    } else {
        memcpy(to, from, bytes);
    }
}

void car_engine_round_range(const car_program *program, int param, int64_t first, int64_t count, const float *from,
                            void *to) {
    if (car_engine_is_rounded(program, param)) {
        car_vector_select()->narrow((car_bf16 *)to + first, from + first, count);
    } else {
        memcpy((float *)to + first, from + first, (size_t)count * sizeof *from);
    }
}

void car_engine_unround(const car_program *program, int param, const void *from, float *to) {
    size_t bytes = car_program_param_bytes(program, param);
    if (car_engine_is_rounded(program, param)) {
        car_vector_select()->widen(to, from, (int64_t)(bytes / sizeof *to));
    } else {
        memcpy(to, from, bytes);
    }
}

/* ---- checking ids from callers --------------------------------------------------------------- */

car_status car_engine_check_range(const car_program *program, int begin, int end) {
    int count = car_graph_op_count(car_program_graph(program));
    if (begin < 0 || end > count || begin > end) {
        return car_context_fail(car_program_context(program), CAR_ERROR_ARGUMENT,
                                "there is no range of operations from %d to before %d; the graph has %d operations",
                                begin, end, count);
    }
    return CAR_OK;
}

car_status car_engine_check_param(const car_program *program, int param) {
    int count = car_graph_param_count(car_program_graph(program));
    if (param < 0 || param >= count) {
        return car_context_fail(car_program_context(program), CAR_ERROR_ARGUMENT,
                                "there is no parameter %d; the graph has %d, counted from 0", param, count);
    }
    return CAR_OK;
}

/* ---- weights --------------------------------------------------------------------------------- */

static void release_blocks(car_arena *arena, void *const *blocks, int count) {
    for (int b = 0; blocks && b < count; b++) {
        car_arena_release(arena, blocks[b]);
    }
}

car_status car_weights_open_view(const car_program *program, car_arena *arena, car_weights *view) {
    car_context *context = car_program_context(program);
    size_t params = (size_t)car_graph_param_count(car_program_graph(program));
    size_t ops = (size_t)car_graph_op_count(car_program_graph(program));
    car_status status = CAR_OK;
    *view = (car_weights){.program = program, .arena = arena};
    CAR_TRY(car_context_allocate(context, params, sizeof(void *), &view->param));
    CAR_TRY(car_context_allocate(context, params, sizeof(void *), &view->master));
    CAR_TRY(car_context_allocate(context, ops, sizeof(void *), &view->derived));
done:
    return status;
}

void car_weights_close_view(car_weights *view) {
    if (view->program) {
        car_context *context = car_program_context(view->program);
        size_t params = (size_t)car_graph_param_count(car_program_graph(view->program));
        size_t ops = (size_t)car_graph_op_count(car_program_graph(view->program));
        car_context_release(context, view->derived, ops, sizeof(void *));
        car_context_release(context, view->master, params, sizeof(void *));
        car_context_release(context, view->param, params, sizeof(void *));
    }
}

car_status car_weights_create(const car_program *program, car_arena *arena, car_weights **out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(car_program_context(program), arena);
    CAR_REQUIRE(car_program_context(program), out);
    car_context *context = car_program_context(program);
    const car_graph *graph = car_program_graph(program);
    car_weights *weights = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *weights, &weights));
    CAR_TRY(car_weights_open_view(program, arena, weights));
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        CAR_TRY(car_arena_allocate(arena, CAR_MEMORY_WEIGHTS, car_program_copy_bytes(program, p), &weights->param[p]));
        if (car_engine_is_rounded(program, p)) {
            CAR_TRY(car_arena_allocate(arena, CAR_MEMORY_WEIGHTS, car_program_param_bytes(program, p),
                                       &weights->master[p]));
        }
    }
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        CAR_TRY(
            car_arena_allocate(arena, CAR_MEMORY_WEIGHTS, car_program_derived_bytes(program, l), &weights->derived[l]));
    }
    *out = weights;
    weights = NULL;
done:
    car_weights_destroy(weights);
    return status;
}

void car_weights_destroy(car_weights *weights) {
    if (!weights) {
        return;
    }
    car_context *context = car_program_context(weights->program);
    const car_graph *graph = car_program_graph(weights->program);
    release_blocks(weights->arena, weights->derived, car_graph_op_count(graph));
    release_blocks(weights->arena, weights->master, car_graph_param_count(graph));
    release_blocks(weights->arena, weights->param, car_graph_param_count(graph));
    car_weights_close_view(weights);
    car_context_release(context, weights, 1, sizeof *weights);
}

/* Kernels get the parameters of an operation, in its order. */
void car_engine_bind_params(const car_weights *weights, const car_op *op, const void **param) {
    for (int p = 0; p < op->param_count; p++) {
        param[p] = weights->param[op->params[p]];
    }
}

/* If the fp32 values are kept here too, rounds the copy from them again. */
static void round_param(car_weights *weights, int param) {
    if (weights->master[param]) {
        car_engine_round(weights->program, param, weights->master[param], weights->param[param]);
    }
}

static float *floats_of(const car_weights *weights, int param) {
    return weights->master[param] ? weights->master[param] : weights->param[param];
}

static car_status derive_forms(car_weights *weights, const car_lane *lane, int begin, int end) {
    const car_program *program = weights->program;
    car_status status = CAR_OK;
    for (int l = begin; status == CAR_OK && l < end; l++) {
        const car_kernel *kernel = car_program_kernel(program, l);
        for (int p = 0; p < kernel->op->param_count; p++) {
            round_param(weights, kernel->op->params[p]);
        }
        if (kernel->derived_bytes > 0) {
            car_kernel_io io = {.scratch = lane->scratch, .stream = lane->stream};
            car_engine_bind_params(weights, kernel->op, io.param);
            status = car_kernel_derive(kernel, &io, weights->derived[l]);
        }
    }
    return status;
}

car_status car_weights_refresh(car_weights *weights, car_lane *lane, int begin, int end) {
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(car_program_context(weights->program), lane);
    car_status status = car_engine_check_range(weights->program, begin, end);
    car_kernel_mode mode = car_kernels_enter(car_program_threads(weights->program));
    status = status == CAR_OK ? derive_forms(weights, lane, begin, end) : status;
    car_kernels_leave(mode);
    return status;
}

/* Recomputes everything that depends on one parameter. Used for setting weights, where speed does not matter. */
static car_status refresh_param(car_weights *weights, int param) {
    const car_program *program = weights->program;
    const car_graph *graph = car_program_graph(program);
    car_status status = CAR_OK;
    for (int l = 0; status == CAR_OK && l < car_graph_op_count(graph); l++) {
        const car_kernel *kernel = car_program_kernel(program, l);
        if (kernel->derived_bytes == 0 || kernel->op->params[0] != param) {
            continue;
        }
        car_lane *lane = NULL;
        status = car_lane_create(program, weights->arena, &lane);
        if (status == CAR_OK) {
            status = derive_forms(weights, lane, l, l + 1);
        }
        car_lane_destroy(lane);
    }
    return status;
}

car_status car_weights_set(car_weights *weights, int param, const void *canonical) {
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(car_program_context(weights->program), canonical);
    car_kernel_mode mode = car_kernels_enter(car_program_threads(weights->program));
    car_status status = CAR_OK;
    CAR_TRY(car_engine_check_param(weights->program, param));
    CAR_TRY(car_program_import_param(weights->program, param, canonical, floats_of(weights, param)));
    round_param(weights, param);
    CAR_TRY(refresh_param(weights, param));
done:
    car_kernels_leave(mode);
    return status;
}

car_status car_weights_get(const car_weights *weights, int param, void *canonical) {
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(car_program_context(weights->program), canonical);
    const car_program *program = weights->program;
    car_context *context = car_program_context(program);
    float *floats = NULL;
    car_status status = car_engine_check_param(program, param);
    if (status != CAR_OK) {
        return status;
    }
    size_t bytes = car_program_param_bytes(program, param);
    if (!car_engine_is_rounded(program, param) || weights->master[param]) {
        return car_program_export_param(program, param, floats_of(weights, param), canonical);
    }
    CAR_TRY(car_context_allocate(context, bytes, 1, &floats));
    car_engine_unround(program, param, weights->param[param], floats);
    CAR_TRY(car_program_export_param(program, param, floats, canonical));
done:
    car_context_release(context, floats, bytes, 1);
    return status;
}

float *car_weights_data(car_weights *weights, int param) {
    bool known = weights && param >= 0 && param < car_graph_param_count(car_program_graph(weights->program));
    return known ? floats_of(weights, param) : NULL;
}

/* ---- initial values -------------------------------------------------------------------------- */

static double draw(car_init init, uint64_t key, int64_t i) {
    switch (init.kind) {
    case CAR_INIT_NORMAL:
        return init.a * car_random_normal(key, (uint64_t)i);
    case CAR_INIT_UNIFORM:
        return init.a * (2.0 * car_random_uniform(key, (uint64_t)i) - 1.0);
    default:
        return init.a;
    }
}

car_status car_weights_draw(const car_program *program, int param, uint64_t seed, float *stored) {
    const car_param *p = car_graph_param(car_program_graph(program), param);
    car_context *context = car_program_context(program);
    int64_t count = car_shape_elements(p->shape);
    uint64_t key = car_random_key(seed, p->name);
    float *values = NULL;
    car_status status = CAR_OK;
    for (int64_t i = 0; i < count && p->dtype == CAR_F64; i++) {
        ((double *)(void *)stored)[i] = draw(p->init, key, i);
    }
    if (p->dtype == CAR_F64) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(context, (size_t)count, sizeof *values, &values));
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)draw(p->init, key, i);
    }
    CAR_TRY(car_program_import_param(program, param, values, stored));
done:
    car_context_release(context, values, (size_t)count, sizeof *values);
    return status;
}

car_status car_weights_initialize(car_weights *weights, uint64_t seed) {
    CAR_REQUIRE(NULL, weights);
    int params = car_graph_param_count(car_program_graph(weights->program));
    car_kernel_mode mode = car_kernels_enter(car_program_threads(weights->program));
    car_status status = CAR_OK;
    for (int p = 0; status == CAR_OK && p < params; p++) {
        status = car_weights_draw(weights->program, p, seed, floats_of(weights, p));
        round_param(weights, p);
        status = status == CAR_OK ? refresh_param(weights, p) : status;
    }
    car_kernels_leave(mode);
    return status;
}

/* ---- gradients ------------------------------------------------------------------------------- */

car_status car_gradients_create(const car_program *program, car_arena *arena, car_gradients **out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(car_program_context(program), arena);
    CAR_REQUIRE(car_program_context(program), out);
    car_context *context = car_program_context(program);
    const car_graph *graph = car_program_graph(program);
    car_gradients *gradients = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *gradients, &gradients));
    gradients->program = program;
    gradients->arena = arena;
    CAR_TRY(car_context_allocate(context, (size_t)car_graph_use_count(graph), sizeof(void *), &gradients->use));
    for (int u = 0; u < car_graph_use_count(graph); u++) {
        size_t bytes = car_program_param_bytes(program, car_graph_use_param(graph, u));
        CAR_TRY(car_arena_allocate(arena, CAR_MEMORY_GRADIENTS, bytes, &gradients->use[u]));
        memset(gradients->use[u], 0, bytes);
    }
    *out = gradients;
    gradients = NULL;
done:
    car_gradients_destroy(gradients);
    return status;
}

void car_gradients_destroy(car_gradients *gradients) {
    if (!gradients) {
        return;
    }
    car_context *context = car_program_context(gradients->program);
    int uses = car_graph_use_count(car_program_graph(gradients->program));
    release_blocks(gradients->arena, gradients->use, uses);
    car_context_release(context, gradients->use, (size_t)uses, sizeof(void *));
    car_context_release(context, gradients, 1, sizeof *gradients);
}

float *car_gradients_data(car_gradients *gradients, int use) {
    bool known = gradients && use >= 0 && use < car_graph_use_count(car_program_graph(gradients->program));
    return known ? gradients->use[use] : NULL;
}

car_status car_gradients_get(const car_gradients *gradients, int param, void *canonical) {
    CAR_REQUIRE(NULL, gradients);
    CAR_REQUIRE(car_program_context(gradients->program), canonical);
    const car_program *program = gradients->program;
    const car_graph *graph = car_program_graph(program);
    car_context *context = car_program_context(program);
    void *sum = NULL;
    car_status status = car_engine_check_param(program, param);
    if (status != CAR_OK) {
        return status;
    }
    size_t bytes = car_program_param_bytes(program, param);
    car_kernel_mode mode = car_kernels_enter(car_program_threads(program));
    CAR_TRY(car_context_allocate(context, bytes, 1, &sum));
    for (int u = 0; u < car_graph_use_count(graph); u++) {
        if (car_graph_use_param(graph, u) == param) {
            car_engine_accumulate(program, param, sum, gradients->use[u]);
        }
    }
    CAR_TRY(car_program_export_param(program, param, sum, canonical));
done:
    car_kernels_leave(mode);
    car_context_release(context, sum, bytes, 1);
    return status;
}
