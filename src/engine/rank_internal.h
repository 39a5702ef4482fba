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
#include "plan/usage.h"
#include "transport/transport.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory that several may look at: a table of the rank, and messages that carry it. */
typedef struct car_block {
    char *data;
    int references; /* guarded by the rank's lock */
} car_block;

/* One parameter in a bundle. */
typedef struct car_part {
    int op, slot; /* the use: parameter `slot` of operation `op` */
    int param;
    size_t offset, bytes;
} car_part;

/* How a bundle's weights, and the sums of their gradients, lie in a block: one parameter behind the other without
 * gaps, so that a block is a message. */
typedef struct car_layout {
    car_part *parts;
    int count;
    size_t bytes;
} car_layout;

/* A version of a bundle's weights. */
typedef struct car_held {
    car_block *block;
    int64_t version;
} car_held;

/* A bundle's sum of one step. */
typedef struct car_sum {
    int64_t step; /* CAR_NONE: free */
    car_block *block;
    int64_t freed; /* number of the task that has freed it, while others before that still read it; 0: none */
} car_sum;

enum { CAR_SUMS_HELD = 6 }; /* of one bundle at once: the cycle overlaps two steps, and messages take their time */

/* What a rank has of a bundle. */
typedef struct car_holding_of_bundle {
    car_layout layout;
    int places;       /* versions held for good, 1 or 2; 0: none of it here, or (zero's cycle) only what comes by */
    car_held held[2]; /* by version mod places; what comes by: by version mod 2 */
    bool owned;       /* zero: its versions are made here */
    int64_t made;     /* zero: the newest of them */
    car_held source;  /* zero: a version that went on before the next was made of it, because its sum is late */
    car_block *older; /* after a restart: the version before the first, for those that are stale in the first step */
    car_block *kept;  /* the keeper's, at the end of a run: the version before the last */
    car_sum sums[CAR_SUMS_HELD];
    car_sum own[CAR_SUMS_HELD]; /* gradients that wait for the sum that they are added to */
} car_holding_of_bundle;

/* ---- tasks ----------------------------------------------------------------------------------- */

/* What a backward does with the gradients of a bundle of its stage. */
typedef enum car_addition_kind {
    CAR_ADDITION_BEGINS, /* the gradient is the sum so far */
    CAR_ADDITION_ADDS,   /* the gradient is computed apart, then added */
    CAR_ADDITION_WAITS   /* the sum is not here: the gradient is kept apart, and added when it comes */
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
    car_addition additions[CAR_MAX_ADDITIONS]; /* of a backward that has begun */
    int addition_count;
    bool started, arrived; /* messages and collectives */
    car_message message;
    car_block *block; /* where a message lands, or what it carries */
    struct car_entry *next, *next_ready, *next_arrival;
} car_entry;

/* A send that outlives its task. */
typedef struct car_parcel {
    car_message message;
    car_block *block;
    struct car_rank *rank;
} car_parcel;

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
    double tasks, waiting, choosing;
    double waited;    /* since its last task */
    car_track *track; /* NULL without a recorder */
} car_rank_thread;

/* What is known of a rank, for whoever has to say why nothing moves. */
typedef struct car_sighting {
    double when; /* by our clock; 0: never */
    int64_t step, limit;
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
    bool cyclic, feeds;
    bool ring;          /* sums in ring order; otherwise in any, by collectives */
    car_usage *usage;   /* what tasks use here */
    int64_t first_step; /* the plan's step 0 is this one of the run */
    int64_t updates;    /* of the optimizer before that */
    int64_t newest;     /* between runs: the plan's version that is the newest */

    car_holding_of_bundle *holding; /* per bundle */
    car_optimizer *optimizer;
    car_graph_range *range; /* pipeline and grid: the operations of this rank */
    int first_stage, end_stage;
    car_tape **tapes;
    int tape_count;
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
    car_use_list uses; /* of the task that is listed */
    int64_t window, windows, listed;
    int64_t limit;     /* steps of the plan */
    int64_t run;       /* its number: another for each */
    const char *aside; /* what is done between two runs, or NULL */
    car_task_list list;
    uint64_t in_flight; /* sends that are not finished */
    int collectives_started[2], collectives_listed[2];
    int64_t send_slot;
    int sends_in_slot, most_sends;
    car_status status;
    bool ended;
    int64_t progress;
    double progressed, watched;
    atomic_bool stop;
    int64_t beat, beat_run; /* the micro-batch that may begin, by the rank before, and the run it is of */
    int64_t told;           /* the last that the next rank was told of */
    bool begun;             /* something was computed in this run: whoever waits before that waits for its turn */
    double *computed;       /* per worker: seconds of its forwards and backwards, so far in this step */
    double computes;        /* all of a step, of the worker that ended one last */
    int64_t proposal;       /* rank 0: a nearer end that not all ranks know of yet; 0: none */
    /* Losses on their way to rank 0. */
    struct car_losses *losses;
    struct car_pacing *pacing; /* NULL: whoever can run runs, in the plan's order */
    car_sighting *sightings;   /* per rank */
    car_trainer_times times;
    double exposed;
};

/* Whether a worker's micro-batch of a step of the plan is computed here, at a stage. */
static inline bool car_rank_has(const car_rank *rank, int64_t step, int worker, int stage) {
    return car_plan_rank_of(rank->plan, car_plan_device(rank->plan, step, worker, stage)) == rank->device;
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
car_sum *car_rank_find_sum(car_rank *rank, int bundle, int64_t step);
car_status car_rank_put_sum(car_rank *rank, int bundle, int64_t step, car_block *block);
void car_rank_drop_sum(car_rank *rank, int bundle, int64_t step);
/* The same part of the home's layout, for a tied bundle. */
const car_part *car_rank_home_part(const car_rank *rank, int bundle);

/* rank_sums.c. All but the questions need the lock, and let it go while they add. */
/* In ascending order of stages. The sums must be the caller's alone. */
car_status car_rank_add_ties(car_rank *rank, int home, int64_t step);
/* Takes the block over. */
car_status car_rank_put_own(car_rank *rank, int bundle, int64_t step, car_block *block);
/* After a sum came or a backward is done (`computed`): adds what `worker` had to wait with, if both are here now. */
car_status car_rank_settle(car_rank *rank, int bundle, int64_t step, int worker, bool computed);

/* rank_tasks.c: called with the lock, which they let go while they work. */
car_status car_rank_compute(car_rank_thread *thread, car_entry *entry);
car_status car_rank_update(car_rank_thread *thread, car_entry *entry);
/* rank_messages.c: the same. */
car_status car_rank_send(car_rank_thread *thread, car_entry *entry);
car_status car_rank_start_arrival(car_rank *rank, car_entry *entry); /* receives and collectives */
car_status car_rank_take_arrival(car_rank_thread *thread, car_entry *entry);
void car_rank_message_finished(void *user, car_message *message);

/* rank_state.c */
car_status car_rank_go_on(car_rank *rank);

/* rank.c. With the lock: the rank has failed, and nobody should wait for others any more. */
void car_rank_fail(car_rank *rank, car_status status);

/* rank_list.c: the tasks that are not over. With the lock. */
bool car_task_is_collective(const car_task *task);
bool car_task_arrives(const car_task *task); /* a receive or a collective */
car_status car_rank_fill(car_rank *rank);    /* keeps the window that is worked on and the next one in the list */
void car_rank_retire(car_rank *rank, car_entry *entry); /* it is over: whoever waited for it may go on */
void car_rank_forget_entries(car_rank *rank);

/* rank_executor.c */
void *car_rank_thread_run(void *argument);

/* rank_beat.c: when a micro-batch may begin. With the lock. */
bool car_rank_may_begin(const car_rank *rank, const car_task *task);
void car_rank_note_begin(car_rank *rank, const car_task *task);
void car_rank_note_end(car_rank *rank, const car_task *task, double seconds);
void car_rank_hear_beat(void *user, int64_t run, int64_t number); /* a rank; takes the lock itself */

/* rank_pace.c: whose turn it is where one rank has all workers. With the lock, but for creating and the portions. */
car_status car_rank_create_pacing(car_rank *rank);
void car_rank_destroy_pacing(car_rank *rank);
void car_rank_rewind_pacing(car_rank *rank); /* before a run */
/* Whether a portion of a task from operation `from` on ends before operation `next`. */
bool car_rank_portion_is_full(const car_rank *rank, const car_task *task, int from, int next);
/* A portion of a forward or backward begins, or has ended and entry->at says where it goes on. */
void car_rank_note_portion(car_rank *rank, const car_entry *entry, bool begins);
/* One of the ready entries that are candidates, or NULL: they wait. */
car_entry *car_rank_choose_paced(car_rank *rank);

/* rank_losses.c: losses and sightings, what statuses carry. */
car_status car_rank_create_losses(car_rank *rank);
void car_rank_destroy_losses(car_rank *rank);
/* Before the first run, and when the state was put back: the step that is reported next. Rank 0's. */
void car_rank_report_from(car_rank *rank, int64_t step);
car_status car_rank_note_loss(car_rank *rank, int64_t step, int worker, double value);
car_status car_rank_note_step(car_rank *rank, const car_task *task);
bool car_rank_makes_loss(const car_rank *rank, const car_task *task);
/* Whether there is room for the loss that the task makes, if it makes one. With the lock. */
bool car_rank_may_note_loss(const car_rank *rank, const car_task *task);
/* What the transport calls back; `user` is the rank. */
bool car_rank_has_much_to_tell(void *user);
size_t car_rank_tell(void *user, char *status);
void car_rank_heard(void *user, int from, const char *text, size_t bytes);
car_status car_rank_share_losses(car_rank *rank); /* all that is left, after the loop */

/* rank_watch.c: who is where, who is silent, and when to end. With the lock. */
const car_entry *car_rank_at(const car_rank *rank); /* the task that is worked on, or the first that waits; or NULL */
void car_rank_watch(void *user);                    /* a rank; takes the lock itself */
void car_rank_hear_limit(car_rank *rank, int from, int64_t limit, bool wishes_to_stop);

#endif
