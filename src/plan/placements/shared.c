/* shared: one process. Each device is a worker, all workers share one store of weights, and buffers change hands
 * without a message. The update of a stage comes right after the backward that finishes its sum. */
#include "plan/rules.h"

static int64_t devices(const car_plan_config *config, bool spaced) {
    (void)spaced;
    return config->workers;
}

static int device(const car_plan *plan, int64_t n, int stage) {
    (void)stage;
    return car_plan_worker_of(plan, n);
}

static int stage_ranks(const car_plan *plan, int stage) {
    (void)plan, (void)stage;
    return 1;
}

static void visit(car_window *window) {
    car_window_visit_worker(window, window->device);
}

static void attach(car_window *window, const car_task *task, int64_t n) {
    (void)n;
    car_window_make(window, task);
}

static int tapes(const car_plan *plan, int rank) {
    (void)rank;
    bool fewer = plan->rule->info.in_turns && plan->config.threads < plan->config.workers;
    return fewer ? plan->config.threads : plan->config.workers;
}

const car_placement_class car_placement_shared = {
    .info = {.name = "shared",
             .summary = "one process; its threads share the workers and the weights",
             .one_process = true},
    .devices = devices,
    .device = device,
    .stage_ranks = stage_ranks,
    .visit = visit,
    .attach = attach,
    .tapes = tapes,
};
