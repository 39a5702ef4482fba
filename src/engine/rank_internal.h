/* The inside of a rank, for the files rank*.c. */
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

/* What a backward does with the gradients of a bundle of its stage. */
typedef enum car_addition_kind {
    CAR_ADDITION_BEGINS, /* the gradient is the sum so far */
    CAR_ADDITION_ADDS,   /* the gradient is computed apart, then added */
    CAR_ADDITION_WAITS,  /* the sum is not here: the gradient is kept apart, and added when it comes */
    CAR_ADDITION_APART   /* it is kept as it is until the update, beside those of other workers */
} car_addition_kind;

typedef struct car_addition {
    car_addition_kind kind;
    int bundle;
    car_block *block; /* the sum; WAITS: the gradient */
} car_addition;

enum { CAR_MAX_ADDITIONS = 8 };

/* A task of the plan that is not over yet. They are kept in the plan's order. */
typedef struct car_entry {
    car_task task;
    int64_t window, number; /* the latter counts tasks from 1; the edges from 0 */
    int blockers;           /* earlier tasks that it waits for and that are not over */
    struct car_entry **dependents;
    int dependent_count, dependent_capacity;
    bool running, over;
    bool candidate; /* of the choice that is being made */
    int at;         /* the operation that comes next, if the task has begun and is not over; else CAR_NONE */
    bool portioned; /* the next two are known: of the portion that runs, or runs next */
    int until;      /* the operation behind its last, in the order in which they run */
    size_t most;    /* bytes of activations that the worker holds meanwhile, at most */
    car_addition additions[CAR_MAX_ADDITIONS]; /* of a backward that has begun */
    int addition_count;
    bool started, arrived; /* messages and collectives */
    car_message message;
    car_block *block; /* where a message lands, or what it carries */
    struct car_entry *next, *next_ready, *next_arrival;
} car_entry;

/* A message that may outlive its task, or a piece of a snapshot. */
typedef struct car_parcel {
    car_message message;
    car_block *block;
    struct car_parcel *next, **place; /* in the rank's list; the pointer that points to this parcel */
} car_parcel;

/* What ranks tell each other besides the plan's messages. */
typedef enum car_note_kind {
    CAR_NOTE_SQUARE, /* sum of squares of a stage's gradient in a step, from the owner of its update to all ranks */
    CAR_NOTE_LOSS,   /* loss of a micro-batch, to rank 0 */
    CAR_NOTE_ASK,    /* rank 0 wants to end early and asks all ranks how far they are */
    CAR_NOTE_ANSWER, /* the answer to that, to rank 0 */
    CAR_NOTE_END     /* rank 0 tells all ranks where the run ends; it sends no further notes in this run */
} car_note_kind;

/* How a run ends early: one rank's answer, or the decision for all ranks. */
typedef struct car_ending {
    int64_t end; /* steps of the plan; in an answer those that cannot be undone, in the decision those that are made */
    int64_t windows;  /* number of windows to list */
    int64_t snapshot; /* the version that rank 0 is waiting for a piece of; 0 = none */
} car_ending;

typedef struct car_rank_note {
    int64_t run;  /* a rank ignores notes of other runs */
    int64_t step; /* of the plan */
    int32_t kind, index;
    double value;
    car_ending ending;
} car_rank_note;

typedef struct car_rank_thread {
    struct car_rank *rank;
    pthread_t handle;
    bool started;
    car_lane *lane;
    car_weights view;        /* pointers into blocks, for the stage at hand */
    car_gradients gradients; /* the same */
    char *addend;
    void *derived; /* scratch for derived weights, which are made again for each backward because versions change */
    bool carries;  /* the carrier: runs only message tasks, and has none of the members above */
    const car_entry *entry; /* what it is running; guarded by the lock */
    double tasks, waiting, choosing;
    double waited;    /* seconds since its last task */
    car_track *track; /* NULL without a recorder */
} car_rank_thread;

/* What a run is for; see rank_once.c. */
typedef enum car_purpose { CAR_PURPOSE_TRAINING, CAR_PURPOSE_GRADIENT, CAR_PURPOSE_LOSS } car_purpose;

/* The status that a rank sends to others. */
typedef struct car_rank_status {
    int64_t step; /* the step that the rank is in */
    int64_t run;  /* the run that it is in */
    int32_t waits;
    int32_t wishes_to_stop;
    char doing[96]; /* a task */
} car_rank_status;

/* The last status of another rank, to explain why nothing moves. */
typedef struct car_sighting {
    double when; /* it was received, by our clock */
    car_rank_status told;
} car_sighting;

struct car_rank {
    /* What it executes, with what. */
    car_context *context;
    const car_plan *plan;
    const car_partition *partition;
    const car_program *program;
    const car_graph *graph;
    car_arena *arena;
    car_transport *transport;
    car_trainer_config config;
    const car_placement_info *placement;
    car_usage *usage; /* what tasks use here */

    /* What follows from that. */
    int device, devices, workers, stages, per_worker, bundles;
    int batches; /* micro-batches of a step, M for each worker; a task's `micro_batch` is one of them */
    int updates_per_step;
    bool spaced;            /* micro-batches begin 2k slots apart */
    bool ring;              /* sums are added in ring order; otherwise collectives add them in any order */
    bool chains;            /* zero with two copies of a version: weights are passed on */
    bool alone;             /* there are no other ranks: all workers are here */
    bool feeds;             /* it reads micro-batches */
    bool measures;          /* norms of gradients are needed, for clipping or skipping */
    car_graph_range *range; /* pipeline and grid: the operations of this rank */
    car_graph_range *whole; /* else, with recomputation: all operations */
    int first_stage, end_stage;

    /* The state that training goes on from. */
    int64_t first_step;             /* the run's step that is step 0 of the plan */
    int64_t updates;                /* updates of the optimizer before first_step */
    double last_norm;               /* see car_snapshot_numbers */
    int64_t newest;                 /* between runs: the newest version, as the plan counts */
    bool goes_on;                   /* from a version that has one before it */
    bool holds_older;               /* some bundle has one, see car_holding_of_bundle */
    car_holding_of_bundle *holding; /* per bundle */
    int sums_held;                  /* entries for sums in each of them */
    car_optimizer *optimizer;
    car_weights newest_weights, previous_weights; /* views for car_rank_weights and car_rank_previous_weights */
    car_purpose purpose;
    double mean_loss; /* rank 0: loss of the last step that was not training */

    /* What it works with. */
    car_tape **tapes;
    int tape_count;
    car_rank_thread *thread;
    car_rank_thread carrier; /* handles messages while the other threads compute */
    atomic_bool stop;        /* car_rank_stop was called here */
    atomic_bool wished;      /* rank 0 was told so */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    car_status status;
    int idle; /* threads that wait for a task */

    /* rank_list.c: tasks that are not over. */
    car_entry *first, *last, *spare;
    car_entry *ready;      /* tasks that nothing blocks, in the plan's order */
    car_entry *arrivals;   /* receives and collectives that have not been started, in the plan's order */
    car_entry **by_number; /* entries from first to last, indexed by number % number_capacity (a power of two) */
    int64_t number_capacity;
    car_edges *edges;
    car_use_list uses; /* of the task that is listed */
    car_task_list list;
    int64_t window;       /* the next window to list */
    int64_t windows;      /* number of windows to list */
    int64_t listed;       /* tasks listed so far */
    int64_t planned;      /* steps of the plan that tasks are listed for */
    int64_t steps_used;   /* steps that the tasks listed so far belong to */
    int64_t windows_used; /* windows that the tasks listed so far are in, or send to */
    int collectives_started[2], collectives_listed[2];
    int64_t send_slot;
    int sends_in_slot, most_sends;

    /* This run: rank_stop.c. */
    int64_t run;          /* number of this run; each has another */
    int64_t limit;        /* steps of the plan that are made; an early end lowers it */
    int64_t newest_begun; /* the newest version whose update has begun */
    bool begun;           /* a forward or backward has begun; waiting before that does not count as exposed */
    bool asked;           /* rank 0: it has asked the others how far they are */
    bool frozen;          /* no new version may be made until the end is known */
    bool shortened;       /* the run ends early */
    bool released;        /* rank 0 will send no more notes in this run; always true on rank 0 */
    bool ended;           /* this rank's tasks are done */
    car_ending ending;    /* rank 0: the answers so far, combined */
    int answers;          /* rank 0: number of answers so far */
    const char *aside;    /* what rank 0 does between two runs, for messages; else NULL */

    /* rank_beat.c. */
    int64_t beat, beat_run; /* the last beat from the rank before: the micro-batch that may begin, and its run */
    int64_t told;           /* the last micro-batch that we sent a beat for */
    double *computed;       /* per micro-batch of a step: seconds of its forwards and backwards so far */
    double computes;        /* the total of the micro-batch that ended last */
    bool paced;             /* whether its links are paced */
    double computing;       /* seconds that all threads have computed in this run, together */
    int64_t step_begun;     /* the newest step of the plan with a task that has begun; CAR_NONE = none in this run */

    /* Each with a file of its own. */
    car_parcel *parcels;             /* messages under way */
    struct car_steps *steps;         /* losses and norms of recent steps */
    struct car_pacing *pacing;       /* NULL: no pacing; ready tasks run in the plan's order */
    struct car_snapshots *snapshots; /* NULL: none are taken */
    struct car_chunks *chunks;       /* large updates under way, which idle threads can help with */
    car_sighting *sightings;         /* per rank */

    /* For reports. */
    int skipped_in_a_row; /* skipped steps in a row, up to the last that was reported */
    double progressed;    /* when the last task ended */
    double watched;       /* when the watchdog last looked */
    car_trainer_times times;
    double exposed;
};

/* Whether a micro-batch of a step of the plan is computed here, at a stage. */
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
/* What a message carries: a sum or a piece of one; activations or their gradients, where the next stage is on another rank. */
static inline bool car_task_moves_sum(const car_task *task) {
    return task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
}
static inline bool car_task_crosses(const car_task *task) {
    return task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT;
}

/* The rank that makes the new version of a stage in a step of the plan, and keeps its state. */
static inline int car_rank_owner(const car_rank *rank, int64_t step, int stage) {
    return car_plan_rank_of(rank->plan, car_plan_owner(rank->plan, step, stage));
}

/* Whether any task uses the version before the newest. If so, the first worker's at stage 0 do. */
static inline bool car_rank_has_previous(const car_rank *rank) {
    return car_plan_delay(rank->plan, 0, 0) > 0;
}

/* Step of the run that a task belongs to. */
static inline int64_t car_rank_step_of(const car_rank *rank, const car_task *task) {
    return rank->first_step + task->step;
}

/* rank_tasks.c: runs a forward or backward. Hold the lock; it is released while kernels run. */
car_status car_rank_compute(car_rank_thread *thread, car_entry *entry);
/* Points a view at a version of a bundle. */
void car_rank_bind(car_weights *view, const car_layout *layout, const car_held *held);
/* rank_update.c: runs an update, with the lock as above; and whether an update may begin or continue. */
car_status car_rank_update(car_rank_thread *thread, car_entry *entry);
bool car_rank_may_update(const car_rank *rank, const car_entry *entry);

/* rank_once.c, for runs that only compute the gradient. Allocates the mean gradient of a bundle (hold the lock); computes it
 * from the sum (without the lock). */
car_status car_rank_begin_average(car_rank *rank, int bundle);
void car_rank_average(car_rank *rank, int bundle, const car_block *sum);

/* rank_chunks.c */
typedef struct car_chunks car_chunks;
/* Makes the new version of a bundle. Without the lock. */
car_status car_rank_renew(car_rank *rank, int bundle, const car_renewal *renewal, const car_block *from,
                          const car_block *to, const car_block *sum);
/* An idle thread computes one chunk of an update that another thread is making; false if there is none. Hold the lock; it is
 * released meanwhile. */
bool car_rank_help(car_rank *rank);

/* rank_steps.c: losses and norms of the steps under way, and what follows from them. Hold the lock, except to create;
 * car_rank_measure releases it meanwhile. Steps are counted as in the plan. */
typedef struct car_verdict {
    bool skipped;   /* the step leaves the weights as they are */
    double scale;   /* of its gradient */
    int64_t update; /* number of the optimizer's update; skipped steps do not count */
} car_verdict;
car_status car_rank_create_steps(car_rank *rank);
void car_rank_destroy_steps(car_rank *rank);
void car_rank_rewind_steps(car_rank *rank); /* before a run */
car_status car_rank_note_step(car_rank *rank, const car_task *task);
int64_t car_rank_reported(const car_rank *rank); /* rank 0: number of steps reported */
/* Reports all steps that can be reported. Whether no loss or norm of this run is still missing here. */
bool car_rank_knows_all(car_rank *rank);
bool car_rank_makes_loss(const car_rank *rank, const car_task *task);
/* Whether there is room to record the loss of a task, if it computes one. */
bool car_rank_may_note_loss(const car_rank *rank, const car_task *task);
car_status car_rank_note_loss(car_rank *rank, const car_task *task, double value);
car_status car_rank_keep_loss(car_rank *rank, int64_t step, int number, double value); /* rank 0 */
car_status car_rank_measure(car_rank *rank, const car_task *task);
car_status car_rank_note_square(car_rank *rank, int64_t step, int stage, double square);
bool car_rank_may_judge(const car_rank *rank, const car_task *task); /* whether car_rank_judge can be called */
car_status car_rank_judge(const car_rank *rank, const car_task *task, car_verdict *out);
/* After `steps` steps of this run: the number of optimizer updates, and the norm that decides about the next step. */
int64_t car_rank_updates_after(const car_rank *rank, int64_t steps);
double car_rank_norm_after(const car_rank *rank, int64_t steps);

/* rank_snapshot.c: with the lock, except for creating and copying. */
car_status car_rank_create_snapshots(car_rank *rank);
void car_rank_destroy_snapshots(car_rank *rank);
void car_rank_rewind_snapshots(car_rank *rank); /* before a run */
/* The update that makes a version which a snapshot is taken of copies its bundle. In this order: may the update begin;
 * allocate `room` to copy to (NULL if it is not needed); copy the version before, then the new one with the optimizer's
 * state; the copy is complete, which takes `room` over. For all other updates these functions do nothing. */
bool car_rank_may_copy(const car_rank *rank, const car_task *task);
car_status car_rank_begin_copy(car_rank *rank, const car_task *task, car_block **room);
void car_rank_copy(car_rank *rank, const car_task *task, const car_block *room, const car_block *weights, bool before);
car_status car_rank_end_copy(car_rank *rank, const car_task *task, car_block *room);
car_status car_rank_note_piece(car_rank *rank, const car_parcel *parcel); /* a piece was received or sent */
/* The norms of the first `steps` steps of this run are known. */
car_status car_rank_note_numbers(car_rank *rank, int64_t steps);
/* In the loop: hands over a complete snapshot and posts the receive of the next piece. May release the lock meanwhile. */
car_status car_rank_tend_snapshots(car_rank *rank);
bool car_rank_snapshots_are_done(const car_rank *rank); /* all of this run were handed over */
bool car_rank_snapshot_is_away(const car_rank *rank);
/* For an early end. The version of the plan that rank 0 waits for a piece of, or 0. If that version will not be made, its
 * keeper sends an empty piece, so that rank 0 does not wait for ever. */
int64_t car_rank_snapshot_expected(const car_rank *rank);
car_status car_rank_settle_snapshot(car_rank *rank, int64_t version);
/* rank_messages.c: sends, receives and collectives. Hold the lock, except in car_rank_message_finished. */
car_status car_rank_send(car_rank_thread *thread, car_entry *entry);
car_status car_rank_start_arrival(car_rank *rank, car_entry *entry); /* receives and collectives */
car_status car_rank_take_arrival(car_rank_thread *thread, car_entry *entry);
void car_rank_message_finished(void *user, car_message *message);
/* Starts a message and takes over its block, which is dropped when the message has finished. Hold the lock. */
car_status car_rank_ship(car_rank *rank, const car_message *message, car_block *block);
void car_rank_forget_parcels(car_rank *rank); /* drops the messages that a failure left under way */

/* rank_links.c: pacing of the links to other ranks (transport/pace.h). */
car_status car_rank_create_links(car_rank *rank); /* tells the transport the bytes of each link, if links are paced */
/* The slot from which on a message of this task is no longer held back; 0 = it is never held back. */
int64_t car_rank_latest(const car_rank *rank, const car_task *send);
/* How many slots before its own a receive or a broadcast is asked for. */
int64_t car_rank_slots_ahead(const car_rank *rank, const car_task *task);
void car_rank_note_slot(car_rank *rank, const car_task *task); /* a forward or backward begins; with the lock */

/* rank_notes.c. Sends a note to rank `to`, or to all others if it is CAR_NONE; hold the lock, in the loop. car_rank_hear_note
 * handles a note that came, and takes the lock itself. */
car_status car_rank_send_note(car_rank *rank, int to, car_rank_note note);
void car_rank_hear_note(void *user, const void *data, size_t bytes);

/* rank.c. Marks the rank as failed and wakes everybody who waits for it; the first failure's message is kept. Does nothing for
 * CAR_OK. Hold the lock. */
void car_rank_fail(car_rank *rank, car_status status);

/* rank_list.c: the tasks that are not over. Hold the lock. */
car_status car_rank_fill(car_rank *rank); /* lists windows until the current one and the next are listed */
void car_rank_retire(car_rank *rank, car_entry *entry); /* the task is over: unblocks those that waited for it */
void car_rank_forget_entries(car_rank *rank);

/* Frees what the tapes hold. */
void car_rank_clear_tapes(car_rank *rank);

/* rank_executor.c */
void *car_rank_thread_run(void *argument);

/* rank_pace.c: pacing decides which task may start next. It has three forms: a lead of phases and a budget of bytes between
 * the workers of a rank, and beats (rank_beat.c) between ranks. Hold the lock, except to create. */
car_status car_rank_create_pacing(car_rank *rank);
void car_rank_destroy_pacing(car_rank *rank);
void car_rank_rewind_pacing(car_rank *rank); /* before a run */
/* The candidate among the ready entries that runs next; NULL: all of them have to wait. */
car_entry *car_rank_choose_paced(car_rank *rank);
/* A task, or a portion of a forward or backward, begins; it has ended, and entry->at says where it continues. */
void car_rank_note_begin(car_rank *rank, car_entry *entry);
void car_rank_note_end(car_rank *rank, car_entry *entry, double seconds);

/* rank_beat.c, called by rank_pace.c. */
bool car_beat_has_come(const car_rank *rank, const car_task *task);
void car_beat_note_begin(car_rank *rank, const car_task *task);
void car_beat_note_end(car_rank *rank, const car_task *task, double seconds);
void car_rank_hear_beat(void *user, int64_t run, int64_t number); /* `user` is the rank; takes the lock itself */

/* rank_watch.c: the watchdog. */
void car_rank_be_patient(car_rank *rank); /* restarts the watchdog's time for all other ranks; hold the lock */
/* Callbacks of the transport; `user` is the rank. They take the lock themselves. */
void car_rank_watch(void *user);
bool car_rank_is_urgent(void *user);
size_t car_rank_tell(void *user, char *text);
void car_rank_heard(void *user, int from, const char *text, size_t bytes);

/* rank_stop.c: ending early. Hold the lock, in the loop. */
car_status car_rank_release(car_rank *rank); /* rank 0, at the end: tells the others that it will not ask any more */
void car_rank_look_for_stop(car_rank *rank); /* starts the early end if car_rank_stop was called */
car_status car_rank_hear_of_end(car_rank *rank, const car_rank_note *note);
bool car_rank_is_dropped(const car_rank *rank, const car_task *task);
bool car_rank_may_commit(const car_rank *rank,
                         int64_t version); /* whether the version, or a collective for it, may be begun */
void car_rank_commit(car_rank *rank, int64_t version);

#endif
