/* Passes: what crosses the borders between stages, and how gradients become weights.
 *
 * Gradients of a stage are summed in ring order: worker i adds its own to what worker i-1 passed on.
 * After worker N-1 the sum is finished, and the stage's update is made
 *   shared, pipeline   right there and then (the "maker"),
 *   zero               by the stage's owner, in the slot of its own next forward,
 *   replica            by every rank for itself, right before its first forward with the result,
 *   grid               by the maker, and by every other rank of the group when the sum comes round.
 * A tied parameter's sum is finished at a later stage, that is earlier in backward, and waits where
 * its home is updated. */
#include "plan/internal.h"

/* ---- boundaries ------------------------------------------------------------------------------ */

/* Activations into stage j, or their gradient out of it, of micro-batch n. */
static void cross_cut(car_window *window, const car_task *task, int64_t n, int stage, bool backward) {
    const car_plan *plan = window->plan;
    if (stage < 1 || stage >= plan->stages) {
        return;
    }
    int below = car_plan_device_of(plan, n, stage - 1), above = car_plan_device_of(plan, n, stage);
    car_task what = {
        .cargo = backward ? CAR_CARGO_GRADIENT : CAR_CARGO_ACTIVATION,
        .worker = task->worker,
        .stage = stage,
        .bundle = CAR_NONE,
        .step = task->step,
        .version = CAR_NONE,
        .tied_version = CAR_NONE,
        .buffer = (int)(n % car_plan_group_ranks(plan, car_plan_group(plan, stage))),
    };
    if (backward) {
        car_window_message(window, what, above, car_plan_backward_slot(plan, task->step, task->worker, stage), below,
                           car_plan_backward_slot(plan, task->step, task->worker, stage - 1));
    } else {
        car_window_message(window, what, below, car_plan_forward_slot(plan, task->step, task->worker, stage - 1), above,
                           car_plan_forward_slot(plan, task->step, task->worker, stage));
    }
}

void car_window_boundaries(car_window *window, const car_task *task, int64_t n) {
    bool backward = task->kind == CAR_TASK_BACKWARD;
    car_placement placement = window->plan->config.placement;
    if (placement == CAR_PLACEMENT_PIPELINE || placement == CAR_PLACEMENT_GRID) {
        cross_cut(window, task, n, task->stage, backward);
        cross_cut(window, task, n, task->stage + 1, backward);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

static car_task sum_message(const car_plan *plan, car_cargo cargo, int bundle, int64_t n) {
    return (car_task){
        .cargo = cargo,
        .worker = car_plan_worker_of(plan, n),
        .stage = plan->partition->bundles[bundle].stage,
        .bundle = bundle,
        .step = car_plan_step_of(plan, n),
        .version = CAR_NONE,
        .tied_version = CAR_NONE,
    };
}

/* The hop of a bundle's sum from micro-batch n to n+1, if both are of one step. */
static void hop(car_window *window, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    int stage = plan->partition->bundles[bundle].stage;
    if (n < 0 || car_plan_step_of(plan, n) != car_plan_step_of(plan, n + 1)) {
        return;
    }
    car_task what = sum_message(plan, CAR_CARGO_PARTIAL, bundle, n);
    what.frees = CAR_FREES_SUM;
    car_window_message(window, what, car_plan_device_of(plan, n, stage), car_plan_backward_slot_of(plan, n, stage),
                       car_plan_device_of(plan, n + 1, stage), car_plan_backward_slot_of(plan, n + 1, stage));
}

/* An update right after a backward: its `worker` says whose. */
static void add_update_last(car_window *window, const car_task *task, int bundle) {
    const car_plan *plan = window->plan;
    int64_t version = task->step + 1;
    /* In a grid's ring the sum travels on, unless this version is the run's last. */
    bool travels = plan->config.placement == CAR_PLACEMENT_GRID && car_plan_is_cyclic(plan) &&
                   version < window->steps && car_plan_group_ranks(plan, car_plan_group(plan, task->stage)) > 1;
    car_window_add(window, (car_task){.kind = CAR_TASK_UPDATE,
                                      .worker = task->worker,
                                      .stage = task->stage,
                                      .bundle = bundle,
                                      .step = task->step,
                                      .version = version,
                                      .tied_version = CAR_NONE,
                                      .buffer = (int)(version % 2),
                                      .peer = CAR_NONE,
                                      .tag = CAR_NONE,
                                      .frees = travels ? 0 : CAR_FREES_SUM,
                                      .slot = task->slot});
}

/* ---- ties ------------------------------------------------------------------------------------ */

/* Micro-batch n finished the sum: it goes where its home is updated. */
static void tie_sum(car_window *window, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    const car_bundle *tied = &plan->partition->bundles[bundle];
    car_task what = sum_message(plan, CAR_CARGO_FINISHED, bundle, n);
    what.frees = CAR_FREES_SUM;
    car_window_message(window, what, car_plan_device_of(plan, n, tied->stage),
                       car_plan_backward_slot_of(plan, n, tied->stage), car_plan_device_of(plan, n, tied->home),
                       car_plan_backward_slot_of(plan, n, tied->home));
}

/* The home was updated after micro-batch n: the new weights go to the first that uses them in the tie. */
static void tie_weights(car_window *window, int bundle, int64_t n, int64_t user) {
    const car_plan *plan = window->plan;
    const car_bundle *tied = &plan->partition->bundles[bundle];
    bool one_group = plan->config.placement == CAR_PLACEMENT_GRID &&
                     car_plan_group(plan, tied->stage) == car_plan_group(plan, tied->home);
    if (!car_window_runs(window, user) || one_group) {
        return; /* in one group every rank makes them with the home's update */
    }
    car_window_message(window, car_window_weights_message(plan, bundle, car_plan_step_of(plan, n) + 1, CAR_NONE),
                       car_plan_device_of(plan, n, tied->home), car_plan_backward_slot_of(plan, n, tied->home),
                       car_plan_device_of(plan, user, tied->stage), car_plan_forward_slot_of(plan, user, tied->stage));
}

/* Three tasks speak of a tie: the backward that finishes its sum, the home's last backward, and the
 * first forward with the new weights. Each device takes from a message the end that is its own. */
static void ties_of_task(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    int workers = plan->config.workers;
    bool backward = task->kind == CAR_TASK_BACKWARD;
    bool alone = plan->clock == CAR_RULE_DP; /* a grid of dp: every worker has ranks of its own, and all update */
    for (int b = plan->stages; b < plan->partition->bundle_count; b++) {
        const car_bundle *tied = &plan->partition->bundles[b];
        if (tied->bytes == 0) {
            continue;
        }
        if (backward && (alone || task->worker == workers - 1)) {
            if (task->stage == tied->stage || task->stage == tied->home) {
                tie_sum(window, b, n);
            }
            if (task->stage == tied->home) {
                tie_weights(window, b, n, alone ? n + workers : car_plan_first_user(plan, task->step + 1, tied->home));
            }
        }
        int64_t version = car_plan_version(plan, n, tied->home);
        if (!backward && task->stage == tied->stage && version > 0) {
            int64_t first = alone ? n : car_plan_first_user(plan, version, tied->home);
            if (n == first) {
                tie_weights(window, b, alone ? n - workers : version * workers - 1, n);
            }
        }
    }
}

/* ---- what becomes of a sum ------------------------------------------------------------------- */

/* Several workers of one rank are reduced together, when the last of them is done. */
static bool is_last_on_device(const car_window *window, int64_t n, int stage) {
    const car_plan *plan = window->plan;
    int workers = plan->config.workers;
    for (int i = car_plan_worker_of(plan, n) + 1; i < workers; i++) {
        if (car_plan_device_of(plan, n - car_plan_worker_of(plan, n) + i, stage) == window->device) {
            return false;
        }
    }
    return true;
}

/* dp over ranks: a collective for each bundle, as soon as its backward is done, and the update. */
static void reduce(car_window *window, const car_task *task, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    bool zero = plan->config.placement == CAR_PLACEMENT_ZERO;
    int owner = zero ? car_plan_owner(plan, task->step, b->home) : CAR_NONE;
    if (!is_last_on_device(window, n, task->stage)) {
        return;
    }
    bool keeps = !zero || owner == window->device;
    car_task collective = sum_message(plan, CAR_CARGO_NONE, bundle, n);
    collective.kind = CAR_TASK_REDUCE;
    collective.peer = owner;
    collective.tag = CAR_NONE;
    collective.frees = keeps ? 0 : CAR_FREES_SUM;
    collective.slot = task->slot;
    car_window_add(window, collective);
    if (b->home == b->stage && keeps) {
        add_update_last(window, task, bundle);
    }
}

void car_window_sums(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    car_placement placement = plan->config.placement;
    bool collective = plan->clock == CAR_RULE_DP && placement != CAR_PLACEMENT_SHARED;
    bool last = task->worker == plan->config.workers - 1;
    if (placement == CAR_PLACEMENT_PIPELINE || placement == CAR_PLACEMENT_GRID) {
        ties_of_task(window, task, n);
    }
    for (int b = task->stage; task->kind == CAR_TASK_BACKWARD && b < plan->partition->bundle_count;
         b = b < plan->stages ? plan->stages : b + 1) {
        const car_bundle *bundle = &plan->partition->bundles[b];
        if (bundle->stage != task->stage || bundle->bytes == 0) {
            continue;
        }
        if (collective) {
            reduce(window, task, b, n);
            continue;
        }
        if (placement != CAR_PLACEMENT_SHARED && car_plan_is_cyclic(plan)) {
            hop(window, b, n - 1);
            hop(window, b, n);
        }
        bool made_here = placement != CAR_PLACEMENT_ZERO && placement != CAR_PLACEMENT_REPLICA;
        if (last && made_here && bundle->home == bundle->stage) {
            add_update_last(window, task, b);
        }
    }
}
