/* AdamW: decoupled weight decay, bias-corrected moments. */
#include <math.h>

#include "engine/optimizer_internal.h"
#include "kernels/vector/vector.h"

static int states(const car_optimizer_config *config, const car_graph *graph, int param) {
    (void)config, (void)graph, (void)param;
    return 2;
}

static double memory(const car_optimizer_config *config) {
    return config->beta1;
}

car_status car_optimizer_update_adamw(const car_param_update *u, double lr) {
    const car_optimizer_config *config = &u->optimizer->config;
    const car_correction *correction = &config->correction;
    int64_t count = u->count, step = u->step;
    float *first = car_optimizer_state_of(u, 0), *second = car_optimizer_state_of(u, 1);
    double correction1 = 1.0 - pow(config->beta1, (double)(step + 1)),
           correction2 = 1.0 - pow(config->beta2, (double)(step + 1));
    const car_vector_adamw adamw = {.shrink = (float)(1.0 - lr * car_optimizer_decay(u)),
                                    .scale = (float)u->scale,
                                    .beta1 = (float)config->beta1,
                                    .rest1 = (float)(1.0 - config->beta1),
                                    .beta2 = (float)config->beta2,
                                    .rest2 = (float)(1.0 - config->beta2),
                                    .step_size = (float)(lr / correction1),
                                    .root = (float)(1.0 / sqrt(correction2)),
                                    .eps = (float)config->eps};
    if (!car_correction_is_on(correction)) {
        car_vector_select()->adamw(u->to, u->from, first, second, u->sum, &adamw, count);
        return CAR_OK;
    }
    double c = step > 0 ? correction->c : 0, before = 1.0 - pow(config->beta1, (double)step); /* c = 0 avoids 0 / 0 */
    double a = car_optimizer_change_weight(u);
    const car_vector_adamw_corrected corrected = {.plain = adamw,
                                                  .moved = (float)(lr * (1 + c) / correction1),
                                                  .before = c != 0 ? (float)(-lr * c / before) : 0.0f,
                                                  .a = (float)(lr * a * (1.0 - config->beta1))};
    car_vector_select()->adamw_corrected(u->to, u->from, first, second, car_optimizer_last_gradient(u), u->sum,
                                         &corrected, count);
    return CAR_OK;
}

static car_status update(const car_param_update *u) {
    return car_optimizer_update_adamw(u, u->lr);
}

const car_optimizer_method car_optimizer_adamw = {
    .info = {.name = "adamw", .summary = "adaptive moments, decoupled decay", .momentum = 0.9, .has_betas = true},
    .states = states,
    .memory = memory,
    .warmup = {3, 8},
    .update = update,
};
