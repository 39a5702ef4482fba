/* The inside of a recorder: for the executors, which write, and for the reports, which read.
 *
 *   recorder ─ journal of a process ─┬─ track of thread 0 ── spans: tasks ── notes: their operations
 *                                    ├─ track of thread 1
 *                                    └─ changes of the arena's categories
 *
 * A track is written by its thread alone, without a lock. After a run over ranks, rank 0 has all journals. */
#ifndef CAR_RECORDER_RECORDER_H
#define CAR_RECORDER_RECORDER_H

#include "base/base.h"
#include "carousel/plan.h"
#include "carousel/recorder.h"

/* An operation of a task. */
typedef struct car_note {
    double start, end;
    size_t during, after; /* bytes of activations that the micro-batch held here */
    int op;
    bool again; /* its forward, run again for backward */
} car_note;

/* A task, or as much of it as its thread did in one go. */
typedef struct car_span {
    car_task task; /* step, versions and slot counted from the beginning of the run */
    double start, end;
    double waited;          /* before it, because there was nothing to do */
    double posted, arrived; /* receives and collectives: when it was posted, and done; else 0 */
    bool holds;             /* activations crossed to or from another rank ... */
    size_t held;            /* ... and so much is held since */
    int row;                /* the worker whose turn it was; CAR_NONE: nobody's */
    int first_note, notes;
} car_span;

typedef struct car_track {
    struct car_recorder *recorder;
    car_span *spans;
    car_note *notes;
    int span_count, span_capacity, note_count, note_capacity;
    bool open; /* the last span is under way */
    bool full; /* nothing more is noted */
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
    int64_t lost;      /* changes */
    double offset;     /* of its clock from rank 0's */
    double round_trip; /* of the exchange that the offset is from: it is right to half of that */
} car_journal;

struct car_recorder {
    car_context *context;
    car_arena *arena;
    car_recorder_config config;
    int64_t first_step, end_step;
    car_journal *journals; /* rank 0 after gathering: of all ranks in order; else one */
    int journal_count;
    size_t most_spans, most_notes, most_changes; /* of a track; of a journal */
    bool watching;                               /* guarded by the executor's lock */
};

/* NULL if there is no recorder. The thread for messages comes after the others. */
car_track *car_recorder_track(car_recorder *recorder, int thread);
/* Whether a task is to be noted, by its slot, counted from the beginning of the run. With the executor's lock; NULL
 * wants nothing. */
bool car_recorder_wants(car_recorder *recorder, const car_plan *plan, int64_t slot);

/* A task begins on the track's thread at `now`; what a thread goes on with at once stays one span. */
void car_track_begin(car_track *track, const car_task *task, int row, double now, double waited);
void car_track_end(car_track *track, double now);
/* The task under way is a receive or a collective. */
void car_track_arrival(car_track *track, double posted, double arrived);
/* An operation that began at `start` ends now. */
void car_track_note(car_track *track, int op, bool again, double start, size_t during, size_t after);

/* The task under way moves activations between ranks: what the micro-batch holds on this one after it. */
void car_track_hold(car_track *track, size_t held);

/* Frees what a journal holds. */
void car_journal_release(car_context *context, car_journal *journal);

#endif
