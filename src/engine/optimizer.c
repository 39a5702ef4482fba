/* SGD and AdamW: state for every parameter, one update at a time. */
#include "carousel/correction.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "engine/internal.h"
#include "kernels/vector/vector.h"

enum { MAX_STATES = 3 };

struct car_optimizer {
    const car_program *program;
    car_arena *arena;
    car_optimizer_config config;
    double *share;            /* per parameter: of the workers that are stale for its stage */
    int64_t since;            /* the first update whose gradient is in the last state */
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
    return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "there is no optimizer '%s'; known are sgd and adamw",
                            name);
}

car_optimizer_config car_optimizer_config_default(void) {
    return (car_optimizer_config){
        .kind = CAR_OPTIMIZER_SGD, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

/* Of momentum or moments, before the last gradient. */
static int own_states(const car_optimizer_config *config) {
    return config->kind == CAR_OPTIMIZER_ADAMW ? 2 : config->momentum != 0 ? 1 : 0;
}

/* SGD without momentum has nothing to correct with, and Nesterov's momentum is a correction. */
static car_correction correction_of(const car_optimizer_config *config) {
    if (config->kind == CAR_OPTIMIZER_SGD && config->momentum == 0) {
        return (car_correction){0};
    }
    bool nesterov = config->kind == CAR_OPTIMIZER_SGD && config->nesterov;
    return nesterov ? (car_correction){.c = config->momentum} : config->correction;
}

int car_optimizer_config_states(const car_optimizer_config *config) {
    return own_states(config) + (correction_of(config).a != 0);
}

int car_optimizer_states(const car_optimizer *optimizer) {
    return car_optimizer_config_states(&optimizer->config);
}

float *car_optimizer_state(car_optimizer *optimizer, int state, int param) {
    return optimizer->state[state] ? optimizer->state[state][param] : NULL;
}

car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out) {
    return car_optimizer_create_for(program, arena, config, NULL, NULL, out);
}

/* A tied parameter has the share of its first stage: that is where it is updated. */
static void find_shares(car_optimizer *optimizer, const car_plan *plan) {
    const car_graph *graph = car_program_graph(optimizer->program);
    const car_partition *partition = plan ? car_plan_partition(plan) : NULL;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        optimizer->share[p] = 1;
    }
    for (int j = partition ? partition->stage_count - 1 : -1; j >= 0; j--) {
        double share = car_plan_stale_share(plan, j);
        for (int l = partition->stages[j].first; l < partition->stages[j].end; l++) {
            const car_op *op = car_graph_op(graph, l);
            for (int p = 0; p < op->param_count; p++) {
                optimizer->share[op->params[p]] = share;
            }
        }
    }
}

car_status car_optimizer_create_for(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                    const car_plan *plan, const bool *wanted, car_optimizer **out) {
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
    optimizer->config.correction = correction_of(&optimizer->config);
    CAR_TRY(car_context_allocate(context, (size_t)params, sizeof(double), &optimizer->share));
    find_shares(optimizer, plan);
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
    car_context_release(context, optimizer->share, (size_t)params, sizeof(double));
    car_context_release(context, optimizer, 1, sizeof *optimizer);
}

int64_t car_optimizer_since(const car_optimizer *optimizer) {
    return optimizer->since;
}

void car_optimizer_set_since(car_optimizer *optimizer, int64_t since) {
    optimizer->since = since;
}

static double decay_of(const car_optimizer *optimizer, int param) {
    const car_param *p = car_graph_param(car_program_graph(optimizer->program), param);
    bool exempt = p->shape.rank == 1 || p->role == CAR_PARAM_NORM || p->role == CAR_PARAM_BIAS;
    return optimizer->config.decay_weights_only && exempt ? 0.0 : optimizer->config.weight_decay;
}

/* The weight of the gradient's change: none while there is no gradient to compare with. */
static double change_weight(const car_optimizer *optimizer, int param, int64_t step) {
    const car_correction *correction = &optimizer->config.correction;
    return step > optimizer->since ? correction->a * (correction->by_share ? optimizer->share[param] : 1) : 0;
}

/* The last gradient is behind the optimizer's own states. */
static float *last_gradient(car_optimizer *optimizer, int param) {
    bool kept = optimizer->config.correction.a != 0;
    return kept ? car_optimizer_state(optimizer, own_states(&optimizer->config), param) : NULL;
}

static void update_sgd(car_optimizer *optimizer, int param, int64_t step, double lr, double scale, const float *from,
                       float *to, const float *sum) {
    const car_optimizer_config *config = &optimizer->config;
    const car_correction *correction = &config->correction;
    int64_t count = (int64_t)(car_program_param_bytes(optimizer->program, param) / sizeof(float));
    float *momentum = car_optimizer_state(optimizer, 0, param);
    bool nesterov = correction->c == config->momentum && correction->a == 0 && momentum;
    if (!car_correction_is_on(correction) || nesterov) {
        const car_vector_sgd sgd = {.lr = (float)lr,
                                    .scale = (float)scale,
                                    .momentum = (float)config->momentum,
                                    .weight_decay = (float)decay_of(optimizer, param),
                                    .nesterov = nesterov};
        car_vector_select()->sgd(to, from, momentum, sum, &sgd, count);
        return;
    }
    const car_vector_sgd_corrected sgd = {.lr = (float)lr,
                                          .scale = (float)scale,
                                          .momentum = (float)config->momentum,
                                          .weight_decay = (float)decay_of(optimizer, param),
                                          .c = (float)correction->c,
                                          .a = (float)change_weight(optimizer, param, step)};
    car_vector_select()->sgd_corrected(to, from, momentum, last_gradient(optimizer, param), sum, &sgd, count);
}

static void update_adamw(car_optimizer *optimizer, int param, int64_t step, double lr, double scale, const float *from,
                         float *to, const float *sum) {
    const car_optimizer_config *config = &optimizer->config;
    const car_correction *correction = &config->correction;
    int64_t count = (int64_t)(car_program_param_bytes(optimizer->program, param) / sizeof(float));
    float *first = car_optimizer_state(optimizer, 0, param), *second = car_optimizer_state(optimizer, 1, param);
    double correction1 = 1.0 - pow(config->beta1, (double)(step + 1)),
           correction2 = 1.0 - pow(config->beta2, (double)(step + 1));
    const car_vector_adamw adamw = {.shrink = (float)(1.0 - lr * decay_of(optimizer, param)),
                                    .scale = (float)scale,
                                    .beta1 = (float)config->beta1,
                                    .rest1 = (float)(1.0 - config->beta1),
                                    .beta2 = (float)config->beta2,
                                    .rest2 = (float)(1.0 - config->beta2),
                                    .step_size = (float)(lr / correction1),
                                    .root = (float)(1.0 / sqrt(correction2)),
                                    .eps = (float)config->eps};
    if (!car_correction_is_on(correction)) {
        car_vector_select()->adamw(to, from, first, second, sum, &adamw, count);
        return;
    }
    double c = step > 0 ? correction->c : 0, before = 1.0 - pow(config->beta1, (double)step); /* c: no 0 / 0 */
    double a = change_weight(optimizer, param, step);
    const car_vector_adamw_corrected corrected = {.plain = adamw,
                                                  .moved = (float)(lr * (1 + c) / correction1),
                                                  .before = c != 0 ? (float)(-lr * c / before) : 0.0f,
                                                  .a = (float)(lr * a * (1.0 - config->beta1))};
    car_vector_select()->adamw_corrected(to, from, first, second, last_gradient(optimizer, param), sum, &corrected,
                                         count);
}

void car_optimizer_update(car_optimizer *optimizer, int param, int64_t step, double lr, double scale, const float *from,
                          float *to, const float *sum) {
    if (optimizer->config.kind == CAR_OPTIMIZER_SGD) {
        update_sgd(optimizer, param, step, lr, scale, from, to, sum);
    } else {
        update_adamw(optimizer, param, step, lr, scale, from, to, sum);
    }
}
