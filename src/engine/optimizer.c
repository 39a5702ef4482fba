/* SGD and AdamW: state for every parameter, one update at a time. */
#include "carousel/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "engine/internal.h"
#include "kernels/vector/vector.h"

enum { MAX_STATES = 2 };

struct car_optimizer {
    const car_program *program;
    car_arena *arena;
    car_optimizer_config config;
    void **state[MAX_STATES]; /* per parameter; NULL for statistics */
};

const char *car_optimizer_text(car_optimizer_kind kind) {
    static const char *const texts[] = {
#define OPTIMIZER_TEXT(code, text) text,
        CAR_OPTIMIZER_LIST(OPTIMIZER_TEXT)
#undef OPTIMIZER_TEXT
    };
    return kind < CAR_OPTIMIZERS ? texts[kind] : "unknown";
}

car_status car_optimizer_find(car_context *context, const char *name, car_optimizer_kind *out) {
    for (int k = 0; k < CAR_OPTIMIZERS; k++) {
        if (strcmp(name, car_optimizer_text(k)) == 0) {
            *out = k;
            return CAR_OK;
        }
    }
    return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "there is no optimizer '%s'; there are sgd, adamw", name);
}

car_optimizer_config car_optimizer_config_default(void) {
    return (car_optimizer_config){
        .kind = CAR_OPTIMIZER_SGD, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

int car_optimizer_config_states(const car_optimizer_config *config) {
    return config->kind == CAR_OPTIMIZER_ADAMW ? 2 : config->momentum != 0 ? 1 : 0;
}

int car_optimizer_states(const car_optimizer *optimizer) {
    return car_optimizer_config_states(&optimizer->config);
}

float *car_optimizer_state(car_optimizer *optimizer, int state, int param) {
    return optimizer->state[state] ? optimizer->state[state][param] : NULL;
}

car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out) {
    return car_optimizer_create_for(program, arena, config, NULL, out);
}

car_status car_optimizer_create_for(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                    const bool *wanted, car_optimizer **out) {
    car_context *context = car_program_context(program);
    const car_graph *graph = car_program_graph(program);
    int params = car_graph_param_count(graph);
    car_optimizer *optimizer = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *optimizer, &optimizer));
    optimizer->program = program;
    optimizer->arena = arena;
    optimizer->config = config ? *config : car_optimizer_config_default();
    for (int s = 0; s < car_optimizer_states(optimizer); s++) {
        CAR_TRY(car_context_allocate(context, (size_t)params, sizeof(void *), &optimizer->state[s]));
        for (int p = 0; p < params; p++) {
            size_t bytes = car_program_param_bytes(program, p);
            if (car_graph_param(graph, p)->role != CAR_PARAM_STATISTIC && (!wanted || wanted[p])) {
                CAR_TRY(car_arena_allocate(arena, CAR_MEMORY_OPTIMIZER, bytes, &optimizer->state[s][p]));
                memset(optimizer->state[s][p], 0, bytes);
            }
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
    for (int s = 0; s < MAX_STATES; s++) {
        for (int p = 0; optimizer->state[s] && p < params; p++) {
            car_arena_release(optimizer->arena, optimizer->state[s][p]);
        }
        car_context_release(context, optimizer->state[s], (size_t)params, sizeof(void *));
    }
    car_context_release(context, optimizer, 1, sizeof *optimizer);
}

static double decay_of(const car_optimizer *optimizer, int param) {
    const car_param *p = car_graph_param(car_program_graph(optimizer->program), param);
    bool exempt = p->shape.rank == 1 || p->role == CAR_PARAM_NORM || p->role == CAR_PARAM_BIAS;
    return optimizer->config.decay_weights_only && exempt ? 0.0 : optimizer->config.weight_decay;
}

void car_optimizer_update(car_optimizer *optimizer, int param, int64_t step, double lr, double scale, const float *from,
                          float *to, const float *sum) {
    const car_optimizer_config *config = &optimizer->config;
    int64_t count = (int64_t)(car_program_param_bytes(optimizer->program, param) / sizeof(float));
    double decay = decay_of(optimizer, param);
    if (config->kind == CAR_OPTIMIZER_SGD) {
        const car_vector_sgd sgd = {.lr = (float)lr,
                                    .scale = (float)scale,
                                    .momentum = (float)config->momentum,
                                    .weight_decay = (float)decay,
                                    .nesterov = config->nesterov};
        car_vector_select()->sgd(to, from, car_optimizer_state(optimizer, 0, param), sum, &sgd, count);
        return;
    }
    double correction1 = 1.0 - pow(config->beta1, (double)(step + 1)),
           correction2 = 1.0 - pow(config->beta2, (double)(step + 1));
    const car_vector_adamw adamw = {.shrink = (float)(1.0 - lr * decay),
                                    .scale = (float)scale,
                                    .beta1 = (float)config->beta1,
                                    .rest1 = (float)(1.0 - config->beta1),
                                    .beta2 = (float)config->beta2,
                                    .rest2 = (float)(1.0 - config->beta2),
                                    .step_size = (float)(lr / correction1),
                                    .root = (float)(1.0 / sqrt(correction2)),
                                    .eps = (float)config->eps};
    car_vector_select()->adamw(to, from, car_optimizer_state(optimizer, 0, param),
                               car_optimizer_state(optimizer, 1, param), sum, &adamw, count);
}
