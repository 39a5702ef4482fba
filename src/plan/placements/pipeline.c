/* pipeline: rank r computes stages r*k .. r*k+k-1 for all workers. Activations and their gradients cross between
 * ranks. Sums and weights stay where they are, except those of parameters that are used on several ranks. */
#include "plan/placement.h"

static int64_t devices(const car_plan_config *config, bool spaced) {
    (void)spaced;
    return config->workers;
}

static int device(const car_plan *plan, int64_t n, int stage) {
    (void)n;
    return car_plan_group(plan, stage);
}

static int stage_ranks(const car_plan *plan, int stage) {
    (void)plan, (void)stage;
    return 1;
}

static void visit(car_window *window) {
    car_window_visit_group(window, window->device, 1, 0);
}

static void attach(car_window *window, const car_task *task, int64_t n) {
    car_window_boundaries(window, task, n);
    car_window_ties(window, task, n);
    car_window_make(window, task);
}

static int tapes(const car_plan *plan, int rank) {
    return car_plan_alive(plan, rank);
}

const car_placement_class car_placement_pipeline = {
    .info = {.name = "pipeline", .summary = "rank r has the r-th group of stages, for all workers", .by_stage = true},
    .devices = devices,
    .device = device,
    .stage_ranks = stage_ranks,
    .in_line = true,
    .visit = visit,
    .attach = attach,
    .tapes = tapes,
};
