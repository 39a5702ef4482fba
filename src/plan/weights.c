/* Passes: how new weights, or the finished sums that make them, reach their users.
 *
 * The users of version v are N consecutive micro-batches, first .. last: under cdp-v1 those of step
 * v+1, under cdp-v2 the fresh workers of step v and the stale ones of step v+1.
 *
 *   replica  the finished sum goes from the maker (the rank of worker N-1) to the first user, and from
 *            each rank, after its first forward with the result, to the next rank in order of first use
 *   zero     each version moves from user to user: see weights_zero.c
 *   grid     the finished sum goes round the ring of the group's ranks, 2k slots a hop, and each updates
 */
#include "plan/internal.h"

car_task car_window_weights_message(const car_plan *plan, int bundle, int64_t version, int worker) {
    return (car_task){
        .cargo = CAR_CARGO_WEIGHTS,
        .worker = worker,
        .stage = plan->partition->bundles[bundle].stage,
        .bundle = bundle,
        .step = version - 1,
        .version = version,
        .tied_version = CAR_NONE,
        .buffer = (int)(version % 2),
    };
}

void car_window_update(car_window *window, int bundle, int64_t version, int64_t slot, unsigned frees) {
    car_window_add(window, (car_task){.kind = CAR_TASK_UPDATE,
                                      .worker = CAR_NONE,
                                      .stage = window->plan->partition->bundles[bundle].stage,
                                      .bundle = bundle,
                                      .step = version - 1,
                                      .version = version,
                                      .tied_version = CAR_NONE,
                                      .buffer = (int)(version % 2),
                                      .peer = CAR_NONE,
                                      .tag = CAR_NONE,
                                      .frees = frees,
                                      .slot = slot});
}

/* ---- replica --------------------------------------------------------------------------------- */

/* How many consecutive micro-batches share a rank. */
static int64_t run_length(const car_plan *plan) {
    return plan->config.mapping == CAR_MAPPING_CONTIGUOUS ? plan->config.workers / plan->config.ranks : 1;
}

/* The first user of a version on `device`, given the first of all. */
static int64_t first_on_device(const car_plan *plan, int device, int64_t first) {
    int64_t n = first, length = run_length(plan);
    while (car_plan_device_of(plan, n, 0) != device) {
        n = (n / length + 1) * length;
    }
    return n;
}

/* The next rank's first user after n, CAR_NONE if all ranks have had theirs. */
static int64_t next_rank(const car_plan *plan, int64_t first, int64_t n) {
    int64_t length = run_length(plan), next = (n / length + 1) * length;
    return next < (first / length + plan->config.ranks) * length ? next : CAR_NONE;
}

static int64_t previous_rank(const car_plan *plan, int64_t first, int64_t n) {
    int64_t previous = (n / run_length(plan) - 1) * run_length(plan);
    return previous > first ? previous : first;
}

car_task car_window_finished_sum(const car_plan *plan, int bundle, int64_t version) {
    return (car_task){.cargo = CAR_CARGO_FINISHED,
                      .worker = plan->config.workers - 1,
                      .stage = plan->partition->bundles[bundle].stage,
                      .bundle = bundle,
                      .step = version - 1,
                      .version = CAR_NONE,
                      .tied_version = CAR_NONE};
}

/* Whether this rank makes a version before a forward of this run. */
static bool is_used_here(const car_window *window, int home, int64_t version) {
    int64_t first = car_plan_first_user(window->plan, version, home);
    return car_window_runs(window, first_on_device(window->plan, window->device, first));
}

/* What the maker is not going to use in this run it makes all the same, so that the last version exists:
 * after its last backward, one version after the other, because each is made from the one before. */
static void replica_last_updates(car_window *window, const car_task *task) {
    for (int64_t version = task->step > 0 ? task->step : 1; version <= task->step + 1; version++) {
        if (!is_used_here(window, task->stage, version)) {
            car_task update = *task;
            update.kind = CAR_TASK_UPDATE;
            update.step = version - 1;
            update.version = version;
            update.tied_version = CAR_NONE;
            update.buffer = (int)(version % 2);
            update.frees = CAR_FREES_SUM;
            car_window_add(window, update);
        }
    }
}

/* The maker's jump to the first user, right after its backward. */
static void replica_jump(car_window *window, const car_task *task) {
    const car_plan *plan = window->plan;
    int64_t version = task->step + 1, first = car_plan_first_user(plan, version, task->stage);
    if (car_window_runs(window, first)) {
        car_window_message(window, car_window_finished_sum(plan, task->stage, version), window->device, task->slot,
                           car_plan_device_of(plan, first, task->stage),
                           car_plan_forward_slot_of(plan, first, task->stage));
    }
    if (task->step == window->steps - 1) {
        replica_last_updates(window, task);
    }
}

/* The first forward of a rank with a new version: receive the sum, update, pass the sum on. */
static void replica_first_use(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    int64_t first = car_plan_first_user(plan, task->version, task->stage);
    if (task->version == 0 || n != first_on_device(plan, window->device, first)) {
        return;
    }
    int64_t made = task->version * plan->config.workers - 1; /* the micro-batch that finished the sum */
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
    int64_t to = next_rank(plan, first, n);
    bool passes_on =
        to != CAR_NONE && car_window_runs(window, to) && car_plan_device_of(plan, to, task->stage) != maker;
    car_window_update(window, task->bundle, task->version, task->slot, passes_on ? 0 : CAR_FREES_SUM);
    if (passes_on) {
        sum.frees = CAR_FREES_SUM;
        car_window_message(window, sum, window->device, task->slot, car_plan_device_of(plan, to, task->stage),
                           car_plan_forward_slot_of(plan, to, task->stage));
    }
}

/* ---- grid ------------------------------------------------------------------------------------ */

/* The way round a group's ring: from the rank of micro-batch `start` in slot `slot`, one hop every 2k slots.
 *
 * A stage's own: the finished sum, from the maker, and every rank updates for itself, because the maker
 * changes from step to step and each needs the last version to make the next. The last version of a
 * run stays with its maker. A tie's: new weights, from the rank that uses them first. */
typedef struct ring {
    int bundle, ranks, first_rank;
    int64_t version, start, slot, first_user;
    bool tied;
} ring;

static int ring_device(const ring *r, int64_t offset) {
    return r->first_rank + (int)((r->start + offset) % r->ranks);
}

/* Whether the rank at `offset`, or one behind it, uses a tied version in this run. */
static bool tie_is_wanted(const car_window *window, const ring *r, int64_t offset) {
    for (int64_t o = offset; o < r->ranks; o++) {
        int64_t n = r->first_user + ((r->start + o - r->first_user) % r->ranks + r->ranks) % r->ranks;
        if (car_window_runs(window, n)) { /* a group has no more ranks than a version has users */
            return true;
        }
    }
    return false;
}

static void add_hops(car_window *window, const ring *r) {
    const car_plan *plan = window->plan;
    int64_t spacing = 2 * (int64_t)plan->per_worker;
    int64_t mine = ((window->device - r->first_rank - r->start) % r->ranks + r->ranks) % r->ranks;
    car_task what = r->tied ? car_window_weights_message(plan, r->bundle, r->version, CAR_NONE)
                            : car_window_finished_sum(plan, r->bundle, r->version);
    for (int64_t o = mine > 0 ? mine : 1; o <= mine + 1 && o < r->ranks; o++) { /* the hop to me, the hop from me */
        if (!r->tied || tie_is_wanted(window, r, o)) {
            what.frees = r->tied ? 0 : CAR_FREES_SUM;
            car_window_message(window, what, ring_device(r, o - 1), r->slot + spacing * (o - 1), ring_device(r, o),
                               r->slot + spacing * o);
        }
    }
    if (!r->tied && mine > 0) {
        car_window_update(window, r->bundle, r->version, r->slot + spacing * mine,
                          mine == r->ranks - 1 ? CAR_FREES_SUM : 0);
    }
}

static void relay_bundle(car_window *window, int bundle, int group) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    ring r = {
        .bundle = bundle, .ranks = car_plan_group_ranks(plan, group), .first_rank = car_plan_group_first(plan, group)};
    int64_t around = window->begin / plan->period;
    r.tied = b->home != b->stage;
    if (r.tied && group == car_plan_group(plan, b->home)) {
        return; /* every rank of the group makes them with the home's update */
    }
    /* A ring takes less than a period, and begins at most two periods after its step does. */
    for (int64_t version = around - 3; version <= around + 1; version++) {
        if (version < 1 || version >= window->steps) {
            continue;
        }
        r.version = version;
        r.first_user = car_plan_first_user(plan, version, b->home);
        r.start = r.tied ? r.first_user : version * plan->config.workers - 1;
        r.slot = r.tied ? car_plan_forward_slot_of(plan, r.start, b->stage)
                        : car_plan_backward_slot_of(plan, r.start, b->stage);
        add_hops(window, &r);
    }
}

void car_window_relays(car_window *window) {
    const car_plan *plan = window->plan;
    if (plan->config.placement != CAR_PLACEMENT_GRID || !car_plan_is_cyclic(plan)) {
        return;
    }
    /* Of the group's own stages, then of the ties. */
    int group = car_plan_group_of_device(plan, window->device), k = plan->per_worker;
    for (int b = group * k; b < plan->partition->bundle_count; b = b + 1 == (group + 1) * k ? plan->stages : b + 1) {
        const car_bundle *bundle = &plan->partition->bundles[b];
        if (bundle->bytes > 0 && car_plan_group(plan, bundle->stage) == group) {
            relay_bundle(window, b, group);
        }
    }
}

/* ---- all placements -------------------------------------------------------------------------- */

void car_window_weights(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    if (plan->config.placement == CAR_PLACEMENT_ZERO) {
        car_window_moves(window, task, n);
    } else if (plan->config.placement == CAR_PLACEMENT_REPLICA && car_plan_is_cyclic(plan) &&
               plan->partition->bundles[task->stage].bytes > 0) {
        if (task->kind == CAR_TASK_FORWARD) {
            replica_first_use(window, task, n);
        } else if (task->worker == plan->config.workers - 1) {
            replica_jump(window, task);
        }
    }
}
