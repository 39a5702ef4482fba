/* Computes live activation bytes over time; see memory_curve.h. */
#include "report/memory_curve.h"

#include <stdlib.h>

/* ---- samples --------------------------------------------------------------------------------- */

static int compare_samples(const void *left, const void *right) {
    const car_sample *a = left, *b = right;
    return (a->when > b->when) - (a->when < b->when);
}

/* An operation's buffers exist from its start. What nobody reads again is gone at its end. */
static car_status add_track(car_context *context, const car_track *track, int rank, car_samples *out) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(context, &out->samples, &out->capacity,
                             out->count + 2 * track->note_count + track->span_count, sizeof *out->samples));
    for (int s = 0; s < track->span_count; s++) {
        const car_span *span = &track->spans[s];
        for (int n = span->first_note; n < span->first_note + span->notes; n++) {
            const car_note *note = &track->notes[n];
            out->samples[out->count++] = (car_sample){note->start, note->during, span->task.micro_batch, rank};
            out->samples[out->count++] = (car_sample){note->end, note->after, span->task.micro_batch, rank};
        }
        if (span->holds) {
            out->samples[out->count++] = (car_sample){span->end, span->held, span->task.micro_batch, rank};
        }
    }
done:
    return status;
}

car_status car_samples_create(const car_record *record, car_samples *out) {
    const car_recorder *recorder = record->recorder;
    car_status status = CAR_OK;
    *out = (car_samples){0};
    for (int r = 0; r < recorder->journal_count; r++) {
        for (int p = 0; p < recorder->journals[r].track_count; p++) {
            CAR_TRY(add_track(recorder->context, &recorder->journals[r].tracks[p], r, out));
        }
    }
    car_sort(out->samples, (size_t)out->count, sizeof *out->samples, compare_samples);
done:
    return status;
}

void car_samples_release(const car_record *record, car_samples *samples) {
    car_context_release(record->recorder->context, samples->samples, (size_t)samples->capacity,
                        sizeof *samples->samples);
}

/* ---- levels ---------------------------------------------------------------------------------- */

static car_status add_level(car_context *context, car_levels *out, double when, size_t bytes) {
    car_level *last = out->count > 0 ? &out->levels[out->count - 1] : NULL;
    car_status status = CAR_OK;
    if (last && last->bytes == bytes) {
        return CAR_OK;
    }
    CAR_TRY(car_context_grow(context, &out->levels, &out->capacity, out->count + 1, sizeof *out->levels));
    out->levels[out->count++] = (car_level){when, bytes};
    out->peak = bytes > out->peak ? bytes : out->peak;
done:
    return status;
}

/* Of the levels from .. to-1, keeps the first, the smallest, the largest and the last, in their order. Returns how
 * many. */
static int keep_extremes(const car_level *levels, int from, int to, car_level *out) {
    int least = from, greatest = from, kept = 0;
    for (int k = from; k < to; k++) {
        least = levels[k].bytes < levels[least].bytes ? k : least;
        greatest = levels[k].bytes > levels[greatest].bytes ? k : greatest;
    }
    const int chosen[] = {from, least < greatest ? least : greatest, least < greatest ? greatest : least, to - 1};
    for (int c = 0; c < 4; c++) {
        if (c == 0 || chosen[c] != chosen[c - 1]) {
            out[kept++] = levels[chosen[c]];
        }
    }
    return kept;
}

/* Works in place: a piece never keeps more levels than it has. */
static void thin(car_levels *levels, int most) {
    int pieces = most / 4, kept = 0, count = levels->count;
    for (int p = 0; p < pieces; p++) {
        int from = (int)((int64_t)count * p / pieces), to = (int)((int64_t)count * (p + 1) / pieces);
        car_level extremes[4];
        int found = keep_extremes(levels->levels, from, to, extremes);
        for (int e = 0; e < found; e++) {
            levels->levels[kept++] = extremes[e];
        }
    }
    levels->count = kept;
}

car_status car_levels_create(const car_record *record, const car_samples *samples, int worker, int rank, int most,
                             car_levels *out) {
    car_context *context = record->recorder->context;
    size_t ranks = (size_t)record->recorder->journal_count;
    size_t batches = (size_t)car_plan_micro_batches(record->plan); /* gpipe holds several of a worker's micro-batches */
    size_t *held = NULL, sum = 0;
    car_status status = CAR_OK;
    *out = (car_levels){0};
    CAR_TRY(car_context_allocate(context, ranks * batches, sizeof *held, &held));
    for (int s = 0; s < samples->count && samples->samples[s].when <= record->end; s++) {
        const car_sample *sample = &samples->samples[s];
        if ((worker != CAR_NONE && car_plan_worker(record->plan, sample->number) != worker) ||
            (rank != CAR_NONE && sample->rank != rank)) {
            continue;
        }
        if (sample->when > record->zero && out->count == 0) {
            CAR_TRY(add_level(context, out, record->zero, sum));
        }
        size_t *place = &held[(size_t)sample->rank * batches + (size_t)sample->number];
        sum += sample->bytes - *place;
        *place = sample->bytes;
        if (sample->when > record->zero) {
            CAR_TRY(add_level(context, out, sample->when, sum));
        }
    }
    if (out->count > most) {
        thin(out, most);
    }
done:
    car_context_release(context, held, held ? ranks * batches : 0, sizeof *held);
    return status;
}

void car_levels_release(const car_record *record, car_levels *levels) {
    car_context_release(record->recorder->context, levels->levels, (size_t)levels->capacity, sizeof *levels->levels);
}
