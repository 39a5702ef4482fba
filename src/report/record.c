/* Extracts from a recorder what the reports need; see record.h. */
#include "report/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- choosing the part to show ------------------------------------------------------------------ */

bool car_record_shows(const car_record *record, const car_span *span) {
    return span->end > record->begin && span->start < record->end;
}

/* What is collected over all recorded tasks. */
typedef struct extent {
    double begin, end;             /* of the tasks that count */
    bool has_earlier, has_later;   /* true if there are forwards and backwards of other steps */
    int64_t first_slot, last_slot; /* of the forwards and backwards of the shown steps */
} extent;

static void note_steps(const car_record *record, const car_span *span, extent *e) {
    const car_task *task = &span->task;
    if (!car_task_computes(task)) {
        return;
    }
    e->has_earlier = e->has_earlier || task->step < record->first_step;
    e->has_later = e->has_later || task->step >= record->end_step;
    if (task->step >= record->first_step && task->step < record->end_step) {
        e->first_slot = task->slot < e->first_slot ? task->slot : e->first_slot;
        e->last_slot = task->slot > e->last_slot ? task->slot : e->last_slot;
    }
}

/* A forward or backward belongs to its step. Any other task belongs to its slot, so that a sum still in flight does
 * not extend the time. At the beginning or end of a run, everything before or after belongs to it, too. */
static void note_times(const car_record *record, const car_span *span, extent *e) {
    const car_task *task = &span->task;
    bool own = car_task_computes(task)
                   ? task->step >= record->first_step && task->step < record->end_step
                   : (!e->has_earlier || task->slot >= e->first_slot) && (!e->has_later || task->slot <= e->last_slot);
    if (own) {
        e->begin = fmin(e->begin, span->start);
        e->end = fmax(e->end, span->end);
    }
}

static void note_shown(const car_record *record, const car_span *span, extent *e) {
    if (car_record_shows(record, span)) {
        e->begin = fmin(e->begin, span->start);
    }
}

static void for_spans(const car_record *record, void (*note)(const car_record *, const car_span *, extent *),
                      extent *e) {
    for (int r = 0; r < record->recorder->journal_count; r++) {
        const car_journal *journal = &record->recorder->journals[r];
        for (int p = 0; p < journal->track_count; p++) {
            for (int s = 0; s < journal->tracks[p].span_count; s++) {
                note(record, &journal->tracks[p].spans[s], e);
            }
        }
    }
}

static void find_extent(car_record *record) {
    extent e = {.begin = INFINITY, .end = -INFINITY, .first_slot = INT64_MAX, .last_slot = INT64_MIN};
    for_spans(record, note_steps, &e);
    if (e.last_slot < e.first_slot) {
        return; /* nothing was recorded */
    }
    for_spans(record, note_times, &e);
    record->begin = e.begin;
    record->end = e.end;
    for_spans(record, note_shown, &e);
    record->zero = e.begin;
}

int64_t car_record_ns(const car_record *record, double when) {
    return llround((when - record->zero) * 1e9);
}

int car_record_stage(const car_record *record, const car_task *task) {
    bool crosses = task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT;
    return car_task_computes(task) || crosses ? task->stage
                                              : car_plan_partition(record->plan)->bundles[task->bundle].stage;
}

bool car_record_is_messages(const car_record *record, const car_journal *journal, int track) {
    return record->recorder->config.messages && track == journal->track_count - 1;
}

void car_record_lane(const car_record *record, const car_journal *journal, int track, char *text, size_t capacity) {
    bool ranks = !car_placement_info_of(car_plan_config_of(record->plan)->placement)->one_process;
    if (!ranks) {
        snprintf(text, capacity, "thread %d", track);
    } else if (car_record_is_messages(record, journal, track)) {
        snprintf(text, capacity, "rank %d messages", journal->rank);
    } else if (journal->track_count - record->recorder->config.messages == 1) {
        snprintf(text, capacity, "rank %d", journal->rank);
    } else {
        snprintf(text, capacity, "rank %d thread %d", journal->rank, track);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* One end of a message. */
typedef struct end_of_message {
    const car_span *span;
    int from, to, track;
} end_of_message;

typedef struct end_list {
    end_of_message *ends;
    int count, capacity;
} end_list;

static int compare(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* Compares what is carried and between whom. The same cargo may go the same way twice, first in, first out. */
static int compare_messages(const end_of_message *a, const end_of_message *b) {
    const car_task *s = &a->span->task, *t = &b->span->task;
    const int64_t left[] = {a->from, a->to, s->tag, s->cargo, s->bundle, s->stage, s->micro_batch, s->step, s->version};
    const int64_t right[] = {b->from,  b->to,          t->tag,  t->cargo,  t->bundle,
                             t->stage, t->micro_batch, t->step, t->version};
    int order = 0;
    for (size_t k = 0; order == 0 && k < sizeof left / sizeof left[0]; k++) {
        order = compare(left[k], right[k]);
    }
    return order;
}

static int compare_ends(const void *left, const void *right) {
    const end_of_message *a = left, *b = right;
    int order = compare_messages(a, b);
    return order ? order : (a->span->start > b->span->start) - (a->span->start < b->span->start);
}

static int compare_flights(const void *left, const void *right) {
    const car_flight *a = left, *b = right;
    return (a->sent > b->sent) - (a->sent < b->sent);
}

/* Lists all recorded sends, or all receives. */
static car_status list_ends(const car_recorder *recorder, car_task_kind kind, end_list *list) {
    car_status status = CAR_OK;
    for (int r = 0; r < recorder->journal_count; r++) {
        const car_journal *journal = &recorder->journals[r];
        for (int p = 0; p < journal->track_count; p++) {
            for (int s = 0; s < journal->tracks[p].span_count; s++) {
                const car_span *span = &journal->tracks[p].spans[s];
                if (span->task.kind != kind) {
                    continue;
                }
                CAR_TRY(car_context_grow(recorder->context, &list->ends, &list->capacity, list->count + 1,
                                         sizeof *list->ends));
                bool sends = kind == CAR_TASK_SEND;
                list->ends[list->count++] = (end_of_message){.span = span,
                                                             .from = sends ? journal->rank : span->task.peer,
                                                             .to = sends ? span->task.peer : journal->rank,
                                                             .track = p};
            }
        }
    }
    car_sort(list->ends, (size_t)list->count, sizeof *list->ends, compare_ends);
done:
    return status;
}

/* Clocks agree only to some microseconds, but nothing arrives before it was sent. */
static double arrival_of(const end_of_message *send, const end_of_message *receive) {
    return receive ? fmax(receive->span->arrived, send->span->end) : 0;
}

static car_status match(car_record *record, const end_list *sends, const end_list *receives) {
    car_status status = CAR_OK;
    int next = 0;
    for (int s = 0; s < sends->count; s++) {
        const end_of_message *send = &sends->ends[s];
        while (next < receives->count && compare_messages(&receives->ends[next], send) < 0) {
            next++;
        }
        bool found = next < receives->count && compare_messages(&receives->ends[next], send) == 0;
        const end_of_message *receive = found ? &receives->ends[next++] : NULL;
        if (!car_record_shows(record, send->span)) {
            continue;
        }
        CAR_TRY(car_context_grow(record->recorder->context, &record->flights, &record->flight_capacity,
                                 record->flight_count + 1, sizeof *record->flights));
        record->flights[record->flight_count++] = (car_flight){.send = send->span,
                                                               .receive = receive ? receive->span : NULL,
                                                               .from = send->from,
                                                               .to = send->to,
                                                               .from_track = send->track,
                                                               .to_track = receive ? receive->track : 0,
                                                               .sent = send->span->end,
                                                               .arrived = arrival_of(send, receive)};
    }
    car_sort(record->flights, (size_t)record->flight_count, sizeof *record->flights, compare_flights);
done:
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

car_status car_record_open(const car_recorder *recorder, const car_plan *plan, int64_t first_step, int64_t end_step,
                           car_record *out) {
    end_list sends = {0}, receives = {0};
    car_status status = CAR_OK;
    *out = (car_record){.recorder = recorder, .plan = plan, .first_step = first_step, .end_step = end_step};
    find_extent(out);
    CAR_TRY(list_ends(recorder, CAR_TASK_SEND, &sends));
    CAR_TRY(list_ends(recorder, CAR_TASK_RECEIVE, &receives));
    CAR_TRY(match(out, &sends, &receives));
done:
    car_context_release(recorder->context, receives.ends, (size_t)receives.capacity, sizeof *receives.ends);
    car_context_release(recorder->context, sends.ends, (size_t)sends.capacity, sizeof *sends.ends);
    if (status != CAR_OK) {
        car_record_close(out);
    }
    return status;
}

void car_record_close(car_record *record) {
    if (record->recorder) {
        car_context_release(record->recorder->context, record->flights, (size_t)record->flight_capacity,
                            sizeof *record->flights);
    }
    *record = (car_record){0};
}
