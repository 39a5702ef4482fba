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

/* A message that outlives its task, or a piece of a snapshot. */
typedef struct car_parcel {
    car_message message;
    car_block *block;
    struct car_parcel *next, **place; /* among the rank's; what points to this one */
} car_parcel;

/* What ranks tell each other besides the plan's messages. */
typedef enum car_note_kind {
    CAR_NOTE_SQUARE, /* of a stage's gradient in a step: from the rank that owns its update to all */
    CAR_NOTE_LOSS,   /* of a micro-batch: to rank 0 */
    CAR_NOTE_ASK,    /* rank 0 wants to end early: how far are you? */
    CAR_NOTE_ANSWER, /* the same, to rank 0 */
    CAR_NOTE_END     /* rank 0 to all: where the run ends; nothing more comes from there */
} car_note_kind;

/* How a run ends early; of one rank, or of all. */
typedef struct car_ending {
    int64_t end;      /* steps of the plan: that cannot be taken back; that are made */
    int64_t windows;  /* to be listed */
    int64_t snapshot; /* version that rank 0 waits for a piece of; 0: none */
} car_ending;

typedef struct car_rank_note {
    int64_t run;  /* notes of another are not listened to */
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
    void *derived; /* what an operation's backward wants besides its weights, made for each: versions come and go */
    bool carries;  /* takes only what belongs to messages, and has none of the above */
    const car_entry *entry; /* that it is at; guarded by the lock */
    double tasks, waiting, choosing;
    double waited;    /* since its last task */
    car_track *track; /* NULL without a recorder */
} car_rank_thread;

/* What a run is for; see rank_once.c. */
typedef enum car_purpose { CAR_PURPOSE_TRAINING, CAR_PURPOSE_GRADIENT, CAR_PURPOSE_LOSS } car_purpose;

/* What ranks tell each other of themselves. */
typedef struct car_rank_status {
    int64_t step; /* that the rank is in */
    int64_t run;  /* which it is in */
    int32_t waits;
    int32_t wishes_to_stop;
    char doing[96]; /* a task */
} car_rank_status;

/* What is known of a rank, for whoever has to say why nothing moves. */
typedef struct car_sighting {
    double when; /* by our clock */
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
    int batches; /* micro-batches of a step, M for each worker: a task has its number in `micro_batch` */
    int updates_per_step;
    bool spaced;            /* micro-batches begin 2k slots apart */
    bool ring;              /* sums in ring order; otherwise in any, by collectives */
    bool chains;            /* zero with two copies of a version: weights are passed on */
    bool alone;             /* there are no other ranks: all workers are here */
    bool feeds;             /* it reads micro-batches */
    bool measures;          /* somebody wants to know the norms of gradients */
    car_graph_range *range; /* pipeline and grid: the operations of this rank */
    car_graph_range *whole; /* else, with recomputation: all operations */
    int first_stage, end_stage;

    /* The state that training goes on from. */
    int64_t first_step;             /* the plan's step 0 is this one of the run */
    int64_t updates;                /* of the optimizer before that */
    double last_norm;               /* see car_snapshot_numbers */
    int64_t newest;                 /* between runs: the plan's version that is the newest */
    bool goes_on;                   /* from a version that has one before it */
    car_holding_of_bundle *holding; /* per bundle */
    int sums_held;                  /* in each of them */
    car_optimizer *optimizer;
    car_weights newest_weights, previous_weights; /* views of what is held, for whoever asks between two runs */
    car_purpose purpose;
    double mean_loss; /* rank 0: of the last step that was made for another purpose than training */

    /* What it works with. */
    car_tape **tapes;
    int tape_count;
    car_rank_thread *thread;
    car_rank_thread carrier; /* takes and sends on what arrives while the others compute */
    atomic_bool stop;        /* somebody wants to end early, */
    atomic_bool wished;      /* which rank 0 was told */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    car_status status;

    /* rank_list.c: tasks that are not over. */
    car_entry *first, *last, *spare;
    car_entry *ready;      /* those that nothing blocks, in the plan's order */
    car_entry *arrivals;   /* receives and collectives that have not been started, the same */
    car_entry **by_number; /* mod number_capacity, a power of two: those from first to last */
    int64_t number_capacity;
    car_edges *edges;
    car_use_list uses; /* of the task that is listed */
    car_task_list list;
    int64_t window, windows, listed; /* the next to be listed, how many are, tasks so far */
    int64_t planned;                 /* steps that tasks are listed for */
    int64_t steps_used;              /* that tasks listed so far are of */
    int64_t windows_used;            /* that tasks listed so far lie in, or send to */
    int collectives_started[2], collectives_listed[2];
    int64_t send_slot;
    int sends_in_slot, most_sends;

    /* This run: rank_stop.c. */
    int64_t run;          /* its number: another for each */
    int64_t limit;        /* steps of the plan that are made; smaller once the end is near */
    int64_t newest_begun; /* version that an update has made, or makes */
    bool begun;           /* something was computed: whoever waits before that waits for its turn */
    bool asked;           /* rank 0: the end was asked for */
    bool frozen;          /* nothing new may begin */
    bool shortened;       /* the end was early */
    bool released;        /* rank 0 has said that nothing more will come from there; or this is rank 0 */
    bool ended;           /* its tasks are done */
    car_ending ending;    /* rank 0's, of the answers so far */
    int answers;          /* the same: how many */
    const char *aside;    /* what is done between two runs, or NULL */

    /* rank_beat.c. */
    int64_t beat, beat_run; /* the micro-batch that may begin, by the rank before, and the run it is of */
    int64_t told;           /* the last that the next rank was told of */
    double *computed;       /* per micro-batch of a step: seconds of its forwards and backwards so far */
    double computes;        /* all of them, of the one that ended last */
    bool paced;             /* its links are */
    int64_t step_begun;     /* the newest step of the plan that a task was begun of; CAR_NONE: none in this run */

    /* Each with a file of its own. */
    car_parcel *parcels;             /* that are on their way */
    struct car_steps *steps;         /* what is known of them */
    struct car_pacing *pacing;       /* NULL: whoever can run runs, in the plan's order */
    struct car_snapshots *snapshots; /* NULL if none are taken */
    struct car_chunks *chunks;       /* of large updates under way, for who has nothing else to do */
    car_sighting *sightings;         /* per rank */

    /* For reports. */
    int skipped_in_a_row; /* steps, up to the last that was reported */
    double progressed;    /* when a task ended */
    double watched;       /* when others were looked after */
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
/* Messages: a sum, or a piece of one; activations or their gradients, which cross between ranks with stages. */
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

/* Whether anybody uses the version before the newest: then the first worker does, at stage 0. */
static inline bool car_rank_has_previous(const car_rank *rank) {
    return car_plan_delay(rank->plan, 0, 0) > 0;
}

/* Step of the run that a task belongs to. */
static inline int64_t car_rank_step_of(const car_rank *rank, const car_task *task) {
    return rank->first_step + task->step;
}

/* rank_tasks.c: called with the lock, which it lets go while it works. */
car_status car_rank_compute(car_rank_thread *thread, car_entry *entry);
/* Points a view at a version of a bundle. */
void car_rank_bind(car_weights *view, const car_layout *layout, const car_held *held);
/* rank_update.c: the same; and whether it may begin, or go on. */
car_status car_rank_update(car_rank_thread *thread, car_entry *entry);
bool car_rank_may_update(const car_rank *rank, const car_entry *entry);

/* rank_once.c: room for the mean gradient of a bundle, with the lock; and the mean of its sum, without. For a run that is
 * made for it. */
car_status car_rank_begin_average(car_rank *rank, int bundle);
void car_rank_average(car_rank *rank, int bundle, const car_block *sum);

/* rank_chunks.c */
typedef struct car_chunks car_chunks;
/* The new version of a bundle. Without the lock. */
car_status car_rank_renew(car_rank *rank, int bundle, const car_renewal *renewal, const car_block *from,
                          const car_block *to, const car_block *sum);
/* A thread that has nothing else to do makes a chunk of somebody's update; false if there is none. With the lock, which it
 * lets go meanwhile. */
bool car_rank_help(car_rank *rank);

/* rank_steps.c: what is known of the steps under way, and what follows from it. With the lock, except for creating; measuring
 * lets it go. Steps are the plan's. */
/* What becomes of a step. */
typedef struct car_verdict {
    bool skipped;
    double scale;
    int64_t update; /* of the optimizer: skipped steps do not count */
} car_verdict;
car_status car_rank_create_steps(car_rank *rank);
void car_rank_destroy_steps(car_rank *rank);
void car_rank_rewind_steps(car_rank *rank); /* before a run */
car_status car_rank_note_step(car_rank *rank, const car_task *task);
int64_t car_rank_reported(const car_rank *rank); /* rank 0: steps that were */
/* Whether nothing more has to be told of the steps of this run; rank 0 reports those that can be before. */
bool car_rank_knows_all(car_rank *rank);
bool car_rank_makes_loss(const car_rank *rank, const car_task *task);
/* Whether there is room for the loss that the task makes, if it makes one. */
bool car_rank_may_note_loss(const car_rank *rank, const car_task *task);
car_status car_rank_note_loss(car_rank *rank, const car_task *task, double value);
car_status car_rank_keep_loss(car_rank *rank, int64_t step, int number, double value); /* rank 0 */
car_status car_rank_measure(car_rank *rank, const car_task *task);
car_status car_rank_note_square(car_rank *rank, int64_t step, int stage, double square);
bool car_rank_may_judge(const car_rank *rank, const car_task *task); /* whether all is known that decides */
car_status car_rank_judge(const car_rank *rank, const car_task *task, car_verdict *out);
/* After so many steps of this run: updates of the optimizer, and the norm that decides about the next. */
int64_t car_rank_updates_after(const car_rank *rank, int64_t steps);
double car_rank_norm_after(const car_rank *rank, int64_t steps);

/* rank_snapshot.c: with the lock, except for creating and copying. */
car_status car_rank_create_snapshots(car_rank *rank);
void car_rank_destroy_snapshots(car_rank *rank);
void car_rank_rewind_snapshots(car_rank *rank); /* before a run */
/* An update that a snapshot is due with copies its bundle: whether it may begin; room to copy to (NULL: it needs none); the
 * version before, then the new one with the optimizer's state; that it is done, which takes the room over. They do nothing
 * for other updates. */
bool car_rank_may_copy(const car_rank *rank, const car_task *task);
car_status car_rank_begin_copy(car_rank *rank, const car_task *task, car_block **room);
void car_rank_copy(car_rank *rank, const car_task *task, const car_block *room, const car_block *weights, bool before);
car_status car_rank_end_copy(car_rank *rank, const car_task *task, car_block *room);
car_status car_rank_note_piece(car_rank *rank, const car_parcel *parcel); /* it has come, or has left */
/* The norms of so many steps of this run are known. */
car_status car_rank_note_numbers(car_rank *rank, int64_t steps);
/* In the loop: hands over what is whole, waits for what comes next. It may let the lock go. */
car_status car_rank_tend_snapshots(car_rank *rank);
bool car_rank_snapshots_are_done(const car_rank *rank); /* all of this run were handed over */
bool car_rank_snapshot_is_away(const car_rank *rank);
/* The version of the plan that rank 0 waits for a piece of, or 0; and the end came early: if that version is not made, its
 * keeper sends an empty piece, so that nobody waits for it. */
int64_t car_rank_snapshot_expected(const car_rank *rank);
car_status car_rank_settle_snapshot(car_rank *rank, int64_t version);
/* rank_messages.c: the same. */
car_status car_rank_send(car_rank_thread *thread, car_entry *entry);
car_status car_rank_start_arrival(car_rank *rank, car_entry *entry); /* receives and collectives */
car_status car_rank_take_arrival(car_rank_thread *thread, car_entry *entry);
void car_rank_message_finished(void *user, car_message *message);
/* Starts a message that brings its own memory, which goes with it. With the lock. */
car_status car_rank_ship(car_rank *rank, const car_message *message, car_block *block);
void car_rank_forget_parcels(car_rank *rank); /* those that a failure left on their way */

/* rank_links.c: links to other ranks that are paced (transport/pace.h). */
car_status car_rank_create_links(car_rank *rank); /* says to the transport what they need, if they are */
/* The slot from which on a message of this task is not held back; 0: it never is. */
int64_t car_rank_latest(const car_rank *rank, const car_task *send);
/* How many slots before its own a receive or a broadcast is asked for. */
int64_t car_rank_slots_ahead(const car_rank *rank, const car_task *task);
void car_rank_note_slot(car_rank *rank, const car_task *task); /* a forward or backward begins; with the lock */

/* rank_notes.c. Sends a note to a rank, or to all others if `to` is CAR_NONE; with the lock, in the loop. And one that came,
 * which takes the lock itself. */
car_status car_rank_send_note(car_rank *rank, int to, car_rank_note note);
void car_rank_hear_note(void *user, const void *data, size_t bytes);

/* rank.c. With the lock: the rank has failed, with the message of this thread if it is the first to, and nobody should
 * wait for others any more. Nothing happens for CAR_OK. */
void car_rank_fail(car_rank *rank, car_status status);

/* rank_list.c: the tasks that are not over. With the lock. */
car_status car_rank_fill(car_rank *rank); /* keeps the window that is worked on and the next one in the list */
void car_rank_retire(car_rank *rank, car_entry *entry); /* it is over: whoever waited for it may go on */
void car_rank_forget_entries(car_rank *rank);

/* Nothing is left on any tape. */
void car_rank_clear_tapes(car_rank *rank);

/* rank_executor.c */
void *car_rank_thread_run(void *argument);

/* rank_pace.c: pacing says who may start next. It has three forms: a lead of phases and a budget of bytes between the
 * workers of a rank, and beats (rank_beat.c) between ranks. With the lock, except for creating. */
car_status car_rank_create_pacing(car_rank *rank);
void car_rank_destroy_pacing(car_rank *rank);
void car_rank_rewind_pacing(car_rank *rank); /* before a run */
/* One of the ready entries that are candidates, or NULL: they wait. */
car_entry *car_rank_choose_paced(car_rank *rank);
/* A task, or a portion of a forward or backward, begins; it has ended, and entry->at says where it goes on. */
void car_rank_note_begin(car_rank *rank, car_entry *entry);
void car_rank_note_end(car_rank *rank, car_entry *entry, double seconds);

/* rank_beat.c: for the above. */
bool car_beat_has_come(const car_rank *rank, const car_task *task);
void car_beat_note_begin(car_rank *rank, const car_task *task);
void car_beat_note_end(car_rank *rank, const car_task *task, double seconds);
void car_rank_hear_beat(void *user, int64_t run, int64_t number); /* a rank; takes the lock itself */

/* rank_watch.c: who is where, and who is silent. With the lock. */
void car_rank_be_patient(car_rank *rank); /* patience with the others begins now */
/* What the transport calls back; `user` is the rank. They take the lock themselves. */
void car_rank_watch(void *user);
bool car_rank_is_urgent(void *user);
size_t car_rank_tell(void *user, char *text);
void car_rank_heard(void *user, int from, const char *text, size_t bytes);

/* rank_stop.c: ending early. With the lock, in the loop. */
car_status car_rank_release(car_rank *rank); /* rank 0, at the end: nobody will be asked any more */
void car_rank_look_for_stop(car_rank *rank); /* begins to end, if that is wanted */
car_status car_rank_hear_of_end(car_rank *rank, const car_rank_note *note);
bool car_rank_is_dropped(const car_rank *rank, const car_task *task);
bool car_rank_may_commit(const car_rank *rank, int64_t version); /* make it, or do what cannot be taken back for it */
void car_rank_commit(car_rank *rank, int64_t version);

#endif
