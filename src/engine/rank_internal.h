/* What the files rank*.c share: the state of a rank, and the functions that they call across files. */
#ifndef CAR_ENGINE_RANK_INTERNAL_H
#define CAR_ENGINE_RANK_INTERNAL_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/base.h"
#include "carousel/rank.h"
#include "engine/arithmetic.h"
#include "engine/internal.h"
#include "engine/rank_store.h"
#include "plan/bundles.h"
#include "plan/usage.h"
#include "recorder/recorder.h"
#include "transport/transport.h"

/* ---- tasks ----------------------------------------------------------------------------------- */

/* What a backward does with its gradient of one bundle of its stage. */
typedef enum car_addition_kind {
    CAR_ADDITION_BEGINS, /* nothing was added before: its gradient becomes the sum */
    CAR_ADDITION_ADDS,   /* its gradient goes to scratch memory first, and is then added to the sum */
    CAR_ADDITION_WAITS,  /* the sum has not arrived: its gradient is kept in a block and added when the sum comes */
    CAR_ADDITION_APART   /* the gradients of each worker stay in a block of their own until the update */
} car_addition_kind;

typedef struct car_addition {
    car_addition_kind kind;
    int bundle;
    car_block *block; /* where the sum is; for WAITS, where the gradient is */
} car_addition;

enum { CAR_MAX_ADDITIONS = 8 };

/* A listed task: a task of the plan that is not over yet. */
typedef struct car_entry {
    car_task task;
    int64_t window, number; /* the window that it belongs to, and its number in the order of listing */
    int blockers;           /* number of unfinished tasks that it waits for */
    struct car_entry **dependents;
    int dependent_count, dependent_capacity;
    bool running, over;
    bool candidate; /* pacing may choose it, in the choice being made now */
    /* The next operation of a task that has run in part, otherwise CAR_NONE. An update that has measured its gradient
     * and waits for the others has 0. */
    int at;
    /* True if `until` and `most` are set. They describe the portion that runs now or runs next. */
    bool portioned;
    int until;   /* the first operation after the portion, in running order */
    size_t most; /* the most bytes of activations that the worker holds during the portion */
    car_addition additions[CAR_MAX_ADDITIONS]; /* of a backward that has begun */
    int addition_count;
    bool arrived; /* for messages and collectives */
    car_message message;
    car_block *block; /* of messages that arrive: where the data goes */
    struct car_entry *next_ready, *next_arrival;
} car_entry;

/* A message that may outlive its task, or a piece of a snapshot. Parcels form a list, so that those left after a
 * failure can be dropped. */
typedef struct car_parcel {
    car_message message;
    car_block *block;
    struct car_parcel *next, **place; /* the next one, and the pointer to this one */
} car_parcel;

/* The kinds of notes: what ranks tell each other in addition to the plan's messages. */
typedef enum car_note_kind {
    CAR_NOTE_SQUARE, /* sum of squares of a stage's gradient in a step, from the owner of its update to all ranks */
    CAR_NOTE_LOSS,   /* loss of a micro-batch, to rank 0 */
    CAR_NOTE_ASK,    /* rank 0 wants to end early and asks all ranks how far they are */
    CAR_NOTE_ANSWER, /* the answer to that, to rank 0 */
    CAR_NOTE_END     /* rank 0 tells all ranks where the run ends; it sends no further notes in this run */
} car_note_kind;

/* How a run ends early: one rank's answer, or the decision for all ranks. */
typedef struct car_ending {
    /* A number of the plan's steps. In an answer: the steps that this rank can no longer undo. In the decision: the
     * steps that are made. */
    int64_t end;
    int64_t windows;  /* number of windows to list */
    int64_t snapshot; /* the version of which rank 0 expects a piece; 0 = none */
} car_ending;

typedef struct car_rank_note {
    int64_t run;  /* notes of other runs are ignored */
    int64_t step; /* counted as in the plan */
    int32_t kind, index;
    double value;
    car_ending ending;
} car_rank_note;

typedef struct car_rank_thread {
    struct car_rank *rank;
    pthread_t handle;
    bool started;
    car_lane *lane;
    car_weights view;        /* points to the weights of the stage that it computes */
    car_gradients gradients; /* points to where gradients of that stage go */
    char *addend;
    void *derived; /* scratch for derived weights, which change with the version and are made for each backward */
    bool carries;  /* the carrier runs only messages and has no lane, views or scratch */
    const car_entry *entry; /* the task that it runs; guarded by the lock */
    double tasks, waiting, choosing;
    double waited;    /* seconds that it has waited since its last task */
    car_track *track; /* NULL without a recorder */
} car_rank_thread;

/* What a run computes; see rank_once.c. */
typedef enum car_purpose { CAR_PURPOSE_TRAINING, CAR_PURPOSE_GRADIENT, CAR_PURPOSE_LOSS } car_purpose;

/* The status that a rank sends to others. */
typedef struct car_rank_status {
    int64_t step; /* the step that the rank is in */
    int64_t run;  /* the run that it is in */
    int32_t waits;
    int32_t wishes_to_stop;
    char doing[96]; /* a task */
} car_rank_status;

/* The last status received from another rank, and when. It explains why nothing moves. */
typedef struct car_sighting {
    double when; /* by this rank's clock */
    car_rank_status told;
} car_sighting;

struct car_rank {
    /* What it executes, and what it uses for that. */
    car_context *context;
    const car_plan *plan;
    const car_partition *partition;
    const car_program *program;
    const car_graph *graph;
    car_arena *arena;
    car_transport *transport;
    car_trainer_config config;
    const car_placement_info *placement;
    car_usage *usage; /* the uses of this rank's tasks */

    /* What follows from the above. */
    int device, devices, workers, stages, per_worker, bundles;
    /* Micro-batches of a step, M for each worker. A task's `micro_batch` is below this. */
    int batches;
    int updates_per_step;
    bool spaced;                                  /* micro-batches begin 2k slots apart */
    bool chains;                                  /* zero with two copies of a version: weights are passed on */
    bool alone;                                   /* this is the only rank, so it has all workers */
    bool feeds;                                   /* it needs inputs or labels, so it calls `feed` */
    bool measures;                                /* gradient norms are needed, to clip them or to skip steps */
    car_graph_range *range;                       /* pipeline and grid: the operations that this rank computes */
    car_graph_range *whole;                       /* other placements with recomputation: all operations */
    int first_stage, end_stage, first_op, end_op; /* what this rank computes, in whatever micro-batches */

    /* The state that the next run continues from. */
    int64_t first_step;             /* step 0 of the plan is this step of training */
    int64_t updates;                /* optimizer updates made before first_step */
    double last_norm;               /* see car_snapshot_numbers */
    int64_t newest;                 /* between runs: the newest version, as the plan counts */
    bool goes_on;                   /* the first version of this run has an older one, for stale micro-batches */
    bool holds_older;               /* some bundle has an `older` version */
    car_holding_of_bundle *holding; /* what this rank has of each bundle */
    int sums_held;                  /* capacity of each bundle's `sums` */
    car_optimizer *optimizer;
    car_weights newest_weights, previous_weights; /* views for car_rank_weights and car_rank_previous_weights */
    car_purpose purpose;
    double mean_loss; /* rank 0: the loss of the last run for a gradient or a loss */

    /* Tapes and threads. */
    car_tape **tapes;
    int tape_count;
    car_rank_thread *thread;
    car_rank_thread carrier; /* handles messages while the other threads compute */
    atomic_bool stop;        /* car_rank_stop was called here */
    atomic_bool wished;      /* rank 0 was told so */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t changed;
    car_status status;
    int idle; /* number of threads that wait for a task */

    /* rank_list.c: tasks oldest .. listed - 1, in the plan's order. All before them are over. Task n is at n % capacity
     * of `entries`; the other entries are NULL or can be used again. The capacity is a power of two. */
    int64_t oldest, listed, capacity;
    car_entry **entries;
    car_entry *ready;    /* the ready set: tasks that nothing blocks, in the plan's order */
    car_entry *arrivals; /* receives and collectives that have not been started, in the plan's order */
    car_edges *edges;
    car_use_list uses; /* uses of the task being listed */
    car_task_list list;
    int64_t window;       /* the next window to list */
    int64_t windows;      /* number of windows to list */
    int64_t planned;      /* number of the plan's steps in this run */
    int64_t steps_used;   /* number of steps that have a listed task */
    int64_t windows_used; /* number of windows that have a listed task, or receive from one */
    int64_t send_slot;
    int sends_in_slot, most_sends;

    /* The current run, and how it ends: rank_stop.c. */
    int64_t run;          /* different for each run; the same on all ranks */
    int64_t limit;        /* number of the plan's steps that are made; an early end lowers it */
    int64_t newest_begun; /* the newest version whose update has begun */
    bool begun;           /* a forward or backward has begun; waiting before that does not count as exposed */
    bool asked;           /* rank 0: it has asked the others how far they are */
    bool frozen;          /* no newer version may begin until the end is decided */
    bool shortened;       /* the run ends early */
    bool released;        /* rank 0 will send no more notes in this run; always true on rank 0 */
    bool ended;           /* this rank's tasks are done */
    car_ending ending;    /* rank 0: the answers received so far, combined */
    int answers;          /* rank 0: number of answers so far */
    const char *aside;    /* for messages: what rank 0 is doing between two runs; else NULL */

    /* rank_beat.c: beats, and what they are computed from. */
    /* The last beat received from the rank before: the newest micro-batch that may begin, and the run that it belongs
     * to. */
    int64_t beat, beat_run;
    int64_t told;     /* the newest micro-batch that this rank has sent a beat for */
    double *computed; /* for each micro-batch of a step: seconds of computing so far */
    double computes;  /* the same in total, of the micro-batch that ended last */
    bool paced;       /* its links are paced (rank_links.c) */
    bool saturated;   /* ranks compute for less than half of a step; known only if `paced` */
    double computing; /* seconds that all threads together have computed in this run */
    /* The newest step of the plan in which a forward or backward has begun in this run; CAR_NONE = none. */
    int64_t step_begun;

    /* State of single files. */
    car_parcel *parcels;             /* messages in flight that no entry waits for: sends, and pieces of snapshots */
    struct car_steps *steps;         /* losses and norms of the steps in progress */
    struct car_pacing *pacing;       /* NULL: no pacing; ready tasks run in the plan's order */
    struct car_snapshots *snapshots; /* NULL: none are taken */
    struct car_chunks *chunks;       /* large updates in progress, which idle threads help with */
    car_sighting *sightings;         /* for each rank */

    /* For reports. */
    int skipped_in_a_row; /* number of skipped steps in a row, ending with the last one reported */
    double progressed;    /* when the last task ended */
    double watched;       /* when the watchdog last looked */
    car_trainer_times times;
    double exposed;
};

static inline car_entry *car_rank_entry(const car_rank *rank, int64_t number) {
    return rank->entries[number & (rank->capacity - 1)];
}
/* The first task that is not over; NULL if there is none. */
static inline car_entry *car_rank_first(const car_rank *rank) {
    return rank->oldest < rank->listed ? car_rank_entry(rank, rank->oldest) : NULL;
}

/* True if this rank computes a stage for a micro-batch of a step of the plan. */
static inline bool car_rank_has(const car_rank *rank, int64_t step, int number, int stage) {
    return car_plan_rank_of(rank->plan, car_plan_device(rank->plan, step, number, stage)) == rank->device;
}

static inline bool car_task_is_collective(const car_task *task) {
    return task->kind == CAR_TASK_REDUCE || task->kind == CAR_TASK_BROADCAST;
}
static inline bool car_task_arrives(const car_task *task) {
    return task->kind == CAR_TASK_RECEIVE || car_task_is_collective(task);
}
static inline bool car_task_is_message(const car_task *task) {
    return task->kind == CAR_TASK_SEND || car_task_arrives(task);
}
/* True if a message carries a sum or a piece of one; true if it carries activations or their gradients, because the
 * next stage is on another rank. */
static inline bool car_task_moves_sum(const car_task *task) {
    return task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
}
static inline bool car_task_crosses(const car_task *task) {
    return task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT;
}

/* The rank that makes the new version of a stage in a step of the plan and keeps the stage's state. */
static inline int car_rank_owner(const car_rank *rank, int64_t step, int stage) {
    return car_plan_rank_of(rank->plan, car_plan_owner(rank->plan, step, stage));
}

/* True if stale micro-batches exist, so that the version before the newest is used. The first worker at stage 0 is
 * stale if any is. */
static inline bool car_rank_has_previous(const car_rank *rank) {
    return car_plan_delay(rank->plan, 0, 0) > 0;
}

/* The step of training that a task belongs to; a task itself counts from the start of the run. */
static inline int64_t car_rank_step_of(const car_rank *rank, const car_task *task) {
    return rank->first_step + task->step;
}

/* rank_tasks.c: runs a forward or backward, or a portion of one. Hold the lock; it is released while kernels run. */
car_status car_rank_compute(car_rank_thread *thread, car_entry *entry);
/* Begins a task's micro-batch on a tape, with its inputs. Call it without the lock. */
car_status car_rank_begin_tape(car_rank *rank, const car_task *task, car_tape *tape);
/* Points a view at a version of a bundle. */
void car_rank_bind(car_weights *view, const car_layout *layout, const car_held *held);
/* rank_update.c: runs an update or its first portion, with the lock as above. The second function is true if an update
 * may begin, or continue. */
car_status car_rank_update(car_rank_thread *thread, car_entry *entry);
bool car_rank_may_update(const car_rank *rank, const car_entry *entry);

/* rank_once.c, for runs that only compute the gradient. The first function allocates the mean gradient of a bundle;
 * hold the lock. The second computes it from the sum, without the lock. */
car_status car_rank_begin_average(car_rank *rank, int bundle);
void car_rank_average(car_rank *rank, int bundle, const car_block *sum);

/* rank_chunks.c */
typedef struct car_chunks car_chunks;
/* Makes the new version of a bundle. Call it without the lock. */
car_status car_rank_renew(car_rank *rank, int bundle, const car_renewal *renewal, const car_block *from,
                          const car_block *to, const car_block *sum);
/* Called by an idle thread: computes one chunk of an update that another thread is making. Returns false if there is
 * none. Hold the lock; it is released meanwhile. */
bool car_rank_help(car_rank *rank);

/* rank_steps.c: losses and norms of the steps in progress, and what follows from them. Hold the lock, except to create;
 * car_rank_measure releases it meanwhile. Steps are counted as in the plan. */
typedef struct car_verdict {
    bool skipped;   /* the step leaves the weights as they are */
    double scale;   /* factor of its gradient */
    int64_t update; /* number of this update of the optimizer, from 0; skipped steps do not count */
} car_verdict;
car_status car_rank_create_steps(car_rank *rank);
void car_rank_destroy_steps(car_rank *rank);
void car_rank_rewind_steps(car_rank *rank); /* before a run */
car_status car_rank_note_step(car_rank *rank, const car_task *task);
int64_t car_rank_reported(const car_rank *rank); /* rank 0: how many steps it has reported */
/* Reports all steps that can be reported. Returns true if this rank misses no loss or norm of this run any more. */
bool car_rank_knows_all(car_rank *rank);
bool car_rank_makes_loss(const car_rank *rank, const car_task *task);
/* False if the task computes a loss and there is no room to record it yet. */
bool car_rank_may_note_loss(const car_rank *rank, const car_task *task);
car_status car_rank_note_loss(car_rank *rank, const car_task *task, double value);
car_status car_rank_keep_loss(car_rank *rank, int64_t step, int number, double value); /* rank 0 */
car_status car_rank_measure(car_rank *rank, const car_task *task);
car_status car_rank_note_square(car_rank *rank, int64_t step, int stage, double square);
bool car_rank_may_judge(const car_rank *rank, const car_task *task); /* true if the task's step can be judged now */
car_status car_rank_judge(const car_rank *rank, const car_task *task, car_verdict *out);
/* The state after `steps` steps of this run: the number of optimizer updates, and the norm that decides about the next
 * step. */
int64_t car_rank_updates_after(const car_rank *rank, int64_t steps);
double car_rank_norm_after(const car_rank *rank, int64_t steps);

/* rank_snapshot.c. Hold the lock, except to create and for car_rank_copy. */
car_status car_rank_create_snapshots(car_rank *rank);
void car_rank_destroy_snapshots(car_rank *rank);
void car_rank_rewind_snapshots(car_rank *rank); /* before a run */
/* If a snapshot is taken of a version, the update that makes this version also copies its bundle. The update calls
 * these functions in this order: may it begin; allocate `room` for the copy (NULL if it goes into rank 0's snapshot);
 * copy the version before, then the new version with the optimizer's state; the copy is complete, which takes over
 * `room`. For all other updates they do nothing. */
bool car_rank_may_copy(const car_rank *rank, const car_task *task);
car_status car_rank_begin_copy(car_rank *rank, const car_task *task, car_block **room);
void car_rank_copy(car_rank *rank, const car_task *task, const car_block *room, const car_block *weights, bool before);
car_status car_rank_end_copy(car_rank *rank, const car_task *task, car_block *room);
car_status car_rank_note_piece(car_rank *rank, const car_parcel *parcel); /* a piece has been received or sent */
/* The norms of the first `steps` steps of this run are known: records the numbers for a snapshot after them. */
car_status car_rank_note_numbers(car_rank *rank, int64_t steps);
/* In the loop: hands over a complete snapshot, and posts the receive of the next piece. May release the lock
 * meanwhile. */
car_status car_rank_tend_snapshots(car_rank *rank);
bool car_rank_snapshots_are_done(const car_rank *rank); /* all snapshots of this run were handed over */
bool car_rank_snapshot_is_away(const car_rank *rank);
/* For an early end. The first function returns the version of the plan of which rank 0 expects a piece, or 0. If that
 * version will not be made, the second makes its keeper send a short piece, so that rank 0 does not wait forever. */
int64_t car_rank_snapshot_expected(const car_rank *rank);
car_status car_rank_settle_snapshot(car_rank *rank, int64_t version);
/* rank_messages.c: sends, receives and collectives. Hold the lock, except for car_rank_message_finished, which takes
 * it. */
car_status car_rank_send(car_rank *rank, const car_task *task);
car_status car_rank_start_arrival(car_rank *rank, car_entry *entry); /* for receives and collectives */
car_status car_rank_take_arrival(car_rank *rank, car_entry *entry);
void car_rank_message_finished(void *user, car_message *message);
/* Starts a message. It takes over a reference of the block, and drops it when the message has finished. Hold the
 * lock. */
car_status car_rank_ship(car_rank *rank, const car_message *message, car_block *block);
void car_rank_forget_parcels(car_rank *rank); /* after a failure: drops the messages still in flight */

/* rank_links.c: pacing of the links to other ranks (transport/pace.h). */
car_status car_rank_create_links(car_rank *rank); /* if links are paced, tells the transport the bytes of each */
/* The slot from which on the message of a send is no longer held back; 0 = it is never held back. */
int64_t car_rank_latest(const car_rank *rank, const car_task *send);
/* How many slots before its own slot a receive or a broadcast is posted. */
int64_t car_rank_slots_ahead(const car_rank *rank, const car_task *task);
void car_rank_note_slot(car_rank *rank, const car_task *task); /* a forward or backward begins; hold the lock */

/* rank_notes.c. Sends a note to rank `to`, or to all others if `to` is CAR_NONE; hold the lock, in the loop.
 * car_rank_hear_note handles a received note, and takes the lock itself. */
car_status car_rank_send_note(car_rank *rank, int to, car_rank_note note);
void car_rank_hear_note(void *user, const void *data, size_t bytes);

/* rank.c. Marks the rank as failed, and wakes every thread that waits for it. The message of the first failure is kept.
 * Does nothing for CAR_OK. Hold the lock. */
void car_rank_fail(car_rank *rank, car_status status);

/* rank_list.c: the tasks that are not over. Hold the lock. */
car_status car_rank_fill(car_rank *rank);               /* lists the window of the first task and the next window */
void car_rank_retire(car_rank *rank, car_entry *entry); /* the task is over: unblocks the tasks that waited for it */
void car_rank_forget_entries(car_rank *rank);

/* Frees all activations on the tapes. */
void car_rank_clear_tapes(car_rank *rank);

/* rank_executor.c: what each thread of a rank runs. */
void *car_rank_thread_run(void *argument);

/* rank_pace.c: pacing decides which of the ready tasks may start. Between the workers of a rank it uses a lead in
 * phases and a budget of bytes; between ranks it uses beats (rank_beat.c). Hold the lock, except to create. */
car_status car_rank_create_pacing(car_rank *rank);
void car_rank_destroy_pacing(car_rank *rank);
void car_rank_rewind_pacing(car_rank *rank); /* before a run */
/* The candidate in the ready set that runs next; NULL if all of them have to wait. */
car_entry *car_rank_choose_paced(car_rank *rank);
/* A task, or a portion of a forward or backward, begins; or it has ended, and entry->at says where it continues. */
void car_rank_note_begin(car_rank *rank, car_entry *entry);
void car_rank_note_end(car_rank *rank, car_entry *entry, double seconds);

/* rank_beat.c. Hold the lock, except for car_rank_hear_beat. The first function is true if a task need not wait for a
 * beat any more. */
bool car_beat_has_come(const car_rank *rank, const car_task *task);
void car_beat_note_begin(car_rank *rank, const car_task *task);
void car_beat_note_end(car_rank *rank, const car_task *task, double seconds);
void car_rank_hear_beat(void *user, int64_t run, int64_t number); /* called by the transport; `user` is the rank */

/* rank_watch.c: the watchdog. */
void car_rank_be_patient(car_rank *rank); /* restarts the timeout of all other ranks; hold the lock */
/* Callbacks of the transport; `user` is the rank. They take the lock themselves. */
void car_rank_watch(void *user);
bool car_rank_is_urgent(void *user);
size_t car_rank_tell(void *user, char *text);
void car_rank_heard(void *user, int from, const char *text, size_t bytes);

/* rank_stop.c: ending early. Hold the lock, in the loop. */
/* At the end of a run, on rank 0: tells the other ranks that it will not ask them to stop any more. */
car_status car_rank_release(car_rank *rank);
void car_rank_look_for_stop(car_rank *rank); /* starts the early end if car_rank_stop was called */
car_status car_rank_hear_of_end(car_rank *rank, const car_rank_note *note);
bool car_rank_is_dropped(const car_rank *rank, const car_task *task);
/* True if the update to this version, or a collective for it, may begin. */
bool car_rank_may_commit(const car_rank *rank, int64_t version);
void car_rank_commit(car_rank *rank, int64_t version);

#endif
