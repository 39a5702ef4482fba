/* Writes a record as a trace for Perfetto and chrome://tracing (docs/formats.md).
 *
 *   process 1 .. R    the threads of a rank: tasks, their operations, the waiting between them; counters
 *   process R + 1     the workers: their tasks again, in one row per worker and rank
 *
 * Times are written in whole nanoseconds, so that nested slices stay nested after rounding. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "carousel/report.h"
#include "report/json.h"
#include "report/record.h"

typedef struct writer {
    car_json *json;
    const car_record *record;
    const car_graph *graph;
    int ranks;
    int stride; /* distance of row numbers between processes */
    bool *rows; /* the workers' process: which rows exist */
    bool begun; /* an event was written */
    int collectives;
} writer;

/* ---- events ---------------------------------------------------------------------------------- */

/* Writes the beginning that all events share; the caller closes the brace. Row numbers are unique, and never 0 or
 * the process's number, because viewers treat those specially. */
static void begin_event(writer *w, const char *kind, int process, int row) {
    car_json_add(w->json, "%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", w->begun ? "," : "", kind, process,
                 process * w->stride + row);
    w->begun = true;
}

static void add_time(writer *w, double when) {
    int64_t ns = car_record_ns(w->record, when);
    car_json_add(w->json, ",\"ts\":%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
}

static void begin_slice(writer *w, int process, int row, const char *category, double start, double end) {
    int64_t ns = car_record_ns(w->record, end) - car_record_ns(w->record, start);
    begin_event(w, "X", process, row);
    add_time(w, start);
    car_json_add(w->json, ",\"dur\":%" PRId64 ".%03d,\"cat\":\"%s\",\"name\":", ns / 1000, (int)(ns % 1000), category);
}

/* Names a task as in docs/plan.md, without the suffix: F3.1@v2. */
static void add_name(writer *w, const car_task *task) {
    char text[128], name[160];
    size_t length = 0;
    car_task_format(w->record->plan, task, text, sizeof text);
    for (const char *c = text; *c && *c != '-' && *c != '{'; c++) {
        name[length++] = *c;
        if (*c == '@') {
            name[length++] = 'v';
        }
    }
    name[length] = '\0';
    car_json_add_text(w->json, name);
}

static const char *kind_text(car_task_kind kind) {
    static const char *const texts[CAR_TASK_KINDS] = {
        [CAR_TASK_RECEIVE] = "receive",   [CAR_TASK_BROADCAST] = "broadcast", [CAR_TASK_FORWARD] = "forward",
        [CAR_TASK_BACKWARD] = "backward", [CAR_TASK_REDUCE] = "reduce",       [CAR_TASK_UPDATE] = "update",
        [CAR_TASK_SEND] = "send",
    };
    return texts[kind];
}

static void add_task(writer *w, int process, int row, const car_span *span) {
    const car_task *task = &span->task;
    size_t bytes = car_plan_task_bytes(w->record->plan, task);
    begin_slice(w, process, row, kind_text(task->kind), span->start, span->end);
    add_name(w, task);
    car_json_add(w->json, ",\"args\":{\"step\":%" PRId64 ",\"worker\":%d,\"stage\":%d,\"version\":%" PRId64, task->step,
                 car_plan_worker(w->record->plan, task->micro_batch), car_record_stage(w->record, task), task->version);
    if (car_plan_config_of(w->record->plan)->accumulate > 1 && task->micro_batch != CAR_NONE) {
        car_json_add(w->json, ",\"micro_batch\":%d", task->micro_batch);
    }
    if (bytes > 0) {
        car_json_add(w->json, ",\"bytes\":%zu,\"peer\":%d", bytes, task->peer);
    }
    car_json_add(w->json, ",\"slot\":%" PRId64 "}}", task->slot);
}

static void add_operation(writer *w, int process, int row, const car_note *note, bool backward) {
    const car_op *op = car_graph_op(w->graph, note->op);
    char name[256];
    snprintf(name, sizeof name, "%s%s", op->name, note->again ? " again" : backward ? "'" : "");
    begin_slice(w, process, row, "operation", note->start, note->end);
    car_json_add_text(w->json, name);
    car_json_add(w->json, ",\"args\":{\"kind\":\"%s\",\"held_during\":%zu,\"held_after\":%zu}}",
                 car_op_kind_text(op->kind), note->during, note->after);
}

static void add_span(writer *w, int process, int row, const car_track *track, const car_span *span) {
    add_task(w, process, row, span);
    for (int n = 0; n < span->notes; n++) {
        add_operation(w, process, row, &track->notes[span->first_note + n], span->task.kind == CAR_TASK_BACKWARD);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int row_of_worker(const writer *w, int worker, int rank) {
    return worker * w->ranks + rank;
}

static void add_waiting(writer *w, int process, int row, const car_span *before, const car_span *span) {
    double start = span->start - span->waited;
    start = before && before->end > start ? before->end : start;
    if (before && span->waited > 0 && span->start > start) {
        begin_slice(w, process, row, "wait", start, span->start);
        car_json_add(w->json, "\"waiting\"}");
    }
}

static void add_tracks(writer *w, const car_journal *journal) {
    for (int p = 0; p < journal->track_count; p++) {
        const car_track *track = &journal->tracks[p];
        const car_span *before = NULL;
        for (int s = 0; s < track->span_count; s++) {
            const car_span *span = &track->spans[s];
            if (!car_record_shows(w->record, span)) {
                continue;
            }
            add_waiting(w, journal->rank + 1, p, before, span);
            add_span(w, journal->rank + 1, p, track, span);
            before = span;
            if (span->row != CAR_NONE) {
                int row = row_of_worker(w, span->row, journal->rank);
                w->rows[row] = true;
                add_span(w, w->ranks + 1, row, track, span);
            }
        }
    }
}

static void add_label(writer *w, const char *what, int process, int row, const char *text, int order) {
    begin_event(w, "M", process, row);
    car_json_add(w->json, ",\"name\":\"%s_name\",\"args\":{\"name\":", what);
    car_json_add_text(w->json, text);
    car_json_add(w->json, "}}");
    begin_event(w, "M", process, row);
    car_json_add(w->json, ",\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%d}}", what, order);
}

static void add_labels(writer *w) {
    const car_recorder *recorder = w->record->recorder;
    int workers = car_plan_config_of(w->record->plan)->workers;
    char text[64];
    add_label(w, "process", w->ranks + 1, 0, "workers", 0);
    for (int r = 0; r < w->ranks; r++) {
        const car_journal *journal = &recorder->journals[r];
        snprintf(text, sizeof text, w->ranks > 1 ? "rank %d threads" : "threads", journal->rank);
        add_label(w, "process", journal->rank + 1, 0, text, r + 1);
        for (int p = 0; p < journal->track_count; p++) {
            bool messages = car_record_is_messages(w->record, journal, p);
            snprintf(text, sizeof text, messages ? "messages" : "thread %d", p);
            add_label(w, "thread", journal->rank + 1, p, text, p);
        }
        for (int i = 0; i < workers; i++) {
            int row = row_of_worker(w, i, journal->rank);
            snprintf(text, sizeof text, w->ranks > 1 ? "worker %d on rank %d" : "worker %d", i, journal->rank);
            if (w->rows[row]) {
                add_label(w, "thread", w->ranks + 1, row, text, row);
            }
        }
    }
}

/* ---- counters and messages ------------------------------------------------------------------- */

static void add_counter(writer *w, int process, double when, const char *name, const char *unit, int64_t value) {
    begin_event(w, "C", process, 0);
    add_time(w, when);
    car_json_add(w->json, ",\"name\":\"%s\",\"args\":{\"%s\":%" PRId64 "}}", name, unit, value);
}

/* Of the changes before the shown time, only each category's last one counts, as its initial value. */
static void add_memory(writer *w, const car_journal *journal) {
    const car_record *record = w->record;
    const car_change_of_memory *at_first[CAR_MEMORY_CATEGORIES] = {NULL};
    int c = 0;
    for (; c < journal->change_count && journal->changes[c].when <= record->zero; c++) {
        at_first[journal->changes[c].category] = &journal->changes[c];
    }
    for (int k = 0; k < CAR_MEMORY_CATEGORIES; k++) {
        if (at_first[k]) {
            add_counter(w, journal->rank + 1, record->zero, car_memory_text((car_memory)k), "bytes",
                        (int64_t)at_first[k]->live);
        }
    }
    for (; c < journal->change_count && journal->changes[c].when <= record->end; c++) {
        const car_change_of_memory *change = &journal->changes[c];
        add_counter(w, journal->rank + 1, change->when, car_memory_text((car_memory)change->category), "bytes",
                    (int64_t)change->live);
    }
}

/* An arrow from the slice of the send to that of the receive. */
static void add_arrow(writer *w, const car_flight *flight, int id) {
    begin_event(w, "s", flight->from + 1, flight->from_track);
    add_time(w, flight->send->start);
    car_json_add(w->json, ",\"id\":%d,\"cat\":\"message\",\"name\":\"message\"}", id);
    begin_event(w, "f", flight->to + 1, flight->to_track);
    add_time(w, flight->receive->start);
    car_json_add(w->json, ",\"bp\":\"e\",\"id\":%d,\"cat\":\"message\",\"name\":\"message\"}", id);
}

static void add_messages(writer *w) {
    const car_record *record = w->record;
    for (int f = 0; f < record->flight_count; f++) {
        const car_flight *flight = &record->flights[f];
        if (flight->receive && car_record_shows(record, flight->receive)) {
            add_arrow(w, flight, f);
        }
    }
}

typedef struct flight_change {
    double when;
    int rank, change;
} flight_change;

static int compare_changes(const void *left, const void *right) {
    const flight_change *a = left, *b = right;
    int order = (a->when > b->when) - (a->when < b->when);
    return order ? order : b->change - a->change;
}

/* Counts how many messages of each rank were in flight. Those whose arrival was not recorded are left out. */
static car_status add_flights(writer *w) {
    const car_record *record = w->record;
    car_context *context = record->recorder->context;
    size_t most = (size_t)record->flight_count * 2, count = 0;
    flight_change *changes = NULL;
    int *under_way = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, most, sizeof *changes, &changes));
    CAR_TRY(car_context_allocate(context, (size_t)w->ranks, sizeof *under_way, &under_way));
    for (int f = 0; f < record->flight_count; f++) {
        const car_flight *flight = &record->flights[f];
        if (flight->receive) {
            changes[count++] = (flight_change){flight->sent, flight->from, 1};
            changes[count++] = (flight_change){flight->arrived, flight->from, -1};
        }
    }
    car_sort(changes, count, sizeof *changes, compare_changes);
    for (size_t c = 0; c < count; c++) {
        int rank = changes[c].rank;
        under_way[rank] += changes[c].change;
        add_counter(w, rank + 1, changes[c].when, "messages in flight", "messages", under_way[rank]);
    }
done:
    car_context_release(context, under_way, (size_t)w->ranks, sizeof *under_way);
    car_context_release(context, changes, most, sizeof *changes);
    return status;
}

/* A collective is in flight from when it was posted; its task is only the work on the result. */
static void add_collectives(writer *w, const car_journal *journal) {
    for (int p = 0; p < journal->track_count; p++) {
        for (int s = 0; s < journal->tracks[p].span_count; s++) {
            const car_span *span = &journal->tracks[p].spans[s];
            bool collective = span->task.kind == CAR_TASK_REDUCE || span->task.kind == CAR_TASK_BROADCAST;
            if (!collective || !car_record_shows(w->record, span) || span->posted < w->record->zero) {
                continue;
            }
            for (int end = 0; end < 2; end++) {
                begin_event(w, end ? "e" : "b", journal->rank + 1, p);
                add_time(w, end ? span->arrived : span->posted);
                car_json_add(w->json, ",\"id\":%d,\"cat\":\"collective\",\"name\":", w->collectives);
                add_name(w, &span->task);
                car_json_add(w->json, "}");
            }
            w->collectives++;
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void add_other(writer *w) {
    const car_record *record = w->record;
    const car_plan_config *plan = car_plan_config_of(record->plan);
    car_json_add(w->json, "],\n\"otherData\":{\"program\":\"carousel\",\"rule\":\"%s\",\"placement\":\"%s\"",
                 car_rule_text(plan->rule), car_placement_text(plan->placement));
    car_json_add(w->json, ",\"workers\":%d,\"stages\":%d,\"first_step\":%" PRId64 ",\"end_step\":%" PRId64,
                 plan->workers, car_plan_partition(record->plan)->stage_count, record->first_step, record->end_step);
    car_json_add(w->json, ",\"lost\":%" PRId64 ",\"clocks\":[", car_recorder_lost(record->recorder));
    for (int r = 0; r < w->ranks; r++) {
        const car_journal *journal = &record->recorder->journals[r];
        car_json_add(w->json, "%s{\"offset_us\":%.3f,\"round_trip_us\":%.3f}", r ? "," : "", journal->offset * 1e6,
                     journal->round_trip * 1e6);
    }
    car_json_add(w->json, "]}}\n");
}

static car_status write_events(writer *w) {
    const car_recorder *recorder = w->record->recorder;
    car_status status = CAR_OK;
    car_json_add(w->json, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int r = 0; r < w->ranks; r++) {
        add_tracks(w, &recorder->journals[r]);
        add_memory(w, &recorder->journals[r]);
        add_collectives(w, &recorder->journals[r]);
    }
    add_messages(w);
    CAR_TRY(add_flights(w));
    add_labels(w);
    add_other(w);
done:
    return status;
}

car_status car_report_trace(const car_recorder *recorder, const car_plan *plan, const char *path) {
    CAR_REQUIRE(NULL, recorder);
    CAR_REQUIRE(recorder->context, plan);
    CAR_REQUIRE(recorder->context, path);
    car_context *context = recorder->context;
    car_record record = {0};
    writer w = {.record = &record, .graph = car_plan_partition(plan)->graph, .ranks = recorder->journal_count};
    size_t rows = (size_t)car_plan_config_of(plan)->workers * (size_t)w.ranks;
    car_status status = CAR_OK;
    for (w.stride = 100; (size_t)w.stride < rows || w.stride <= recorder->config.threads;) {
        w.stride *= 10;
    }
    CAR_TRY(car_record_open(recorder, plan, recorder->first_step, recorder->end_step, &record));
    CAR_TRY(car_context_allocate(context, rows, sizeof *w.rows, &w.rows));
    CAR_TRY(car_json_open(context, path, &w.json));
    status = write_events(&w);
    w.json->status = w.json->status == CAR_OK ? status : w.json->status;
    status = car_json_close(w.json);
done:
    car_context_release(context, w.rows, w.rows ? rows : 0, sizeof *w.rows);
    car_record_close(&record);
    return status;
}
