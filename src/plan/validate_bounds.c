/* The validator: how many messages are sent, and to whom. The cycle promises that nothing bursts: after a forward or
 * backward at most one message of a kind is sent, to a neighbour. Tied parameters are the exception that the plan
 * names: one message of each kind jumps between the two stages that use them.
 *
 *   shared    none
 *   replica   sums to the next rank, and the jump of cdp-v2: from worker N-1 to the first fresh worker
 *   zero      weights to the next rank, or from their owner to the rank where a chain begins; sums to the next worker or
 *             to the owner: three per slot, five if L is not 2k. With one copy of a version: to its next user,
 *             wherever that is: two per slot
 *   pipeline  to the previous and the next rank
 *   grid      activations and gradients to the neighbouring groups, sums and weights to the next rank of the ring
 *   dp        collectives instead of messages */
#include "plan/validate_internal.h"

enum { ZERO_MESSAGES = 2, CHAIN_MESSAGES = 3, UNEVEN_CHAIN_MESSAGES = 5 };

/* zero: the most messages of all kinds per slot. With chains: what the next rank needs in one slot, what an owner
 * starts, and a sum. If L is not 2k, forwards, backwards and what an owner starts may be sent for different slots. */
static int most_of_zero(const car_validation *v) {
    bool even = v->config.zero_ahead == 2 * v->per_worker;
    return !v->chains ? ZERO_MESSAGES : even ? CHAIN_MESSAGES : UNEVEN_CHAIN_MESSAGES;
}

static bool is_tied(const car_validation *v, const car_task *task) {
    return task->bundle >= v->stages;
}

/* ---- to whom ------------------------------------------------------------------------------------ */

static bool is_jump(const car_validation *v, const car_task *task, int device) {
    int last = v->batches - 1, fresh = car_validate_first_fresh(v, task->stage);
    return v->config.rule == CAR_RULE_CDP_V2 && task->cargo == CAR_CARGO_FINISHED && fresh < v->workers &&
           device == car_validate_device(v, task->step, last, task->stage) &&
           task->peer == car_validate_device(v, task->step, fresh, task->stage) &&
           task->slot == car_validate_slot(v, task->step, last, task->stage, true);
}

static bool is_neighbour(const car_validation *v, const car_task *task, int device) {
    int first = 0, ranks = v->devices;
    bool along_ring =
        task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED || car_cargo_is_weights(task->cargo);
    switch (v->config.placement) {
    case CAR_PLACEMENT_REPLICA:
        return task->peer == (device + 1) % ranks || is_jump(v, task, device);
    case CAR_PLACEMENT_ZERO:
        if (task->cargo == CAR_CARGO_FINISHED) {
            return device == ranks - 1 && task->peer == car_validate_owner(v, task->stage);
        }
        if (v->chains && car_cargo_is_weights(task->cargo) && device == car_validate_owner(v, task->stage)) {
            bool first = car_validate_weights_user(v, task) == car_validate_first_user(v, task->version, task->stage);
            return first || task->peer == (device + 1) % ranks;
        }
        return (task->cargo == CAR_CARGO_WEIGHTS && !v->chains) || task->peer == (device + 1) % ranks;
    case CAR_PLACEMENT_PIPELINE:
        return !along_ring && (task->peer == device + 1 || task->peer == device - 1);
    case CAR_PLACEMENT_GRID:
        car_validate_group(v, v->groups[device], &first, &ranks);
        /* Activations: their devices were checked with their forwards and backwards. */
        return !along_ring || task->peer == first + (device - first + 1) % ranks;
    default:
        return false;
    }
}

static car_status check_peer(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    bool across = task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT;
    bool collective = v->spread && !across && !(is_tied(v, task) && v->config.placement == CAR_PLACEMENT_GRID);
    if (v->config.placement == CAR_PLACEMENT_SHARED || collective) {
        return car_validate_fail(v, index, "this rule and placement have no such messages");
    }
    if (v->custom) {
        return CAR_OK; /* who sends activations to whom was checked with the forwards and backwards */
    }
    bool jumps = is_tied(v, task) && task->cargo != CAR_CARGO_PARTIAL;
    if (!jumps && !is_neighbour(v, task, v->device_of[index])) {
        return car_validate_fail(v, index, "it does not go to a neighbour");
    }
    return CAR_OK;
}

/* ---- how many ----------------------------------------------------------------------------------- */

/* The tasks begin .. end - 1 of a device are in one slot. */
typedef struct slot {
    int begin, end;
} slot;

static int computes_in(const car_validation *v, slot s) {
    int count = 0;
    for (int n = s.begin; n < s.end; n++) {
        count += car_task_computes(&v->tasks[n]);
    }
    return count;
}

/* True if two messages are of one kind. Those of ties are counted separately for each bundle. */
static bool is_alike(const car_validation *v, const car_task *a, const car_task *b) {
    bool apart = is_tied(v, a) || is_tied(v, b);
    return a->kind == b->kind && a->cargo == b->cargo && (!apart || a->bundle == b->bundle);
}

/* The pieces of a sum follow each other and count as one message. */
static bool goes_on(const car_validation *v, slot s, int index) {
    const car_task *task = &v->tasks[index], *before = task - 1;
    return index > s.begin && before->kind == task->kind && before->cargo == task->cargo &&
           before->bundle == task->bundle && before->micro_batch == task->micro_batch && before->step == task->step &&
           before->peer == task->peer && before->piece + 1 == task->piece;
}

/* Allows one message of a kind for each worker that computes; for partial sums the worker is known. Under zero,
 * weights on their way may coincide with those that an owner has just made, so there all messages are counted
 * together. */
static car_status check_count(const car_validation *v, slot s, int index) {
    const car_task *task = &v->tasks[index];
    bool partial = task->cargo == CAR_CARGO_PARTIAL, zero = v->config.placement == CAR_PLACEMENT_ZERO;
    int count = 0, workers = partial ? 1 : computes_in(v, s), total = 0;
    for (int n = s.begin; n < s.end; n++) {
        const car_task *other = &v->tasks[n];
        bool counts = !goes_on(v, s, n);
        count += counts && is_alike(v, task, other) && (!partial || task->micro_batch == other->micro_batch);
        total += counts && other->kind == CAR_TASK_SEND && !is_tied(v, other);
    }
    if (zero ? total > most_of_zero(v) : count > (workers > 1 ? workers : 1)) {
        return car_validate_fail(v, index,
                                 zero ? "there are too many messages in the slot"
                                      : "there are too many messages of this kind in the slot");
    }
    return CAR_OK;
}

static car_status check_slot(const car_validation *v, slot s) {
    car_status status = CAR_OK;
    for (int n = s.begin; n < s.end; n++) {
        if (v->tasks[n].kind == CAR_TASK_SEND) {
            CAR_TRY(check_peer(v, n));
            CAR_TRY(v->custom || goes_on(v, s, n) ? CAR_OK : check_count(v, s, n));
        }
    }
done:
    return status;
}

car_status car_validate_bounds(car_validation *v) {
    car_status status = CAR_OK;
    for (int device = 0; device < v->devices; device++) {
        slot s = {v->first[device], v->first[device]};
        for (; s.begin < v->first[device + 1]; s.begin = s.end) {
            while (s.end < v->first[device + 1] && v->tasks[s.end].slot == v->tasks[s.begin].slot) {
                s.end++;
            }
            CAR_TRY(check_slot(v, s));
        }
    }
done:
    return status;
}
