/* What a recorder notes of a run: the plan's tasks, each with the operations of its stage, on threads that do one thing
 * at a time, and bytes that add up to the arena's. And the run is the same to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "engine/session.h"
#include "recorder/recorder.h"

enum { WORKERS = 3, STAGES = 6, STEPS = 6, FIRST = 2, END = 5 };

static car_session_config configure(const char *model, car_rule rule, int threads) {
    car_session_config config = car_session_config_default(model, WORKERS, rule);
    config.partition.stages = STAGES;
    config.training.threads = config.plan.threads = threads;
    config.records = true;
    config.record_first = FIRST;
    config.record_end = END;
    return config;
}

static void train(car_session *session, const car_session_config *config) {
    car_status status = car_session_open(session, config);
    if (status == CAR_OK) {
        status = car_trainer_run(session->trainer, STEPS);
    }
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(session->context));
    }
}

/* ---- tasks --------------------------------------------------------------------------------------------------- */

/* Operations that all spans of a task noted, and how many spans there are. */
typedef struct found {
    int spans, notes;
} found;

static found find(const car_recorder *recorder, const car_task *task, int row) {
    found f = {0};
    for (int p = 0; p < recorder->journals[0].track_count; p++) {
        const car_track *track = &recorder->journals[0].tracks[p];
        for (int s = 0; s < track->span_count; s++) {
            const car_span *span = &track->spans[s];
            const car_task *t = &span->task;
            if (t->kind == task->kind && t->micro_batch == task->micro_batch && t->stage == task->stage &&
                t->step == task->step && t->version == task->version && span->row == row) {
                f.spans++;
                f.notes += span->notes;
            }
        }
    }
    return f;
}

static int backward_operations(const car_session *session, const car_stage *stage) {
    int count = 0;
    for (int l = stage->first; l < stage->end; l++) {
        const car_op *op = car_graph_op(session->graph, l);
        count += car_graph_tensor(session->graph, op->output)->grad_buffer != CAR_NONE;
    }
    return count;
}

/* Every task of the plan in these steps was noted, and nothing else of them. */
static void check_tasks(const car_session *session, bool whole) {
    car_task_list list = {0};
    int expected = 0, noted = 0;
    for (int device = 0; device < WORKERS; device++) {
        for (int64_t window = 0; window < car_plan_windows(session->plan, STEPS); window++) {
            assert_int_equal(car_plan_expand(session->plan, device, window, STEPS, &list), CAR_OK);
            for (int k = 0; k < list.count; k++) {
                const car_task *task = &list.tasks[k];
                if (task->step < FIRST || task->step >= END) {
                    continue;
                }
                const car_stage *stage = &session->partition->stages[task->stage];
                /* Updates are nobody's: they are made beside what the worker computes that they are listed with. */
                found f = find(session->recorder, task, task->kind == CAR_TASK_UPDATE ? CAR_NONE : device);
                assert_true(whole ? f.spans == 1 : f.spans >= 1);
                assert_int_equal(f.notes, task->kind == CAR_TASK_FORWARD    ? stage->end - stage->first
                                          : task->kind == CAR_TASK_BACKWARD ? backward_operations(session, stage)
                                                                            : 0);
                expected += f.spans;
            }
        }
    }
    for (int p = 0; p < session->recorder->journals[0].track_count; p++) {
        const car_track *track = &session->recorder->journals[0].tracks[p];
        for (int s = 0; s < track->span_count; s++) {
            int64_t step = track->spans[s].task.step;
            assert_in_range(step, FIRST - 2, END + 1);
            noted += step >= FIRST && step < END;
        }
    }
    assert_int_equal(noted, expected);
    car_task_list_release(session->plan, &list);
}

/* ---- times --------------------------------------------------------------------------------------------------- */

static void check_nesting(const car_recorder *recorder) {
    for (int p = 0; p < recorder->journals[0].track_count; p++) {
        const car_track *track = &recorder->journals[0].tracks[p];
        double last = 0;
        for (int s = 0; s < track->span_count; s++) {
            const car_span *span = &track->spans[s];
            assert_true(span->start >= last && span->end >= span->start);
            assert_true(span->waited >= 0);
            assert_true(s == 0 || span->start - span->waited >= last - 1e-6);
            double inside = span->start;
            for (int n = span->first_note; n < span->first_note + span->notes; n++) {
                assert_true(track->notes[n].start >= inside && track->notes[n].end >= track->notes[n].start);
                inside = track->notes[n].end;
            }
            assert_true(span->end >= inside);
            last = span->end;
        }
    }
}

static int compare_starts(const void *left, const void *right) {
    const car_span *const *a = left, *const *b = right;
    return ((*a)->start > (*b)->start) - ((*a)->start < (*b)->start);
}

/* A worker does one thing at a time, too. */
static void check_rows(const car_recorder *recorder) {
    for (int worker = 0; worker < WORKERS; worker++) {
        const car_span *spans[4096];
        size_t count = 0;
        for (int p = 0; p < recorder->journals[0].track_count; p++) {
            const car_track *track = &recorder->journals[0].tracks[p];
            for (int s = 0; s < track->span_count; s++) {
                if (track->spans[s].row == worker) {
                    assert_true(count < sizeof spans / sizeof *spans);
                    spans[count++] = &track->spans[s];
                }
            }
        }
        assert_true(count > 0);
        qsort(spans, count, sizeof *spans, compare_starts);
        for (size_t s = 1; s < count; s++) {
            assert_true(spans[s]->start >= spans[s - 1]->end);
        }
    }
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static void check_memory(const car_session *session) {
    const car_recorder *recorder = session->recorder;
    const car_journal *journal = &recorder->journals[0];
    size_t most = 0, largest = 0;
    for (int p = 0; p < journal->track_count; p++) {
        for (int n = 0; n < journal->tracks[p].note_count; n++) {
            const car_note *note = &journal->tracks[p].notes[n];
            largest = note->during > largest ? note->during : largest;
        }
    }
    for (int c = 0; c < journal->change_count; c++) {
        bool activations = journal->changes[c].category == CAR_MEMORY_ACTIVATIONS;
        most = activations && journal->changes[c].live > most ? journal->changes[c].live : most;
        assert_true(c == 0 || journal->changes[c].when >= journal->changes[c - 1].when);
    }
    bool plain = strcmp(session->config.model, "resnet20") != 0; /* its channels are few, and padded */
    assert_true(plain ? largest == session->partition->curve.peak : largest > session->partition->curve.peak);
    assert_in_range(most, largest, WORKERS * largest);
    assert_int_equal(journal->changes[0].category, 0); /* what was alive when it began, of each category */
    assert_int_equal(journal->changes[CAR_MEMORY_CATEGORIES - 1].category, CAR_MEMORY_CATEGORIES - 1);
}

/* What tapes say that they hold is what the arena knows of. */
static void check_tape_bytes(car_session *session) {
    car_lane *lane = NULL;
    car_tape *tape = NULL;
    size_t before = car_arena_live(session->arena, CAR_MEMORY_ACTIVATIONS);
    assert_int_equal(car_lane_create(session->program, session->arena, &lane), CAR_OK);
    assert_int_equal(car_tape_create(session->program, session->arena, &tape), CAR_OK);
    car_tape_begin(tape, 1, true);
    assert_int_equal(car_session_feed(session, 0, 0, tape), CAR_OK);
    for (int l = 0; l < car_graph_op_count(session->graph); l++) {
        assert_int_equal(tape->live, car_arena_live(session->arena, CAR_MEMORY_ACTIVATIONS) - before);
        assert_int_equal(car_tape_forward(tape, lane, car_trainer_weights(session->trainer), l, l + 1), CAR_OK);
    }
    car_gradients *gradients = NULL;
    assert_int_equal(car_gradients_create(session->program, session->arena, &gradients), CAR_OK);
    for (int l = car_graph_op_count(session->graph) - 1; l >= 0; l--) {
        assert_int_equal(car_tape_backward(tape, lane, car_trainer_weights(session->trainer), gradients, l, l + 1),
                         CAR_OK);
        assert_int_equal(tape->live, car_arena_live(session->arena, CAR_MEMORY_ACTIVATIONS) - before);
    }
    car_gradients_destroy(gradients);
    car_tape_destroy(tape);
    car_lane_destroy(lane);
}

/* ---- the tests ----------------------------------------------------------------------------------------------- */

static void check(const char *model, car_rule rule, int threads) {
    car_session_config config = configure(model, rule, threads);
    char recorded[CAR_DIGEST_CAPACITY], plain[CAR_DIGEST_CAPACITY];
    car_session session;
    train(&session, &config);
    assert_int_equal(car_recorder_lost(session.recorder), 0);
    check_tasks(&session, threads < WORKERS || rule == CAR_RULE_DP);
    check_nesting(session.recorder);
    check_rows(session.recorder);
    check_memory(&session);
    check_tape_bytes(&session);
    assert_int_equal(car_weights_digest(car_trainer_weights(session.trainer), recorded), CAR_OK);
    car_session_close(&session);
    config.records = false;
    train(&session, &config);
    assert_int_equal(car_weights_digest(car_trainer_weights(session.trainer), plain), CAR_OK);
    assert_string_equal(recorded, plain);
    car_session_close(&session);
}

static void test_fewer_threads(void **state) {
    (void)state;
    check("mlp", CAR_RULE_DP, 2);
    check("mlp", CAR_RULE_CDP_V1, 2);
    check("resnet20", CAR_RULE_CDP_V2, 2);
    check("gpt2-nano", CAR_RULE_CDP_V2, 1);
}

static void test_a_thread_for_every_worker(void **state) {
    (void)state;
    check("vit-tiny", CAR_RULE_CDP_V2, WORKERS);
    check("mlp", CAR_RULE_DP, WORKERS);
}

/* The record ends where memory does, and says so. */
static void test_bound(void **state) {
    (void)state;
    car_session_config config = configure("mlp", CAR_RULE_CDP_V2, 2);
    car_session session;
    config.record_bytes = 20000;
    train(&session, &config);
    assert_true(car_recorder_lost(session.recorder) > 0);
    int spans = 0;
    for (int p = 0; p < 2; p++) {
        const car_track *track = &session.recorder->journals[0].tracks[p];
        size_t bytes = (size_t)track->span_count * sizeof(car_span) + (size_t)track->note_count * sizeof(car_note);
        assert_true(bytes <= 20000 / 3);
        spans += track->span_count;
    }
    assert_true(spans > 0);
    check_nesting(session.recorder);
    car_session_close(&session);
}

/* A run in pieces, as evaluations make them, is one record; one without steps is none. */
static void test_pieces(void **state) {
    (void)state;
    car_session_config config = configure("mlp", CAR_RULE_CDP_V1, 2);
    car_session session;
    assert_int_equal(car_session_open(&session, &config), CAR_OK);
    assert_int_equal(car_trainer_run(session.trainer, 3), CAR_OK);
    assert_int_equal(car_trainer_run(session.trainer, STEPS), CAR_OK);
    check_tasks(&session, true);
    car_session_close(&session);
    config.record_end = config.record_first;
    train(&session, &config);
    assert_int_equal(session.recorder->journals[0].tracks[0].span_count, 0);
    assert_int_equal(session.recorder->journals[0].change_count, 0);
    car_session_close(&session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fewer_threads),
        cmocka_unit_test(test_a_thread_for_every_worker),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
