/* What the tasks of a rank (see car_plan_ranks) use, and what follows from it: who waits for whom.
 *
 * A use is a resource, a mode, and whether it is the last on its rank. Two tasks of one rank that use the same resource
 * keep the plan's order, unless both only read it, or both only follow it; all others may run in any order. So whoever
 * executes, times or checks a plan reads edges, and nobody derives them again.
 *
 *   car_usage   of one rank: what it holds, and the uses of each task
 *   car_edges   turns uses, task after task, into the tasks that each has to wait for */
#ifndef CAR_PLAN_USAGE_H
#define CAR_PLAN_USAGE_H

#include "carousel/plan.h"

typedef enum car_resource_kind {
    CAR_RESOURCE_WEIGHTS = 1, /* the place of a version of a bundle */
    CAR_RESOURCE_SOURCE,  /* the same for zero's update that makes the next version of it: it may be sent on before */
    CAR_RESOURCE_SUM,     /* a piece of the sum of a bundle and step: what came, or was begun here */
    CAR_RESOURCE_OWN,     /* the same: the gradient of the worker that adds to it next, or the sum of its own */
    CAR_RESOURCE_TAPE,    /* the activations of a micro-batch */
    CAR_RESOURCE_CHANNEL, /* messages of one tag to one device stay in order */
    CAR_RESOURCE_GATE,    /* of a micro-batch of each worker: dp's backwards wait for all their forwards */
    CAR_RESOURCE_KINDS
} car_resource_kind;

typedef enum car_use_mode {
    CAR_USE_READ,   /* beside other readers */
    CAR_USE_FOLLOW, /* after all readers, beside others that follow them */
    CAR_USE_WRITE   /* alone */
} car_use_mode;

/* Which of the weights of a bundle that a rank has. */
typedef enum car_copy {
    CAR_COPY_KEPT,    /* what stays here, or (--zero-copies 1) comes by as a whole */
    CAR_COPY_FORWARD, /* zero's chains: what came for a forward, for a backward */
    CAR_COPY_BACKWARD,
    CAR_COPIES
} car_copy;

/* Whether a copy is sent on from where it is used, in the plan's order before or after that. */
typedef enum car_passing { CAR_PASSING_NOT, CAR_PASSING_BEFORE, CAR_PASSING_AFTER } car_passing;

typedef struct car_use {
    uint64_t resource; /* see car_resource */
    car_use_mode mode;
    bool last;     /* weights, sums, tapes: the rank needs them no more after this use */
    int bundle;    /* weights: in whose block they are; sums: whose; else CAR_NONE */
    int part;      /* sums by worker: 1 + whose own it is; else 0 */
    int64_t id;    /* weights: the version; sums: the step */
    car_copy copy; /* weights */
} car_use;

/* Whether two uses of one resource must keep their order. */
static inline bool car_use_conflicts(car_use_mode a, car_use_mode b) {
    return a != b || a == CAR_USE_WRITE;
}

typedef struct car_use_list {
    car_use *uses;
    int count, capacity;
} car_use_list;

/* Its kind and two numbers that say which, as one number. */
static inline uint64_t car_resource(car_resource_kind kind, int64_t a, int64_t b) {
    return (uint64_t)kind << 60 | (uint64_t)(a & 0xfffffff) << 32 | (uint64_t)(b & 0xffffffff);
}

static inline car_resource_kind car_use_kind(const car_use *use) {
    return (car_resource_kind)(use->resource >> 60);
}

/* What a rank holds of a bundle. */
typedef struct car_holding {
    int places; /* versions held for good, 1 or 2; 0: none of it here, or (zero's cycle) only what comes by */
    int block;  /* the bundle in whose block its weights lie here: its home's, if that is here */
    bool owned; /* zero: its versions are made here */
    int sums;   /* at once; 0: one for each step under way */
} car_holding;

/* After a restart, the version before the plan's first. */
enum { CAR_VERSION_BEFORE = -2 };

/* Which of its places a version has; what comes by has two. */
static inline int car_holding_place(int places, int64_t version) {
    int count = places > 0 ? places : 2;
    return version == CAR_VERSION_BEFORE ? count - 1 : (int)(version % count);
}

typedef struct car_usage car_usage;

/* The plan must outlive it. */
car_status car_usage_create(const car_plan *plan, int rank, car_usage **out);
/* The same, with the holdings of `like`, which must outlive it: of the rank that car_plan_rank_like names. */
car_status car_usage_create_like(const car_plan *plan, int rank, const car_usage *like, car_usage **out);
void car_usage_destroy(car_usage *usage);
/* The length of the run: what is not passed on within it ends with its last use. Without a length it never ends. */
void car_usage_set_steps(car_usage *usage, int64_t steps);

const car_holding *car_usage_holding(const car_usage *usage, int bundle);
bool car_usage_has_stage(const car_usage *usage, int stage); /* whether it computes it */
/* Micro-batches that are alive on the rank at once, each with a tape; and the tape of a task's. */
int car_usage_tapes(const car_usage *usage);
int car_usage_tape_of(const car_usage *usage, const car_task *task);
/* Whether gradients are added in ring order; otherwise in any, by collectives. */
bool car_usage_is_ring(const car_usage *usage);
/* Whether the first micro-batch begins a sum; a custom plan may add in another order. */
bool car_usage_adds_in_order(const car_usage *usage);
/* Whether each worker adds its own micro-batches of a step first, and the sums of workers are added then. */
bool car_usage_adds_by_worker(const car_usage *usage);
/* Which of the sums of a step that are kept apart a backward adds to: its worker's, or 0, the one over all; and
 * whether that joins the sum over all with it. */
int car_usage_own_of(const car_usage *usage, const car_task *task);
bool car_usage_joins(const car_usage *usage, const car_task *task);
/* Whether a backward is the last to add to its step's sum. */
bool car_usage_finishes(const car_usage *usage, const car_task *task);
/* Whether a backward adds to a sum that comes by a message, and so need not wait for it. */
bool car_usage_adds_late(const car_usage *usage, const car_task *task);
/* A rank may have several sums of one bundle and step at once: in pieces, one may still be leaving when the next comes
 * round the ring. Each such *leg* has the number of the first micro-batch of the step that adds to it here; a sum that
 * arrives finished has the highest. This is the leg of a receive, a backward or a send of a partial sum; CAR_NONE for
 * tasks that use the finished sum. */
int car_usage_leg(const car_usage *usage, const car_task *task);
/* A finished sum that goes on to other devices brings those of its ties along; otherwise they meet at the update. */
bool car_usage_adds_ties_early(const car_usage *usage);

/* dp in one process: each worker's gradients are kept apart until the update, so that no backward waits for another. */
bool car_usage_keeps_apart(const car_usage *usage);
/* From now on all updates of a step wait for its last gradient, so that sums live longer. */
void car_usage_defer_updates(car_usage *usage);
/* After a restart: in the first step those that are stale use the version before it, where it has a place. */
void car_usage_go_on(const car_usage *usage, car_task_list *list);

/* Of a forward, a backward or a message of weights: which copy of a bundle it uses, sends or brings. */
car_copy car_usage_copy(const car_usage *usage, const car_task *task, int bundle);
/* zero's chains: whether this copy, which a task uses, brings or sends, is sent on from here. */
car_passing car_usage_passing(const car_usage *usage, const car_task *task, int bundle);
/* The bundle whose block what is kept of a bundle lies in: its home's, if that is here. */
int car_usage_kept_block(const car_usage *usage, int bundle);

/* Whether the rank does not need what a task uses any more: weights of a bundle, which then move on or end; the sum of
 * the task's bundle, which was handed on or made into weights. */
bool car_usage_ends_weights(const car_usage *usage, const car_task *task, int bundle);
bool car_usage_ends_sum(const car_usage *usage, const car_task *task);
/* zero, a send of weights: whether the plan has their owner make the next version of them before. */
bool car_usage_is_renewed(const car_usage *usage, const car_task *task);
/* Whether a task only reads the finished sum of its bundle and step: it may run before others that do, or after them.
 */
bool car_usage_reads_sum(const car_usage *usage, const car_task *task);

/* Where weights move, an owner makes new ones in the plan's order: not before the forwards and backwards that come
 * before it. Made earlier, they would lie there and wait for the forward of the same slot. */
bool car_usage_follows_computes(const car_usage *usage, const car_task *task);

/* The uses of a task. The list is reused between calls; to be released with car_use_list_release. */
car_status car_usage_list(const car_usage *usage, const car_task *task, car_use_list *list);
void car_use_list_release(const car_plan *plan, car_use_list *list);

/* The order of a rank's tasks, where it is made of several devices'. */
int car_task_compare(const car_task *a, const car_task *b);
/* By slot and, inside of it, by subslot alone. */
int car_task_compare_moments(const car_task *a, const car_task *b);
int car_task_compare_numbers(int64_t a, int64_t b); /* < 0, 0 or > 0, as for qsort */

/* ---- what else an executor has to know of a placement ----------------------------------------- */

/* The first rank that holds as much as this one, if of other stages and micro-batches: itself, or one before it. */
int car_plan_rank_like(const car_plan *plan, int rank);
/* How many slots before its own a receive or a broadcast may be asked for: earlier would only hold memory. */
int64_t car_plan_slots_ahead(const car_plan *plan, const car_task *task);
/* The devices that meet in a collective: their group, and which of it one is. */
int car_plan_collective_group(const car_plan *plan, int device);
int car_plan_collective_member(const car_plan *plan, int device);
/* Whether nothing that ranks send each other keeps them at their distance in the cycle, so that beats have to. */
bool car_plan_needs_beats(const car_plan *plan);
/* The slot of the first step's last backward. */
int64_t car_plan_first_step_end(const car_plan *plan);
/* Whether sums go in the order in which their receives are posted, since those of several stages, or several pieces,
 * wait for one way; and how many are then under way at once: two, so that there is always one ready to go. */
bool car_plan_orders_sums(const car_plan *plan);
enum { CAR_SENDS_AT_ONCE = 2 };

/* ---- edges ----------------------------------------------------------------------------------- */

typedef struct car_edges car_edges;

car_status car_edges_create(car_context *context, car_edges **out);
void car_edges_destroy(car_edges *edges);
/* The next task in the plan's order, which gets the number that `count` tasks were added before it. *before gets the
 * numbers of those that it waits for, each once, valid until the next call. In time linear in its uses and in what it
 * waits for. */
car_status car_edges_add(car_edges *edges, const car_use_list *uses, const int64_t **before, int *before_count);
/* Tasks below this number are over: nobody waits for them, and what only they used is forgotten. */
void car_edges_forget(car_edges *edges, int64_t below);
/* Begins again at number 0. */
void car_edges_clear(car_edges *edges);

#endif
