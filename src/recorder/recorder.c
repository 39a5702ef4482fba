/* Records what the threads of a process do; see recorder.h. */
#include "recorder/recorder.h"

static const size_t default_bytes = (size_t)256 << 20;

/* ---- creating and destroying ------------------------------------------------------------------ */

/* Most of a track's share of memory goes to operations, because a task has several. */
static void set_bounds(car_recorder *recorder) {
    size_t all = recorder->config.most_bytes ? recorder->config.most_bytes : default_bytes;
    size_t share = all / (size_t)(recorder->journals[0].track_count + 1);
    recorder->most_spans = share / 3 / sizeof(car_span);
    recorder->most_notes = share * 2 / 3 / sizeof(car_note);
    recorder->most_changes = share / sizeof(car_change_of_memory);
}

car_status car_recorder_create(car_context *context, car_arena *arena, const car_recorder_config *config,
                               car_recorder **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, arena);
    CAR_REQUIRE(context, config);
    CAR_REQUIRE(context, out);
    car_recorder *recorder = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (config->threads < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a recorder needs at least one thread");
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *recorder, &recorder));
    recorder->context = context;
    recorder->arena = arena;
    recorder->config = *config;
    CAR_TRY(car_context_allocate(context, 1, sizeof *recorder->journals, &recorder->journals));
    recorder->journal_count = 1;
    car_journal *own = recorder->journals;
    int tracks = config->threads + config->messages;
    CAR_TRY(car_context_allocate(context, (size_t)tracks, sizeof *own->tracks, &own->tracks));
    own->track_count = tracks;
    for (int p = 0; p < tracks; p++) {
        own->tracks[p].recorder = recorder;
    }
    set_bounds(recorder);
    *out = recorder;
    recorder = NULL;
done:
    car_recorder_destroy(recorder);
    return status;
}

void car_journal_release(car_context *context, car_journal *journal) {
    for (int p = 0; journal->tracks && p < journal->track_count; p++) {
        car_track *track = &journal->tracks[p];
        car_context_release(context, track->notes, (size_t)track->note_capacity, sizeof *track->notes);
        car_context_release(context, track->spans, (size_t)track->span_capacity, sizeof *track->spans);
    }
    car_context_release(context, journal->tracks, (size_t)journal->track_count, sizeof *journal->tracks);
    car_context_release(context, journal->changes, (size_t)journal->change_capacity, sizeof *journal->changes);
}

void car_recorder_destroy(car_recorder *recorder) {
    if (!recorder) {
        return;
    }
    if (recorder->watching) {
        car_arena_watch(recorder->arena, NULL, NULL);
    }
    for (int r = 0; recorder->journals && r < recorder->journal_count; r++) {
        car_journal_release(recorder->context, &recorder->journals[r]);
    }
    car_context_release(recorder->context, recorder->journals, (size_t)recorder->journal_count,
                        sizeof *recorder->journals);
    car_context_release(recorder->context, recorder, 1, sizeof *recorder);
}

void car_recorder_set_steps(car_recorder *recorder, int64_t first_step, int64_t end_step) {
    recorder->first_step = first_step;
    recorder->end_step = end_step;
}

void car_recorder_limit_steps(car_recorder *recorder, int64_t steps) {
    recorder->end_step = recorder->end_step < steps ? recorder->end_step : steps;
    recorder->first_step = recorder->first_step < steps ? recorder->first_step : steps;
}

int64_t car_recorder_lost(const car_recorder *recorder) {
    int64_t lost = 0;
    for (int r = 0; r < recorder->journal_count; r++) {
        lost += recorder->journals[r].lost;
        for (int p = 0; p < recorder->journals[r].track_count; p++) {
            lost += recorder->journals[r].tracks[p].lost;
        }
    }
    return lost;
}

/* ---- recording -------------------------------------------------------------------------------- */

/* Called with the arena's lock, which guards the changes. */
static void note_change(void *user, car_memory category, double when, size_t live) {
    car_recorder *recorder = user;
    car_journal *own = recorder->journals;
    if ((size_t)own->change_count >= recorder->most_changes ||
        car_context_grow(recorder->context, &own->changes, &own->change_capacity, own->change_count + 1,
                         sizeof *own->changes) != CAR_OK) {
        own->lost++;
        return;
    }
    own->changes[own->change_count++] = (car_change_of_memory){when, live, (int)category};
}

car_track *car_recorder_track(car_recorder *recorder, int thread) {
    return recorder && thread < recorder->journals[0].track_count ? &recorder->journals[0].tracks[thread] : NULL;
}

/* Decides by slots instead of steps, because the sum of a step may still be in flight two steps later. A step's
 * forwards and backwards take two periods of the clock. */
bool car_recorder_wants(car_recorder *recorder, const car_plan *plan, int64_t slot) {
    if (!recorder || recorder->first_step >= recorder->end_step) {
        return false;
    }
    int64_t period = slot / car_plan_period(plan);
    bool over = period > recorder->end_step + 1, wanted = period >= recorder->first_step - 1 && !over;
    if (recorder->config.categories && (recorder->watching ? over : wanted)) {
        recorder->watching = !over;
        car_arena_watch(recorder->arena, over ? NULL : note_change, recorder);
    }
    return wanted;
}

static bool is_same(const car_task *a, const car_task *b) {
    return a->kind == b->kind && a->micro_batch == b->micro_batch && a->stage == b->stage && a->step == b->step;
}

/* A record with holes would mislead, so a track ends with the first task that does not fit. */
static bool has_room(car_track *track) {
    car_recorder *recorder = track->recorder;
    track->full = track->full || (size_t)track->span_count >= recorder->most_spans ||
                  car_context_grow(recorder->context, &track->spans, &track->span_capacity, track->span_count + 1,
                                   sizeof *track->spans) != CAR_OK;
    return !track->full;
}

void car_track_begin(car_track *track, const car_task *task, int row, double now, double waited) {
    const car_span *last = track->span_count > 0 ? &track->spans[track->span_count - 1] : NULL;
    bool next_portion = last && waited == 0 && car_task_computes(task) && is_same(&last->task, task);
    track->open = next_portion || has_room(track);
    track->lost += !track->open;
    if (track->open && !next_portion) {
        track->spans[track->span_count++] = (car_span){
            .task = *task, .row = row, .start = now, .end = now, .waited = waited, .first_note = track->note_count};
    }
}

void car_track_end(car_track *track, double now) {
    if (track->open) {
        track->spans[track->span_count - 1].end = now;
        track->open = false;
    }
}

void car_track_arrival(car_track *track, double posted, double arrived) {
    if (track->open) {
        track->spans[track->span_count - 1].posted = posted;
        track->spans[track->span_count - 1].arrived = arrived;
    }
}

void car_track_hold(car_track *track, size_t held) {
    if (track->open) {
        track->spans[track->span_count - 1].holds = true;
        track->spans[track->span_count - 1].held = held;
    }
}

void car_track_note(car_track *track, int op, bool again, double start, size_t during, size_t after) {
    car_recorder *recorder = track->recorder;
    if (!track->open) {
        return;
    }
    if ((size_t)track->note_count >= recorder->most_notes ||
        car_context_grow(recorder->context, &track->notes, &track->note_capacity, track->note_count + 1,
                         sizeof *track->notes) != CAR_OK) {
        track->lost++;
        track->full = true;
        return;
    }
    track->notes[track->note_count++] = (car_note){start, car_clock_seconds(), during, after, op, again};
    track->spans[track->span_count - 1].notes++;
}
