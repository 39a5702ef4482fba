/* Muon: hidden matrices go along an orthogonal matrix, at the rate lr; the rest is AdamW's. Which are which, and the
 * arithmetic, is in muon.c. */
#include "engine/muon_internal.h"
#include "engine/optimizer_internal.h"

/* Its matrices have momentum, what AdamW trains has two moments. */
static int states(const car_optimizer_config *config, const car_graph *graph, int param) {
    (void)config;
    return param != CAR_NONE && car_muon_takes(graph, param) ? 1 : 2;
}

static bool keeps_last(const car_optimizer_config *config, const car_graph *graph, int param) {
    return car_muon_takes(graph, param) ? config->correction.c != 0 : config->correction.a != 0;
}

static double memory(const car_optimizer_config *config) {
    return config->beta1;
}

static car_status update(const car_param_update *u) {
    car_optimizer *optimizer = u->optimizer;
    const car_correction *correction = &optimizer->config.correction;
    if (!car_muon_takes(car_program_graph(optimizer->program), u->param)) {
        return car_optimizer_update_adamw(u, u->lr * optimizer->config.adamw_ratio);
    }
    float *room = car_optimizer_take_room(optimizer);
    const car_muon_step muon = {.param = u->param,
                                .lr = u->lr,
                                .scale = u->scale,
                                .momentum = optimizer->config.momentum,
                                .decay = car_optimizer_decay(u),
                                .c = u->step > optimizer->since ? correction->c : 0,
                                .momentum_state = car_optimizer_state(optimizer, 0, u->param),
                                .last_state = correction->c != 0 ? car_optimizer_state(optimizer, 1, u->param) : NULL,
                                .scratch = room};
    car_status status = car_muon_update(optimizer->program, &muon, u->from, u->to, u->sum);
    car_optimizer_give_room_back(optimizer, room);
    return status;
}

static size_t room_bytes(const car_optimizer *optimizer, const bool *wanted) {
    return car_muon_room_bytes(optimizer->program, wanted);
}

static size_t scratch_bytes(const car_optimizer_config *config, const car_graph *graph) {
    (void)config;
    return car_muon_scratch_bytes(graph);
}

static bool is_whole(const car_optimizer *optimizer, int param) {
    return car_muon_takes(car_program_graph(optimizer->program), param);
}

const car_optimizer_method car_optimizer_muon = {
    .info = {.name = "muon",
             .summary = "hidden matrices along an orthogonal matrix, the rest by AdamW",
             .momentum = 0.95,
             .two_rates = true,
             .uneven = true},
    .states = states,
    .keeps_last = keeps_last,
    .memory = memory,
    .warmup = {1, 4},
    .room_bytes = room_bytes,
    .scratch_bytes = scratch_bytes,
    .is_whole = is_whole,
    .update = update,
};
