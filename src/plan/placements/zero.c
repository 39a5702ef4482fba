/* zero: weights go from user to user, and no rank keeps more than the stages that it owns.
 *
 * In the cycle each version of a bundle travels along two chains (zero_chains.c). With --zero-copies 1 it exists
 * only once and serves forwards and backwards in clock order; that form is in this file. Under dp the owners
 * broadcast.
 *
 * The owner of a stage is the rank that can be the first to use a new version: rank N-1-floor(j/k). In the slot of
 * the owner's own forward the previous version is on the owner, and the next one is made from it. With a single copy
 * no rank keeps any version: of each stage there are two, the one being made and the one it is made from. For stage
 * 1 of three workers, under cdp-v2:
 *
 *   slot        9   10   11   12   13   14   15   16   17
 *   version 1   1F       2F   1B   0F   2B   1U   0B          rank, and what it does with this version
 *   version 2                                1F        2F
 *
 * Under cdp-v1 (and with a slack) the owner's forward uses the older version, so that version is there anyway. Where
 * the forward uses the new version, as here in slot 15, the older one is between the backwards of two steps. Nobody
 * uses it for 2k slots, so it goes to the owner and on again: its visit. A tied bundle is a copy that is made
 * together with its home, so it has no visits. */
#include "plan/placements/zero.h"

/* ---- which device ---------------------------------------------------------------------------- */

static int64_t devices(const car_plan_config *config, bool spaced) {
    (void)spaced;
    return config->workers;
}

static int device(const car_plan *plan, int64_t n, int stage) {
    (void)stage;
    return car_plan_worker_of(plan, n);
}

static int owner_of(const car_plan *plan, int stage) {
    return plan->config.workers - 1 - car_plan_group(plan, stage);
}

static int stage_ranks(const car_plan *plan, int stage) {
    (void)stage;
    return plan->config.workers;
}

static void visit(car_window *window) {
    car_window_visit_worker(window, window->device);
}

static int tapes(const car_plan *plan, int rank) {
    (void)rank;
    return plan->config.workers;
}

/* dp: a broadcast copy serves one task. In the cycle a version is sent on after each use. It ends with its last
 * user, or with the update if the next version is made from it after that. Nothing is made from a tied bundle. */
static bool ends_weights(const car_plan *plan, int device, const car_task *task, int bundle, int64_t steps) {
    int home = plan->partition->bundles[bundle].home;
    if (car_plan_has_chains(plan)) {
        return car_zero_ends_copy(plan, device, task, bundle, steps);
    }
    bool is_tied = bundle >= plan->stages, used_later = car_plan_stale_workers(plan, home) > 0;
    if (car_plan_reduces(plan)) {
        return car_task_computes(task) && owner_of(plan, home) != device;
    }
    switch (task->kind) {
    case CAR_TASK_SEND:
        return true;
    case CAR_TASK_BACKWARD:
        return (is_tied || used_later) &&
               car_plan_batch_of(plan, task) ==
                   car_plan_last_user(plan, is_tied ? task->tied_version : task->version, home);
    default:
        return task->kind == CAR_TASK_UPDATE && !is_tied && !(used_later && task->version < steps);
    }
}

/* ---- uses and visits -------------------------------------------------------------------------- */

/* A use of a version: the forward or the backward of a micro-batch. */
typedef struct use {
    int64_t n;
    bool backward;
} use;

static int64_t use_slot(const car_plan *plan, use u, int stage) {
    return u.backward ? car_plan_backward_slot_of(plan, u.n, stage) : car_plan_forward_slot_of(plan, u.n, stage);
}

/* Finds the use before or after u, in clock order, among the forwards and backwards of micro-batches first .. last.
 * Forwards come every 2k slots, and so do backwards, an odd number of slots apart. So the neighbour is either of the
 * same kind, one micro-batch away, or of the other kind and nearer. */
static bool neighbour(const car_plan *plan, use u, int stage, int64_t first, int64_t last, int direction, use *out) {
    int64_t spacing = 2 * (int64_t)plan->per_worker,
            lag = 2 * (int64_t)(plan->stages - stage) - 1; /* slots from forward to backward */
    int64_t relative = u.backward ? lag : -lag; /* the other kind's micro-batch is n + relative / spacing, rounded */
    int64_t other =
        u.n + (direction > 0 ? car_plan_floor_div(relative, spacing) + 1 : -car_plan_floor_div(-relative, spacing) - 1);
    use same = {u.n + direction, u.backward}, crossed = {other, !u.backward};
    bool same_valid = same.n >= first && same.n <= last;
    /* The uses of the other kind may begin later or end earlier. */
    if (direction > 0 && crossed.n < first) {
        crossed.n = first;
    } else if (direction < 0 && crossed.n > last) {
        crossed.n = last;
    }
    bool crossed_valid = crossed.n >= first && crossed.n <= last;
    if (!same_valid && !crossed_valid) {
        return false;
    }
    int64_t ahead = (use_slot(plan, same, stage) - use_slot(plan, crossed, stage)) * direction;
    *out = !crossed_valid || (same_valid && ahead < 0) ? same : crossed;
    return true;
}

/* The owner's first micro-batch of a step. */
static int64_t owners_turn(const car_plan *plan, int64_t step, int home) {
    return step * plan->batches + car_plan_owner(plan, step, home);
}

/* True if the last backward of a step, for this home, is on the owner. */
static bool ends_on_owner(const car_plan *plan, int64_t step, int home) {
    return car_plan_device_of(plan, (step + 1) * plan->batches - 1, home) == car_plan_owner(plan, step, home);
}

/* The slot of a step's update. In the cycle it is that of the owner's first forward of the next step. Otherwise it
 * is as soon as the sum is there, before the next step begins. */
int64_t car_zero_renewal_slot(const car_plan *plan, int64_t step, int home) {
    if (!car_plan_is_cyclic(plan)) {
        int64_t last = car_plan_backward_slot_of(plan, (step + 1) * plan->batches - 1, home);
        return ends_on_owner(plan, step, home) ? last : last + 1;
    }
    return car_plan_forward_slot_of(plan, owners_turn(plan, step + 1, home), home);
}

/* True if micro-batch n is part of the run and uses the version. */
static bool is_user(const car_window *window, int64_t n, int64_t version, int home) {
    return car_window_runs(window, n) && car_plan_version(window->plan, n, home) == version;
}

/* True if the owner does not compute with the version when it makes the next one, so that the version comes only for
 * the update. */
static bool is_visit(const car_window *window, const car_bundle *b, int64_t version) {
    return b->home == b->stage && version < window->steps &&
           !is_user(window, owners_turn(window->plan, version + 1, b->home), version, b->home);
}

/* ---- moves ------------------------------------------------------------------------------------ */

/* The message that brings weights to micro-batch n, or to a visit (CAR_NONE). */
static car_task message_for(const car_plan *plan, int bundle, int64_t version, int64_t n) {
    return car_window_weights_message(plan, bundle, version, n == CAR_NONE ? CAR_NONE : car_plan_number_of(plan, n));
}

/* Moves a version of a bundle from one use to the next. */
static void move_weights(car_window *window, int bundle, int64_t version, use from, use to) {
    const car_plan *plan = window->plan;
    int stage = plan->partition->bundles[bundle].stage;
    car_window_message(window, message_for(plan, bundle, version, to.n), car_plan_device_of(plan, from.n, stage),
                       use_slot(plan, from, stage), car_plan_device_of(plan, to.n, stage), use_slot(plan, to, stage));
}

/* Moves a version from the owner to its first user: after the update, or (version 0) in the slot before the use. */
static void move_from_owner(car_window *window, int bundle, int64_t version) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    int64_t first = car_plan_first_user(plan, version, b->home);
    if (!car_window_runs(window, first)) {
        return;
    }
    int64_t used = car_plan_forward_slot_of(plan, first, b->stage);
    int64_t sent = version == 0 ? used - 1 : car_zero_renewal_slot(plan, version - 1, b->home);
    car_window_message(window, message_for(plan, bundle, version, first), car_plan_owner(plan, version, b->home), sent,
                       car_plan_device_of(plan, first, b->stage), used);
}

/* Moves a version to the owner and on, between the last backward of its step and the first one of the next. */
static void move_by_owner(car_window *window, int bundle, int64_t version) {
    const car_plan *plan = window->plan;
    int stage = plan->partition->bundles[bundle].stage, owner = car_plan_owner(plan, version, stage);
    int64_t next = (version + 1) * plan->batches, visit = car_zero_renewal_slot(plan, version, stage);
    if (is_user(window, next - 1, version, stage)) {
        car_window_message(window, message_for(plan, bundle, version, CAR_NONE),
                           car_plan_device_of(plan, next - 1, stage), car_plan_backward_slot_of(plan, next - 1, stage),
                           owner, visit);
    }
    if (is_user(window, next, version, stage)) {
        car_window_message(window, message_for(plan, bundle, version, next), owner, visit,
                           car_plan_device_of(plan, next, stage), car_plan_backward_slot_of(plan, next, stage));
    }
}

/* Adds the messages before and after a use. Where one end is the owner's, update_owned adds that end. */
static void move_for_use(car_window *window, const car_task *task, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    int64_t version = car_plan_version(plan, n, b->home), next_step = (version + 1) * plan->batches;
    int64_t first = car_plan_first_user(plan, version, b->home), last = car_plan_last_user(plan, version, b->home);
    int64_t end = window->steps * plan->batches; /* the run may end before the version's last user */
    last = last < end ? last : end - 1;
    use here = {n, task->kind == CAR_TASK_BACKWARD}, other;
    bool visit = here.backward && is_visit(window, b, version),
         owner = car_plan_owner(plan, version, b->home) == window->device;
    if (visit && (n == next_step || n == next_step - 1) && !owner) {
        move_by_owner(window, bundle, version);
    }
    if (!(visit && n == next_step)) {
        if (neighbour(plan, here, b->stage, first, last, -1, &other)) {
            move_weights(window, bundle, version, other, here);
        } else if (!owner) {
            move_from_owner(window, bundle, version);
        }
    }
    if (!(visit && n == next_step - 1) && neighbour(plan, here, b->stage, first, last, 1, &other)) {
        move_weights(window, bundle, version, here, other);
    }
}

/* dp: all ranks get the weights from their owner, for one forward or backward. */
static void broadcast(car_window *window, const car_task *task, int bundle) {
    const car_plan *plan = window->plan;
    car_task collective = car_window_weights_message(plan, bundle, task->version, task->micro_batch);
    collective.kind = CAR_TASK_BROADCAST;
    collective.cargo = CAR_CARGO_NONE;
    collective.step = task->step;
    collective.peer = car_plan_owner(plan, task->step, plan->partition->bundles[bundle].home);
    collective.tag = CAR_NONE;
    collective.slot = task->slot;
    car_window_add(window, collective);
}

/* ---- sums and updates ------------------------------------------------------------------------- */

void car_zero_finished_to_owner(car_window *window, int bundle, int64_t step, int64_t used) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    int64_t made = (step + 1) * plan->batches - 1;
    car_task sum = car_window_finished_sum(plan, bundle, step + 1);
    car_window_message(window, sum, car_plan_device_of(plan, made, b->stage),
                       car_plan_backward_slot_of(plan, made, b->stage), car_plan_owner(plan, step, b->home), used);
}

/* Adds what a forward or backward needs of one bundle of its stage. */
static void serve(car_window *window, const car_task *task, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    bool last = task->micro_batch == plan->batches - 1 && task->kind == CAR_TASK_BACKWARD;
    if (car_plan_reduces(plan)) {
        broadcast(window, task, bundle);
        return;
    }
    int home = plan->partition->bundles[bundle].home;
    if (!car_plan_has_chains(plan)) {
        move_for_use(window, task, bundle, n);
    }
    if (last && car_plan_owner(plan, task->step, home) != window->device) {
        car_zero_finished_to_owner(window, bundle, task->step,
                                   car_plan_has_chains(plan) ? car_zero_update_slot(plan, task->step + 1, home)
                                                             : car_zero_renewal_slot(plan, task->step, home));
    }
}

static void attach(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    const car_partition *partition = plan->partition;
    if (car_plan_reduces(plan)) {
        car_window_reduce(window, task, n);
    } else {
        car_window_pass_sums(window, task, n);
    }
    for (int b = car_bundle_of_stage(partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(partition, task->stage, b)) {
        serve(window, task, b, n);
    }
}

void car_zero_update(car_window *window, int home, int64_t step, int64_t slot) {
    const car_plan *plan = window->plan;
    if (!car_plan_is_cyclic(plan) && ends_on_owner(plan, step, home)) {
        const car_task last = {.micro_batch = plan->batches - 1, .stage = home, .step = step, .slot = slot};
        car_window_update_after(window, &last);
    } else {
        car_window_update(window, home, step + 1, slot);
    }
}

/* The owner's part for one home: it receives the sums and the previous version, makes the new one, and sends both
 * on. */
static void owner_updates(car_window *window, int home, int64_t step) {
    const car_plan *plan = window->plan;
    const car_bundle *bundle = &plan->partition->bundles[home];
    for (int b = car_bundle_of_home(plan->partition, home, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(plan->partition, home, b)) {
        car_zero_finished_to_owner(window, b, step, car_zero_renewal_slot(plan, step, home));
        move_from_owner(window, b, step + 1);
    }
    if (bundle->bytes == 0) {
        return;
    }
    if (is_visit(window, bundle, step)) {
        move_by_owner(window, home, step);
    }
    car_zero_update(window, home, step, car_zero_renewal_slot(plan, step, home));
}

static void update_owned(car_window *window) {
    const car_plan *plan = window->plan;
    if (!car_plan_is_spaced(plan)) {
        return;
    }
    if (car_plan_has_chains(plan)) {
        car_zero_pass_weights(window);
        return;
    }
    int k = plan->per_worker, first = (plan->config.workers - 1 - window->device) * k; /* see owner_of */
    for (int home = first; home < first + k; home++) {
        /* A window has one update of each home. */
        int64_t step = -car_plan_floor_div(-(window->begin - car_zero_renewal_slot(plan, 0, home)), plan->period);
        if (step >= 0 && step < window->steps) {
            owner_updates(window, home, step);
        }
        if (window->begin >= plan->period) {
            continue;
        }
        for (int b = car_bundle_of_home(plan->partition, home, CAR_NONE); b != CAR_NONE;
             b = car_bundle_of_home(plan->partition, home, b)) {
            move_from_owner(window, b, 0);
        }
    }
}

/* ---- the executor ---------------------------------------------------------------------------- */

/* A single copy has one slot to travel. Posting its receive earlier would only hold memory. */
static int64_t slots_ahead(const car_plan *plan, const car_task *task) {
    bool weights = car_cargo_is_weights(task->cargo) || task->kind == CAR_TASK_BROADCAST;
    return !weights ? 2 * (int64_t)plan->per_worker : car_plan_has_chains(plan) ? car_zero_slots_ahead(plan) : 1;
}

const car_placement_class car_placement_zero = {
    .info = {.name = "zero",
             .summary = "weights go from user to user; a rank keeps only the stages that it owns",
             .owned = true},
    .devices = devices,
    .device = device,
    .owner = owner_of,
    .stage_ranks = stage_ranks,
    .visit = visit,
    .attach = attach,
    .besides = update_owned,
    .ends_weights = ends_weights,
    .tapes = tapes,
    .copy = car_zero_copy,
    .passing = car_zero_passing,
    .slots_ahead = slots_ahead,
};
