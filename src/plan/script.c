/* Plans whose table comes from a file and repeats a period. See script.h. */
#include "plan/script.h"

#include <string.h>

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A task of the file, some periods later. */
static car_task repeated(const car_script *script, const car_task *task, int64_t times) {
    car_task later = *task;
    int64_t steps = times * script->repeated, slots = times * (script->end - script->begin);
    later.slot += slots;
    later.due += slots;
    later.step += steps;
    later.version += task->version >= 0 ? steps : 0;
    later.tied_version += task->tied_version >= 0 ? steps : 0;
    if (task->cargo == CAR_CARGO_WEIGHTS) { /* the two places have messages of their own */
        later.tag += CAR_CARGOS * (int)(later.version % 2 - task->version % 2);
    }
    return later;
}

/* How often a task is repeated at most in a run of so many steps; -1: it is no part of it. */
static int64_t most_times(const car_script *script, int device, int n, int64_t steps) {
    int64_t left = steps - 1 - script->needed[device][n];
    bool repeats = script->end > 0 && script->devices[device].tasks[n].slot >= script->begin;
    return left < 0 ? -1 : repeats ? left / script->repeated : 0;
}

/* Those of one time that lie between two slots. The file has them in order. */
static car_status add_once(const car_plan *plan, int device, int64_t times, int64_t from, int64_t to, int64_t steps,
                           car_task_list *list) {
    const car_script *script = plan->script;
    const car_task_list *own = &script->devices[device];
    car_status status = CAR_OK;
    for (int n = 0; n < own->count; n++) {
        car_task task = repeated(script, &own->tasks[n], times);
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
    int64_t first = length > 0 && from > script->begin ? (from - script->begin) / length : 0;
    int64_t last = length > 0 && to > script->begin ? (to - 1 - script->begin) / length : 0;
    car_status status = CAR_OK;
    for (int64_t times = first; times <= last; times++) {
        /* What comes before the period is there once. */
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

int64_t car_script_slot(const car_plan *plan, int64_t step, int worker, int stage, bool backward) {
    const car_script *script = plan->script;
    const car_task_list *own = &script->devices[car_plan_device(plan, step, worker, stage)];
    for (int n = own->count - 1; n >= 0; n--) { /* the last one is the one that repeats */
        const car_task *task = &own->tasks[n];
        bool same = task->kind == (backward ? CAR_TASK_BACKWARD : CAR_TASK_FORWARD) && task->worker == worker &&
                    task->stage == stage && task->step <= step;
        int64_t later = step - task->step;
        if (same && (later == 0 || (script->repeated > 0 && later % script->repeated == 0))) {
            return task->slot + (later ? later / script->repeated * (script->end - script->begin) : 0);
        }
    }
    return 0;
}

/* ---- reading: what follows from the tasks ------------------------------------------------------ */

static car_status refuse(const car_plan *plan, const char *what, int64_t a, int64_t b) {
    return car_context_fail(plan->context, CAR_ERROR_FORMAT, what, (long long)a, (long long)b);
}

/* What a task of its kind must say, and braces may say wrongly. The rest is the validator's. */
static bool is_complete(const car_plan *plan, const car_task *task) {
    bool message = task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE;
    bool stage = !car_task_names_bundle(task);
    return task->worker >= (stage ? 0 : CAR_NONE) && task->worker < plan->config.workers && task->stage >= 0 &&
           task->stage < plan->stages && task->bundle >= (stage ? CAR_NONE : 0) &&
           task->bundle < plan->partition->bundle_count && task->peer >= (message ? 0 : CAR_NONE) &&
           task->peer < plan->devices;
}

/* Numbers that a file may have written are bounded by what it holds, so that nobody reserves memory for them. */
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
                    "%s on device %d in slot %lld lacks a worker or a device, or names one that is not "
                    "there",
                    text, d, (long long)task->slot);
            }
            if (task->slot < 0 || task->slot >= MOST_SLOTS) {
                return refuse(plan, "the plan has a task in slot %lld; there must be 0 to %lld", task->slot,
                              MOST_SLOTS - 1);
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

/* The header's number of steps is what the table has. */
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
                return car_plan_fail_at(
                    plan, task->step + 1, task,
                    "the plan's header says steps=%lld, and %s on device %d in slot %lld is one too "
                    "many: it or one before it is not what it should be",
                    (long long)script->steps, text, d, (long long)task->slot);
            }
        }
    }
    return script->end == 0 && steps < script->steps
               ? refuse(plan, "the plan's header says steps=%lld, but it has tasks of %lld", script->steps, steps)
               : CAR_OK;
}

/* The first step with a task of any device that uses a version of a bundle. */
static int64_t find_use(const car_plan *plan, int bundle, int64_t version) {
    int64_t first = CAR_NONE;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < plan->script->devices[d].count; n++) {
            const car_task *task = &plan->script->devices[d].tasks[n];
            bool tied = bundle >= plan->stages;
            if (car_task_computes(task) && task->stage == plan->partition->bundles[bundle].stage &&
                (tied ? task->tied_version : task->version) == version) {
                first = first == CAR_NONE || task->step < first ? task->step : first;
            }
        }
    }
    return first;
}

/* The same where the first user comes after the period: a period earlier it was in it. */
static int64_t first_use(const car_plan *plan, int bundle, int64_t version) {
    int64_t repeated = plan->script->repeated, first = find_use(plan, bundle, version);
    if (first == CAR_NONE && repeated > 0 && version > repeated) {
        first = find_use(plan, bundle, version - repeated);
        first = first == CAR_NONE ? CAR_NONE : first + repeated;
    }
    return first == CAR_NONE ? version : first;
}

static car_status find_needed(car_plan *plan) {
    car_script *script = plan->script;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, (size_t)plan->devices, sizeof *script->needed, &script->needed));
    for (int d = 0; d < plan->devices; d++) {
        const car_task_list *own = &script->devices[d];
        CAR_TRY(
            car_context_allocate(plan->context, (size_t)own->capacity, sizeof **script->needed, &script->needed[d]));
        for (int n = 0; n < own->count; n++) {
            const car_task *task = &own->tasks[n];
            bool weights = task->cargo == CAR_CARGO_WEIGHTS;
            script->needed[d][n] = weights ? first_use(plan, task->bundle, task->version) : task->step;
        }
    }
done:
    return status;
}

/* Windows are so long that a step's tasks are over two windows after the one with its number, as in other plans. */
static void choose_window(car_plan *plan) {
    car_script *script = plan->script;
    int64_t length = script->end - script->begin;
    script->window = script->repeated > 0 ? (length + script->repeated - 1) / script->repeated : 1;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            const car_task *task = &script->devices[d].tasks[n];
            int64_t windows = larger(task->step, 0) + 3;
            script->window = larger(script->window, (task->slot + windows) / windows);
        }
    }
    plan->period = script->window;
}

/* Shows the first forward of a period that has no whole number of steps; the drawing wants a table without one. */
static car_status refuse_period(car_plan *plan, int64_t forwards) {
    car_script *script = plan->script;
    car_task first = {.slot = script->begin, .worker = CAR_NONE, .stage = CAR_NONE, .bundle = CAR_NONE};
    car_status status = CAR_OK;
    for (int d = 0; d < plan->devices; d++) {
        for (int n = script->devices[d].count - 1; n >= 0; n--) {
            const car_task *task = &script->devices[d].tasks[n];
            bool counts = task->kind == CAR_TASK_FORWARD && task->stage == 0 && task->slot >= script->begin &&
                          task->slot < script->end;
            first = counts && (first.worker == CAR_NONE || task->slot < first.slot) ? *task : first;
        }
    }
    script->begin = script->end = script->repeated = 0;
    CAR_TRY(find_needed(plan));
    choose_window(plan);
    status =
        car_plan_fail_at(plan, INT32_MAX, &first,
                         "the plan's period has %lld forwards of stage 0, which is no whole number of steps for %d "
                         "workers",
                         (long long)forwards, plan->config.workers);
done:
    return status;
}

/* How many steps a period has: as many as it has forwards of the first stage for a worker. */
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
    script->repeated = forwards / plan->config.workers;
    return script->repeated * plan->config.workers == forwards && forwards > 0 ? CAR_OK : refuse_period(plan, forwards);
}

/* Whose weights are late, if it is the same in every step. */
static car_status find_delays(car_plan *plan) {
    car_script *script = plan->script;
    size_t cells = (size_t)plan->config.workers * (size_t)plan->stages;
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
                unsigned char *delay = &script->delays[task->worker * plan->stages + task->stage];
                if (pass == 0) {
                    *delay = task->version < task->step;
                }
                any = any || *delay;
                script->exact = script->exact && task->version == task->step - *delay;
                for (int b = plan->stages; b < plan->partition->bundle_count; b++) {
                    const car_bundle *tied = &plan->partition->bundles[b];
                    int64_t late = script->delays[task->worker * plan->stages + tied->home];
                    script->exact = script->exact && (tied->stage != task->stage || pass == 0 ||
                                                      task->tied_version == task->step - late);
                }
            }
        }
    }
    /* An executor keeps the version before the newest if the first worker wants it. */
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
                            "behind its period the plan is not what the period repeats: device %d %s %s in slot %lld; "
                            "leave out what comes behind the period, or mend it",
                            device, how, text, (long long)task->slot);
}

/* What the file has behind the period, a drain for instance, must be what comes of the period in a run of its steps. */
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

/* The slot in which a message is used at its other end: the same one of its channel. */
static void find_due(const car_plan *plan, int device, int n) {
    car_script *script = plan->script;
    car_task *send = &script->devices[device].tasks[n];
    const car_task_list *theirs = &script->devices[send->peer];
    for (int m = 0; m < theirs->count; m++) {
        const car_task *task = &theirs->tasks[m];
        int64_t later = send->step - task->step, times = script->repeated > 0 ? later / script->repeated : 0;
        bool same = task->kind == CAR_TASK_RECEIVE && task->peer == device && task->cargo == send->cargo &&
                    task->worker == send->worker && task->stage == send->stage && task->bundle == send->bundle;
        if (same && later >= 0 && later == times * script->repeated) {
            int64_t due = task->slot + times * (script->end - script->begin);
            send->due = due > send->slot ? due : send->due;
        }
    }
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
    CAR_TRY(find_needed(plan));
    choose_window(plan);
    CAR_TRY(check_steps(plan));
    CAR_TRY(find_delays(plan));
    for (int i = 0; i < plan->config.workers; i++) {
        script->first_end = larger(script->first_end, car_script_slot(plan, 0, i, 0, true));
    }
    for (int d = 0; d < plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            if (script->devices[d].tasks[n].kind == CAR_TASK_SEND) {
                script->devices[d].tasks[n].due = script->devices[d].tasks[n].slot + 1;
                find_due(plan, d, n);
            }
        }
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
    memset(devices, 0, (size_t)plan->devices * sizeof *devices); /* they are the script's now */
done:
    return status;
}

void car_script_destroy(car_plan *plan) {
    car_script *script = plan->script;
    if (!script) {
        return;
    }
    car_context_release(plan->context, script->delays, (size_t)plan->config.workers * (size_t)plan->stages, 1);
    for (int d = 0; d < plan->devices; d++) {
        if (script->needed) {
            car_context_release(plan->context, script->needed[d], (size_t)script->devices[d].capacity,
                                sizeof **script->needed);
        }
        if (script->devices) {
            car_task_list_release(plan, &script->devices[d]);
        }
    }
    car_context_release(plan->context, script->needed, (size_t)plan->devices, sizeof *script->needed);
    car_context_release(plan->context, script->devices, (size_t)plan->devices, sizeof *script->devices);
    car_context_release(plan->context, script, 1, sizeof *script);
    plan->script = NULL;
}
