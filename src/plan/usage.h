/* What the tasks of a rank (see car_plan_ranks) use, and which tasks therefore wait for which.
 *
 * A use is a resource, a mode, and a flag for the rank's last use of it. Two tasks of a rank that use the same
 * resource keep the plan's order, unless both only read it or both only follow it. All other tasks may run in any
 * order. The executor, the timing model and the printer all read these edges, so order is derived in one place only.
 *
 *   car_usage   one rank: what it holds, and the uses of each task
 *   car_edges   turns the uses, task after task, into the tasks that each one waits for */
#ifndef CAR_PLAN_USAGE_H
#define CAR_PLAN_USAGE_H

#include "carousel/plan.h"

typedef enum car_resource_kind {
    CAR_RESOURCE_WEIGHTS = 1, /* the place that holds a version of a bundle */
    /* The same place, for the update that makes the next version from it (zero): the version may be sent on before. */
    CAR_RESOURCE_SOURCE,
    CAR_RESOURCE_SUM, /* a piece of the sum of a bundle and step, received or begun on this rank */
    /* The gradient of the worker that adds to that sum next, or the sum of that worker's own gradients. */
    CAR_RESOURCE_OWN,
    CAR_RESOURCE_TAPE,    /* the activations of a micro-batch */
    CAR_RESOURCE_CHANNEL, /* keeps messages with one tag to one device in order */
    CAR_RESOURCE_GATE,    /* dp: the backwards of one micro-batch per worker wait for all their forwards */
    CAR_RESOURCE_KINDS
} car_resource_kind;

typedef enum car_use_mode {
    CAR_USE_READ,   /* concurrent with other readers */
    CAR_USE_FOLLOW, /* after all readers, concurrent with other followers */
    CAR_USE_WRITE   /* exclusive */
} car_use_mode;

/* Which of its copies of a bundle's weights a rank uses. */
typedef enum car_copy {
    CAR_COPY_KEPT,    /* the copy that stays on the rank; with --zero-copies 1, the only copy, which passes through */
    CAR_COPY_FORWARD, /* zero's chains: the copy received for forwards, and the one for backwards */
    CAR_COPY_BACKWARD,
    CAR_COPIES
} car_copy;

/* Whether a rank sends a copy on, and if so, whether before or after its own use in the plan's order. */
typedef enum car_passing { CAR_PASSING_NOT, CAR_PASSING_BEFORE, CAR_PASSING_AFTER } car_passing;

typedef struct car_use {
    uint64_t resource; /* see car_resource */
    car_use_mode mode;
    bool last;     /* weights, sums, tapes: this is the rank's last use */
    int bundle;    /* weights: the bundle in whose block they lie; sums: the bundle; else CAR_NONE */
    int part;      /* sums by worker: 1 + the worker whose own sum it is; else 0 */
    int64_t id;    /* weights: version; sums: step */
    car_copy copy; /* for weights only */
} car_use;

/* True if two uses of one resource must keep their order. */
static inline bool car_use_conflicts(car_use_mode a, car_use_mode b) {
    return a != b || a == CAR_USE_WRITE;
}

typedef struct car_use_list {
    car_use *uses;
    int count, capacity;
} car_use_list;

/* Packs a resource's kind and the two numbers that identify it into one number. */
static inline uint64_t car_resource(car_resource_kind kind, int64_t a, int64_t b) {
    return (uint64_t)kind << 60 | (uint64_t)(a & 0xfffffff) << 32 | (uint64_t)(b & 0xffffffff);
}

static inline car_resource_kind car_use_kind(const car_use *use) {
    return (car_resource_kind)(use->resource >> 60);
}

/* What a rank permanently holds of a bundle. */
typedef struct car_holding {
    /* Number of versions held permanently, 1 or 2; 0: nothing, or (zero's cycle) only copies that pass through. */
    int places;
    int block;  /* the bundle in whose block its weights lie: its home if that is on this rank */
    bool owned; /* zero: this rank makes its versions */
    int sums;   /* how many sums are held at once; 0: one for each step in progress */
} car_holding;

/* The version before the plan's first one, needed after a restart. */
enum { CAR_VERSION_BEFORE = -2 };

/* Which place a version is stored in. Weights that only pass through have two places. */
static inline int car_holding_place(int places, int64_t version) {
    int count = places > 0 ? places : 2;
    return version == CAR_VERSION_BEFORE ? count - 1 : (int)(version % count);
}

typedef struct car_usage car_usage;

/* The plan must outlive it. */
car_status car_usage_create(const car_plan *plan, int rank, car_usage **out);
/* The same, but borrows the holdings of `like`, the usage of the rank that car_plan_rank_like names. `like` must
 * outlive it. */
car_status car_usage_create_like(const car_plan *plan, int rank, const car_usage *like, car_usage **out);
void car_usage_destroy(car_usage *usage);
/* Sets the length of the run, so that uses that nothing follows within it count as last. Without a length a run
 * never ends. */
void car_usage_set_steps(car_usage *usage, int64_t steps);

const car_holding *car_usage_holding(const car_usage *usage, int bundle);
bool car_usage_has_stage(const car_usage *usage, int stage); /* true if the rank computes it */
/* The number of tapes, which is the most micro-batches alive on the rank at once; and the tape of a task's
 * micro-batch. */
int car_usage_tapes(const car_usage *usage);
int car_usage_tape_of(const car_usage *usage, const car_task *task);
/* True if gradients are added in ring order. Otherwise collectives add them in any order. */
bool car_usage_is_ring(const car_usage *usage);
/* True if a sum begins with the first micro-batch. A custom plan may add in another order. */
bool car_usage_adds_in_order(const car_usage *usage);
/* True if each worker first adds up its own micro-batches of a step, and the workers' sums are added afterwards. */
bool car_usage_adds_by_worker(const car_usage *usage);
/* Which of a step's separate sums a backward adds to: its worker's, or 0 for the one over all workers.
 * car_usage_joins is true if the backward also joins its worker's sum to the one over all. */
int car_usage_own_of(const car_usage *usage, const car_task *task);
bool car_usage_joins(const car_usage *usage, const car_task *task);
/* True if a backward is the last one to add to its step's sum. */
bool car_usage_finishes(const car_usage *usage, const car_task *task);
/* True if a backward adds to a sum that arrives in a message. The backward then need not wait for the message. */
bool car_usage_adds_late(const car_usage *usage, const car_task *task);
/* A rank may have several sums of one bundle and step at once: when a sum travels in pieces, one may still be
 * leaving when the next comes round the ring. Each such *leg* is numbered by the first micro-batch of the step that
 * adds to it on this rank; a sum that arrives finished has the highest number. Returns the leg of a receive, a
 * backward or a send of a partial sum; CAR_NONE for tasks that use the finished sum. */
int car_usage_leg(const car_usage *usage, const car_task *task);
/* True if a finished sum that travels on already contains the sums of its ties. Otherwise the update adds them. */
bool car_usage_adds_ties_early(const car_usage *usage);

/* dp in one process: true if each worker's gradients are kept separate until the update, so that no backward waits
 * for another. */
bool car_usage_keeps_apart(const car_usage *usage);
/* From now on, all updates of a step wait for its last gradient. Sums therefore live longer. */
void car_usage_defer_updates(car_usage *usage);
/* After a restart: lets the stale micro-batches of the first step use the version before it, where the rank has a
 * place for it. */
void car_usage_go_on(const car_usage *usage, car_task_list *list);

/* Which copy of a bundle a forward or backward uses, or a message of weights sends or brings. */
car_copy car_usage_copy(const car_usage *usage, const car_task *task, int bundle);
/* zero's chains: whether the rank sends on the copy that this task uses, brings or sends. */
car_passing car_usage_passing(const car_usage *usage, const car_task *task, int bundle);
/* The bundle in whose block the kept copy of a bundle lies: its home if that is on this rank. */
int car_usage_kept_block(const car_usage *usage, int bundle);

/* True if this task is the rank's last use of a bundle's weights, or of the sum of the task's bundle. The weights
 * then move on or end; the sum was sent on or became weights. */
bool car_usage_ends_weights(const car_usage *usage, const car_task *task, int bundle);
bool car_usage_ends_sum(const car_usage *usage, const car_task *task);
/* zero, for a send of weights: true if, in the plan's order, their owner makes the next version from them before the
 * send. */
bool car_usage_is_renewed(const car_usage *usage, const car_task *task);
/* True if a task only reads the finished sum of its bundle and step, so that it may run in any order with other
 * readers. */
bool car_usage_reads_sum(const car_usage *usage, const car_task *task);

/* True if an update has to wait for the forwards and backwards before it in the plan's order. This is so where
 * weights move: made earlier, new weights would only take up memory until the forward of the same slot. */
bool car_usage_follows_computes(const car_usage *usage, const car_task *task);

/* Lists the uses of a task. The list is reused between calls; release it with car_use_list_release. */
car_status car_usage_list(const car_usage *usage, const car_task *task, car_use_list *list);
void car_use_list_release(const car_plan *plan, car_use_list *list);

/* The order of a rank's tasks, where the rank consists of several devices. */
int car_task_compare(const car_task *a, const car_task *b);
/* Compares only slots and subslots. */
int car_task_compare_moments(const car_task *a, const car_task *b);
int car_task_compare_numbers(int64_t a, int64_t b); /* < 0, 0 or > 0, as qsort expects */

/* ---- what an executor also has to know about a placement ---------------------------------------- */

/* The first rank that holds as much as this one, even if of other stages and micro-batches. It is this rank or an
 * earlier one. */
int car_plan_rank_like(const car_plan *plan, int rank);
/* How many slots before its own a receive or broadcast may be posted. Posting it earlier would only hold memory
 * longer. */
int64_t car_plan_slots_ahead(const car_plan *plan, const car_task *task);
/* The group of devices that take part in a collective with this one, and the device's index in the group. */
int car_plan_collective_group(const car_plan *plan, int device);
int car_plan_collective_member(const car_plan *plan, int device);
/* True if, in the cycle, the plan's messages do not keep ranks at their distance, so that beats have to. */
bool car_plan_needs_beats(const car_plan *plan);
/* The slot of the first step's last backward. */
int64_t car_plan_first_step_end(const car_plan *plan);
/* True if sums are sent in the order in which their receives are posted, because several stages or pieces share one
 * link. CAR_SENDS_AT_ONCE of them are then in flight at once, so that one is always ready to go. */
bool car_plan_orders_sums(const car_plan *plan);
enum { CAR_SENDS_AT_ONCE = 2 };

/* ---- edges ----------------------------------------------------------------------------------- */

typedef struct car_edges car_edges;

car_status car_edges_create(car_context *context, car_edges **out);
void car_edges_destroy(car_edges *edges);
/* Adds the next task in the plan's order. Tasks are numbered in the order they are added, from 0. *before receives
 * the numbers of the tasks that it waits for, each once; it is valid until the next call. Takes time linear in the
 * task's uses and in the number of tasks that it waits for. */
car_status car_edges_add(car_edges *edges, const car_use_list *uses, const int64_t **before, int *before_count);
/* Declares all tasks below this number over: no later task waits for them, and resources that only they used are
 * forgotten. */
void car_edges_forget(car_edges *edges, int64_t below);
/* Starts again at number 0. */
void car_edges_clear(car_edges *edges);

#endif
