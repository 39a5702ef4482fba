/* zero with two copies of each version: one travels along the forwards that use it, the other along the backwards.
 *
 * The users of a version are M*N consecutive micro-batches, so both chains visit the ranks in ring order, M times.
 * The owner keeps the version, starts both chains, and later makes the next version from what it kept. Weights are
 * read only: a holder sends its copy on while it still computes with it, and each holder frees its own. Stage 1 of
 * three workers, cdp-v2, L = 2 (zero_ahead):
 *
 *   slot        9    10   11   12   13   14   15   16   17
 *   forwards    1F ──────► 2F ──────► 0F        1F ──────► 2F     version 1, from slot 15 on version 2
 *   backwards        0B        1B ──────► 2B ──────► 0B           version 0, from slot 12 on version 1
 *   owner       1U ─────────────────────────── 1U                 rank 1 keeps version 1, then makes version 2 from it
 *
 * In slot s a rank sends the next one what that needs in slot s + L. The message has at most 2k of these slots. If L
 * is more, the copy arrives L - 2k slots before its use and may be sent on before it. A version may be needed so
 * soon after it was made that it cannot be that early; then its whole chain is as early as its first user can be.
 *
 * If the owner is the first user it uses the version it keeps. Otherwise (under cdp-v1, for example) the chain
 * begins with a message from the owner, and later passes the owner like any other rank. Under stagger the first user
 * is worker 0, and a step begins when the one before has ended, so the owner updates as soon as it has the sum. */
#include "plan/placements/zero.h"

/* The path of one of the two copies of a version of a bundle. */
typedef struct chain {
    const car_plan *plan;
    int bundle, stage, home, owner;
    bool backward;
    int64_t version, first, last; /* first, last: the micro-batches that use it */
} chain;

static chain chain_of(const car_plan *plan, int bundle, int64_t version, bool backward) {
    const car_bundle *b = &plan->partition->bundles[bundle];
    return (chain){.plan = plan,
                   .bundle = bundle,
                   .stage = b->stage,
                   .home = b->home,
                   .owner = car_plan_owner(plan, 0, b->home),
                   .backward = backward,
                   .version = version,
                   .first = car_plan_first_user(plan, version, b->home),
                   .last = car_plan_last_user(plan, version, b->home)};
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t spacing(const car_plan *plan) {
    return 2 * (int64_t)plan->per_worker;
}

int64_t car_zero_slots_ahead(const car_plan *plan) {
    return least(plan->config.zero_ahead, spacing(plan));
}

/* ---- when ------------------------------------------------------------------------------------ */

static bool begins_at_owner(const car_plan *plan, int64_t first, int home) {
    return car_plan_worker_of(plan, first) == car_plan_owner(plan, 0, home);
}

/* The update comes after the sum arrives, which gets 2k slots if there is time, and before the version is sent. By
 * then both chains of the version before have started, and if the owner was its first user, it is done with it.
 * Where steps do not overlap, the update comes as soon as possible. */
int64_t car_zero_update_slot(const car_plan *plan, int64_t version, int home) {
    int64_t summed = car_plan_backward_slot_of(plan, version * plan->batches - 1, home);
    if (!car_plan_is_cyclic(plan)) {
        return car_zero_renewal_slot(plan, version - 1, home);
    }
    int64_t first = car_plan_first_user(plan, version, home);
    int64_t wanted = car_plan_forward_slot_of(plan, first, home);
    wanted -= begins_at_owner(plan, first, home) ? 0 : plan->config.zero_ahead;
    return most(summed + 1, least(wanted, summed + spacing(plan) + 1));
}

static int64_t use_slot(const chain *c, int64_t n) {
    return c->backward ? car_plan_backward_slot_of(c->plan, n, c->stage)
                       : car_plan_forward_slot_of(c->plan, n, c->stage);
}

/* True if a user computes with the version that the owner keeps. */
static bool uses_kept(const chain *c, int64_t n) {
    return n == c->first && car_plan_worker_of(c->plan, n) == c->owner;
}

/* How many slots before their use the chain's copies are received. */
static int64_t lead(const chain *c) {
    int64_t wanted = most(0, c->plan->config.zero_ahead - spacing(c->plan));
    if (wanted == 0 || c->version == 0) {
        return wanted;
    }
    int64_t made = car_zero_update_slot(c->plan, c->version, c->home);
    int64_t at_first = use_slot(c, c->first) - made - (begins_at_owner(c->plan, c->first, c->home) ? 0 : 1);
    return least(wanted, at_first);
}

static int64_t receive_slot(const chain *c, int64_t n) {
    return use_slot(c, n) - lead(c);
}

/* The slot in which the copy for micro-batch n is sent. The owner sends what it keeps before it makes the next
 * version. */
static int64_t send_slot(const chain *c, int64_t n) {
    int64_t slot = use_slot(c, n) - c->plan->config.zero_ahead;
    bool kept = n == c->first || uses_kept(c, n - 1);
    if (!kept) {
        return most(slot, receive_slot(c, n - 1));
    }
    slot = c->version > 0 ? most(slot, car_zero_update_slot(c->plan, c->version, c->home)) : slot;
    return least(slot, car_zero_update_slot(c->plan, c->version + 1, c->home) - 1);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Adds this device's end of the message that brings micro-batch n its copy. */
static void bring(car_window *window, const chain *c, int64_t n) {
    const car_plan *plan = window->plan;
    if (!car_window_runs(window, n) || uses_kept(c, n)) {
        return;
    }
    car_task what = car_window_weights_message(plan, c->bundle, c->version, car_plan_number_of(plan, n));
    what.cargo = c->backward ? CAR_CARGO_BACKWARD_WEIGHTS : CAR_CARGO_WEIGHTS;
    int from = n == c->first ? c->owner : car_plan_worker_of(plan, n - 1);
    car_window_message(window, what, from, send_slot(c, n), car_plan_worker_of(plan, n), receive_slot(c, n));
}

/* Adds the copies that a worker's forward or backward in a slot needs. For another worker, leaves out those that
 * come straight from their owner (see keep_version). A worker takes its micro-batches one after another, in the
 * cycle without a gap between steps. */
static void bring_for_slot(car_window *window, int worker, int64_t slot) {
    const car_plan *plan = window->plan;
    int64_t pass = 2 * (int64_t)plan->stages, since = slot - spacing(plan) * worker, position = since % plan->period;
    if (since < 0 || since / plan->period >= window->steps || position >= pass * plan->config.accumulate) {
        return;
    }
    int64_t n = since / plan->period * plan->batches + position / pass * plan->config.workers + worker;
    position %= pass;
    bool backward = position >= plan->stages;
    int stage = (int)(backward ? pass - 1 - position : position);
    for (int b = car_bundle_of_stage(plan->partition, stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(plan->partition, stage, b)) {
        chain c = chain_of(plan, b, car_plan_version(plan, n, plan->partition->bundles[b].home), backward);
        if (worker == window->device || n != c.first) {
            bring(window, &c, n);
        }
    }
}

/* What the owner does with a version of a home: it makes it, and starts its chains and those of the bundles tied to
 * it. */
static void keep_version(car_window *window, int home, int64_t version) {
    const car_plan *plan = window->plan;
    for (int b = car_bundle_of_home(plan->partition, home, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(plan->partition, home, b)) {
        for (int backward = 0; backward < 2; backward++) {
            chain c = chain_of(plan, b, version, backward);
            if (car_plan_worker_of(plan, c.first) != window->device) {
                bring(window, &c, c.first);
            }
        }
        if (version > 0) {
            car_zero_finished_to_owner(window, b, version - 1, car_zero_update_slot(plan, version, home));
        }
    }
    if (version > 0 && plan->partition->bundles[home].bytes > 0) {
        car_zero_update(window, home, version - 1, car_zero_update_slot(plan, version, home));
    }
}

void car_zero_pass_weights(car_window *window) {
    enum { BEFORE = 3 }; /* how many windows before that of its last message a version may be made */
    const car_plan *plan = window->plan;
    int next = (window->device + 1) % plan->config.workers, k = plan->per_worker;
    int64_t early = most(0, plan->config.zero_ahead - spacing(plan)), now = window->begin / plan->period;
    for (int64_t slot = window->begin; slot < window->end + early; slot++) {
        bring_for_slot(window, window->device, slot);
    }
    for (int64_t slot = window->begin; slot < window->end + plan->config.zero_ahead; slot++) {
        bring_for_slot(window, next, slot);
    }
    int group = plan->config.workers - 1 - window->device;
    for (int home = group * k; home < (group + 1) * k; home++) {
        for (int64_t version = most(0, now - BEFORE); version <= least(now + 1, window->steps); version++) {
            keep_version(window, home, version);
        }
    }
}

/* ---- what ranks hold ------------------------------------------------------------------------- */

/* The micro-batch that a task's weights are for. A message has only the number within a step; it is about the next
 * use with that number. */
static int64_t user_of(const chain *c, const car_task *task, bool sends) {
    int64_t batches = c->plan->batches, n = c->first + (task->micro_batch - c->first % batches + batches) % batches;
    if (car_task_computes(task)) {
        return car_plan_batch_of(c->plan, task);
    }
    while (n + batches <= c->last && (sends ? send_slot(c, n) : receive_slot(c, n)) < task->slot) {
        n += batches; /* version 0 may pass twice */
    }
    return n;
}

car_copy car_zero_copy(const car_plan *plan, int rank, const car_task *task, int bundle) {
    bool sends = task->kind == CAR_TASK_SEND;
    bool backward = task->kind == CAR_TASK_BACKWARD || task->cargo == CAR_CARGO_BACKWARD_WEIGHTS;
    int64_t version = bundle >= plan->stages && car_task_computes(task) ? task->tied_version : task->version;
    if (task->kind == CAR_TASK_UPDATE) {
        return CAR_COPY_KEPT;
    }
    chain c = chain_of(plan, bundle, version, backward);
    int64_t n = user_of(&c, task, sends);
    bool kept = sends ? rank == c.owner && (n == c.first || uses_kept(&c, n - 1)) : uses_kept(&c, n);
    return kept ? CAR_COPY_KEPT : backward ? CAR_COPY_BACKWARD : CAR_COPY_FORWARD;
}

car_passing car_zero_passing(const car_plan *plan, const car_task *task, int bundle, int64_t steps) {
    bool backward = task->kind == CAR_TASK_BACKWARD || task->cargo == CAR_CARGO_BACKWARD_WEIGHTS;
    int64_t version = bundle >= plan->stages && car_task_computes(task) ? task->tied_version : task->version;
    chain c = chain_of(plan, bundle, version, backward);
    int64_t n = user_of(&c, task, task->kind == CAR_TASK_SEND) - (task->kind == CAR_TASK_SEND);
    if (n == c.last || car_plan_step_of(plan, n + 1) >= steps) {
        return CAR_PASSING_NOT;
    }
    return send_slot(&c, n + 1) < use_slot(&c, n) ? CAR_PASSING_BEFORE : CAR_PASSING_AFTER;
}

/* A copy ends with its use, or when it is sent on if that is later. What the owner keeps ends when the next version
 * is made from it. */
bool car_zero_ends_copy(const car_plan *plan, int rank, const car_task *task, int bundle, int64_t steps) {
    bool sends = task->kind == CAR_TASK_SEND;
    if (task->kind == CAR_TASK_UPDATE || !(sends || car_task_computes(task)) ||
        car_zero_copy(plan, rank, task, bundle) == CAR_COPY_KEPT) {
        return task->kind == CAR_TASK_UPDATE;
    }
    return sends == (car_zero_passing(plan, task, bundle, steps) == CAR_PASSING_AFTER);
}
