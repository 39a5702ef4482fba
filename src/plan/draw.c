/* Draws a plan as a grid: rows are workers or ranks, columns are slots.
 *
 *     slot      6  7  8  9  10 11
 *     worker 0  0  1  2  2' 1' 0'
 *     worker 1  1' 0' 0  1  2  2'
 *     worker 2  2  2' 1' 0' 0  1
 *
 * 2' is the backward of stage 2. Where a row serves several workers, a cell also names the micro-batch of the step:
 * 2.1' is worker 1's first. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "plan/text.h"

enum { CELL_TEXT = 28 };

typedef struct cell {
    char text[CELL_TEXT]; /* "" if nothing is computed */
    bool marked;
} cell;

typedef struct row {
    int device, worker; /* worker: CAR_NONE if the row serves all workers of the device */
    cell *cells;
} row;

typedef struct drawing {
    const car_plan *plan;
    car_context *context;
    const car_task *marked;
    int64_t first_slot; /* the first slot shown */
    int columns;
    int first_device, end_device;
    row *rows;
    int count, capacity;
    bool by_worker; /* a row is a worker, not a device */
} drawing;

/* ---- what is shown --------------------------------------------------------------------------- */

/* Narrow enough for a screen; a drawing in an error message shows only the surroundings of the mark. */
static int most_columns(const drawing *d) {
    return d->marked ? 20 : 100;
}
static int most_rows(const drawing *d) {
    return d->marked ? 12 : 64;
}

/* The first of `most` shown out of `total`, with `wanted` in the middle if possible. */
static int64_t first_shown(int64_t total, int64_t most, int64_t wanted) {
    int64_t first = wanted - most / 2, last_first = total - most;
    return first > last_first ? (last_first > 0 ? last_first : 0) : first > 0 ? first : 0;
}

static void choose_part(drawing *d, int64_t window) {
    const car_task *marked = d->marked;
    int64_t period = car_plan_period(d->plan), begin = window * period;
    int devices = car_plan_devices(d->plan);
    int64_t slot = marked ? marked->slot - begin : 0;
    d->columns = period < most_columns(d) ? (int)period : most_columns(d);
    d->first_slot = begin + first_shown(period, d->columns, slot);
    bool placed = marked && marked->micro_batch >= 0 && marked->stage >= 0 && marked->step >= 0 &&
                  marked->micro_batch < car_plan_micro_batches(d->plan) &&
                  marked->stage < car_plan_partition(d->plan)->stage_count;
    int device = placed ? car_plan_device(d->plan, marked->step, marked->micro_batch, marked->stage) : 0;
    d->first_device = (int)first_shown(devices, most_rows(d), device);
    d->end_device = devices - d->first_device < most_rows(d) ? devices : d->first_device + most_rows(d);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static car_status add_row(drawing *d, int device, int worker) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(d->context, &d->rows, &d->capacity, d->count + 1, sizeof *d->rows));
    d->rows[d->count] = (row){.device = device, .worker = worker};
    CAR_TRY(car_context_allocate(d->context, (size_t)d->columns, sizeof(cell), &d->rows[d->count].cells));
    d->count++;
done:
    return status;
}

/* Adds the rows of a device that has whole workers. */
static car_status add_workers(drawing *d, int device) {
    for (int i = 0; i < car_plan_config_of(d->plan)->workers; i++) {
        car_status status = car_plan_device(d->plan, 0, i, 0) == device ? add_row(d, device, i) : CAR_OK;
        if (status != CAR_OK) {
            return status;
        }
    }
    return CAR_OK;
}

/* Finds the row for a task, from row `first` on; adds one if a device does two things in one slot. */
static car_status find_row(drawing *d, int first, const car_task *task, int device, row **out) {
    int column = (int)(task->slot - d->first_slot), worker = task->micro_batch % car_plan_config_of(d->plan)->workers;
    for (int r = first; r < d->count; r++) {
        if (d->by_worker ? d->rows[r].worker == worker : !d->rows[r].cells[column].text[0]) {
            *out = &d->rows[r];
            return CAR_OK;
        }
    }
    car_status status = add_row(d, device, d->by_worker ? worker : CAR_NONE);
    *out = status == CAR_OK ? &d->rows[d->count - 1] : NULL;
    return status;
}

static bool same(const car_task *a, const car_task *b) {
    bool alike = a->kind == b->kind && a->micro_batch == b->micro_batch && a->stage == b->stage && a->step == b->step;
    return alike && (car_task_computes(a) || (a->cargo == b->cargo && a->bundle == b->bundle && a->peer == b->peer &&
                                              a->slot == b->slot && a->version == b->version));
}

static car_status add_task(drawing *d, int first, const car_task *task, int device) {
    bool marked = d->marked && same(task, d->marked);
    if (task->slot < d->first_slot || task->slot >= d->first_slot + d->columns ||
        (!car_task_computes(task) && !marked)) {
        return CAR_OK;
    }
    int column = (int)(task->slot - d->first_slot);
    row *r = d->count > first ? &d->rows[first] : NULL; /* the row for a marked message */
    if (car_task_computes(task)) {
        car_status status = find_row(d, first, task, device, &r);
        if (status != CAR_OK) {
            return status;
        }
        const char *prime = task->kind == CAR_TASK_BACKWARD ? "'" : "";
        char worker[16] = "";
        if (!d->by_worker) {
            snprintf(worker, sizeof worker, ".%d", task->micro_batch);
        }
        snprintf(r->cells[column].text, CELL_TEXT, "%d%s%s", task->stage, worker, prime);
    }
    if (r && marked) {
        r->cells[column].marked = true;
    }
    return CAR_OK;
}

static car_status fill(drawing *d, int64_t window, int64_t steps) {
    car_task_list list = {0};
    car_status status = CAR_OK;
    for (int device = d->first_device; device < d->end_device; device++) {
        int first = d->count;
        CAR_TRY(d->by_worker ? add_workers(d, device) : add_row(d, device, CAR_NONE));
        CAR_TRY(car_plan_expand(d->plan, device, window, steps, &list));
        for (int n = 0; n < list.count; n++) {
            CAR_TRY(add_task(d, first, &list.tasks[n], device));
        }
    }
done:
    car_task_list_release(d->plan, &list);
    return status;
}

/* ---- the text -------------------------------------------------------------------------------- */

static void label_row(const drawing *d, int r, char *label, size_t capacity) {
    const row *these = &d->rows[r];
    bool shared = car_placement_info_of(car_plan_config_of(d->plan)->placement)->one_process;
    bool alone =
        (r == 0 || these[-1].device != these->device) && (r + 1 == d->count || these[1].device != these->device);
    if (shared) {
        snprintf(label, capacity, "worker %d", these->worker);
    } else if (alone || !d->by_worker) {
        snprintf(label, capacity, "rank %d", these->device);
    } else {
        snprintf(label, capacity, "rank %d, worker %d", these->device, these->worker);
    }
}

static int width_of_cells(const drawing *d) {
    char number[24];
    int width = snprintf(number, sizeof number, "%lld", (long long)(d->first_slot + d->columns - 1));
    for (int r = 0; r < d->count; r++) {
        for (int c = 0; c < d->columns; c++) {
            const cell *these = &d->rows[r].cells[c];
            int length = (int)strlen(these->text) + 2 * these->marked + (these->marked && !these->text[0]);
            width = length > width ? length : width;
        }
    }
    return width + 1;
}

static void pad(car_text *text, int length, int width) {
    car_text_repeat(text, " ", width - length);
}

static void write_row(car_text *text, const drawing *d, const row *r, int width) {
    for (int c = 0; c < d->columns; c++) {
        const char *shown = r->cells[c].text[0] ? r->cells[c].text : ".";
        bool marked = r->cells[c].marked;
        car_text_add(text, marked ? "[%s]" : "%s", shown);
        pad(text, (int)strlen(shown) + 2 * marked, c + 1 < d->columns ? width : 0);
    }
    car_text_add(text, "\n");
}

static void write_grid(car_text *text, const drawing *d) {
    char label[48], number[24];
    int width = width_of_cells(d), labels = 0;
    for (int r = 0; r < d->count; r++) {
        label_row(d, r, label, sizeof label);
        labels = (int)strlen(label) > labels ? (int)strlen(label) : labels;
    }
    car_text_add(text, "slot");
    pad(text, 4, labels + 2);
    for (int c = 0; c < d->columns; c++) {
        long long slot = d->first_slot + c;
        int length = snprintf(number, sizeof number, "%lld", slot);
        car_text_add(text, "%s", number);
        pad(text, length, c + 1 < d->columns ? width : 0);
    }
    car_text_add(text, "\n");
    for (int r = 0; r < d->count; r++) {
        label_row(d, r, label, sizeof label);
        car_text_add(text, "%s", label);
        pad(text, (int)strlen(label), labels + 2);
        write_row(text, d, &d->rows[r], width);
    }
}

static void write_notes(car_text *text, const drawing *d) {
    int devices = car_plan_devices(d->plan), shown = d->end_device - d->first_device;
    bool shared = car_placement_info_of(car_plan_config_of(d->plan)->placement)->one_process;
    if (d->columns < car_plan_period(d->plan)) {
        car_text_add(text, "(only %d of %lld slots are shown)\n", d->columns, (long long)car_plan_period(d->plan));
    }
    if (shown < devices) {
        car_text_add(text, "(only %d of %d %s are shown)\n", shown, devices, shared ? "workers" : "ranks");
    }
    if (d->marked) {
        char task[CAR_TASK_TEXT];
        car_task_format(d->plan, d->marked, task, sizeof task);
        car_text_add(text, "[ ] marks %s in slot %lld\n", task, (long long)d->marked->slot);
    }
}

car_status car_plan_draw(const car_plan *plan, int64_t window, int64_t steps, const car_task *marked, char **out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    drawing d = {.plan = plan, .context = car_plan_context(plan), .marked = marked};
    d.by_worker = !car_placement_info_of(car_plan_config_of(plan)->placement)->by_stage;
    car_text text = {.context = d.context};
    choose_part(&d, window);
    text.status = fill(&d, window, steps);
    write_grid(&text, &d);
    write_notes(&text, &d);
    for (int r = 0; r < d.count; r++) {
        car_context_release(d.context, d.rows[r].cells, (size_t)d.columns, sizeof(cell));
    }
    car_context_release(d.context, d.rows, (size_t)d.capacity, sizeof *d.rows);
    return car_text_finish(&text, out);
}

car_status car_plan_fail_at(const car_plan *plan, int64_t steps, const car_task *task, const char *format, ...) {
    car_context *context = car_plan_context(plan);
    int64_t window = task->slot < 0 ? 0 : task->slot / car_plan_period(plan);
    char what[640], *grid = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (car_plan_draw(plan, window, steps, task, &grid) != CAR_OK) {
        car_context_clear_error(context);
    }
    car_context_fail(context, CAR_ERROR_FORMAT, "%s\n%s", what, grid ? grid : "");
    car_plan_release_text(plan, grid);
    return CAR_ERROR_FORMAT;
}
