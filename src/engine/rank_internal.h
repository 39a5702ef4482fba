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
#include "engine/recorder.h"
#include "plan/bundles.h"
#include "plan/usage.h"
#include "transport/transport.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory that several may look at: a table of the rank, and messages that carry it. */
typedef struct car_block {
    char *data;
    int references; /* guarded by the rank's lock */
} car_block;

/* One use of a parameter in a bundle. */
typedef struct car_part {
    int op, slot; /* the use: parameter `slot` of operation `op` */
    int param;
    bool first;                           /* of this parameter in the stage: the others have only a sum of their own */
    size_t offset;                        /* in blocks with weights, as they are computed with */
    size_t sum_offset, bytes;             /* in blocks with sums: floats */
    size_t home_offset;                   /* of the first use in those, which is where its master is as well */
    size_t derived_offset, derived_bytes; /* what the operation's kernel derives from its weights; 0 bytes: nothing */
} car_part;

/* How a bundle's weights, and the sums of their gradients, lie in a block: one parameter behind the other without
 * gaps, so that a block is a message. */
typedef struct car_layout {
    car_part *parts;
    int count;
    size_t bytes, sum_bytes, derived_bytes;
    size_t master_bytes; /* of the floats */
    bool rounded;        /* some are rounded to be computed with, so there is a master of floats beside them */
} car_layout;

/* A version of a bundle's weights. */
typedef struct car_held {
    car_block *block;
    void *derived; /* made with the version, where all workers are here; else NULL */
    int64_t version;
} car_held;

/* zero's chains: a copy of a version that came for a forward or a backward. */
typedef struct car_passing_copy {
    car_held held;
    int reads; /* that are to come: its use, and that it is sent on */
} car_passing_copy;

/* A bundle's sum of one step. */
typedef struct car_sum {
    int64_t step; /* CAR_NONE: free */
    int leg;      /* see car_usage_leg */
    int worker;   /* 0, or whose gradients it is of, if those are kept apart */
    car_block *block;
    uint64_t missing; /* a bit for each piece that has not come */
    int64_t freed;    /* number of the task that has freed it, while others before that still read it; 0: none */
} car_sum;

/* A gradient that waits for the sum that it is added to, piece by piece. */
typedef struct car_own {
    int64_t step;
    int worker;       /* whose */
    car_block *block; /* NULL: free */
    uint64_t waiting; /* a bit for each piece that nobody has begun to add */
    int adding;       /* threads that do */
} car_own;

/* Of one bundle at once: the cycle overlaps two steps, and messages take their time. More if workers' are kept apart, or
 * sums travel in pieces. */
enum { CAR_SUMS_HELD = 6 };

/* What a rank has of a bundle. */
typedef struct car_holding_of_bundle {
    car_layout layout;
    int places;        /* versions held for good, 1 or 2; 0: none of it here, or (zero's cycle) only what comes by */
    car_held held[2];  /* by version mod places; what comes by: by version mod 2 */
    car_block *master; /* bf16, where updates are made: the floats of the newest version; else NULL */
    car_passing_copy copies[2]; /* zero's chains: for a forward, for a backward */
    bool owned;                 /* zero: its versions are made here */
    int64_t made;               /* zero: the newest of them */
    car_held source;  /* zero: a version that went on before the next was made of it, because its sum is late */
    car_block *older; /* after a restart: the version before the first, for those that are stale in the first step */
    car_block *kept;  /* the keeper's, at the end of a run: the version before the last */
    car_block *mean;  /* of a run for the gradient: the mean over workers, where the update would be made */
    car_sum *sums;    /* sums_held of them */
    car_own *own;     /* the same number */
} car_holding_of_bundle;

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

/* What a note is about; see rank_notes.c. */
typedef enum car_note_kind {
    CAR_NOTE_SQUARE,
    CAR_NOTE_LOSS,
    CAR_NOTE_ORDER, /* to end early, or that nobody will ask for it; the answer; the end */
    CAR_NOTE_ANSWER,
    CAR_NOTE_END,
    CAR_NOTE_SNAPSHOT
} car_note_kind;

enum { CAR_NOTE_STEPS = 8 }; /* of which there may be notes at once */

/* A message that outlives its task, or a note. */
typedef struct car_parcel {
    car_message message;
    car_block *block;
    struct car_rank *rank;
    car_note_kind note;
    int64_t step; /* of the plan, that a note is about */
    int index;
    struct car_parcel *next, **place; /* among the rank's; what points to this one */
} car_parcel;

/* What ranks tell each other of an early end; and what rank 0 knows so far. */
typedef struct car_ending {
    int64_t asks;            /* the order: 1, or 0: this run ends as it should */
    int64_t end;             /* steps of the plan: that cannot be taken back; that are made */
    int64_t windows;         /* to be listed */
    int64_t squares, losses; /* steps whose squares and losses are waited for, or may be told */
    int64_t snapshot;        /* version that rank 0 waits for a piece of; 0: none */
} car_ending;

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

/* What is known of a rank, for whoever has to say why nothing moves. */
typedef struct car_sighting {
    double when; /* by our clock; 0: never */
    int64_t step;
    bool waits;
    char doing[96];
} car_sighting;

struct car_rank {
    car_context *context;
    const car_plan *plan;
    const car_partition *partition;
    const car_program *program;
    const car_graph *graph;
    car_arena *arena;
    car_transport *transport;
    car_trainer_config config;
    const car_placement_info *placement;
    int device, devices, workers, stages, per_worker, bundles;
    int batches; /* micro-batches of a step, M for each worker: tasks number them in `worker` */
    bool spaced, feeds;
    bool ring;    /* sums in ring order; otherwise in any, by collectives */
    bool chains;  /* zero in the cycle: weights are passed on in copies */
    bool alone;   /* there are no other ranks: all workers are here */
    bool goes_on; /* from a version that has one before it */
    int updates_per_step, sums_held;
    car_usage *usage;   /* what tasks use here */
    int64_t first_step; /* the plan's step 0 is this one of the run */
    int64_t updates;    /* of the optimizer before that */
    double last_norm;   /* see car_cut_numbers */
    car_purpose purpose;
    double mean_loss; /* rank 0: of the last step that was made for another purpose than training */
    int64_t newest;   /* between runs: the plan's version that is the newest */

    car_holding_of_bundle *holding; /* per bundle */
    car_optimizer *optimizer;
    car_graph_range *range; /* pipeline and grid: the operations of this rank */
    car_graph_range *whole; /* else, with recomputation: all operations */
    int first_stage, end_stage;
    car_tape **tapes;
    int tape_count;
    car_weights newest_weights, previous_weights; /* views of what is held, for whoever asks between two runs */
    car_rank_thread *thread;
    car_rank_thread carrier; /* takes and sends on what arrives while the others compute */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    car_entry *first, *last, *spare;
    car_entry *ready;      /* those that nothing blocks, in the plan's order */
    car_entry *arrivals;   /* receives and collectives that have not been started, the same */
    car_entry **by_number; /* mod number_capacity, a power of two: those from first to last */
    int64_t number_capacity;
    car_edges *edges;
    car_use_list uses;               /* of the task that is listed */
    int64_t window, windows, listed; /* the next to be listed, how many are, tasks so far */
    int64_t planned;                 /* steps that tasks are listed for */
    int64_t steps_used;              /* that tasks listed so far are of */
    int64_t windows_used;            /* that tasks listed so far lie in, or send to */
    int64_t limit;                   /* steps of the plan that are made; smaller once the end is near */
    car_ending ending;               /* rank 0's */
    int answers;                     /* the same: to the question how far ranks are */
    int64_t report_end;              /* the first step of the run that this run does not report */
    int64_t newest_begun;            /* version that an update has made, or makes */
    int64_t run;                     /* its number: another for each */
    const char *aside;               /* what is done between two runs, or NULL */
    car_task_list list;
    car_parcel *parcels; /* that are on their way */
    int collectives_started[2], collectives_listed[2];
    int64_t send_slot;
    int sends_in_slot, most_sends;
    car_status status;
    bool ended;
    bool asked, frozen, shortened; /* see rank_stop.c: the end was asked for; nothing new may begin; it was early */
    bool begun;               /* something was computed in this run: whoever waits before that waits for its turn */
    atomic_bool stop, wished; /* and whether that wish has been told */
    int skipped_in_a_row;     /* steps, up to the last that was reported */
    double progressed, watched;
    int64_t beat, beat_run;          /* the micro-batch that may begin, by the rank before, and the run it is of */
    int64_t told;                    /* the last that the next rank was told of */
    double *computed;                /* per micro-batch of a step: seconds of its forwards and backwards so far */
    double computes;                 /* all of them, of the one that ended last */
    struct car_losses *losses;       /* on their way to rank 0 */
    struct car_pacing *pacing;       /* NULL: whoever can run runs, in the plan's order */
    struct car_norm *norm;           /* NULL if nobody wants to know it */
    struct car_snapshots *snapshots; /* NULL if none are taken */
    struct car_chunks *chunks;       /* of large updates under way, for who has nothing else to do */
    car_sighting *sightings;         /* per rank */
    car_trainer_times times;
    double exposed;
};

/* Whether a micro-batch of a step of the plan is computed here, at a stage. */
static inline bool car_rank_has(const car_rank *rank, int64_t step, int number, int stage) {
    return car_plan_rank_of(rank->plan, car_plan_device(rank->plan, step, number, stage)) == rank->device;
}

/* Step of the run that a task belongs to. */
static inline int64_t car_rank_step_of(const car_rank *rank, const car_task *task) {
    return rank->first_step + task->step;
}

/* rank_store.c: blocks, layouts, versions and sums. All but creating need the lock. */
car_status car_rank_create_store(car_rank *rank);
void car_rank_destroy_store(car_rank *rank);
car_status car_block_create(car_rank *rank, car_memory category, size_t bytes, car_block **out);
void car_block_drop(car_rank *rank, car_block *block);
car_block *car_rank_find_weights(car_rank *rank, int bundle, int64_t version);
void car_rank_put_weights(car_rank *rank, int bundle, int64_t version, car_block *block);
/* zero's chains: the copy that a task uses, brings or sends; NULL: it is about what is kept, see car_usage_copy. */
car_passing_copy *car_rank_find_copy(car_rank *rank, const car_task *task, int bundle);
/* One of its reads is over; after the last it goes. What is left of it then is on its way. */
void car_rank_read_copy(car_rank *rank, car_passing_copy *copy);
void car_rank_drop_copies(car_rank *rank, int bundle);
/* The sum of a leg, CAR_NONE: the finished one; the first worker's, if they are kept apart. NULL if there is none. */
car_sum *car_rank_find_sum(car_rank *rank, int bundle, int64_t step, int leg);
car_sum *car_rank_find_sum_of(car_rank *rank, int bundle, int64_t step, int worker);
/* Takes a copy of it, and the block over. */
car_status car_rank_put_sum(car_rank *rank, int bundle, const car_sum *sum);
void car_rank_drop_sum(car_rank *rank, int bundle,
                       const car_sum *sum);          /* of its leg; where they are kept apart, all workers' */
void car_rank_drop_sums(car_rank *rank, int bundle); /* of all steps, and what waits for them */
/* The same part of the home's layout, for a tied bundle. */
const car_part *car_rank_home_part(const car_rank *rank, int bundle);

/* rank_sums.c. All but the questions need the lock, and let it go while they add. */
/* What was kept apart: of workers, then of uses of one parameter in the stage, in ascending order. The sums must be the
 * caller's alone. */
void car_rank_add_parts(car_rank *rank, int bundle, int64_t step);
/* In ascending order of stages. The same. */
car_status car_rank_add_ties(car_rank *rank, int home, int64_t step);
/* A backward is done, whose gradient, or own sum, is to be added to the sum over all: takes the block over, and adds it to
 * what has come. */
car_status car_rank_keep_own(car_rank *rank, const car_task *backward, int bundle, car_block *block);
/* The same, whose gradient was added to a sum that was all here. */
car_status car_rank_finish_sum(car_rank *rank, const car_task *backward, int bundle);
/* A piece has come: adds what waits for it. */
car_status car_rank_settle_piece(car_rank *rank, const car_task *receive);
/* A worker's own sum is whole: it joins that over all, or waits for it. */
car_status car_rank_join(car_rank *rank, const car_task *task, int bundle);

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

/* rank_norm.c: clipping and skipping. With the lock, which measuring lets go. */
typedef struct car_norm car_norm;
/* What becomes of a step. */
typedef struct car_verdict {
    bool skipped;
    double scale;
    int64_t update; /* of the optimizer: skipped steps do not count */
} car_verdict;
car_status car_rank_create_norm(car_rank *rank);
void car_rank_destroy_norm(car_rank *rank);
void car_rank_rewind_norm(car_rank *rank); /* before a run */
car_status car_rank_measure(car_rank *rank, const car_task *task);
car_status car_rank_expect_squares(car_rank *rank); /* in the loop: of steps that come soon */
car_status car_rank_hear_square(car_rank *rank, const car_parcel *parcel);
int64_t car_rank_squares_expected(const car_rank *rank);
/* The end came early: squares of all steps before `steps` are sent and waited for, so that none is left behind. */
car_status car_rank_settle_squares(car_rank *rank, int64_t steps);
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
void car_rank_note_piece_sent(car_rank *rank);
car_status car_rank_hear_piece(car_rank *rank, const car_parcel *parcel);
/* The norms of so many steps of this run are known. */
void car_rank_note_numbers(car_rank *rank, int64_t steps);
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
car_status car_rank_ship(car_rank *rank, const car_message *message, car_block *block, car_parcel **out);
void car_rank_forget_parcels(car_rank *rank); /* those that a failure left on their way */

/* rank_notes.c: with the lock, in the loop. */
car_status car_rank_send_note(car_rank *rank, car_note_kind kind, int64_t step, int index, int to, const void *data,
                              size_t bytes);
car_status car_rank_expect_note(car_rank *rank, car_note_kind kind, int64_t step, int index, int from, size_t bytes);
/* To rank 0, from `at` on in a block, of which it takes a reference over. */
car_status car_rank_send_piece(car_rank *rank, int64_t version, int stage, car_block *block, size_t at, size_t bytes);
void car_rank_hear_note(car_rank *rank, const car_parcel *parcel); /* one that came: to whom it concerns */

/* rank_state.c */
car_status car_rank_go_on(car_rank *rank);
/* The rank that has the newest version of a bundle, and the optimizer's state that goes with it. */
int car_rank_keeper_of(const car_rank *rank, int bundle);
/* Puts a part where this rank has room for it. Weights go to the first place: they are version 0 of what follows. */
car_status car_rank_put_part(car_rank *rank, int param, car_cut_part which, const float *data);
/* What is in the first places is version 0 of what follows; with what kernels derive of it. */
car_status car_rank_settle_versions(car_rank *rank, bool goes_on);

/* rank.c. With the lock: the rank has failed, with the message of this thread if it is the first to, and nobody should
 * wait for others any more. */
void car_rank_fail(car_rank *rank, car_status status);

/* rank_list.c: the tasks that are not over. With the lock. */
bool car_task_is_collective(const car_task *task);
bool car_task_arrives(const car_task *task); /* a receive or a collective */
car_status car_rank_fill(car_rank *rank);    /* keeps the window that is worked on and the next one in the list */
void car_rank_retire(car_rank *rank, car_entry *entry); /* it is over: whoever waited for it may go on */
void car_rank_forget_entries(car_rank *rank);

/* rank_executor.c */
void *car_rank_thread_run(void *argument);

/* rank_pace.c: pacing says who may start next. It has three forms: a window of phases and a budget of bytes between the
 * workers of a rank, and beats (rank_beat.c) between ranks. With the lock, except for creating. */
car_status car_rank_create_pacing(car_rank *rank);
void car_rank_destroy_pacing(car_rank *rank);
void car_rank_rewind_pacing(car_rank *rank); /* before a run */
/* Whether a task may start at all. */
bool car_rank_may_pace(const car_rank *rank, const car_task *task);
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

/* rank_losses.c: losses, and the reports that rank 0 makes of them. With the lock, but for creating. */
car_status car_rank_create_losses(car_rank *rank);
void car_rank_destroy_losses(car_rank *rank);
/* Before the first run, and when the state was put back: the step that is reported next. Rank 0's. */
void car_rank_report_from(car_rank *rank, int64_t step);
/* Rank 0: a step's norm. */
car_status car_rank_note_norm(car_rank *rank, int64_t step, double norm, bool skipped);
int64_t car_rank_reported(const car_rank *rank);
void car_rank_rewind_losses(car_rank *rank); /* before a run */
car_status car_rank_note_loss(car_rank *rank, const car_task *task, double value);
car_status car_rank_note_step(car_rank *rank, const car_task *task);
bool car_rank_makes_loss(const car_rank *rank, const car_task *task);
/* Whether there is room for the loss that the task makes, if it makes one. */
bool car_rank_may_note_loss(const car_rank *rank, const car_task *task);
/* Rank 0, in the loop: of steps that come soon. */
car_status car_rank_expect_losses(car_rank *rank);
car_status car_rank_hear_loss(car_rank *rank, const car_parcel *parcel);
/* Steps before this one are waited for, or may be told. */
int64_t car_rank_losses_under_way(const car_rank *rank);
/* The end came early: see car_rank_settle_squares. */
car_status car_rank_settle_losses(car_rank *rank, int64_t steps);
car_status car_rank_check_losses(car_rank *rank); /* after the loop: whether all were reported */

/* rank_watch.c: who is where, and who is silent. With the lock. */
const car_entry *car_rank_at(const car_rank *rank); /* the task that is worked on, or the first that waits; or NULL */
/* What the transport calls back; `user` is the rank. They take the lock themselves. */
void car_rank_watch(void *user);
bool car_rank_is_urgent(void *user);
size_t car_rank_tell(void *user, char *status);
void car_rank_heard(void *user, int from, const char *text, size_t bytes);

/* rank_stop.c: ending early. With the lock, in the loop. */
car_status car_rank_await_order(car_rank *rank);     /* at the beginning of a run */
car_status car_rank_give_last_order(car_rank *rank); /* at its end */
void car_rank_look_for_stop(car_rank *rank);         /* begins to end, if that is wanted */
car_status car_rank_hear_of_end(car_rank *rank, const car_parcel *parcel);
bool car_rank_is_dropped(const car_rank *rank, const car_task *task);
bool car_rank_may_commit(const car_rank *rank, int64_t version); /* make it, or do what cannot be taken back for it */
void car_rank_commit(car_rank *rank, int64_t version);

#endif
