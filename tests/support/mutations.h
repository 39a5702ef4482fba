/* Predicates for the tasks that mistakes change, and small helpers for making mistakes. */
#ifndef CAR_TESTS_MUTATIONS_H
#define CAR_TESTS_MUTATIONS_H

#include "plan/usage.h"
#include "support/mutant.h"

typedef struct car_mutation {
    const char *name;
    bool (*apply)(car_mutant *mutant);
} car_mutation;

/* The mistakes with messages and collectives, and all others. */
const car_mutation *car_mutations_of_messages(int *count);
const car_mutation *car_mutations_of_tasks(int *count);

/* ---- predicates of tasks ------------------------------------------------------------------------------------ */

static inline bool is_any(car_mutant *t, car_spot s, const car_task *task) {
    (void)s;
    return task->kind != CAR_TASK_BROADCAST || t->devices > 1; /* a broadcast to oneself has no effect */
}
static inline bool is_send(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->kind == CAR_TASK_SEND;
}
static inline bool is_receive(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->kind == CAR_TASK_RECEIVE;
}
static inline bool is_forward(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->kind == CAR_TASK_FORWARD;
}
static inline bool is_backward(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->kind == CAR_TASK_BACKWARD;
}
static inline bool is_compute(car_mutant *t, car_spot s, const car_task *task) {
    return is_forward(t, s, task) || is_backward(t, s, task);
}
static inline bool is_update(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->kind == CAR_TASK_UPDATE;
}
static inline bool is_reduce(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->kind == CAR_TASK_REDUCE;
}
static inline bool is_broadcast(car_mutant *t, car_spot s, const car_task *task) {
    return task->kind == CAR_TASK_BROADCAST && is_any(t, s, task);
}
static inline bool is_partial_send(car_mutant *t, car_spot s, const car_task *task) {
    return is_send(t, s, task) && task->cargo == CAR_CARGO_PARTIAL;
}
static inline bool is_sum_send(car_mutant *t, car_spot s, const car_task *task) {
    return is_partial_send(t, s, task) || (is_send(t, s, task) && task->cargo == CAR_CARGO_FINISHED);
}
static inline bool is_weights_send(car_mutant *t, car_spot s, const car_task *task) {
    return is_send(t, s, task) && task->cargo == CAR_CARGO_WEIGHTS;
}
static inline bool is_across_send(car_mutant *t, car_spot s, const car_task *task) {
    return is_send(t, s, task) && (task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT);
}
/* Received in the slot in which it is needed. */
static inline bool is_urgent_receive(car_mutant *t, car_spot s, const car_task *task) {
    return is_receive(t, s, task) && (task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT ||
                                      task->cargo == CAR_CARGO_PARTIAL);
}
static inline bool has_version(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->version != CAR_NONE && task->kind != CAR_TASK_BROADCAST;
}
static inline bool has_tied_version(car_mutant *t, car_spot s, const car_task *task) {
    (void)t, (void)s;
    return task->tied_version != CAR_NONE;
}
static inline bool is_cut_send(car_mutant *t, car_spot s, const car_task *task) {
    return is_sum_send(t, s, task) && car_plan_pieces(t->plan, task->bundle) > 1;
}
static inline bool has_bytes(car_mutant *t, const car_task *task) {
    return car_plan_partition(t->plan)->bundles[task->bundle].bytes > 0;
}
/* zero with two copies: whether ranks send copies on after their use. */
static inline bool has_late_copies(const car_mutant *t) {
    const car_plan_config *config = car_plan_config_of(t->plan);
    return config->zero_copies == 2 && config->zero_ahead <= 2 * car_plan_per_worker(t->plan);
}
/* And the next micro-batch uses the same version. */
static inline bool is_passed_on_later(const car_mutant *t, const car_task *task) {
    int64_t n = task->step * t->workers + task->micro_batch + 1, step = n / t->workers;
    int64_t version = step - car_plan_delay(t->plan, (int)(n % t->workers), task->stage);
    return has_late_copies(t) && step < t->steps && (version > 0 ? version : 0) == task->version;
}
/* A forward after which the weights stay. Copies of zero do not stay under dp, nor in the cycle if they are sent on
 * later. */
static inline bool is_forward_that_keeps(car_mutant *t, car_spot s, const car_task *task) {
    bool copies = t->placement == CAR_PLACEMENT_ZERO && car_plan_reduces(t->plan);
    return is_forward(t, s, task) && has_bytes(t, task) &&
           (car_plan_config_of(t->plan)->zero_copies < 2 || is_passed_on_later(t, task)) &&
           !(copies && s.device != car_plan_owner(t->plan, task->step, task->stage));
}
/* zero: the weights leave their rank with this message. */
static inline bool is_weights_send_that_ends(car_mutant *t, car_spot s, const car_task *task) {
    int home = car_plan_partition(t->plan)->bundles[task->bundle >= 0 ? task->bundle : 0].home;
    return is_send(t, s, task) && car_cargo_is_weights(task->cargo) &&
           (car_plan_config_of(t->plan)->zero_copies == 1 ||
            (has_late_copies(t) && s.device != car_plan_owner(t->plan, 0, home)));
}
/* zero with two copies: the owner replaces what it has kept. */
static inline bool is_update_of_kept(car_mutant *t, car_spot s, const car_task *task) {
    return car_plan_config_of(t->plan)->zero_copies == 2 && is_update(t, s, task);
}
static inline bool is_backward_with_bytes(car_mutant *t, car_spot s, const car_task *task) {
    return is_backward(t, s, task) && has_bytes(t, task);
}
/* What the update was made from stays. */
static inline bool is_update_that_keeps(car_mutant *t, car_spot s, const car_task *task) {
    return is_update(t, s, task) && (t->placement != CAR_PLACEMENT_ZERO || car_plan_reduces(t->plan));
}
/* The sum ends with it: it continues elsewhere, or nobody else needs it. */
static inline bool ends_sum(car_mutant *t, car_spot s, const car_task *task) {
    bool repeated = t->placement == CAR_PLACEMENT_REPLICA || t->placement == CAR_PLACEMENT_GRID;
    return is_partial_send(t, s, task) || (is_update(t, s, task) && (!repeated || car_plan_reduces(t->plan)));
}
/* The last task of a micro-batch on its device. */
static inline bool ends_activations(car_mutant *t, car_spot s, const car_task *task) {
    return (is_backward(t, s, task) && task->stage == 0) || (is_send(t, s, task) && task->cargo == CAR_CARGO_GRADIENT);
}
/* Sent as soon as it exists. */
static inline bool is_urgent_send(car_mutant *t, car_spot s, const car_task *task) {
    return is_across_send(t, s, task) || is_partial_send(t, s, task);
}
/* In one process: its sum goes on to the next device. */
static inline bool is_backward_with_successor(car_mutant *t, car_spot s, const car_task *task) {
    return is_backward(t, s, task) && task->micro_batch + 1 < t->workers &&
           car_plan_partition(t->plan)->bundles[task->bundle].bytes > 0;
}
/* zero: messages that may leave a device in a slot, except those of ties. */
static inline int most_of_zero(const car_mutant *t) {
    const car_plan_config *config = car_plan_config_of(t->plan);
    return config->zero_copies == 1 ? 2 : config->zero_ahead == 2 * car_plan_per_worker(t->plan) ? 3 : 5;
}
/* The first slot from begin to end - 1 with that many, or CAR_NONE. */
static inline int64_t full_slot(car_mutant *t, int device, int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; slot++) {
        int count = 0;
        for (int at = 0; at < t->rows[device].count; at++) {
            const car_task *task = &t->rows[device].tasks[at];
            count += task->kind == CAR_TASK_SEND && task->piece == 0 && task->slot == slot && task->bundle < t->stages;
        }
        if (count == most_of_zero(t)) {
            return slot;
        }
    }
    return CAR_NONE;
}
static inline bool has_time_for_another(car_mutant *t, car_spot s, const car_task *task) {
    return is_send(t, s, task) && task->bundle < t->stages &&
           car_mutant_task(t, car_mutant_other_end(t, s))->slot > task->slot + 1 &&
           full_slot(t, s.device, task->slot + 1, task->slot + 2) != CAR_NONE;
}
/* It can leave a slot later and still arrive in time. */
static inline bool has_slack(car_mutant *t, car_spot s, const car_task *task) {
    return is_partial_send(t, s, task) && car_mutant_task(t, car_mutant_other_end(t, s))->slot > task->slot + 1;
}
/* And in the next slot the worker sends another one. */
static inline bool would_meet_another(car_mutant *t, car_spot s, const car_task *task) {
    bool tied = task->bundle >= t->stages,
         counts = t->placement != CAR_PLACEMENT_ZERO && !tied && has_slack(t, s, task);
    for (int at = s.at; counts && at < t->rows[s.device].count; at++) {
        const car_task *other = &t->rows[s.device].tasks[at];
        if (is_partial_send(t, s, other) && other->micro_batch == task->micro_batch && other->slot == task->slot + 1 &&
            other->bundle < t->stages) {
            return true;
        }
    }
    return false;
}
/* The second forward of a step in 1F1B, which has an order but no clock. */
static inline bool is_second_forward_of_1f1b(car_mutant *t, car_spot s, const car_task *task) {
    return car_plan_config_of(t->plan)->rule == CAR_RULE_1F1B && is_forward(t, s, task) && task->micro_batch == 1 &&
           task->stage == 0;
}

/* ---- changes --------------------------------------------------------------------------------------------- */

static inline bool exists(car_spot spot) {
    return spot.device != CAR_NONE;
}

static inline bool drop(car_mutant *t, car_mutant_wanted wanted) {
    car_spot s = car_mutant_find(t, wanted);
    if (exists(s)) {
        car_mutant_erase(t, s);
    }
    return exists(s);
}

static inline bool is_chosen(const car_mutant *t, const car_task *task) {
    return task->kind == t->chosen.kind && task->cargo == t->chosen.cargo &&
           task->micro_batch == t->chosen.micro_batch && task->stage == t->chosen.stage &&
           task->bundle == t->chosen.bundle && task->step == t->chosen.step && task->version == t->chosen.version &&
           task->peer == t->chosen.peer && task->slot == t->chosen.slot;
}

/* Marks the uses that `ends` selects as the last on their rank, or as not the last. */
static inline bool set_last(car_mutant *t, car_mutant_wanted wanted, bool last,
                            bool (*ends)(car_mutant *mutant, const car_task *task, int use_kind)) {
    car_spot s = car_mutant_find(t, wanted);
    if (exists(s)) {
        t->chosen = *car_mutant_task(t, s);
        t->last = last;
        t->ends = ends;
    }
    return exists(s);
}

/* Makes the same change at both ends of a message. */
typedef void (*change_function)(car_mutant *t, car_task *task);

static inline bool change_message(car_mutant *t, car_mutant_wanted wanted, change_function change) {
    car_spot s = car_mutant_find(t, wanted);
    if (exists(s)) {
        car_spot end = car_mutant_other_end(t, s);
        change(t, car_mutant_task(t, s));
        change(t, car_mutant_task(t, end));
    }
    return exists(s);
}

/* A random other number below `count`. */
static inline int another(car_mutant *t, int number, int count) {
    return (number + 1 + car_mutant_roll(t, count - 1)) % count;
}

static inline void set_version(car_task *task, int64_t version) {
    task->version = version;
}

#endif
