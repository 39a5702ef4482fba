/* Parameters of doubles, which only user-defined stages have: the methods of sgd.c and adamw.c in double, with the
 * moving average. */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "engine/optimizer_internal.h"

/* One update of elements 0 .. count - 1. States that do not exist are NULL. */
typedef struct doubles {
    const car_optimizer_config *config;
    int64_t count, step;
    double lr, scale, decay, change;
    const double *from, *sum;
    double *to, *state[2], *last;
} doubles;

static void sgd(const doubles *u) {
    const car_correction *correction = &u->config->correction;
    double *m = u->state[0];
    bool nesterov = correction->c == u->config->momentum && correction->a == 0;
    for (int64_t i = 0; i < u->count; i++) {
        double g = u->scale * u->sum[i], moved = g + u->decay * u->from[i], direction = moved;
        if (m) {
            double before = m[i];
            m[i] = u->config->momentum * before + moved;
            direction = nesterov ? moved + u->config->momentum * m[i] : m[i] + correction->c * (m[i] - before);
        }
        if (u->last) {
            direction += u->change * (g - u->last[i]);
            u->last[i] = g;
        }
        u->to[i] = u->from[i] - u->lr * direction;
    }
}

static void adamw(const doubles *u) {
    const car_optimizer_config *config = u->config;
    double whole1 = 1 - pow(config->beta1, (double)(u->step + 1));
    double whole2 = 1 - pow(config->beta2, (double)(u->step + 1));
    double *m = u->state[0], *v = u->state[1];
    if (!m || !v) {
        return; /* they always exist */
    }
    double c = u->step > 0 ? config->correction.c : 0, before1 = 1 - pow(config->beta1, (double)u->step);
    for (int64_t i = 0; i < u->count; i++) {
        double g = u->scale * u->sum[i], before = m[i];
        double first = config->beta1 * before + (1 - config->beta1) * g;
        double second = config->beta2 * v[i] + (1 - config->beta2) * g * g;
        double direction = (1 + c) * first / whole1 - (c != 0 ? c * before / before1 : 0);
        m[i] = first;
        v[i] = second;
        if (u->last) {
            direction += u->change * (1 - config->beta1) * (g - u->last[i]);
            u->last[i] = g;
        }
        u->to[i] = (1 - u->lr * u->decay) * u->from[i] - u->lr * direction / (sqrt(second / whole2) + config->eps);
    }
}

static double *state_of(car_optimizer *optimizer, int state, int param, int64_t first) {
    double *values = state >= 0 ? (double *)(void *)car_optimizer_state(optimizer, state, param) : NULL;
    return values ? values + first : NULL;
}

/* Muon updates these parameters with AdamW, because they are not the matrix of a layer. */
static bool is_sgd(const car_optimizer *optimizer) {
    return optimizer->config.kind == CAR_OPTIMIZER_SGD;
}

car_status car_optimizer_update_doubles(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                        double lr, double scale, const double *from, double *to, const double *sum) {
    const car_optimizer_config *config = &optimizer->config;
    const car_param_update asked = {.optimizer = optimizer, .param = param, .step = step};
    int own = optimizer->method->states(config, car_program_graph(optimizer->program), param);
    double *average = state_of(optimizer, CAR_OPTIMIZER_AVERAGE, param, first);
    const doubles update = {
        .config = config,
        .count = count,
        .step = step,
        .lr = (optimizer->lr_scale ? lr * optimizer->lr_scale[param] : lr) *
              (config->kind == CAR_OPTIMIZER_MUON && !config->own ? config->adamw_ratio : 1),
        .scale = scale,
        .decay = car_optimizer_decay(&asked),
        .change = car_optimizer_change_weight(&asked),
        .from = from + first,
        .sum = sum + first,
        .to = to + first,
        .state = {own > 0 ? state_of(optimizer, 0, param, first) : NULL,
                  own > 1 ? state_of(optimizer, 1, param, first) : NULL},
        .last = config->correction.a != 0 ? state_of(optimizer, own, param, first) : NULL,
    };
    if (average && step == 0 && !optimizer->averaged) {
        memcpy(average, update.from, (size_t)count * sizeof *average);
    }
    car_status status = CAR_OK;
    if (config->own) {
        status = car_optimizer_update_own(optimizer, param, first, count, step, update.lr, scale, from, to, sum);
    } else if (is_sgd(optimizer)) {
        sgd(&update);
    } else {
        adamw(&update);
    }
    for (int64_t i = 0; average && i < count; i++) {
        average[i] = config->average * average[i] + (1 - config->average) * update.to[i];
    }
    return status;
}
