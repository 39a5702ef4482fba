/* Computes the bytes sent in each slot; see slot_bytes.h. */
#include "report/slot_bytes.h"

#include <math.h>

enum { STEADY_WINDOW = 3, STEADY_STEPS = 1000 };

static const int64_t few_enough = 1 << 22; /* devices times stages: larger plans are not walked */

/* In a collective of b bytes over g ranks each rank sends b * (g-1)/g, twice that if all get the result: the
 * minimum. */
static double bytes_sent(const car_plan *plan, const car_task *task) {
    double bytes = (double)car_plan_task_bytes(plan, task);
    int group = car_plan_stage_ranks(plan, task->stage);
    switch (task->kind) {
    case CAR_TASK_SEND:
        return bytes;
    case CAR_TASK_REDUCE:
        return bytes * (group - 1) / group * (task->peer == CAR_NONE ? 2 : 1);
    case CAR_TASK_BROADCAST:
        return bytes * (group - 1) / group;
    default:
        return 0;
    }
}

static car_status read_plan(const car_plan *plan, car_slot_bytes *out) {
    car_task_list list = {0};
    car_status status = CAR_OK;
    if ((int64_t)car_plan_devices(plan) * car_plan_partition(plan)->stage_count > few_enough) {
        return CAR_OK;
    }
    for (int d = 0; d < car_plan_devices(plan); d++) {
        CAR_TRY(car_plan_expand(plan, d, STEADY_WINDOW, STEADY_STEPS, &list));
        for (int k = 0; k < list.count; k++) {
            out->plan[list.tasks[k].slot % out->slots] += bytes_sent(plan, &list.tasks[k]);
        }
    }
done:
    car_task_list_release(plan, &list);
    return status;
}

/* The time when worker 0 began a step; NaN if that was not recorded. */
static double start_of(const car_record *record, int64_t step) {
    for (int r = 0; r < record->recorder->journal_count; r++) {
        const car_journal *journal = &record->recorder->journals[r];
        for (int p = 0; p < journal->track_count; p++) {
            for (int s = 0; s < journal->tracks[p].span_count; s++) {
                const car_task *task = &journal->tracks[p].spans[s].task;
                if (task->kind == CAR_TASK_FORWARD && task->micro_batch == 0 && task->stage == 0 &&
                    task->step == step) {
                    return journal->tracks[p].spans[s].start;
                }
            }
        }
    }
    return NAN;
}

/* Adds what was sent between the start of a step and that of the next. */
static bool add_step(const car_record *record, int64_t step, car_slot_bytes *out) {
    const car_recorder *recorder = record->recorder;
    double start = start_of(record, step), length = start_of(record, step + 1) - start;
    if (!(length > 0)) {
        return false;
    }
    for (int r = 0; r < recorder->journal_count; r++) {
        for (int p = 0; p < recorder->journals[r].track_count; p++) {
            const car_track *track = &recorder->journals[r].tracks[p];
            for (int s = 0; s < track->span_count; s++) {
                const car_span *span = &track->spans[s];
                double when = span->task.kind == CAR_TASK_SEND ? span->end : span->posted;
                double share = (when - start) / length, bytes = bytes_sent(record->plan, &span->task);
                if (bytes > 0 && share >= 0 && share < 1) {
                    out->measured[(int)(share * out->slots)] += bytes;
                }
            }
        }
    }
    return true;
}

car_status car_slot_bytes_create(const car_record *record, car_slot_bytes *out) {
    car_context *context = record->recorder->context;
    car_status status = CAR_OK;
    int steps = 0;
    *out = (car_slot_bytes){.slots = (int)car_plan_period(record->plan)};
    CAR_TRY(car_context_allocate(context, (size_t)out->slots, sizeof *out->plan, &out->plan));
    CAR_TRY(read_plan(record->plan, out));
    if (record->recorder->journal_count == 1) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(context, (size_t)out->slots, sizeof *out->measured, &out->measured));
    for (int64_t step = record->first_step; step < record->end_step; step++) {
        steps += add_step(record, step, out);
    }
    for (int k = 0; k < out->slots && steps > 0; k++) {
        out->measured[k] /= steps;
    }
    if (steps == 0) {
        car_context_release(context, out->measured, (size_t)out->slots, sizeof *out->measured);
        out->measured = NULL;
    }
done:
    return status;
}

void car_slot_bytes_release(const car_record *record, car_slot_bytes *bytes) {
    car_context *context = record->recorder->context;
    car_context_release(context, bytes->measured, (size_t)bytes->slots, sizeof *bytes->measured);
    car_context_release(context, bytes->plan, (size_t)bytes->slots, sizeof *bytes->plan);
}
