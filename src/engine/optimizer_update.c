/* One update of one parameter by SGD, AdamW or Muon, with the correction of the delay. */
#include <math.h>

#include "engine/muon_internal.h"
#include "engine/optimizer_internal.h"
#include "kernels/vector/vector.h"

static double decay_of(const car_optimizer *optimizer, int param) {
    const car_param *p = car_graph_param(car_program_graph(optimizer->program), param);
    bool exempt = p->shape.rank == 1 || p->role == CAR_PARAM_NORM || p->role == CAR_PARAM_BIAS;
    return optimizer->config.decay_weights_only && exempt ? 0.0 : optimizer->config.weight_decay;
}

/* The weight of the gradient's change: none while there is no gradient to compare with. */
static double change_weight(const car_optimizer *optimizer, int64_t step) {
    return step > optimizer->since ? optimizer->config.correction.a : 0;
}

/* The last gradient is behind the optimizer's own states. */
static float *last_gradient(car_optimizer *optimizer, int param) {
    bool kept = optimizer->config.correction.a != 0;
    int own = car_optimizer_own_states(&optimizer->config, car_program_graph(optimizer->program), param);
    return kept ? car_optimizer_state(optimizer, own, param) : NULL;
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
                                          .a = (float)change_weight(optimizer, step)};
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
    double a = change_weight(optimizer, step);
    const car_vector_adamw_corrected corrected = {.plain = adamw,
                                                  .moved = (float)(lr * (1 + c) / correction1),
                                                  .before = c != 0 ? (float)(-lr * c / before) : 0.0f,
                                                  .a = (float)(lr * a * (1.0 - config->beta1))};
    car_vector_select()->adamw_corrected(to, from, first, second, last_gradient(optimizer, param), sum, &corrected,
                                         count);
}

/* ---- Muon ------------------------------------------------------------------------------------ */

static float *take_room(car_optimizer *optimizer) {
    pthread_mutex_lock(&optimizer->lock);
    while (optimizer->rooms_free == 0) { /* more threads than were spoken of */
        pthread_cond_wait(&optimizer->given_back, &optimizer->lock);
    }
    float *room = optimizer->rooms[--optimizer->rooms_free];
    pthread_mutex_unlock(&optimizer->lock);
    return room;
}

static void give_room_back(car_optimizer *optimizer, float *room) {
    pthread_mutex_lock(&optimizer->lock);
    optimizer->rooms[optimizer->rooms_free++] = room;
    pthread_cond_signal(&optimizer->given_back);
    pthread_mutex_unlock(&optimizer->lock);
}

static car_status update_muon(car_optimizer *optimizer, int param, int64_t step, double lr, double scale,
                              const float *from, float *to, const float *sum) {
    const car_correction *correction = &optimizer->config.correction;
    float *room = take_room(optimizer);
    const car_muon_step muon = {.param = param,
                                .lr = lr,
                                .scale = scale,
                                .momentum = optimizer->config.momentum,
                                .decay = decay_of(optimizer, param),
                                .c = step > optimizer->since ? correction->c : 0,
                                .momentum_state = car_optimizer_state(optimizer, 0, param),
                                .last_state = correction->c != 0 ? car_optimizer_state(optimizer, 1, param) : NULL,
                                .scratch = room};
    car_status status = car_muon_update(optimizer->program, &muon, from, to, sum);
    give_room_back(optimizer, room);
    return status;
}

car_status car_optimizer_update(car_optimizer *optimizer, int param, int64_t step, double lr, double scale,
                                const float *from, float *to, const float *sum) {
    const car_optimizer_config *config = &optimizer->config;
    bool muon = config->kind == CAR_OPTIMIZER_MUON;
    if (muon && car_muon_takes(car_program_graph(optimizer->program), param)) {
        return update_muon(optimizer, param, step, lr, scale, from, to, sum);
    }
    if (config->kind == CAR_OPTIMIZER_SGD) {
        update_sgd(optimizer, param, step, lr, scale, from, to, sum);
    } else {
        update_adamw(optimizer, param, step, muon ? lr * config->adamw_ratio : lr, scale, from, to, sum);
    }
    return CAR_OK;
}
