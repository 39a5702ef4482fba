/* The private definition of a recorder: executors write it, reports read it.
 *
 *   recorder ─ journal of a process ─┬─ track of thread 0 ── spans: tasks ── notes: their operations
 *                                    ├─ track of thread 1
 *                                    └─ changes of the arena's categories
 *
 * Only its own thread writes a track, so no lock is needed. After a run over ranks, rank 0 has all journals. */
#ifndef CAR_RECORDER_RECORDER_H
#define CAR_RECORDER_RECORDER_H

#include "base/base.h"
#include "carousel/plan.h"
#include "carousel/recorder.h"

/* An operation of a task. */
typedef struct car_note {
    double start, end;
    size_t during, after; /* bytes of activations that the micro-batch held on this rank */
    int op;
    bool again; /* a forward that was run again for backward */
} car_note;

/* A task, or the part of it that its thread did in one go. */
typedef struct car_span {
    car_task task; /* step, versions and slot count from the beginning of the run */
    double start, end;
    double waited;          /* seconds without work before it */
    double posted, arrived; /* receives and collectives: when it was posted and when it was done; else 0 */
    bool holds;             /* true if activations crossed to or from another rank ... */
    size_t held;            /* ... and the bytes held since then */
    int row;                /* the worker it belongs to; CAR_NONE: nobody */
    int first_note, notes;
} car_span;

typedef struct car_track {
    struct car_recorder *recorder;
    car_span *spans;
    car_note *notes;
    int span_count, span_capacity, note_count, note_capacity;
    bool open; /* the last span has not ended */
    bool full; /* nothing more is recorded */
    int64_t lost;
} car_track;

/* A change of the live bytes of a category. */
typedef struct car_change_of_memory {
    double when;
    size_t live;
    int category;
} car_change_of_memory;

typedef struct car_journal {
    int rank;
    car_track *tracks;
    int track_count;
    car_change_of_memory *changes;
    int change_count, change_capacity;
    int64_t lost;      /* number of lost changes */
    double offset;     /* offset of its clock from rank 0's */
    double round_trip; /* of the exchange that gave the offset, which is exact to half of this */
} car_journal;

struct car_recorder {
    car_context *context;
    car_arena *arena;
    car_recorder_config config;
    int64_t first_step, end_step;
    car_journal *journals; /* on rank 0 after gathering: those of all ranks, in order; else one */
    int journal_count;
    size_t most_spans, most_notes, most_changes; /* limits: for each track; for each journal */
    bool watching;                               /* guarded by the executor's lock */
};

/* NULL if there is no recorder. The message thread comes after the others. */
car_track *car_recorder_track(car_recorder *recorder, int thread);
/* True if a task is to be recorded, by its slot counted from the beginning of the run. Hold the executor's lock. A
 * NULL recorder records nothing. */
bool car_recorder_wants(car_recorder *recorder, const car_plan *plan, int64_t slot);

/* A task begins on the track's thread at `now`. If the thread simply continues the same task, it stays one span. */
void car_track_begin(car_track *track, const car_task *task, int row, double now, double waited);
void car_track_end(car_track *track, double now);
/* The current task is a receive or a collective. */
void car_track_arrival(car_track *track, double posted, double arrived);
/* An operation that began at `start` ends now. */
void car_track_note(car_track *track, int op, bool again, double start, size_t during, size_t after);

/* The current task moves activations between ranks: records what the micro-batch holds on this rank after it. */
void car_track_hold(car_track *track, size_t held);

/* Frees what a journal holds. */
void car_journal_release(car_context *context, car_journal *journal);

#endif
