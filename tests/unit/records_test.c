/* The files that are made of a record, from a run that was made up: every task of a plan at a time that its slot gives.
 * They must be JSON; in the trace slices nest and counters end where they should; the timeline adds up. */
#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/report.h"
#include "recorder/recorder.h"
#include "support/common.h"
#include "support/plans.h"
#include "support/scratch.h"

enum { WORKERS = 3, STAGES = 3, STEPS = 6, FIRST = 2, END = 4, HELD = 1000 };

static const double slot_seconds = 1e-3, zero = 77.25; /* a clock begins anywhere */

/* ---- a run that was made up ------------------------------------------------------------------------------------ */

typedef struct made {
    car_plans_model model;
    car_plan *plan;
    car_arena *arena;
    car_recorder *recorder;
} made;

/* Both of an operation's numbers depend on it and the worker, so that they are found again. */
static void add_notes(const made *m, car_track *track, car_span *span) {
    const car_stage *stage = &m->model.partition->stages[span->task.stage];
    bool computes = span->task.kind == CAR_TASK_FORWARD || span->task.kind == CAR_TASK_BACKWARD;
    int count = computes ? stage->end - stage->first : 0;
    double each = (span->end - span->start) / (count + 1);
    span->first_note = track->note_count;
    span->notes = count;
    for (int n = 0; n < count; n++) {
        bool forward = span->task.kind == CAR_TASK_FORWARD;
        double start = span->start + each * (n + 0.5);
        car_common_expect_ok(car_context_grow(car_common_context, &track->notes, &track->note_capacity,
                                              track->note_count + 1, sizeof *track->notes));
        size_t held = (size_t)(forward ? span->task.stage + 1 : span->task.stage) * HELD;
        track->notes[track->note_count++] = (car_note){.start = start,
                                                       .end = start + each * 0.9,
                                                       .during = held + HELD / 2,
                                                       .after = held,
                                                       .op = forward ? stage->first + n : stage->end - 1 - n};
    }
}

/* Tasks of a slot one after the other, each a twentieth of it but for computing, which is half. */
static void add_device(const made *m, int device, car_track *tracks) {
    car_task_list list = {0};
    double now = 0;
    for (int64_t window = 0; window < car_plan_windows(m->plan, STEPS); window++) {
        car_common_expect_ok(car_plan_expand(m->plan, device, window, STEPS, &list));
        for (int k = 0; k < list.count; k++) {
            const car_task *task = &list.tasks[k];
            bool computes = task->kind == CAR_TASK_FORWARD || task->kind == CAR_TASK_BACKWARD;
            bool arrives = task->kind == CAR_TASK_RECEIVE || task->kind == CAR_TASK_REDUCE;
            car_track *track = &tracks[task->kind == CAR_TASK_RECEIVE]; /* the second is for messages */
            double free_at = now, begin = zero + ((double)task->slot + 10) * slot_seconds;
            now = fmax(now, begin);
            if (car_recorder_wants(m->recorder, m->plan, task->slot)) {
                car_common_expect_ok(car_context_grow(car_common_context, &track->spans, &track->span_capacity,
                                                      track->span_count + 1, sizeof *track->spans));
                car_span *span = &track->spans[track->span_count++];
                *span = (car_span){.task = *task,
                                   .start = now,
                                   .end = now + slot_seconds * (computes ? 0.5 : 0.05),
                                   .waited = free_at > 0 ? now - free_at : 0,
                                   .posted = arrives ? now - slot_seconds : 0,
                                   .arrived = arrives ? now - slot_seconds * 0.01 : 0,
                                   .row = computes ? task->micro_batch : CAR_NONE};
                add_notes(m, track, span);
            }
            now += slot_seconds * (computes ? 0.5 : 0.05);
        }
    }
    car_task_list_release(m->plan, &list);
}

static void add_changes(car_journal *journal) {
    static const size_t live[] = {500, 700, 300};
    for (int c = 0; c < 3; c++) {
        car_common_expect_ok(car_context_grow(car_common_context, &journal->changes, &journal->change_capacity,
                                              journal->change_count + 1, sizeof *journal->changes));
        /* The first lies before what is shown, the last in the middle of it. */
        double when = zero + (c == 0 ? 0 : (double)(2 * STAGES * (FIRST + 1) + 10 + c)) * slot_seconds;
        journal->changes[journal->change_count++] = (car_change_of_memory){when, live[c], CAR_MEMORY_ACTIVATIONS};
    }
}

static void make(made *m, car_rule rule) {
    const car_plan_config config = {.workers = WORKERS, .rule = rule, .placement = CAR_PLACEMENT_REPLICA};
    const car_recorder_config recorder = {.threads = 1, .messages = true};
    m->model = car_plans_open_model("mlp", STAGES);
    m->plan = car_plans_make(m->model.partition, config);
    car_common_expect_ok(car_arena_create(car_common_context, 0, &m->arena));
    car_common_expect_ok(car_recorder_create(car_common_context, m->arena, &recorder, &m->recorder));
    car_recorder_set_steps(m->recorder, FIRST, END);
    car_journal *journals = NULL;
    car_common_expect_ok(car_context_allocate(car_common_context, WORKERS, sizeof *journals, &journals));
    journals[0] = m->recorder->journals[0];
    car_context_release(car_common_context, m->recorder->journals, 1, sizeof *journals);
    m->recorder->journals = journals;
    m->recorder->journal_count = WORKERS;
    for (int r = 0; r < WORKERS; r++) {
        journals[r].rank = r;
        if (r > 0) {
            car_common_expect_ok(car_context_allocate(car_common_context, 2, sizeof(car_track), &journals[r].tracks));
            journals[r].track_count = 2;
        }
        add_device(m, r, journals[r].tracks);
        add_changes(&journals[r]);
    }
}

static void unmake(made *m) {
    car_recorder_destroy(m->recorder);
    car_arena_destroy(m->arena);
    car_plan_destroy(m->plan);
    car_plans_close_model(&m->model);
}

static cJSON *parse(const char *path) {
    size_t bytes = 0;
    char *text = car_scratch_read(path, &bytes);
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    assert_non_null(json);
    free(text);
    return json;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static double number(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static const char *text_of(const cJSON *object, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    assert_non_null(text);
    return text;
}

static bool is(const cJSON *event, const char *phase) {
    return strcmp(text_of(event, "ph"), phase) == 0;
}

/* A slice of a row, in the order of the file: enclosing ones come first. */
typedef struct slice {
    double start, end;
} slice;

static const double rounding = 2e-6; /* microseconds that a double of some seconds' microseconds may be off */

/* Within every row slices either follow one another or lie inside of each other. */
static void check_rows(const cJSON *events) {
    const cJSON *event = NULL;
    int found = 0;
    for (int process = 1; process <= WORKERS + 1; process++) {
        for (int row = 0; row < WORKERS * WORKERS; row++) {
            slice open[8];
            int depth = 0;
            cJSON_ArrayForEach(event, events) {
                if (!is(event, "X") || number(event, "pid") != process || number(event, "tid") != 100 * process + row) {
                    continue;
                }
                slice s = {number(event, "ts"), number(event, "ts") + number(event, "dur")};
                assert_true(s.start >= 0 && s.end >= s.start);
                while (depth > 0 && open[depth - 1].end <= s.start + rounding) {
                    depth--;
                }
                if (depth > 0) {
                    assert_true(s.start >= open[depth - 1].start && s.end <= open[depth - 1].end + rounding);
                }
                assert_true(depth < 8);
                open[depth++] = s;
                found++;
            }
        }
    }
    assert_true(found > 0);
}

/* The last value of a counter. */
static double last_of(const cJSON *events, int process, const char *name, const char *unit, double *most) {
    const cJSON *event = NULL;
    double last = -1, when = -1;
    *most = -1;
    cJSON_ArrayForEach(event, events) {
        if (is(event, "C") && number(event, "pid") == process && strcmp(text_of(event, "name"), name) == 0) {
            assert_true(number(event, "ts") >= when);
            when = number(event, "ts");
            last = number(cJSON_GetObjectItemCaseSensitive(event, "args"), unit);
            *most = last > *most ? last : *most;
            assert_true(last >= 0);
        }
    }
    return last;
}

static int count(const cJSON *events, const char *phase, const char *name, int process) {
    const cJSON *event = NULL;
    int found = 0;
    cJSON_ArrayForEach(event, events) {
        found += is(event, phase) && (!name || strcmp(text_of(event, "name"), name) == 0) &&
                 (process == 0 || number(event, "pid") == process);
    }
    return found;
}

/* ---- the trace ---------------------------------------------------------------------------------------------------- */

static void check_names(const cJSON *events) {
    const cJSON *event = NULL;
    bool seen = false;
    cJSON_ArrayForEach(event, events) {
        if (!is(event, "X") || strcmp(text_of(event, "name"), "F2.1@v3") != 0 || number(event, "pid") != 2) {
            continue;
        }
        const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
        assert_string_equal(text_of(event, "cat"), "forward");
        assert_int_equal(number(args, "step"), 3);
        assert_int_equal(number(args, "worker"), 1);
        assert_int_equal(number(args, "stage"), 2);
        assert_int_equal(number(args, "version"), 3);
        assert_int_equal(number(event, "dur"), 500);
        seen = true;
    }
    assert_true(seen);
}

static void test_trace(void **state) {
    const car_scratch *scratch = *state;
    car_scratch_path path = car_scratch_in(scratch, "trace.json");
    made m;
    make(&m, CAR_RULE_CDP_V2);
    car_common_expect_ok(car_report_trace(m.recorder, m.plan, path.text));
    cJSON *json = parse(path.text);
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(json, "traceEvents");
    check_rows(events);
    check_names(events);
    for (int r = 0; r < WORKERS; r++) {
        double most = 0;
        assert_int_equal(last_of(events, r + 1, "messages in flight", "messages", &most), 0);
        assert_true(most >= 1 && most < 10);
        assert_int_equal(last_of(events, r + 1, "activations", "bytes", &most), 300);
        assert_int_equal(most, 700);
        assert_int_equal(count(events, "X", "waiting", r + 1) > 0, 1);
    }
    /* Every message that leaves has an arrow, whose ends are found. */
    assert_int_equal(count(events, "s", NULL, 0), count(events, "f", NULL, 0));
    assert_true(count(events, "s", NULL, 0) > 2 * WORKERS * STAGES * (END - FIRST) - 2 * WORKERS * STAGES);
    /* Each worker has a row, once as it is computed by one rank. */
    assert_int_equal(count(events, "M", "thread_name", WORKERS + 1), WORKERS);
    assert_int_equal(count(events, "M", "process_name", 0), WORKERS + 1);
    cJSON_Delete(json);
    unmake(&m);
}

/* Collectives are under way between being posted and being done. */
static void test_trace_of_collectives(void **state) {
    const car_scratch *scratch = *state;
    car_scratch_path path = car_scratch_in(scratch, "dp.json");
    made m;
    make(&m, CAR_RULE_DP);
    car_common_expect_ok(car_report_trace(m.recorder, m.plan, path.text));
    cJSON *json = parse(path.text);
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(json, "traceEvents");
    check_rows(events);
    assert_true(count(events, "b", NULL, 1) >= STAGES * (END - FIRST));
    assert_int_equal(count(events, "b", NULL, 1), count(events, "e", NULL, 1));
    cJSON_Delete(json);
    unmake(&m);
}

/* ---- the timeline --------------------------------------------------------------------------------------------------- */

static double at(const cJSON *row, int index) {
    const cJSON *item = cJSON_GetArrayItem(row, index);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

/* Forwards and backwards of the steps, each once, with the version that the plan says. */
static void check_tasks(const cJSON *json, const car_plan *plan) {
    const cJSON *task = NULL;
    int found[2] = {0};
    cJSON_ArrayForEach(task, cJSON_GetObjectItemCaseSensitive(json, "tasks")) {
        int64_t step = (int64_t)at(task, 6);
        int kind = (int)at(task, 3), worker = (int)at(task, 4), stage = (int)at(task, 5);
        assert_true(at(task, 0) >= 0 && at(task, 1) > at(task, 0));
        if (step >= FIRST && step < END && kind < 2) {
            assert_int_equal(at(task, 7), step - car_plan_delay(plan, worker, stage));
            assert_int_equal(at(task, 2), 2 * worker); /* two threads for each rank, one rank for each worker */
            found[kind]++;
        }
    }
    assert_int_equal(found[0], WORKERS * STAGES * (END - FIRST));
    assert_int_equal(found[1], WORKERS * STAGES * (END - FIRST));
}

static void check_memory(const cJSON *json) {
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(json, "memory"), *worker = NULL, *level = NULL;
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(memory, "workers")), WORKERS);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(memory, "ranks")), WORKERS);
    cJSON_ArrayForEach(worker, cJSON_GetObjectItemCaseSensitive(memory, "workers")) {
        double when = -1, most = 0;
        cJSON_ArrayForEach(level, worker) {
            assert_true(at(level, 0) > when);
            when = at(level, 0);
            most = fmax(most, at(level, 1));
        }
        assert_int_equal(at(cJSON_GetArrayItem(worker, 0), 0), 0);
        assert_int_equal(most, STAGES * HELD + HELD / 2);
    }
    double peak = number(memory, "measured_peak_bytes");
    assert_true(peak > STAGES * HELD && peak < WORKERS * (STAGES * HELD + HELD / 2)); /* they are not aligned */
    assert_true(number(memory, "limit_bytes") < number(memory, "dp_peak_bytes"));
    assert_true(number(memory, "predicted_peak_bytes") <= number(memory, "dp_peak_bytes"));
}

static double sum(const cJSON *numbers) {
    const cJSON *item = NULL;
    double all = 0;
    assert_int_equal(cJSON_GetArraySize(numbers), 2 * STAGES);
    cJSON_ArrayForEach(item, numbers) {
        all += item->valuedouble;
    }
    return all;
}

static void check_messages(const cJSON *json) {
    const cJSON *message = NULL, *slots = cJSON_GetObjectItemCaseSensitive(json, "bytes_per_slot");
    cJSON_ArrayForEach(message, cJSON_GetObjectItemCaseSensitive(json, "messages")) {
        assert_true(at(message, 1) >= at(message, 0)); /* all have arrived */
        assert_int_equal(at(message, 3), ((int)at(message, 2) + 1) % WORKERS);
        assert_true(at(message, 5) > 0);
    }
    double plan = sum(cJSON_GetObjectItemCaseSensitive(slots, "plan"));
    double measured = sum(cJSON_GetObjectItemCaseSensitive(slots, "measured"));
    assert_true(plan > 0 && fabs(measured / plan - 1) < 1e-6);
}

static void test_timeline(void **state) {
    const car_scratch *scratch = *state;
    car_scratch_path path = car_scratch_in(scratch, "timeline.json");
    const car_timeline_config config = {.model = "a \"model\"\n", .steps = 4};
    made m;
    make(&m, CAR_RULE_CDP_V1);
    car_common_expect_ok(car_report_timeline(m.recorder, m.plan, &config, path.text));
    cJSON *json = parse(path.text);
    assert_string_equal(text_of(json, "model"), "a \"model\"\n");
    assert_int_equal(number(json, "first_step"), FIRST);
    assert_int_equal(number(json, "end_step"), END);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "lanes")), 2 * WORKERS);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "partition")), STAGES);
    check_tasks(json, m.plan);
    check_memory(json);
    check_messages(json);
    cJSON_Delete(json);
    unmake(&m);
}

/* Fewer steps than were recorded, and a run that ended before its time. */
static void test_steps(void **state) {
    const car_scratch *scratch = *state;
    car_scratch_path path = car_scratch_in(scratch, "one.json");
    const car_timeline_config config = {.model = "mlp", .steps = 1};
    made m;
    make(&m, CAR_RULE_CDP_V2);
    car_common_expect_ok(car_report_timeline(m.recorder, m.plan, &config, path.text));
    cJSON *json = parse(path.text);
    assert_int_equal(number(json, "end_step"), FIRST + 1);
    cJSON_Delete(json);
    car_recorder_limit_steps(m.recorder, FIRST);
    car_common_expect_ok(car_report_timeline(m.recorder, m.plan, &config, path.text));
    json = parse(path.text);
    assert_int_equal(number(json, "end_step"), FIRST);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "tasks")), 0);
    cJSON_Delete(json);
    unmake(&m);
}

/* Nothing appears under the name of a file that could not be written. */
static void test_unwritable(void **state) {
    const car_scratch *scratch = *state;
    car_scratch_path path = car_scratch_in(scratch, "missing/trace.json");
    made m;
    make(&m, CAR_RULE_CDP_V2);
    assert_int_equal(car_report_trace(m.recorder, m.plan, path.text), CAR_ERROR_IO);
    assert_non_null(strstr(car_context_error(car_common_context), "missing"));
    car_context_clear_error(car_common_context);
    unmake(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_trace, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_trace_of_collectives, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_timeline, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_steps, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_unwritable, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
