/* Custom plans: the table comes from a file and repeats a period. See script.h. */
#include "plan/script.h"

#include <string.h>

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- the table ------------------------------------------------------------------------------- */

car_task car_script_repeat(const car_script *script, const car_task *task, int64_t times) {
    car_task later = *task;
    int64_t steps = times * script->repeated, slots = times * (script->end - script->begin);
    later.slot += slots;
    later.due += slots;
    later.step += steps;
    later.version += task->version >= 0 ? steps : 0;
    later.tied_version += task->tied_version >= 0 ? steps : 0;
    if (car_cargo_is_weights(task->cargo)) { /* versions in the two places have different tags */
        later.tag += CAR_CARGOS * (int)(later.version % 2 - task->version % 2);
    }
    return later;
}

/* The highest number of repetitions of a task in a run of `steps` steps; -1: the task is not part of it. */
static int64_t most_times(const car_script *script, int device, int n, int64_t steps) {
    bool repeats = script->end > 0 && script->devices[device].tasks[n].slot >= script->begin;
    int64_t left = repeats ? steps - 1 - car_script_needed(script, device, n, 1) : -1;
    return left >= 0 ? 1 + left / script->repeated : steps > car_script_needed(script, device, n, 0) ? 0 : -1;
}

/* Adds one repetition's tasks that lie between two slots. The file has them in order. */
static car_status add_once(const car_plan *plan, int device, int64_t times, int64_t from, int64_t to, int64_t steps,
                           car_task_list *list) {
    const car_script *script = plan->script;
    const car_task_list *own = &script->devices[device];
    car_status status = CAR_OK;
    for (int n = 0; n < own->count; n++) {
        car_task task = car_script_repeat(script, &own->tasks[n], times);
        if (task.slot >= from && task.slot < to && times <= most_times(script, device, n, steps)) {
            CAR_TRY(
                car_context_grow(plan->context, &list->tasks, &list->capacity, list->count + 1, sizeof *list->tasks));
            list->tasks[list->count++] = task;
        }
    }
done:
    return status;
}

car_status car_script_expand(const car_plan *plan, int device, int64_t from, int64_t to, int64_t steps,
                             car_task_list *list) {
    const car_script *script = plan->script;
    int64_t length = script->end - script->begin;
    from = from == 0 ? INT64_MIN : from; /* slots before slot 0 belong to the first window */
    int64_t first = length > 0 && from > script->begin ? (from - script->begin) / length : 0;
    int64_t last = length > 0 && to > script->begin ? (to - 1 - script->begin) / length : 0;
    car_status status = CAR_OK;
    for (int64_t times = first; times <= last; times++) {
        /* What comes before the period occurs only once. */
        CAR_TRY(add_once(plan, device, times, times > 0 ? larger(from, script->begin + times * length) : from, to,
                         steps, list));
    }
done:
    return status;
}

int64_t car_script_windows(const car_plan *plan, int64_t steps) {
    const car_script *script = plan->script;
    int64_t last = 0, length = script->end - script->begin;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            int64_t times = most_times(script, d, n, steps);
            last = times < 0 ? last : larger(last, script->devices[d].tasks[n].slot + times * length);
        }
    }
    return steps < 1 ? 0 : last / script->window + 1;
}

int64_t car_script_slot(const car_plan *plan, int64_t step, int micro_batch, int stage, bool backward) {
    const car_script *script = plan->script;
    const car_task_list *own = &script->devices[car_plan_device(plan, step, micro_batch, stage)];
    for (int n = own->count - 1; n >= 0; n--) { /* the last one is the one that repeats */
        const car_task *task = &own->tasks[n];
        bool same = task->kind == (backward ? CAR_TASK_BACKWARD : CAR_TASK_FORWARD) &&
                    task->micro_batch == micro_batch && task->stage == stage && task->step <= step;
        int64_t later = step - task->step;
        if (same && (later == 0 || (script->repeated > 0 && later % script->repeated == 0))) {
            return task->slot + (later ? later / script->repeated * (script->end - script->begin) : 0);
        }
    }
    return 0;
}

int car_script_maker(const car_plan *plan, int64_t step, int stage) {
    const car_script *script = plan->script;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            const car_task *task = &script->devices[d].tasks[n];
            int64_t later = step - task->step;
            bool repeats = script->end > 0 && task->slot >= script->begin;
            if (task->kind == CAR_TASK_UPDATE && task->bundle == stage &&
                (later == 0 || (repeats && later > 0 && later % script->repeated == 0))) {
                return d;
            }
        }
    }
    return car_plan_device(plan, step, plan->batches - 1, stage);
}

/* ---- facts of the table's tasks ---------------------------------------------------------------- */

int64_t car_script_needed(const car_script *script, int device, int n, int64_t times) {
    const car_script_layout *layout = &script->layout;
    int again = layout->first[device] + script->devices[device].count + n - layout->before[device];
    return times == 0 ? layout->facts[layout->first[device] + n].needed
                      : layout->facts[again].needed + (times - 1) * script->repeated;
}

const car_script_fact *car_script_fact_of(const car_plan *plan, int device, const car_task *task, int64_t *since) {
    static const car_script_fact unknown = {
        .needed = 0, .sum_again = INT64_MAX, .weights_again = {INT64_MAX, INT64_MAX}, .passed = INT64_MAX};
    const car_script *script = plan->script;
    const car_script_layout *layout = &script->layout;
    int64_t length = script->end - script->begin, second = script->end + length;
    int64_t times = length > 0 && task->slot >= second ? (task->slot - second) / length + 1 : 0;
    int64_t slot = task->slot - times * length, step = task->step - times * script->repeated;
    int low = layout->first[device], high = layout->first[device + 1];
    while (low < high) {
        int middle = low + (high - low) / 2;
        low = layout->tasks[middle].slot < slot ? middle + 1 : low;
        high = layout->tasks[middle].slot < slot ? high : middle;
    }
    *since = times * script->repeated;
    for (int n = low; n < layout->first[device + 1] && layout->tasks[n].slot == slot; n++) {
        const car_task *other = &layout->tasks[n];
        if (other->kind == task->kind && other->cargo == task->cargo && other->micro_batch == task->micro_batch &&
            other->stage == task->stage && other->bundle == task->bundle && other->step == step &&
            other->piece == task->piece && other->peer == task->peer) {
            return &layout->facts[n];
        }
    }
    return &unknown;
}

/* ---- reading: what follows from the tasks ------------------------------------------------------ */

static car_status refuse(const car_plan *plan, const char *what, int64_t a, int64_t b) {
    return car_context_fail(plan->context, CAR_ERROR_FORMAT, what, (long long)a, (long long)b);
}

/* Checks the fields that a task of its kind needs, which braces in the text may have set wrongly. The rest is left
 * to the validator. */
static bool is_complete(const car_plan *plan, const car_task *task) {
    bool message = task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE;
    bool stage = !car_task_names_bundle(task);
    return task->micro_batch >= (stage ? 0 : CAR_NONE) && task->micro_batch < plan->batches && task->stage >= 0 &&
           task->stage < plan->stages && task->bundle >= (stage ? CAR_NONE : 0) &&
           task->bundle < plan->partition->bundle_count && task->peer >= (message ? 0 : CAR_NONE) &&
           task->peer < plan->devices;
}

/* Bounds the numbers in a file by its content, so that a huge number does not make us reserve memory. */
static car_status check_numbers(const car_plan *plan) {
    enum { MOST_SLOTS = 100000 };
    const car_script *script = plan->script;
    int64_t tasks = 0;
    for (int d = 0; d < plan->devices; d++) {
        tasks += script->devices[d].count;
        for (int n = 0; n < script->devices[d].count; n++) {
            const car_task *task = &script->devices[d].tasks[n];
            if (!is_complete(plan, task)) {
                char text[CAR_TASK_TEXT];
                car_task_format(plan, task, text, sizeof text);
                return car_context_fail(
                    plan->context, CAR_ERROR_FORMAT,
                    "%s on device %d in slot %lld lacks a micro-batch or a device, or names one that does not exist",
                    text, d, (long long)task->slot);
            }
            if (task->slot <= -MOST_SLOTS || task->slot >= MOST_SLOTS) {
                return refuse(plan, "the plan has a task in slot %lld; slots must be at most %lld away from 0",
                              task->slot, MOST_SLOTS - 1);
            }
        }
    }
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            const car_task *task = &script->devices[d].tasks[n];
            if (task->step < -1 || task->step > tasks || task->version > tasks || task->tied_version > tasks) {
                return refuse(plan, "the plan has a step or version %lld, but only %lld tasks",
                              larger(task->step, larger(task->version, task->tied_version)), tasks);
            }
        }
    }
    return CAR_OK;
}

/* Checks that the table has as many steps as the header says. */
static car_status check_steps(const car_plan *plan) {
    const car_script *script = plan->script;
    int64_t steps = 0;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            const car_task *task = &script->devices[d].tasks[n];
            steps = larger(steps, car_task_computes(task) ? task->step + 1 : 0);
            if (task->step >= script->steps) {
                char text[CAR_TASK_TEXT];
                car_task_format(plan, task, text, sizeof text);
                return car_plan_fail_at(plan, task->step + 1, task,
                                        "the plan's header says steps=%lld, but %s on device %d in slot %lld belongs "
                                        "to a later step: this task or one before it is wrong",
                                        (long long)script->steps, text, d, (long long)task->slot);
            }
        }
    }
    return script->end == 0 && steps < script->steps
               ? refuse(plan, "the plan's header says steps=%lld, but the plan has tasks of only %lld steps",
                        script->steps, steps)
               : CAR_OK;
}

/* Chooses windows long enough that a step's tasks are over two windows after the window with its number, as in other
 * plans. */
static void choose_window(car_plan *plan) {
    car_script *script = plan->script;
    int64_t length = script->end - script->begin;
    script->window = script->repeated > 0 ? (length + script->repeated - 1) / script->repeated : 1;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            const car_task *task = &script->devices[d].tasks[n];
            int64_t windows = larger(task->step, 0) + 3;
            script->window = larger(script->window, larger((task->slot + windows) / windows, -task->slot));
        }
    }
    plan->period = script->window;
}

/* The period does not have a whole number of steps: shows its first forward. Clears the period first, because the
 * drawing needs a table without one. */
static car_status refuse_period(car_plan *plan, int64_t forwards) {
    car_script *script = plan->script;
    car_task first = {.slot = script->begin, .micro_batch = CAR_NONE, .stage = CAR_NONE, .bundle = CAR_NONE};
    car_status status = CAR_OK;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = script->devices[d].count - 1; n >= 0; n--) {
            const car_task *task = &script->devices[d].tasks[n];
            bool counts = task->kind == CAR_TASK_FORWARD && task->stage == 0 && task->slot >= script->begin &&
                          task->slot < script->end;
            first = counts && (first.micro_batch == CAR_NONE || task->slot < first.slot) ? *task : first;
        }
    }
    script->begin = script->end = script->repeated = 0;
    CAR_TRY(car_script_find_facts(plan));
    choose_window(plan);
    status = car_plan_fail_at(
        plan, INT32_MAX, &first,
        "the plan's period has %lld forwards of stage 0, which is not a whole number of steps of %d micro-batches",
        (long long)forwards, plan->batches);
done:
    return status;
}

/* Finds how many steps a period has: the number of forwards of the first stage for each worker. */
static car_status count_repeated(car_plan *plan) {
    car_script *script = plan->script;
    int64_t forwards = 0, last = 0;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            const car_task *task = &script->devices[d].tasks[n];
            last = larger(last, task->slot);
            forwards += task->kind == CAR_TASK_FORWARD && task->stage == 0 && task->slot >= script->begin &&
                        task->slot < script->end;
        }
    }
    if (script->end == 0) {
        return CAR_OK;
    }
    if (script->end > last + 1) {
        return refuse(plan, "the plan's period ends with slot %lld, but its last task is in slot %lld", script->end - 1,
                      last);
    }
    script->repeated = forwards / plan->batches;
    return script->repeated * plan->batches == forwards && forwards > 0 ? CAR_OK : refuse_period(plan, forwards);
}

/* Finds which micro-batches use last step's weights, if that is the same in every step. */
static car_status find_delays(car_plan *plan) {
    car_script *script = plan->script;
    size_t cells = (size_t)plan->batches * (size_t)plan->stages;
    bool any = false;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, cells, 1, &script->delays));
    script->exact = true;
    for (int pass = 0; pass < 2; pass++) {
        for (int d = 0; d < plan->devices; d++) {
            for (int n = 0; n < script->devices[d].count; n++) {
                const car_task *task = &script->devices[d].tasks[n];
                if (!car_task_computes(task) || task->step == 0) {
                    continue;
                }
                unsigned char *delay = &script->delays[task->micro_batch * plan->stages + task->stage];
                if (pass == 0) {
                    *delay = task->version < task->step;
                }
                any = any || *delay;
                script->exact = script->exact && task->version == task->step - *delay;
                for (int b = plan->stages; b < plan->partition->bundle_count; b++) {
                    const car_bundle *tied = &plan->partition->bundles[b];
                    int64_t late = script->delays[task->micro_batch * plan->stages + tied->home];
                    script->exact = script->exact && (tied->stage != task->stage || pass == 0 ||
                                                      task->tied_version == task->step - late);
                }
            }
        }
    }
    /* An executor keeps the previous version only if the first worker needs it. */
    script->exact = script->exact && (!any || script->delays[0]);
    if (!script->exact) {
        memset(script->delays, 0, cells);
    }
done:
    return status;
}

static car_status refuse_rest(const car_plan *plan, int device, const char *how, const car_task *task) {
    char text[CAR_TASK_TEXT];
    car_task_format(plan, task, text, sizeof text);
    return car_plan_fail_at(plan, plan->script->steps, task,
                            "after its period the plan does not repeat the period: device %d %s %s in slot %lld; "
                            "remove what comes after the period, or correct it",
                            device, how, text, (long long)task->slot);
}

/* Checks what the file has after the period, such as a drain: it must be what the period implies for a run of the
 * file's length. */
static car_status check_rest(const car_plan *plan, int device, const car_task_list *file) {
    const car_script *script = plan->script;
    car_task_list list = {0};
    int at = script->devices[device].count;
    int64_t slots = car_script_windows(plan, script->steps) * script->window;
    car_status status = CAR_OK;
    CAR_TRY(car_script_expand(plan, device, 0, slots, script->steps, &list));
    bool has_rest = file->count > at;
    for (int n = 0; has_rest && n < list.count; n++) {
        if (list.tasks[n].slot < script->end) {
            continue;
        }
        if (at >= file->count || !car_task_equals(&file->tasks[at], &list.tasks[n])) {
            CAR_TRY(refuse_rest(plan, device, "should have", &list.tasks[n]));
        }
        at++;
    }
    if (has_rest && at < file->count) {
        status = refuse_rest(plan, device, "has", &file->tasks[at]);
    }
done:
    car_task_list_release(plan, &list);
    return status;
}

static car_status set_up(car_plan *plan, const car_task_list *file) {
    car_script *script = plan->script;
    car_status status = CAR_OK;
    CAR_TRY(check_numbers(plan));
    CAR_TRY(count_repeated(plan));
    for (int d = 0; d < plan->devices; d++) {
        car_task_list *own = &script->devices[d];
        while (script->end > 0 && own->count > 0 && own->tasks[own->count - 1].slot >= script->end) {
            own->count--;
        }
    }
    CAR_TRY(car_script_find_facts(plan));
    choose_window(plan);
    CAR_TRY(check_steps(plan));
    CAR_TRY(find_delays(plan));
    for (int i = 0; i < plan->batches; i++) {
        script->first_end = larger(script->first_end, car_script_slot(plan, 0, i, 0, true));
    }
    for (int d = 0; script->end > 0 && d < plan->devices; d++) {
        CAR_TRY(check_rest(plan, d, &file[d]));
    }
done:
    return status;
}

car_status car_script_create(car_plan *plan, const car_plan_header *header, car_task_list *devices) {
    car_script *script = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, 1, sizeof *script, &script));
    plan->script = script;
    *script = (car_script){.begin = header->period_begin,
                           .end = header->period_end,
                           .steps = header->steps,
                           .max_delay = header->max_delay};
    CAR_TRY(car_context_allocate(plan->context, (size_t)plan->devices, sizeof *script->devices, &script->devices));
    memcpy(script->devices, devices, (size_t)plan->devices * sizeof *devices);
    status = set_up(plan, devices);
    memset(devices, 0, (size_t)plan->devices * sizeof *devices); /* the script owns them now */
done:
    return status;
}

void car_script_destroy(car_plan *plan) {
    car_script *script = plan->script;
    if (!script) {
        return;
    }
    car_context_release(plan->context, script->delays, (size_t)plan->batches * (size_t)plan->stages, 1);
    for (int d = 0; d < plan->devices; d++) {
        if (script->devices) {
            car_task_list_release(plan, &script->devices[d]);
        }
    }
    car_script_release_layout(plan, &script->layout);
    car_context_release(plan->context, script->devices, (size_t)plan->devices, sizeof *script->devices);
    car_context_release(plan->context, script, 1, sizeof *script);
    plan->script = NULL;
}
