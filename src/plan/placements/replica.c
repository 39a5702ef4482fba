/* replica: every rank has all weights and hosts one or more workers.
 *
 * Partial sums go to the rank of the next micro-batch. The finished sum goes from its maker (the rank of worker N-1)
 * to the first user of the version that is made from it. Each rank passes it on, after its first forward with the
 * new version, to the next rank in order of first use. Each rank updates right before that forward, so a rank with
 * one worker needs only one version. */
#include "plan/placement.h"

/* ---- which device ---------------------------------------------------------------------------- */

/* How many consecutive micro-batches are on the same rank: the length of a run. */
static int64_t run_length(const car_plan *plan) {
    return plan->config.mapping == CAR_MAPPING_CONTIGUOUS ? plan->config.workers / plan->config.ranks : 1;
}

static int64_t devices(const car_plan_config *config, bool spaced) {
    (void)spaced;
    return config->ranks ? config->ranks : config->workers;
}

static int device(const car_plan *plan, int64_t n, int stage) {
    (void)stage;
    int ranks = plan->config.ranks, worker = car_plan_worker_of(plan, n);
    return plan->config.mapping == CAR_MAPPING_INTERLEAVED ? worker % ranks : worker / (plan->config.workers / ranks);
}

static int stage_ranks(const car_plan *plan, int stage) {
    (void)stage;
    return plan->config.ranks;
}

static void visit(car_window *window) {
    int64_t length = run_length(window->plan), ranks = window->plan->config.ranks;
    for (int64_t run = window->device; run * length < window->plan->config.workers; run += ranks) {
        for (int64_t i = run * length; i < (run + 1) * length; i++) {
            car_window_visit_worker(window, (int)i);
        }
    }
}

static int tapes(const car_plan *plan, int rank) {
    (void)rank;
    return plan->config.workers;
}

static int like(const car_plan *plan, int rank) {
    return plan->config.ranks == plan->config.workers ? 0 : rank;
}

car_plan_config car_plan_config_hosted(const car_plan_config *config, int hosts) {
    car_plan_config hosted = *config;
    hosted.placement = CAR_PLACEMENT_REPLICA;
    hosted.ranks = hosts;
    hosted.zero_copies = hosted.zero_ahead = 0;
    return hosted;
}

/* ---- the finished sum ------------------------------------------------------------------------ */

/* The first user of a version on `device`, given its first user overall. Runs are given to the ranks in turn. */
static int64_t first_on_device(const car_plan *plan, int device, int64_t first) {
    int64_t length = run_length(plan), ranks = plan->config.ranks, run = first / length;
    int64_t further = ((device - run) % ranks + ranks) % ranks;
    return further == 0 ? first : (run + further) * length;
}

/* The first user on the next rank after that of n; CAR_NONE if every rank has had its first. */
static int64_t next_rank(const car_plan *plan, int64_t first, int64_t n) {
    int64_t length = run_length(plan), next = (n / length + 1) * length;
    return next < (first / length + plan->config.ranks) * length ? next : CAR_NONE;
}

static int64_t previous_rank(const car_plan *plan, int64_t first, int64_t n) {
    int64_t previous = (n / run_length(plan) - 1) * run_length(plan);
    return previous > first ? previous : first;
}

/* The rank of n makes a version for n. Returns the micro-batch to whose rank it passes the sum on: the next rank's
 * first user. CAR_NONE if it is the last rank, if the run ends before, or if the maker, which has the sum, comes
 * next. */
static int64_t next_taker(const car_plan *plan, int64_t version, int stage, int64_t n, int64_t steps) {
    int64_t to = next_rank(plan, car_plan_first_user(plan, version, stage), n);
    int maker = car_plan_device_of(plan, version * plan->batches - 1, stage);
    bool taken = to != CAR_NONE && car_plan_step_of(plan, to) < steps && car_plan_device_of(plan, to, stage) != maker;
    return taken ? to : CAR_NONE;
}

/* True if this rank makes the version for a forward of this run. */
static bool is_used_here(const car_window *window, int home, int64_t version) {
    int64_t first = car_plan_first_user(window->plan, version, home);
    return car_window_runs(window, first_on_device(window->plan, window->device, first));
}

/* The maker also makes the versions it will not use in this run, so that the last version exists. It does so after
 * its last backward, in order, because each version is made from the one before. */
static void last_updates(car_window *window, const car_task *task) {
    for (int64_t version = task->step > 0 ? task->step : 1; version <= task->step + 1; version++) {
        if (!is_used_here(window, task->stage, version)) {
            car_task update = *task;
            update.kind = CAR_TASK_UPDATE;
            update.step = version - 1;
            update.version = version;
            update.tied_version = CAR_NONE;
            car_window_add(window, update);
        }
    }
}

/* The maker sends the sum to the first user, right after its backward. */
static void send_to_first_user(car_window *window, const car_task *task) {
    const car_plan *plan = window->plan;
    int64_t version = task->step + 1, first = car_plan_first_user(plan, version, task->stage);
    if (car_window_runs(window, first)) {
        car_window_message(window, car_window_finished_sum(plan, task->stage, version), window->device, task->slot,
                           car_plan_device_of(plan, first, task->stage),
                           car_plan_forward_slot_of(plan, first, task->stage));
    }
    if (task->step == window->steps - 1) {
        last_updates(window, task);
    }
}

/* A rank's first forward with a new version: receive the sum, update, pass the sum on. */
static void first_use(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    int64_t first = car_plan_first_user(plan, task->version, task->stage);
    if (task->version == 0 || n != first_on_device(plan, window->device, first)) {
        return;
    }
    int64_t made = task->version * plan->batches - 1; /* the micro-batch that finished the sum */
    int maker = car_plan_device_of(plan, made, task->stage);
    car_task sum = car_window_finished_sum(plan, task->bundle, task->version);
    if (n == first) {
        car_window_message(window, sum, maker, car_plan_backward_slot_of(plan, made, task->stage), window->device,
                           task->slot);
    } else if (window->device != maker) {
        int64_t from = previous_rank(plan, first, n);
        car_window_message(window, sum, car_plan_device_of(plan, from, task->stage),
                           car_plan_forward_slot_of(plan, from, task->stage), window->device, task->slot);
    }
    int64_t to = next_taker(plan, task->version, task->stage, n, window->steps);
    car_window_update(window, task->bundle, task->version, task->slot);
    if (to != CAR_NONE) {
        car_window_message(window, sum, window->device, task->slot, car_plan_device_of(plan, to, task->stage),
                           car_plan_forward_slot_of(plan, to, task->stage));
    }
}

/* A rank passes the sum on after its update. The maker sends it first and keeps it for its own update. */
static bool passes_sum_on(const car_plan *plan, int device, const car_task *task, int64_t steps) {
    int64_t version = task->step + 1, made = version * plan->batches - 1;
    if (car_plan_reduces(plan)) {
        return false;
    }
    if (task->kind == CAR_TASK_SEND) {
        return task->cargo == CAR_CARGO_FINISHED && device == car_plan_device_of(plan, made, task->stage) &&
               task->slot == car_plan_backward_slot_of(plan, made, task->stage);
    }
    int64_t n = first_on_device(plan, device, car_plan_first_user(plan, version, task->stage));
    return task->kind == CAR_TASK_UPDATE && task->micro_batch == CAR_NONE &&
           next_taker(plan, version, task->stage, n, steps) != CAR_NONE;
}

static void attach(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    if (car_plan_reduces(plan)) {
        car_window_reduce(window, task, n);
        return;
    }
    car_window_pass_sums(window, task, n);
    if (plan->partition->bundles[task->stage].bytes == 0) {
        return;
    }
    if (task->kind == CAR_TASK_FORWARD) {
        first_use(window, task, n);
    } else if (task->micro_batch == plan->batches - 1) {
        send_to_first_user(window, task);
    }
}

/* ---- the executor ---------------------------------------------------------------------------- */

/* Finished sums are needed before forwards, which take half as long as backwards, and the sums of most of the
 * weights may be queued one after another. So they are posted twice as early. */
static int64_t slots_ahead(const car_plan *plan, const car_task *task) {
    return (task->cargo == CAR_CARGO_FINISHED ? 4 : 2) * (int64_t)plan->per_worker;
}

const car_placement_class car_placement_replica = {
    .info = {.name = "replica", .summary = "every rank has all weights", .fewer_ranks = true, .repeated = true},
    .devices = devices,
    .device = device,
    .stage_ranks = stage_ranks,
    .visit = visit,
    .attach = attach,
    .passes_sum_on = passes_sum_on,
    .tapes = tapes,
    .like = like,
    .slots_ahead = slots_ahead,
    .sums_by_worker = true,
    .keeps_no_distance = true,
    .sums_queue_up = true,
};
