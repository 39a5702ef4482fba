/* Passes: how new weights, or the finished sums that make them, reach their users.
 *
 * The users of version v are N consecutive micro-batches, first .. last: under cdp-v1 those of step
 * v+1, under cdp-v2 the fresh workers of step v and the stale ones of step v+1.
 *
 *   replica  the finished sum goes from the maker (the rank of worker N-1) to the first user, and from
 *            each rank, after its first forward with the result, to the next rank in order of first use
 *   zero     each version moves from user to user: all their forwards and backwards in clock order
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

/* An update that was waited for: it makes the weights for a forward of the same slot. */
static void add_update_first(car_window *window, int bundle, int64_t version, int64_t slot, bool frees) {
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
                                      .frees = frees ? CAR_FREES_SUM : 0,
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

static car_task finished_sum(const car_plan *plan, int bundle, int64_t version) {
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
        car_window_message(window, finished_sum(plan, task->stage, version), window->device, task->slot,
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
    car_task sum = finished_sum(plan, task->bundle, task->version);
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
    add_update_first(window, task->bundle, task->version, task->slot, !passes_on);
    if (passes_on) {
        sum.frees = CAR_FREES_SUM;
        car_window_message(window, sum, window->device, task->slot, car_plan_device_of(plan, to, task->stage),
                           car_plan_forward_slot_of(plan, to, task->stage));
    }
}

/* ---- zero ------------------------------------------------------------------------------------ */

/* A use of a version: the forward or the backward of a micro-batch. */
typedef struct use {
    int64_t n;
    bool backward;
} use;

static int64_t use_slot(const car_plan *plan, use u, int stage) {
    return u.backward ? car_plan_backward_slot_of(plan, u.n, stage) : car_plan_forward_slot_of(plan, u.n, stage);
}

/* The use before or after u among the forwards and backwards of micro-batches first .. last, in clock
 * order. Forwards come every 2k slots and so do backwards, an odd number of slots apart: the
 * neighbour is of the same kind, one micro-batch away, or of the other kind, and nearer. */
static bool neighbour(const car_plan *plan, use u, int stage, int64_t first, int64_t last, int direction, use *out) {
    int64_t spacing = 2 * (int64_t)plan->per_worker,
            lag = 2 * (int64_t)(plan->stages - stage) - 1; /* backward after forward */
    int64_t relative = u.backward ? lag : -lag; /* the other kind's micro-batch: n + relative / spacing, rounded */
    int64_t other =
        u.n + (direction > 0 ? car_plan_floor_div(relative, spacing) + 1 : -car_plan_floor_div(-relative, spacing) - 1);
    use same = {u.n + direction, u.backward}, crossed = {other, !u.backward};
    bool same_valid = same.n >= first && same.n <= last;
    /* The other kind's run may begin later or end earlier. */
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

/* The move of a version of a bundle from one use to the next. */
static void move_weights(car_window *window, int bundle, int64_t version, use from, use to) {
    const car_plan *plan = window->plan;
    int stage = plan->partition->bundles[bundle].stage;
    car_task what = car_window_weights_message(plan, bundle, version, car_plan_worker_of(plan, to.n));
    what.frees = CAR_FREES_WEIGHTS;
    car_window_message(window, what, car_plan_device_of(plan, from.n, stage), use_slot(plan, from, stage),
                       car_plan_device_of(plan, to.n, stage), use_slot(plan, to, stage));
}

/* From the owner to the first user: after the update, or (version 0) in the slot before the use. */
static void move_from_owner(car_window *window, int bundle, int64_t version) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    int64_t first = car_plan_first_user(plan, version, b->home);
    if (!car_window_runs(window, first)) {
        return;
    }
    int64_t used = car_plan_forward_slot_of(plan, first, b->stage);
    int64_t sent = version == 0 ? used - 1 : car_plan_update_slot(plan, version - 1, b->home);
    car_task what = car_window_weights_message(plan, bundle, version, car_plan_worker_of(plan, first));
    what.frees = CAR_FREES_WEIGHTS;
    car_window_message(window, what, car_plan_owner(plan, version, b->home), sent,
                       car_plan_device_of(plan, first, b->stage), used);
}

static void zero_use(car_window *window, const car_task *task, int bundle, int64_t n) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    int64_t version = car_plan_version(plan, n, b->home);
    int64_t first = car_plan_first_user(plan, version, b->home), last = car_plan_last_user(plan, version, b->home);
    int64_t end = window->steps * plan->config.workers; /* the run's last micro-batch may come before the version's */
    last = last < end ? last : end - 1;
    use here = {n, task->kind == CAR_TASK_BACKWARD}, other;
    if (neighbour(plan, here, b->stage, first, last, -1, &other)) {
        move_weights(window, bundle, version, other, here);
    } else if (car_plan_owner(plan, version, b->home) != window->device) {
        move_from_owner(window, bundle, version); /* the owner's end is added by car_window_owners */
    }
    if (neighbour(plan, here, b->stage, first, last, 1, &other)) {
        move_weights(window, bundle, version, here, other);
    }
}

/* dp: everyone gets the weights from their owner, for one forward or backward. */
static void broadcast(car_window *window, const car_task *task, int bundle) {
    const car_plan *plan = window->plan;
    car_task collective = car_window_weights_message(plan, bundle, task->version, task->worker);
    collective.kind = CAR_TASK_BROADCAST;
    collective.cargo = CAR_CARGO_NONE;
    collective.step = task->step;
    collective.peer = car_plan_owner(plan, task->step, plan->partition->bundles[bundle].home);
    collective.tag = CAR_NONE;
    collective.slot = task->slot;
    car_window_add(window, collective);
}

static void zero_task(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    for (int b = task->stage; b < plan->partition->bundle_count; b = b < plan->stages ? plan->stages : b + 1) {
        if (plan->partition->bundles[b].stage != task->stage || plan->partition->bundles[b].bytes == 0) {
            continue;
        }
        if (plan->clock == CAR_RULE_DP) {
            broadcast(window, task, b);
        } else {
            zero_use(window, task, b, n);
        }
    }
}

/* The finished sum of one bundle on its way to the owner. */
static void finished_to_owner(car_window *window, int bundle, int64_t step) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    int64_t made = (step + 1) * plan->config.workers - 1;
    car_task sum = finished_sum(plan, bundle, step + 1);
    sum.frees = CAR_FREES_SUM;
    car_window_message(window, sum, car_plan_device_of(plan, made, b->stage),
                       car_plan_backward_slot_of(plan, made, b->stage), car_plan_owner(plan, step, b->home),
                       car_plan_update_slot(plan, step, b->home));
}

/* The owner's part for one home: sums in, update, new weights out; for the bundles tied to it too. */
static void owner_updates(car_window *window, int home, int64_t step) {
    const car_plan *plan = window->plan;
    for (int b = home; b < plan->partition->bundle_count; b = b < plan->stages ? plan->stages : b + 1) {
        if (plan->partition->bundles[b].home == home && plan->partition->bundles[b].bytes > 0) {
            finished_to_owner(window, b, step);
            move_from_owner(window, b, step + 1);
        }
    }
    if (plan->partition->bundles[home].bytes > 0) {
        add_update_first(window, home, step + 1, car_plan_update_slot(plan, step, home), true);
    }
}

void car_window_owners(car_window *window) {
    const car_plan *plan = window->plan;
    if (plan->config.placement != CAR_PLACEMENT_ZERO || !car_plan_is_cyclic(plan)) {
        return;
    }
    for (int home = 0; home < plan->stages; home++) {
        if (car_plan_owner(plan, 0, home) != window->device) {
            continue;
        }
        /* One update of each home falls into a window. */
        int64_t step = -car_plan_floor_div(-(window->begin - car_plan_update_slot(plan, 0, home)), plan->period);
        if (step >= 0 && step < window->steps) {
            owner_updates(window, home, step);
        }
        for (int b = home; window->begin == 0 && b < plan->partition->bundle_count;
             b = b < plan->stages ? plan->stages : b + 1) {
            if (plan->partition->bundles[b].home == home && plan->partition->bundles[b].bytes > 0) {
                move_from_owner(window, b, 0);
            }
        }
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
                            : finished_sum(plan, r->bundle, r->version);
    for (int64_t o = mine > 0 ? mine : 1; o <= mine + 1 && o < r->ranks; o++) { /* the hop to me, the hop from me */
        if (!r->tied || tie_is_wanted(window, r, o)) {
            what.frees = r->tied ? 0 : CAR_FREES_SUM;
            car_window_message(window, what, ring_device(r, o - 1), r->slot + spacing * (o - 1), ring_device(r, o),
                               r->slot + spacing * o);
        }
    }
    if (!r->tied && mine > 0) {
        add_update_first(window, r->bundle, r->version, r->slot + spacing * mine, mine == r->ranks - 1);
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
    for (int b = 0; b < plan->partition->bundle_count; b++) {
        const car_bundle *bundle = &plan->partition->bundles[b];
        int group = car_plan_group(plan, bundle->stage), first = car_plan_group_first(plan, group);
        if (bundle->bytes > 0 && window->device >= first &&
            window->device < first + car_plan_group_ranks(plan, group)) {
            relay_bundle(window, b, group);
        }
    }
}

/* ---- all placements -------------------------------------------------------------------------- */

void car_window_weights(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    if (plan->config.placement == CAR_PLACEMENT_ZERO) {
        zero_task(window, task, n);
        bool last = task->worker == plan->config.workers - 1 && task->kind == CAR_TASK_BACKWARD;
        for (int b = task->stage; last && car_plan_is_cyclic(plan) && b < plan->partition->bundle_count;
             b = b < plan->stages ? plan->stages : b + 1) {
            const car_bundle *bundle = &plan->partition->bundles[b];
            if (bundle->stage == task->stage && bundle->bytes > 0 &&
                car_plan_owner(plan, task->step, bundle->home) != window->device) {
                finished_to_owner(window, b, task->step);
            }
        }
    } else if (plan->config.placement == CAR_PLACEMENT_REPLICA && car_plan_is_cyclic(plan) &&
               plan->partition->bundles[task->stage].bytes > 0) {
        if (task->kind == CAR_TASK_FORWARD) {
            replica_first_use(window, task, n);
        } else if (task->worker == plan->config.workers - 1) {
            replica_jump(window, task);
        }
    }
}
