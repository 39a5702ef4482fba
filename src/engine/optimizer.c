/* SGD with momentum, over parameters in their stored layout: padding has zero gradients and stays zero. */
#include "carousel/optimizer.h"

#include <string.h>

#include "base/base.h"
#include "engine/internal.h"
#include "kernels/vector/vector.h"

struct car_optimizer {
    const car_program *program;
    car_arena *arena;
    car_optimizer_config config;
    void **momentum; /* per parameter; NULL for statistics */
    bool started;    /* the first step sets the momentum instead of moving it */
};

car_optimizer_config car_optimizer_config_default(void) {
    return (car_optimizer_config){.momentum = 0.9};
}

static bool is_statistic(const car_graph *graph, int param) {
    return car_graph_param(graph, param)->role == CAR_PARAM_STATISTIC;
}

car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out) {
    car_context *context = car_program_context(program);
    const car_graph *graph = car_program_graph(program);
    car_optimizer *optimizer = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *optimizer, &optimizer));
    optimizer->program = program;
    optimizer->arena = arena;
    optimizer->config = config ? *config : car_optimizer_config_default();
    CAR_TRY(car_context_allocate(context, (size_t)car_graph_param_count(graph), sizeof(void *), &optimizer->momentum));
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        if (!is_statistic(graph, p)) {
            CAR_TRY(car_arena_allocate(arena, CAR_MEMORY_OPTIMIZER, car_program_param_bytes(program, p),
                                       &optimizer->momentum[p]));
        }
    }
    *out = optimizer;
    optimizer = NULL;
done:
    car_optimizer_destroy(optimizer);
    return status;
}

void car_optimizer_destroy(car_optimizer *optimizer) {
    if (!optimizer) {
        return;
    }
    car_context *context = car_program_context(optimizer->program);
    int params = car_graph_param_count(car_program_graph(optimizer->program));
    for (int p = 0; optimizer->momentum && p < params; p++) {
        car_arena_release(optimizer->arena, optimizer->momentum[p]);
    }
    car_context_release(context, optimizer->momentum, (size_t)params, sizeof(void *));
    car_context_release(context, optimizer, 1, sizeof *optimizer);
}

/* The gradient of a parameter, added up over its uses into that of the first. */
static float *whole_gradient(const car_optimizer *optimizer, car_gradients *gradients, int param, int64_t count) {
    const car_graph *graph = car_program_graph(optimizer->program);
    float *sum = NULL;
    for (int u = 0; u < car_graph_use_count(graph); u++) {
        if (car_graph_use_param(graph, u) != param) {
            continue;
        }
        if (sum) {
            car_vector_select()->accumulate(sum, gradients->use[u], count);
        } else {
            sum = gradients->use[u];
        }
    }
    return sum;
}

/* Running statistics belong to one batch normalisation each. */
static float statistic_momentum(const car_graph *graph, int param) {
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        if (op->kind == CAR_OP_BATCHNORM && (op->params[2] == param || op->params[3] == param)) {
            return (float)op->config.batchnorm.momentum;
        }
    }
    return 0;
}

static void move_statistic(float *running, const float *batch, float momentum, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        running[i] = (1 - momentum) * running[i] + momentum * batch[i];
    }
}

car_status car_optimizer_step(car_optimizer *optimizer, car_lane *lane, car_weights *weights, car_gradients *gradients,
                              double lr) {
    const car_graph *graph = car_program_graph(optimizer->program);
    car_vector_sgd sgd = {
        .lr = (float)lr,
        .momentum = (float)optimizer->config.momentum,
        .weight_decay = (float)optimizer->config.weight_decay,
        .nesterov = optimizer->config.nesterov,
        .first = !optimizer->started,
    };
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        int64_t count = (int64_t)(car_program_param_bytes(optimizer->program, p) / sizeof(float));
        float *gradient = whole_gradient(optimizer, gradients, p, count);
        if (is_statistic(graph, p)) {
            move_statistic(weights->param[p], gradient, statistic_momentum(graph, p), count);
        } else {
            car_vector_select()->sgd(weights->param[p], optimizer->momentum[p], gradient, &sgd, count);
        }
    }
    optimizer->started = true;
    return car_weights_refresh(weights, lane, 0, car_graph_op_count(graph));
}
