/* The validator: proves on the finished table what docs/design.md claims about the cycle.
 *
 * It reads the whole table of a run, sorts the tasks of all devices into one order (by slot, then by subslot), and
 * runs one check after another. That order is a legal execution. A message is received in a later slot than it is
 * sent (validate_messages.c proves this), and nothing else passes between devices except collectives, which have
 * their own subslot. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/script.h"
#include "plan/validate_internal.h"

/* ---- failing ------------------------------------------------------------------------------------ */

/* A context keeps about a thousand characters. A grid that would be cut off is left out. */
enum { MESSAGE = 1024 };

static void append(char *message, size_t *length, const char *text) {
    int written = snprintf(message + *length, MESSAGE - *length, "%s", text);
    *length = *length + (size_t)written < MESSAGE ? *length + (size_t)written : MESSAGE - 1;
}

static void append_grid(const car_validation *v, const car_task *task, char *message, size_t *length) {
    char *grid = NULL;
    int64_t window = task->slot < 0 ? 0 : task->slot / v->period, windows = car_plan_windows(v->plan, v->steps);
    if (window >= windows || car_plan_draw(v->plan, window, v->steps, task, &grid) != CAR_OK) {
        return;
    }
    if (*length + strlen(grid) + 2 < MESSAGE) {
        append(message, length, "\n");
        append(message, length, grid);
    }
    car_plan_release_text(v->plan, grid);
}

car_status car_validate_fail(const car_validation *v, int index, const char *format, ...) {
    char message[MESSAGE], text[256];
    size_t length = 0;
    va_list arguments;
    snprintf(text, sizeof text, "plan %s %s N=%d S=%d: ", car_rule_text(v->config.rule),
             car_placement_text(v->config.placement), v->workers, v->stages);
    append(message, &length, text);
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    append(message, &length, text);
    if (index != CAR_NONE) {
        const car_task *task = &v->tasks[index];
        int device = 0;
        while (index >= v->first[device + 1]) {
            device++;
        }
        car_task_format(v->plan, task, text, sizeof text);
        append(message, &length, "; ");
        append(message, &length, text);
        snprintf(text, sizeof text, " on device %d in slot %lld", device, (long long)task->slot);
        append(message, &length, text);
        append_grid(v, task, message, &length);
    }
    return car_context_fail(v->context, CAR_ERROR_INTERNAL, "%s", message);
}

/* ---- the table ---------------------------------------------------------------------------------- */

static car_status expand(const car_validation *v, const car_task_source *source, int device, int64_t window,
                         car_task_list *list) {
    return source && source->expand ? source->expand(source->user, device, window, v->steps, list)
                                    : car_plan_expand(v->plan, device, window, v->steps, list);
}

/* Slots before slot 0 belong to the first window. */
static bool lies_in(const car_validation *v, int64_t slot, int64_t window) {
    int64_t begin = window == 0 ? -v->period : window * v->period;
    return slot >= begin && slot < (window + 1) * v->period;
}

static car_status load_device(car_validation *v, const car_task_source *source, int device, car_task_list *list) {
    car_status status = CAR_OK;
    int64_t windows = car_plan_windows(v->plan, v->steps);
    for (int64_t window = 0; window < windows; window++) {
        CAR_TRY(expand(v, source, device, window, list));
        CAR_TRY(car_context_grow(v->context, &v->tasks, &v->capacity, v->count + list->count, sizeof *v->tasks));
        if (list->count > 0) {
            memcpy(v->tasks + v->count, list->tasks, (size_t)list->count * sizeof *v->tasks);
        }
        v->count += list->count;
        v->first[device + 1] = v->count;
        for (int n = v->count - list->count; n < v->count; n++) {
            if (!lies_in(v, v->tasks[n].slot, window)) {
                CAR_TRY(car_validate_fail(v, n, "its slot is outside window %lld", (long long)window));
            }
        }
    }
done:
    return status;
}

/* ---- ranks -------------------------------------------------------------------------------------- */

static int compare_pointers(const void *left, const void *right) {
    const car_task *const *a = left, *const *b = right;
    int order = car_task_compare(*a, *b);
    return order ? order : (*a > *b) - (*a < *b); /* duplicates keep their order */
}

/* Fills in the places of all tasks. The devices of one rank are merged as an executor merges them. */
static car_status order_ranks(car_validation *v) {
    const car_task **sorted = NULL;
    car_status status = CAR_OK;
    for (int device = 0; device < v->devices; device++) {
        v->rank_of[device] = v->ranks == 1 ? 0 : device;
        v->rank_first[v->rank_of[device] + 1] = v->first[device + 1];
    }
    for (int n = 0; n < v->count; n++) {
        v->sequence[n] = n;
    }
    if (v->ranks < v->devices && v->count > 0) {
        CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *sorted, &sorted));
        for (int n = 0; n < v->count; n++) {
            sorted[n] = &v->tasks[n];
        }
        car_sort(sorted, (size_t)v->count, sizeof *sorted, compare_pointers);
        for (int n = 0; n < v->count; n++) {
            v->sequence[n] = (int)(sorted[n] - v->tasks);
        }
    }
done:
    car_context_release(v->context, sorted, sorted ? (size_t)v->count : 0, sizeof *sorted);
    return status;
}

car_status car_validate_arrange(car_validation *v) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->device_of, &v->device_of));
    for (int device = 0; device < v->devices; device++) {
        for (int n = v->first[device]; n < v->first[device + 1]; n++) {
            v->device_of[n] = device;
        }
    }
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->subslots, &v->subslots));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->order, &v->order));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->partner, &v->partner));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->sequence, &v->sequence));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->moving, &v->moving));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->finishing, &v->finishing));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count + 1, sizeof *v->edge_first, &v->edge_first));
    CAR_TRY(order_ranks(v));
done:
    return status;
}

static car_status load(car_validation *v, const car_task_source *source) {
    car_task_list list = {0};
    car_status status = CAR_OK;
    for (int device = 0; device < v->devices; device++) {
        CAR_TRY(load_device(v, source, device, &list));
    }
    CAR_TRY(car_validate_arrange(v));
done:
    car_task_list_release(v->plan, &list);
    return status;
}

static size_t compute_count(const car_validation *v) {
    return (size_t)v->steps * (size_t)v->batches * (size_t)v->stages * 2;
}

car_status car_validate_open(car_validation *v) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, (size_t)v->devices + 1, sizeof *v->first, &v->first));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->devices, sizeof *v->groups, &v->groups));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->devices, sizeof *v->rank_of, &v->rank_of));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->devices + 1, sizeof *v->rank_first, &v->rank_first));
    for (int group = 0; car_validate_in_groups(v) && group < v->workers; group++) {
        int first = 0, ranks = 0;
        car_validate_group(v, group, &first, &ranks);
        for (int device = first; device < first + ranks && device < v->devices; device++) {
            v->groups[device] = group;
        }
    }
done:
    return status;
}

void car_validate_close(car_validation *v) {
    size_t count = (size_t)v->count;
    car_validate_release_uses(v);
    car_context_release(v->context, v->edges, (size_t)v->edge_capacity, sizeof *v->edges);
    car_context_release(v->context, v->edge_first, v->edge_first ? count + 1 : 0, sizeof *v->edge_first);
    car_context_release(v->context, v->finishing, count, sizeof *v->finishing);
    car_context_release(v->context, v->moving, count, sizeof *v->moving);
    car_context_release(v->context, v->sequence, count, sizeof *v->sequence);
    car_context_release(v->context, v->partner, count, sizeof *v->partner);
    car_context_release(v->context, v->order, count, sizeof *v->order);
    car_context_release(v->context, v->subslots, count, sizeof *v->subslots);
    car_context_release(v->context, v->device_of, count, sizeof *v->device_of);
    car_context_release(v->context, v->tasks, (size_t)v->capacity, sizeof *v->tasks);
    car_context_release(v->context, v->rank_first, v->rank_first ? (size_t)v->devices + 1 : 0, sizeof *v->rank_first);
    car_context_release(v->context, v->rank_of, (size_t)v->devices, sizeof *v->rank_of);
    car_context_release(v->context, v->groups, (size_t)v->devices, sizeof *v->groups);
    car_context_release(v->context, v->computes, compute_count(v), sizeof *v->computes);
    car_context_release(v->context, v->first, (size_t)v->devices + 1, sizeof *v->first);
}

/* ---- all checks --------------------------------------------------------------------------------- */

static int expected_devices(const car_validation *v) {
    int N = v->workers;
    switch (v->config.placement) {
    case CAR_PLACEMENT_REPLICA:
        return v->config.ranks;
    case CAR_PLACEMENT_GRID:
        return v->passes ? N * (N + 1) / 2 : N * N;
    default:
        return N;
    }
}

car_validation car_validate_begin(const car_plan *plan, int64_t steps, const car_task_source *source) {
    const car_partition *partition = car_plan_partition(plan);
    const car_plan_config *config = car_plan_config_of(plan);
    car_rule rule = config->rule;
    bool cyclic = rule == CAR_RULE_CDP_V1 || rule == CAR_RULE_CDP_V2 || rule == CAR_RULE_2BW;
    bool pipeline = config->placement == CAR_PLACEMENT_PIPELINE, shared = config->placement == CAR_PLACEMENT_SHARED;
    bool spaced = cyclic || (rule == CAR_RULE_STAGGER && !pipeline);
    return (car_validation){
        .plan = plan,
        .context = car_plan_context(plan),
        .partition = partition,
        .config = *config,
        .workers = config->workers,
        .batches = config->workers * config->accumulate,
        .stages = partition->stage_count,
        .per_worker = partition->stage_count / config->workers,
        .bundles = partition->bundle_count,
        .devices = car_plan_devices(plan),
        .ranks = car_plan_ranks(plan),
        .source = source,
        .custom = plan->script != NULL,
        .max_delay = plan->script ? plan->script->max_delay : 1,
        .steps = steps,
        .period = car_plan_period(plan),
        .cyclic = cyclic,
        .spaced = spaced,
        .passes = spaced || (plan->script && !pipeline && !shared),
        .by_worker = config->accumulate > 1 && config->sum_order == CAR_SUM_ORDER_WORKER,
        .spread = rule == CAR_RULE_DP && !shared && !pipeline,
        .chains = config->placement == CAR_PLACEMENT_ZERO && config->zero_copies == 2,
    };
}

car_status car_plan_validate_tasks(car_plan *plan, int64_t steps, const car_task_source *source) {
    car_validation v = car_validate_begin(plan, steps, source);
    car_status status = CAR_OK;
    if (steps < 1) {
        return car_context_fail(v.context, CAR_ERROR_ARGUMENT, "cannot validate a run of %lld steps; use at least 1",
                                (long long)steps);
    }
    if (v.devices != expected_devices(&v)) {
        return car_validate_fail(&v, CAR_NONE, "it has %d devices instead of %d", v.devices, expected_devices(&v));
    }
    CAR_TRY(car_validate_open(&v));
    CAR_TRY(car_context_allocate(v.context, compute_count(&v), sizeof *v.computes, &v.computes));
    CAR_TRY(load(&v, source));
    CAR_TRY(car_validate_fields(&v));
    CAR_TRY(car_validate_order(&v));
    CAR_TRY(car_validate_messages(&v));
    CAR_TRY(car_validate_uses(&v));
    CAR_TRY(car_validate_activations(&v));
    CAR_TRY(car_validate_sums(&v));
    CAR_TRY(v.chains ? car_validate_chains(&v) : car_validate_versions(&v));
    CAR_TRY(car_validate_bounds(&v));
    CAR_TRY(car_validate_edges(&v, true));
    CAR_TRY(car_validate_dry_run(&v));
    plan->proven = plan->proven || !source;
done:
    car_validate_close(&v);
    return status;
}

car_status car_plan_validate(car_plan *plan, int64_t steps) {
    CAR_REQUIRE(NULL, plan);
    return car_plan_validate_tasks(plan, steps, NULL);
}
