/* Mistakes with forwards, backwards, updates and last uses for the validator to find. */
#include "support/mutations.h"

/* ---- forwards and backwards ----------------------------------------------------------------------------- */

static bool drop_forward(car_mutant *t) {
    return drop(t, is_forward);
}
static bool drop_backward(car_mutant *t) {
    return drop(t, is_backward);
}

/* Two tasks of one device and window, in different slots. (Readers put windows in order themselves.) */
static bool find_two(car_mutant *t, car_spot *a, car_spot *b) {
    *a = car_mutant_find(t, is_compute);
    for (int tries = 0; tries < 100; tries++) {
        *b = car_mutant_find(t, is_compute);
        int64_t first = car_mutant_task(t, *a)->slot, second = car_mutant_task(t, *b)->slot;
        if (a->device == b->device && first != second && first / t->period == second / t->period) {
            return true;
        }
    }
    return false;
}

static bool swap_tasks(car_mutant *t) {
    car_spot a, b;
    bool found = find_two(t, &a, &b);
    if (found) {
        car_task task = *car_mutant_task(t, a);
        *car_mutant_task(t, a) = *car_mutant_task(t, b);
        *car_mutant_task(t, b) = task;
    }
    return found;
}

static bool swap_slots(car_mutant *t) {
    car_spot a, b;
    bool found = find_two(t, &a, &b);
    if (found) {
        car_task first = *car_mutant_task(t, a), second = *car_mutant_task(t, b);
        *car_mutant_task(t, a) = second;
        *car_mutant_task(t, b) = first;
        car_mutant_task(t, a)->slot = first.slot;
        car_mutant_task(t, b)->slot = second.slot;
    }
    return found;
}

static bool wrong_version_of(car_mutant *t, car_mutant_wanted wanted) {
    car_spot s = car_mutant_find(t, wanted);
    car_task *task = car_mutant_task(t, s);
    set_version(task, task->version > 0 && car_mutant_roll(t, 2) ? task->version - 1 : task->version + 1);
    return true;
}
static bool wrong_version_forward(car_mutant *t) {
    return wrong_version_of(t, is_forward);
}
static bool wrong_version_backward(car_mutant *t) {
    return wrong_version_of(t, is_backward);
}

static bool wrong_version_both(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_forward);
    car_task forward = *car_mutant_task(t, s);
    for (int at = s.at; at < t->rows[s.device].count; at++) {
        car_task *task = &t->rows[s.device].tasks[at];
        if (is_compute(t, s, task) && task->step == forward.step && task->micro_batch == forward.micro_batch &&
            task->stage == forward.stage) {
            set_version(task, forward.version + 1);
        }
    }
    return true;
}

static bool wrong_tied_version(car_mutant *t) {
    car_spot s = car_mutant_find(t, has_tied_version);
    if (exists(s)) {
        car_mutant_task(t, s)->tied_version++;
    }
    return exists(s);
}

static bool wrong_step(car_mutant *t) {
    car_task *task = car_mutant_task(t, car_mutant_find(t, is_compute));
    task->step = another(t, (int)task->step, (int)t->steps);
    return true;
}

static bool wrong_stage(car_mutant *t) {
    if (t->stages < 2) {
        return false;
    }
    car_task *task = car_mutant_task(t, car_mutant_find(t, is_compute));
    task->stage = task->bundle = another(t, task->stage, t->stages);
    return true;
}

static bool wrong_worker(car_mutant *t) {
    if (t->workers < 2) {
        return false;
    }
    car_task *task = car_mutant_task(t, car_mutant_find(t, is_compute));
    task->micro_batch = another(t, task->micro_batch, t->workers);
    return true;
}

static bool wrong_device(car_mutant *t) {
    if (t->devices < 2) {
        return false;
    }
    car_spot s = car_mutant_find(t, is_compute);
    int device = another(t, s.device, t->devices);
    car_mutant_insert_in_slot(t, device, car_mutant_erase(t, s), true);
    return true;
}

static bool wrong_window(car_mutant *t) {
    car_task *task = car_mutant_task(t, car_mutant_find(t, is_compute));
    task->slot += t->period;
    return true;
}

static bool duplicate(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_any);
    car_mutant_insert(t, s, *car_mutant_task(t, s));
    return true;
}

/* A rank gets two things to do at once: worker 1's first forward, and what it sends on, move to the slot of worker
 * 0's. */
static bool busy_slot(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_second_forward_of_1f1b);
    if (!exists(s)) {
        return false;
    }
    car_task task = car_mutant_erase(t, s), sent = {.kind = CAR_TASK_KINDS};
    car_mutant_row *row = &t->rows[s.device];
    if (s.at < row->count && row->tasks[s.at].kind == CAR_TASK_SEND && row->tasks[s.at].slot == task.slot) {
        sent = car_mutant_erase(t, s);
    }
    task.slot = sent.slot = car_plan_forward_slot(t->plan, task.step, 0, 0);
    int at = 0;
    while (row->tasks[at].slot < task.slot || row->tasks[at].kind != CAR_TASK_FORWARD) {
        at++;
    }
    car_mutant_insert(t, (car_spot){s.device, at + 1}, task);
    if (sent.kind == CAR_TASK_SEND) {
        car_mutant_insert_in_slot(t, s.device, sent, false);
    }
    return true;
}

/* Sets one of several fields to an invalid value. */
static bool nonsense(car_mutant *t) {
    car_task *task = car_mutant_task(t, car_mutant_find(t, is_any));
    switch (car_mutant_roll(t, 8)) {
    case 0:
        task->kind = CAR_TASK_KINDS;
        break;
    case 1:
        task->cargo = task->cargo == CAR_CARGO_NONE ? CAR_CARGO_PARTIAL : CAR_CARGO_NONE;
        break;
    case 2:
        task->micro_batch = t->workers;
        break;
    case 3:
        task->stage = t->stages;
        break;
    case 4:
        task->bundle = car_plan_partition(t->plan)->bundle_count;
        break;
    case 5:
        task->peer = t->devices;
        break;
    case 6:
        task->step = t->steps;
        break;
    default:
        task->version = task->version == CAR_NONE ? 0 : CAR_NONE;
    }
    return true;
}

static bool wrong_stage_of_bundle(car_mutant *t) {
    car_spot s = t->stages > 1 ? car_mutant_find(t, is_update) : (car_spot){CAR_NONE, CAR_NONE};
    if (exists(s)) {
        car_task *task = car_mutant_task(t, s);
        task->stage = another(t, task->stage, t->stages);
    }
    return exists(s);
}

static bool wrong_step_of_version(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_update);
    if (exists(s)) {
        car_task *task = car_mutant_task(t, s);
        task->step = another(t, (int)task->step, (int)t->steps);
    }
    return exists(s);
}

/* ---- last uses ------------------------------------------------------------------------------------------ */

static bool tape_of_chosen(car_mutant *t, const car_task *task, int use_kind) {
    return is_chosen(t, task) && use_kind == CAR_RESOURCE_TAPE;
}
static bool weights_of_chosen(car_mutant *t, const car_task *task, int use_kind) {
    return is_chosen(t, task) && use_kind == CAR_RESOURCE_WEIGHTS;
}
static bool is_sum(int use_kind) {
    return use_kind == CAR_RESOURCE_SUM || use_kind == CAR_RESOURCE_OWN;
}
static bool sum_of_chosen(car_mutant *t, const car_task *task, int use_kind) {
    return is_chosen(t, task) && is_sum(use_kind);
}
static bool half_a_sum_of_chosen(car_mutant *t, const car_task *task, int use_kind) {
    return is_chosen(t, task) && use_kind == CAR_RESOURCE_OWN;
}
static bool sums_of_updates(car_mutant *t, const car_task *task, int use_kind) {
    (void)t;
    return task->kind == CAR_TASK_UPDATE && is_sum(use_kind);
}
static bool channel_of_chosen(car_mutant *t, const car_task *task, int use_kind) {
    return is_chosen(t, task) && use_kind == CAR_RESOURCE_CHANNEL;
}

static bool keep_activations(car_mutant *t) {
    return set_last(t, ends_activations, false, tape_of_chosen);
}
static bool free_activations_early(car_mutant *t) {
    return set_last(t, is_forward, true, tape_of_chosen);
}
static bool keep_weights(car_mutant *t) {
    return t->placement == CAR_PLACEMENT_ZERO && set_last(t, is_weights_send_that_ends, false, weights_of_chosen);
}
static bool keep_what_it_was_made_of(car_mutant *t) {
    return set_last(t, is_update_of_kept, false, weights_of_chosen);
}
static bool free_weights_early(car_mutant *t) {
    return set_last(t, is_forward_that_keeps, true, weights_of_chosen);
}
static bool free_weights_with_update(car_mutant *t) {
    return set_last(t, is_update_that_keeps, true, weights_of_chosen);
}
static bool keep_sum(car_mutant *t) {
    return set_last(t, ends_sum, false, sum_of_chosen);
}
static bool keep_half_a_sum(car_mutant *t) {
    return set_last(t, ends_sum, false, half_a_sum_of_chosen);
}
static bool free_sum_early(car_mutant *t) {
    return set_last(t, is_backward_with_bytes, true, sum_of_chosen);
}
static bool free_a_channel(car_mutant *t) {
    return set_last(t, is_send, true, channel_of_chosen);
}
static bool keep_all_sums(car_mutant *t) {
    return set_last(t, is_update, false, sums_of_updates);
}

/* ---- sums and updates ----------------------------------------------------------------------------------- */

static void change_worker(car_mutant *t, car_task *task) {
    task->micro_batch = (task->micro_batch + 1) % t->workers;
}
static bool wrong_worker_in_sum(car_mutant *t) {
    return change_message(t, is_partial_send, change_worker);
}

/* Two successive workers swap places in the order of a stage's backwards, with everything the table says about them
 * there. So the sum gets the later one first, in place or by message. */
static bool out_of_ring_order(car_mutant *t) {
    bool ring = car_plan_is_cyclic(t->plan) || t->placement == CAR_PLACEMENT_PIPELINE;
    if (t->workers < 2 || !ring) {
        return false;
    }
    car_task chosen = *car_mutant_task(t, car_mutant_find(t, is_backward));
    int a = chosen.micro_batch, b = (chosen.micro_batch + 1) % t->workers;
    for (int device = 0; device < t->devices; device++) {
        for (int at = 0; at < t->rows[device].count; at++) {
            car_task *task = &t->rows[device].tasks[at];
            if (task->kind == CAR_TASK_BACKWARD && task->step == chosen.step && task->stage == chosen.stage) {
                task->micro_batch = task->micro_batch == a ? b : task->micro_batch == b ? a : task->micro_batch;
            }
        }
    }
    return true;
}

/* 1F1B has an order but no clock: two workers of a step swap names everywhere, and only their sums reveal it. */
static bool exchange_workers(car_mutant *t) {
    if (car_plan_config_of(t->plan)->rule != CAR_RULE_1F1B || t->workers < 2) {
        return false;
    }
    int a = car_mutant_roll(t, t->workers - 1), step = car_mutant_roll(t, (int)t->steps);
    for (int device = 0; device < t->devices; device++) {
        for (int at = 0; at < t->rows[device].count; at++) {
            car_task *task = &t->rows[device].tasks[at];
            bool theirs = task->step == step && (task->micro_batch == a || task->micro_batch == a + 1);
            bool sum = task->cargo == CAR_CARGO_FINISHED || task->kind == CAR_TASK_UPDATE;
            task->micro_batch = theirs && !sum ? 2 * a + 1 - task->micro_batch : task->micro_batch;
        }
    }
    return true;
}

static bool drop_update(car_mutant *t) {
    return drop(t, is_update);
}

/* In the slot before worker N-1's backward. */
static bool early_update(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_update);
    if (exists(s)) {
        car_task task = car_mutant_erase(t, s);
        task.slot = car_plan_backward_slot(t->plan, task.step, t->workers - 1, task.stage) - 1;
        car_mutant_insert_in_slot(t, s.device, task, false);
    }
    return exists(s);
}

static bool extra_update(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_update);
    if (exists(s)) {
        car_task task = *car_mutant_task(t, s);
        task.slot++;
        car_mutant_insert_in_slot(t, s.device, task, false);
    }
    return exists(s);
}

static bool wrong_update(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_update);
    if (exists(s)) {
        car_task *task = car_mutant_task(t, s);
        set_version(task, task->version + 1);
        task->step++;
    }
    return exists(s);
}

/* ---- the list ------------------------------------------------------------------------------------------- */

static const car_mutation mutations[] = {
    {"a forward is missing", drop_forward},
    {"a backward is missing", drop_backward},
    {"two compute tasks out of order", swap_tasks},
    {"two compute tasks in each other's slots", swap_slots},
    {"a forward with another version", wrong_version_forward},
    {"a backward with another version", wrong_version_backward},
    {"a forward and its backward with another version", wrong_version_both},
    {"another version of a tied parameter", wrong_tied_version},
    {"a compute task of another step", wrong_step},
    {"a compute task of another stage", wrong_stage},
    {"a compute task of another worker", wrong_worker},
    {"a compute task on another device", wrong_device},
    {"a compute task one window later", wrong_window},
    {"a task twice", duplicate},
    {"two compute tasks of a rank in one slot", busy_slot},
    {"a field out of range", nonsense},
    {"an UPDATE of another stage", wrong_stage_of_bundle},
    {"an UPDATE with the sum of another step", wrong_step_of_version},
    {"activations that are never freed", keep_activations},
    {"activations freed by their forward", free_activations_early},
    {"weights that moved on and are not freed", keep_weights},
    {"an owner keeps what it made the next version of", keep_what_it_was_made_of},
    {"weights freed before their last use", free_weights_early},
    {"weights freed by an update", free_weights_with_update},
    {"a sum that is never freed", keep_sum},
    {"sums that no UPDATE frees", keep_all_sums},
    {"a sum freed before its last use", free_sum_early},
    {"a part of a sum that is freed without the other", keep_half_a_sum},
    {"a channel that is freed", free_a_channel},
    {"a partial sum over other workers", wrong_worker_in_sum},
    {"a sum out of ring order", out_of_ring_order},
    {"workers in another order in 1F1B", exchange_workers},
    {"an UPDATE is missing", drop_update},
    {"an UPDATE before the last backward", early_update},
    {"an UPDATE twice", extra_update},
    {"an UPDATE to another version", wrong_update},
};

const car_mutation *car_mutations_of_tasks(int *count) {
    *count = (int)(sizeof mutations / sizeof mutations[0]);
    return mutations;
}
