/* A plan's table that can be changed. */
#include "support/mutant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/mutations.h"

void car_mutant_open(car_mutant *mutant, const car_plan *plan, int64_t steps, uint64_t seed) {
    const car_plan_config *config = car_plan_config_of(plan);
    car_task_list list = {0};
    *mutant = (car_mutant){.plan = plan,
                           .steps = steps,
                           .period = car_plan_period(plan),
                           .devices = car_plan_devices(plan),
                           .workers = config->workers,
                           .stages = car_plan_partition(plan)->stage_count,
                           .placement = config->placement,
                           .seed = seed};
    assert_true(mutant->devices <= CAR_MUTANT_DEVICES);
    for (int device = 0; device < mutant->devices; device++) {
        for (int64_t window = 0; window < car_plan_windows(plan, steps); window++) {
            assert_int_equal(car_plan_expand(plan, device, window, steps, &list), CAR_OK);
            for (int n = 0; n < list.count; n++) {
                car_mutant_insert(mutant, (car_spot){device, mutant->rows[device].count}, list.tasks[n]);
            }
        }
    }
    car_task_list_release(plan, &list);
}

void car_mutant_close(car_mutant *mutant) {
    for (int device = 0; device < mutant->devices; device++) {
        free(mutant->rows[device].tasks);
    }
}

/* A task moved beyond all windows stays in the last one, so that the validator sees it. */
static int64_t window_of(const car_mutant *mutant, const car_task *task, int64_t windows) {
    int64_t window = task->slot < 0 ? 0 : task->slot / mutant->period;
    return window < windows ? window : windows - 1;
}

static car_status expand(void *user, int device, int64_t window, int64_t steps, car_task_list *list) {
    const car_mutant *mutant = user;
    const car_mutant_row *row = &mutant->rows[device];
    int64_t windows = car_plan_windows(mutant->plan, steps);
    car_status status = CAR_OK;
    list->count = 0;
    for (int n = 0; n < row->count; n++) {
        if (window_of(mutant, &row->tasks[n], windows) == window) {
            CAR_TRY(car_context_grow(car_plan_context(mutant->plan), &list->tasks, &list->capacity, list->count + 1,
                                     sizeof *list->tasks));
            list->tasks[list->count++] = row->tasks[n];
        }
    }
done:
    return status;
}

static void change_uses(void *user, int rank, int number, const car_task *task, struct car_use_list *uses) {
    car_mutant *mutant = user;
    (void)rank, (void)number;
    for (int u = 0; mutant->ends && u < uses->count; u++) {
        if (mutant->ends(mutant, task, (int)car_use_kind(&uses->uses[u]))) {
            uses->uses[u].last = mutant->last;
        }
    }
}

car_task_source car_mutant_source(car_mutant *mutant) {
    return (car_task_source){.expand = expand, .user = mutant, .change_uses = change_uses};
}

int car_mutant_roll(car_mutant *mutant, int sides) {
    return (int)(car_random_u64(mutant->seed, mutant->rolls++) % (uint64_t)sides);
}

car_task *car_mutant_task(car_mutant *mutant, car_spot spot) {
    return &mutant->rows[spot.device].tasks[spot.at];
}

void car_mutant_insert(car_mutant *mutant, car_spot spot, car_task task) {
    car_mutant_row *row = &mutant->rows[spot.device];
    if (row->count == row->capacity) {
        row->capacity = row->capacity ? 2 * row->capacity : 64;
        car_task *larger = realloc(row->tasks, (size_t)row->capacity * sizeof *row->tasks);
        assert_non_null(larger);
        row->tasks = larger;
    }
    memmove(row->tasks + spot.at + 1, row->tasks + spot.at, (size_t)(row->count - spot.at) * sizeof *row->tasks);
    row->tasks[spot.at] = task;
    row->count++;
}

void car_mutant_insert_in_slot(car_mutant *mutant, int device, car_task task, bool first) {
    const car_mutant_row *row = &mutant->rows[device];
    car_spot spot = {device, 0};
    while (spot.at < row->count &&
           (row->tasks[spot.at].slot < task.slot || (!first && row->tasks[spot.at].slot == task.slot))) {
        spot.at++;
    }
    car_mutant_insert(mutant, spot, task);
}

car_task car_mutant_erase(car_mutant *mutant, car_spot spot) {
    car_mutant_row *row = &mutant->rows[spot.device];
    car_task task = row->tasks[spot.at];
    memmove(row->tasks + spot.at, row->tasks + spot.at + 1, (size_t)(row->count - spot.at - 1) * sizeof *row->tasks);
    row->count--;
    return task;
}

car_spot car_mutant_find(car_mutant *mutant, car_mutant_wanted wanted) {
    car_spot found = {CAR_NONE, CAR_NONE};
    int count = 0;
    for (int device = 0; device < mutant->devices; device++) {
        for (int at = 0; at < mutant->rows[device].count; at++) {
            car_spot spot = {device, at};
            if (wanted(mutant, spot, car_mutant_task(mutant, spot)) && car_mutant_roll(mutant, ++count) == 0) {
                found = spot;
            }
        }
    }
    return found;
}

car_spot car_mutant_other_end(car_mutant *mutant, car_spot spot) {
    const car_task *task = car_mutant_task(mutant, spot);
    int before = 0; /* earlier messages on the same channel */
    for (int at = 0; at < spot.at; at++) {
        const car_task *other = &mutant->rows[spot.device].tasks[at];
        before += other->kind == task->kind && other->peer == task->peer && other->tag == task->tag;
    }
    car_task_kind kind = task->kind == CAR_TASK_SEND ? CAR_TASK_RECEIVE : CAR_TASK_SEND;
    for (int at = 0; at < mutant->rows[task->peer].count; at++) {
        const car_task *other = &mutant->rows[task->peer].tasks[at];
        if (other->kind == kind && other->peer == spot.device && other->tag == task->tag && before-- == 0) {
            return (car_spot){task->peer, at};
        }
    }
    fail_msg("a message without another end");
    return (car_spot){CAR_NONE, CAR_NONE};
}

/* ---- all kinds of changes ------------------------------------------------------------------------------- */

static const car_mutation *mutation_of(int kind) {
    int messages = 0, tasks = 0;
    const car_mutation *of_messages = car_mutations_of_messages(&messages), *of_tasks = car_mutations_of_tasks(&tasks);
    return kind < messages ? &of_messages[kind] : &of_tasks[kind - messages];
}

int car_mutation_count(void) {
    int messages = 0, tasks = 0;
    car_mutations_of_messages(&messages);
    car_mutations_of_tasks(&tasks);
    return messages + tasks;
}

const char *car_mutation_name(int kind) {
    return mutation_of(kind)->name;
}

bool car_mutation_apply(int kind, car_mutant *mutant) {
    return mutation_of(kind)->apply(mutant);
}
