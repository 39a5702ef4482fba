/* The validator: the fields of single tasks, and the order of forwards and backwards. */
#include "plan/validate_internal.h"

/* ---- fields ------------------------------------------------------------------------------------- */

static bool between(int64_t value, int64_t low, int64_t end) {
    return value >= low && value < end;
}

static bool is_message(const car_task *task) {
    return task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE;
}

static bool names_stage(const car_task *task) {
    return car_task_computes(task) || task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT;
}

static car_status check_range(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    bool weights = car_cargo_is_weights(task->cargo) || task->kind == CAR_TASK_BROADCAST;
    if ((unsigned)task->kind >= CAR_TASK_KINDS || (unsigned)task->cargo >= CAR_CARGOS) {
        return car_validate_fail(v, index, "there is no such kind of task or cargo");
    }
    if (is_message(task) != (task->cargo != CAR_CARGO_NONE)) {
        return car_validate_fail(v, index, "messages must have a cargo, and other tasks must not");
    }
    if (!between(task->micro_batch, names_stage(task) ? 0 : CAR_NONE, v->batches) ||
        !between(task->step, weights ? CAR_NONE : 0, v->steps)) {
        return car_validate_fail(v, index, "there is no such micro-batch or step");
    }
    if (!between(task->stage, 0, v->stages) || !between(task->bundle, names_stage(task) ? CAR_NONE : 0, v->bundles)) {
        return car_validate_fail(v, index, "there is no such stage or bundle");
    }
    if (!between(task->peer, is_message(task) ? 0 : CAR_NONE, v->devices) ||
        (is_message(task) && task->peer == v->device_of[index])) {
        return car_validate_fail(v, index, "there is no such peer");
    }
    bool sum = task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
    if (!between(task->piece, 0, sum ? car_validate_pieces(v, task->bundle) : 1)) {
        return car_validate_fail(v, index, "there is no piece %d of it", task->piece);
    }
    return CAR_OK;
}

/* Fields that say the same thing must agree. */
static car_status check_agreement(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    bool versioned = car_task_computes(task) || task->kind == CAR_TASK_UPDATE || task->kind == CAR_TASK_BROADCAST ||
                     car_cargo_is_weights(task->cargo);
    int named = names_stage(task) ? task->stage : v->partition->bundles[task->bundle].stage;
    if (task->stage != named || (car_task_computes(task) && task->bundle != task->stage)) {
        return car_validate_fail(v, index, "stage %d and bundle %d do not belong together", task->stage, task->bundle);
    }
    if (versioned != (task->version != CAR_NONE) || (versioned && !between(task->version, 0, v->steps + 1))) {
        return car_validate_fail(v, index, "there is no version %lld of weights", (long long)task->version);
    }
    if ((task->kind == CAR_TASK_UPDATE || car_cargo_is_weights(task->cargo)) && task->step != task->version - 1) {
        return car_validate_fail(v, index, "version %lld is not made by step %lld", (long long)task->version,
                                 (long long)task->step);
    }
    return CAR_OK;
}

car_status car_validate_task(const car_validation *v, int index) {
    car_status status = check_range(v, index);
    return status == CAR_OK ? check_agreement(v, index) : status;
}

/* ---- slots and subslots --------------------------------------------------------------------------- */

static car_validate_subslot subslot_of(const car_validation *v, const car_task *task, int before) {
    switch (task->kind) {
    case CAR_TASK_RECEIVE:
        return CAR_VALIDATE_RECEIVE;
    case CAR_TASK_BROADCAST:
        return CAR_VALIDATE_BROADCAST;
    case CAR_TASK_REDUCE:
        return CAR_VALIDATE_REDUCE;
    case CAR_TASK_UPDATE:
        /* The text tells: with a micro-batch it comes after that one's backward, else before its first use. */
        if (v->custom) {
            return task->micro_batch == CAR_NONE ? CAR_VALIDATE_UPDATE_BEFORE : CAR_VALIDATE_UPDATE_AFTER;
        }
        /* The devices of `shared` update one common store, after the backwards of all. */
        return before >= CAR_VALIDATE_COMPUTE || v->config.placement == CAR_PLACEMENT_SHARED
                   ? CAR_VALIDATE_UPDATE_AFTER
                   : CAR_VALIDATE_UPDATE_BEFORE;
    case CAR_TASK_SEND:
        return CAR_VALIDATE_SEND;
    default:
        return CAR_VALIDATE_COMPUTE;
    }
}

static car_status check_ascending(car_validation *v, int device) {
    for (int n = v->first[device]; n < v->first[device + 1]; n++) {
        bool follows = n > v->first[device] && v->tasks[n].slot == v->tasks[n - 1].slot;
        int before = follows ? v->subslots[n - 1] : CAR_VALIDATE_RECEIVE;
        if (n > v->first[device] && v->tasks[n].slot < v->tasks[n - 1].slot) {
            return car_validate_fail(v, n, "it comes after a task of slot %lld", (long long)v->tasks[n - 1].slot);
        }
        v->subslots[n] = (unsigned char)subslot_of(v, &v->tasks[n], before);
        if (v->subslots[n] < before) {
            return car_validate_fail(v, n, "it comes after a task that must follow it in the slot");
        }
    }
    return CAR_OK;
}

/* Counting sort by slot and subslot. Devices and their tasks keep their order. */
static car_status sort_tasks(car_validation *v) {
    car_status status = CAR_OK;
    size_t keys = (size_t)(v->period * (car_plan_windows(v->plan, v->steps) + 1)) * CAR_VALIDATE_SUBSLOTS + 1;
    int *start = NULL;
    CAR_TRY(car_context_allocate(v->context, keys, sizeof *start, &start));
    for (int pass = 0; pass < 2; pass++) {
        for (int n = 0; n < v->count; n++) {
            size_t key = (size_t)(v->tasks[n].slot + v->period) * CAR_VALIDATE_SUBSLOTS + v->subslots[n];
            if (pass == 0) {
                start[key + 1]++;
            } else {
                v->order[start[key]++] = n;
            }
        }
        for (size_t key = 1; pass == 0 && key < keys; key++) {
            start[key] += start[key - 1];
        }
    }
done:
    car_context_release(v->context, start, keys, sizeof *start);
    return status;
}

car_status car_validate_fields(car_validation *v) {
    car_status status = CAR_OK;
    for (int n = 0; n < v->count; n++) {
        CAR_TRY(car_validate_task(v, n));
    }
    for (int device = 0; device < v->devices; device++) {
        CAR_TRY(check_ascending(v, device));
    }
    CAR_TRY(sort_tasks(v));
done:
    return status;
}

/* ---- forwards and backwards --------------------------------------------------------------------- */

car_status car_validate_compute_task(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    bool backward = task->kind == CAR_TASK_BACKWARD;
    int device = car_validate_device(v, task->step, task->micro_batch, task->stage);
    int64_t slot = car_validate_slot(v, task->step, task->micro_batch, task->stage, backward);
    if (v->device_of[index] != device) {
        return car_validate_fail(v, index, "it belongs on device %d", device);
    }
    if (slot != CAR_NONE && task->slot != slot) {
        return car_validate_fail(v, index, "it belongs in slot %lld", (long long)slot);
    }
    return CAR_OK;
}

static car_status enter(car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    bool backward = task->kind == CAR_TASK_BACKWARD;
    int *place = &v->computes[car_validate_compute(v, task->step, task->micro_batch, task->stage, backward)];
    if (*place != CAR_NONE) {
        return car_validate_fail(v, index, "it is done twice");
    }
    *place = index;
    return car_validate_compute_task(v, index);
}

/* The forwards go up through the stages and the backwards go down, each after the one before. */
static car_status check_micro_batch(const car_validation *v, int64_t step, int micro_batch) {
    int64_t last = INT64_MIN;
    int before = CAR_NONE; /* the task that a missing one should follow */
    for (int e = 0; e < 2 * v->stages; e++) {
        bool backward = e >= v->stages;
        int stage = backward ? 2 * v->stages - 1 - e : e;
        int index = v->computes[car_validate_compute(v, step, micro_batch, stage, backward)];
        if (index == CAR_NONE) {
            return car_validate_fail(v, before, "the %s of stage %d for micro-batch %d of step %lld is missing",
                                     backward ? "backward" : "forward", stage, micro_batch, (long long)step);
        }
        if (v->tasks[index].slot <= last) {
            return car_validate_fail(v, index, "it must come after the previous task of micro-batch %d", micro_batch);
        }
        last = v->tasks[index].slot;
        before = index;
    }
    return CAR_OK;
}

/* A custom plan: before a micro-batch takes over a tape, the tape's previous micro-batch must have ended on the
 * device: the worker's previous one, or in a pipeline the same number of the step before. In a grid all micro-batches
 * of a rank share one tape, which validate_touch.c checks. */
static car_status check_turns(const car_validation *v, int64_t step, int micro_batch) {
    int64_t before = step * v->batches + micro_batch - (car_validate_in_groups(v) ? v->batches : v->workers);
    for (int j = 0; before >= 0 && v->config.placement != CAR_PLACEMENT_GRID && j < v->stages; j++) {
        int device = car_validate_device(v, step, micro_batch, j), lowest = j;
        while (lowest > 0 && car_validate_device(v, step, micro_batch, lowest - 1) == device) {
            lowest--;
        }
        int begins = v->computes[car_validate_compute(v, step, micro_batch, lowest, false)];
        int ended = v->computes[car_validate_compute(v, before / v->batches, (int)(before % v->batches), lowest, true)];
        if (v->tasks[begins].slot <= v->tasks[ended].slot) {
            return car_validate_fail(v, begins,
                                     "it begins before worker %d's micro-batch of step %lld has ended on this device",
                                     micro_batch % v->workers, (long long)(before / v->batches));
        }
    }
    return CAR_OK;
}

/* A rank of a pipeline or grid computes one task at a time. Elsewhere each worker does, which follows from its
 * clock. */
static car_status check_conflicts(const car_validation *v) {
    int last = CAR_NONE;
    for (int n = 0; n < v->count; n++) {
        if (!car_task_computes(&v->tasks[n])) {
            continue;
        }
        if (last != CAR_NONE && v->device_of[last] == v->device_of[n] && v->tasks[last].slot == v->tasks[n].slot) {
            return car_validate_fail(v, n, "it is a second computing task in the slot");
        }
        last = n;
    }
    return CAR_OK;
}

car_status car_validate_order(car_validation *v) {
    car_status status = CAR_OK;
    size_t places = car_validate_compute(v, v->steps, 0, 0, false);
    for (size_t place = 0; place < places; place++) {
        v->computes[place] = CAR_NONE;
    }
    for (int n = 0; n < v->count; n++) {
        if (car_task_computes(&v->tasks[n])) {
            CAR_TRY(enter(v, n));
        }
    }
    for (int64_t step = 0; step < v->steps; step++) {
        for (int m = 0; m < v->batches; m++) {
            CAR_TRY(check_micro_batch(v, step, m));
            CAR_TRY(v->custom ? check_turns(v, step, m) : CAR_OK);
        }
    }
    if (car_validate_in_groups(v)) {
        CAR_TRY(check_conflicts(v));
    }
done:
    return status;
}
