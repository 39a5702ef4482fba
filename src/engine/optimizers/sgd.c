/* SGD: g += decay*w; m = momentum*m + g; w -= lr*m (Nesterov: w -= lr*(g + momentum*m)). */
#include "engine/optimizer_internal.h"
#include "kernels/vector/vector.h"

static int states(const car_optimizer_config *config, const car_graph *graph, int param) {
    (void)graph, (void)param;
    return config->momentum != 0;
}

static double memory(const car_optimizer_config *config) {
    return config->momentum;
}

static car_status update(const car_param_update *u) {
    const car_optimizer_config *config = &u->optimizer->config;
    const car_correction *correction = &config->correction;
    int64_t count = u->count;
    float *momentum = car_optimizer_state_of(u, 0);
    bool nesterov = correction->c == config->momentum && correction->a == 0 && momentum;
    if (!car_correction_is_on(correction) || nesterov) {
        const car_vector_sgd sgd = {.lr = (float)u->lr,
                                    .scale = (float)u->scale,
                                    .momentum = (float)config->momentum,
                                    .weight_decay = (float)car_optimizer_decay(u),
                                    .nesterov = nesterov};
        car_vector_select()->sgd(u->to, u->from, momentum, u->sum, &sgd, count);
        return CAR_OK;
    }
    const car_vector_sgd_corrected sgd = {.lr = (float)u->lr,
                                          .scale = (float)u->scale,
                                          .momentum = (float)config->momentum,
                                          .weight_decay = (float)car_optimizer_decay(u),
                                          .c = (float)correction->c,
                                          .a = (float)car_optimizer_change_weight(u)};
    car_vector_select()->sgd_corrected(u->to, u->from, momentum, car_optimizer_last_gradient(u), u->sum, &sgd, count);
    return CAR_OK;
}

const car_optimizer_method car_optimizer_sgd = {
    .info = {.name = "sgd",
             .summary = "momentum, or Nesterov's",
             .momentum = 0.9,
             .has_momentum = true,
             .has_nesterov = true},
    .states = states,
    .memory = memory,
    .corrects_memory = true,
    .looks_ahead = true,
    .warmup = {1, 6},
    .update = update,
};
