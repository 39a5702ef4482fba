/* The passes that placements share: what crosses the boundaries between stages, and how gradients become weights.
 *
 * Gradients of a stage are summed in ring order: each micro-batch adds its own to the sum that the one before passed
 * on. The last micro-batch of a step finishes the sum. The placement decides who makes the update, when, and how
 * others get the result (placements/). A tied parameter is used in a later stage, so its sum is finished earlier in
 * the backward pass; it then waits where its home is updated. */
#include "plan/placement.h"

/* ---- messages and updates -------------------------------------------------------------------- */

car_task car_window_weights_message(const car_plan *plan, int bundle, int64_t version, int micro_batch) {
    return (car_task){
        .cargo = CAR_CARGO_WEIGHTS,
        .micro_batch = micro_batch,
        .stage = plan->partition->bundles[bundle].stage,
        .bundle = bundle,
        .step = version - 1,
        .version = version,
        .tied_version = CAR_NONE,
    };
}

car_task car_window_finished_sum(const car_plan *plan, int bundle, int64_t version) {
    return (car_task){.cargo = CAR_CARGO_FINISHED,
                      .micro_batch = plan->batches - 1,
                      .stage = plan->partition->bundles[bundle].stage,
                      .bundle = bundle,
                      .step = version - 1,
                      .version = CAR_NONE,
                      .tied_version = CAR_NONE};
}

void car_window_update(car_window *window, int bundle, int64_t version, int64_t slot) {
    car_window_add(window, (car_task){.kind = CAR_TASK_UPDATE,
                                      .micro_batch = CAR_NONE,
                                      .stage = window->plan->partition->bundles[bundle].stage,
                                      .bundle = bundle,
                                      .step = version - 1,
                                      .version = version,
                                      .tied_version = CAR_NONE,
                                      .peer = CAR_NONE,
                                      .tag = CAR_NONE,
                                      .slot = slot});
}

/* ---- boundaries ------------------------------------------------------------------------------ */

/* The activations of micro-batch n into a stage, or their gradient out of it. */
static void cross_cut(car_window *window, const car_task *task, int64_t n, int stage, bool backward) {
    const car_plan *plan = window->plan;
    if (stage < 1 || stage >= plan->stages) {
        return;
    }
    int below = car_plan_device_of(plan, n, stage - 1), above = car_plan_device_of(plan, n, stage);
    car_task what = {
        .cargo = backward ? CAR_CARGO_GRADIENT : CAR_CARGO_ACTIVATION,
        .micro_batch = task->micro_batch,
        .stage = stage,
        .bundle = CAR_NONE,
        .step = task->step,
        .version = CAR_NONE,
        .tied_version = CAR_NONE,
    };
    if (backward) {
        car_window_message(window, what, above, car_plan_backward_slot(plan, task->step, task->micro_batch, stage),
                           below, car_plan_backward_slot(plan, task->step, task->micro_batch, stage - 1));
    } else {
        car_window_message(window, what, below, car_plan_forward_slot(plan, task->step, task->micro_batch, stage - 1),
                           above, car_plan_forward_slot(plan, task->step, task->micro_batch, stage));
    }
}

void car_window_boundaries(car_window *window, const car_task *task, int64_t n) {
    bool backward = task->kind == CAR_TASK_BACKWARD;
    cross_cut(window, task, n, task->stage, backward);
    cross_cut(window, task, n, task->stage + 1, backward);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static car_task sum_message(const car_plan *plan, car_cargo cargo, int bundle, int64_t n) {
    return (car_task){
        .cargo = cargo,
        .micro_batch = car_plan_number_of(plan, n),
        .stage = plan->partition->bundles[bundle].stage,
        .bundle = bundle,
        .step = car_plan_step_of(plan, n),
        .version = CAR_NONE,
        .tied_version = CAR_NONE,
    };
}

/* Adds the hop of a bundle's sum from micro-batch n to n+1, if both belong to the same step. By worker, sums start
 * to travel with the last micro-batch of worker 0. */
static void hop(car_window *window, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    int stage = plan->partition->bundles[bundle].stage;
    bool early = car_plan_sums_by_worker(plan) && car_plan_number_of(plan, n) < plan->batches - plan->config.workers;
    if (n < 0 || early || car_plan_step_of(plan, n) != car_plan_step_of(plan, n + 1)) {
        return;
    }
    car_task what = sum_message(plan, CAR_CARGO_PARTIAL, bundle, n);
    car_window_message(window, what, car_plan_device_of(plan, n, stage), car_plan_backward_slot_of(plan, n, stage),
                       car_plan_device_of(plan, n + 1, stage), car_plan_backward_slot_of(plan, n + 1, stage));
}

/* Calls a function for each bundle of a task's stage that has bytes. */
static void for_bundles(car_window *window, const car_task *task, int64_t n,
                        void (*what)(car_window *window, const car_task *task, int bundle, int64_t n)) {
    const car_partition *partition = window->plan->partition;
    for (int b = car_bundle_of_stage(partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(partition, task->stage, b)) {
        what(window, task, b, n);
    }
}

static void hops(car_window *window, const car_task *task, int bundle, int64_t n) {
    (void)task;
    hop(window, bundle, n - 1);
    hop(window, bundle, n);
}

void car_window_pass_sums(car_window *window, const car_task *task, int64_t n) {
    if (task->kind == CAR_TASK_BACKWARD && car_plan_is_spaced(window->plan)) {
        for_bundles(window, task, n, hops);
    }
}

void car_window_update_after(car_window *window, const car_task *task) {
    int64_t version = task->step + 1;
    car_window_add(window, (car_task){.kind = CAR_TASK_UPDATE,
                                      .micro_batch = task->micro_batch,
                                      .stage = task->stage,
                                      .bundle = task->stage,
                                      .step = task->step,
                                      .version = version,
                                      .tied_version = CAR_NONE,
                                      .peer = CAR_NONE,
                                      .tag = CAR_NONE,
                                      .slot = task->slot});
}

void car_window_make(car_window *window, const car_task *task) {
    const car_plan *plan = window->plan;
    if (task->kind == CAR_TASK_BACKWARD && task->micro_batch == plan->batches - 1 &&
        plan->partition->bundles[task->stage].bytes > 0) {
        car_window_update_after(window, task);
    }
}

/* ---- ties ------------------------------------------------------------------------------------ */

/* Micro-batch n finished a tied bundle's sum: it goes to the device that updates its home. */
static void tie_sum(car_window *window, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    const car_bundle *tied = &plan->partition->bundles[bundle];
    car_task what = sum_message(plan, CAR_CARGO_FINISHED, bundle, n);
    car_window_message(window, what, car_plan_device_of(plan, n, tied->stage),
                       car_plan_backward_slot_of(plan, n, tied->stage), car_plan_device_of(plan, n, tied->home),
                       car_plan_backward_slot_of(plan, n, tied->home));
}

/* The home was updated after micro-batch n: the new weights go to the first micro-batch that uses them in the tied
 * stage. */
static void tie_weights(car_window *window, int bundle, int64_t n, int64_t user) {
    const car_plan *plan = window->plan;
    const car_bundle *tied = &plan->partition->bundles[bundle];
    bool one_group = car_plan_group(plan, tied->stage) == car_plan_group(plan, tied->home);
    if (!car_window_runs(window, user) || one_group) {
        return; /* inside one group, every rank makes the tied weights with the home's update */
    }
    car_window_message(window, car_window_weights_message(plan, bundle, car_plan_step_of(plan, n) + 1, CAR_NONE),
                       car_plan_device_of(plan, n, tied->home), car_plan_backward_slot_of(plan, n, tied->home),
                       car_plan_device_of(plan, user, tied->stage), car_plan_forward_slot_of(plan, user, tied->stage));
}

/* Three tasks concern a tie: the backward that finishes its sum, the home's last backward, and the first forward
 * with the new weights. car_window_message adds only the ends of a message that belong to this device. */
void car_window_ties(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    bool backward = task->kind == CAR_TASK_BACKWARD;
    bool alone = car_plan_reduces(plan); /* collectives: every worker has its own ranks, and all of them update */
    /* The first of those that finish a sum: each worker's last one, or only the step's last one. */
    int workers = plan->config.workers, last = plan->batches - (alone ? workers : 1);
    for (int b = plan->stages; b < plan->partition->bundle_count; b++) {
        const car_bundle *tied = &plan->partition->bundles[b];
        if (tied->bytes == 0) {
            continue;
        }
        if (backward && task->micro_batch >= last) {
            if (task->stage == tied->stage || task->stage == tied->home) {
                tie_sum(window, b, n);
            }
            if (task->stage == tied->home) {
                tie_weights(window, b, n, alone ? n + workers : car_plan_first_user(plan, task->step + 1, tied->home));
            }
        }
        int64_t version = car_plan_version(plan, n, tied->home);
        if (!backward && task->stage == tied->stage && version > 0) {
            bool first = alone ? task->micro_batch < workers : n == car_plan_first_user(plan, version, tied->home);
            if (first) {
                tie_weights(window, b, alone ? n - workers : version * plan->batches - 1, n);
            }
        }
    }
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* All micro-batches of one rank are reduced together when the last of them is done. */
static bool is_last_on_device(const car_window *window, int64_t n, int stage) {
    const car_plan *plan = window->plan;
    int64_t end = (car_plan_step_of(plan, n) + 1) * plan->batches;
    for (int64_t later = n + 1; later < end && later <= n + plan->config.workers; later++) {
        if (car_plan_device_of(plan, later, stage) == window->device) {
            return false;
        }
    }
    return true;
}

/* Adds a collective for a bundle as soon as its backward is done: to its owner, or to all ranks if it has none. */
static void reduce(car_window *window, const car_task *task, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    bool owned = plan->placement->info.owned;
    int owner = owned ? car_plan_owner(plan, task->step, b->home) : CAR_NONE;
    bool keeps = !owned || owner == window->device;
    car_task collective = sum_message(plan, CAR_CARGO_NONE, bundle, n);
    collective.kind = CAR_TASK_REDUCE;
    collective.peer = owner;
    collective.tag = CAR_NONE;
    collective.slot = task->slot;
    car_window_add(window, collective);
    if (b->home == b->stage && keeps) {
        car_window_update_after(window, task);
    }
}

void car_window_reduce(car_window *window, const car_task *task, int64_t n) {
    if (task->kind == CAR_TASK_BACKWARD && is_last_on_device(window, n, task->stage)) {
        for_bundles(window, task, n, reduce);
    }
}
