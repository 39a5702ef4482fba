/* The private definitions of the validator. It implements the clock, the rules and the placements from their
 * definition and not with the generator's code: a mistake in shared code would never show. */
#ifndef CAR_VALIDATE_INTERNAL_H
#define CAR_VALIDATE_INTERNAL_H

#include "base/base.h"
#include "carousel/plan.h"
#include "plan/bundles.h"
#include "plan/usage.h"
#include "plan/validate.h"

/* The most sums of one bundle that a device may hold at once: a finished one that waits, the one that grows, and
 * spare room for wrong plans. */
enum { CAR_VALIDATE_SUMS = 4 };

/* The order inside a slot. An UPDATE has two places: before the task that waits for it, or after the one it waits
 * for. */
typedef enum car_validate_subslot {
    CAR_VALIDATE_RECEIVE,
    CAR_VALIDATE_BROADCAST,
    CAR_VALIDATE_UPDATE_BEFORE,
    CAR_VALIDATE_COMPUTE,
    CAR_VALIDATE_REDUCE,
    CAR_VALIDATE_UPDATE_AFTER,
    CAR_VALIDATE_SEND,
    CAR_VALIDATE_SUBSLOTS
} car_validate_subslot;

/* A last use. `kind` does not distinguish the parts of a sum, except a worker's own sum. */
typedef struct car_validate_end {
    car_resource_kind kind;
    int bundle, next; /* next: the next last use of the same task; CAR_NONE: no more */
    int64_t id;       /* as in car_use */
} car_validate_end;

/* The whole table with the devices one after another, and what was found out about it. Arrays of `count` elements
 * are parallel to `tasks`. */
typedef struct car_validation {
    const car_plan *plan;
    car_context *context;
    const car_partition *partition;
    car_plan_config config;
    int workers, stages, per_worker, bundles, devices; /* N, S, k */
    int batches;                                       /* M*N: micro-batches per step */
    int64_t steps, period;
    bool cyclic; /* the cycle's clock: steps overlap */
    bool spaced; /* micro-batches 2k slots apart and sums in ring order: the cycle, and stagger except in pipelines */
    bool passes; /* sums travel from worker to worker over ranks: spaced rules, and custom plans except in pipelines */
    bool by_worker; /* each worker first adds up its own micro-batches */
    bool spread;    /* dp over ranks: collectives combine what several devices added */
    bool chains;    /* zero: two copies of each version, one along the forwards, one along the backwards */
    car_task *tasks;
    int count, capacity;
    int *first;              /* device d: tasks first[d] .. first[d + 1] - 1 */
    int *device_of;          /* task -> device */
    unsigned char *subslots; /* task -> car_validate_subslot */
    int *order;              /* all tasks by slot, then subslot, then device: a legal execution */
    int *partner;            /* SEND -> its RECEIVE and back, else CAR_NONE */
    int *computes;           /* [step][micro-batch][stage][forward, backward] -> task */
    int *groups;             /* pipeline, grid: device -> its group of stages */
    const car_task_source *source;
    bool custom;       /* the user's own schedule: there is no clock or rule to compare with */
    int64_t max_delay; /* custom plans: versions older than this many steps are refused */
    /* Ranks: what one executor runs. A place is a task's index when all ranks are listed one after another, each in
     * the plan's order. */
    int ranks;
    int *rank_of;    /* device -> rank */
    int *rank_first; /* rank r: places rank_first[r] .. rank_first[r + 1] - 1 */
    int *sequence;   /* place -> task */
    int *edge_first; /* place p waits for the places edges[edge_first[p]] .. edges[edge_first[p + 1] - 1] */
    int *edges, edge_capacity;
    car_usage **usages;
    int *ends_of; /* task -> its first entry in `ends` */
    car_validate_end *ends;
    int end_count, end_capacity;
    bool *finishing; /* task -> true for a backward that is the last to add to its stage's sum: validate_sums.c */
    bool *moving;    /* place -> true for an update whose weights move: it keeps to the plan's order */
} car_validation;

/* ---- the definition (validate_rules.c) ---------------------------------------------------------- */

/* The slot of a forward or backward; CAR_NONE if the definition leaves it open (1f1b). */
int64_t car_validate_slot(const car_validation *v, int64_t step, int micro_batch, int stage, bool backward);
/* The version that a micro-batch uses of a bundle whose home is `home`. */
int64_t car_validate_version(const car_validation *v, int64_t step, int micro_batch, int home);
int car_validate_device(const car_validation *v, int64_t step, int micro_batch, int stage);
/* The devices first .. first + ranks - 1 compute the stages of a group; except in grids, ranks is 1. */
void car_validate_group(const car_validation *v, int group, int *first, int *ranks);
/* The first worker that uses a step's result in the very next step; N if there is none. */
int car_validate_first_fresh(const car_validation *v, int home);
/* True if a device makes the update of a bundle in a step. shared: any one device does, so it is true for all. */
bool car_validate_updates(const car_validation *v, int64_t step, int bundle, int device);
/* How many devices make an update. */
int car_validate_update_count(const car_validation *v);
/* True if the sums of ties are added to their home's finished sum before it travels to the ranks that update. */
bool car_validate_carries_ties(const car_validation *v);
/* The number of messages that carry a bundle's sum over one hop. */
int car_validate_pieces(const car_validation *v, int bundle);
/* zero: the device that owns a stage. */
int car_validate_owner(const car_validation *v, int stage);

/* zero's chains, by their definition: the first and the last micro-batch that use a version, whether or not they are
 * part of the run. */
int64_t car_validate_first_user(const car_validation *v, int64_t version, int home);
int64_t car_validate_last_user(const car_validation *v, int64_t version, int home);
/* True if micro-batch n computes with the version that its rank keeps as the owner, not with a copy it received. */
bool car_validate_uses_kept(const car_validation *v, int64_t n, int64_t version, int home);
/* The micro-batch that a message with weights is for. */
int64_t car_validate_weights_user(const car_validation *v, const car_task *task);

/* Per-device, per-bundle state is kept in arrays of car_validate_rows elements. car_validate_row is the index, or
 * CAR_NONE if the device has nothing to do with the bundle. The devices of `shared` share their rows. */
size_t car_validate_rows(const car_validation *v);
int64_t car_validate_row(const car_validation *v, int device, int bundle);

/* Index in `computes`. */
static inline size_t car_validate_compute(const car_validation *v, int64_t step, int micro_batch, int stage,
                                          bool backward) {
    return (((size_t)step * (size_t)v->batches + (size_t)micro_batch) * (size_t)v->stages + (size_t)stage) * 2 +
           backward;
}
static inline bool car_validate_is_collective(const car_task *task) {
    return task->kind == CAR_TASK_REDUCE || task->kind == CAR_TASK_BROADCAST;
}
static inline bool car_validate_in_groups(const car_validation *v) {
    return v->config.placement == CAR_PLACEMENT_PIPELINE || v->config.placement == CAR_PLACEMENT_GRID;
}

/* ---- the table (validate.c) --------------------------------------------------------------------- */

car_validation car_validate_begin(const car_plan *plan, int64_t steps, const car_task_source *source);
/* Allocates what is needed for the devices. The caller then fills in tasks and `first`, and calls
 * car_validate_arrange. */
car_status car_validate_open(car_validation *v);
car_status car_validate_arrange(car_validation *v);
void car_validate_close(car_validation *v);

/* ---- failing (validate.c) ----------------------------------------------------------------------- */

/* CAR_ERROR_INTERNAL with a message that has the plan, what is wrong, the task at `index` (CAR_NONE: none) and, if
 * it is small, the grid. */
car_status car_validate_fail(const car_validation *v, int index, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- the checks, in the order in which they run; each relies on those before --------------------- */

/* A single task: its fields are in range and agree; a forward or backward is on its device, in its slot, with the
 * rule's version. */
car_status car_validate_task(const car_validation *v, int index);
car_status car_validate_compute_task(const car_validation *v, int index);
car_status car_validate_rule(const car_validation *v, int index);
/* Checks some tasks of a large plan: see validate_sample.c. */
car_status car_validate_sample(car_plan *plan, int device, int64_t window);

/* Fields are in range, slots and subslots ascend. Fills subslots and order. */
car_status car_validate_fields(car_validation *v);
/* Every forward and backward occurs once, on its device, in its slot, in the right order. Fills computes. */
car_status car_validate_order(car_validation *v);
/* Each SEND has a later RECEIVE. Fills partner. */
car_status car_validate_messages(car_validation *v);
/* Collects what each rank no longer needs after a task: validate_uses.c. Fills ends. */
car_status car_validate_uses(car_validation *v);
void car_validate_release_uses(car_validation *v);
bool car_validate_ends(const car_validation *v, int index, car_resource_kind kind, int bundle, int64_t id);
/* What a rank holds and what one of its tasks uses, as executors see it. `number`: index among the rank's tasks. */
car_status car_validate_usage(car_validation *v, int rank, const car_usage **out);
car_status car_validate_list_uses(car_validation *v, int rank, int number, const car_task *task, car_use_list *uses);
/* Tasks of a rank that touch the same thing are connected by edges. Fills edges and moving. `from_start`: the table
 * begins with the run. */
car_status car_validate_edges(car_validation *v, bool from_start);
/* Ranks that run what their edges allow, and wait for each other, reach the end. */
car_status car_validate_dry_run(car_validation *v);
/* Activations are held from forward to backward, and handed over where devices change. */
car_status car_validate_activations(car_validation *v);
/* Every worker's gradient is added once, in ring order, into every update. */
car_status car_validate_sums(car_validation *v);
/* Weights: the rule's version is there when it is used. One replay (validate_weights.c) calls these functions task
 * by task; validate_versions.c implements them, and validate_chains.c for chains. `held` is the implementation's
 * state, `index` the task. */
typedef struct car_weights_holding {
    car_status (*use)(void *held, int index, int bundle, int64_t version); /* by a forward or backward */
    car_status (*update)(void *held, int index);
    car_status (*send)(void *held, int index);
    car_status (*receive)(void *held, int index);
    car_status (*broadcast)(void *held, int index); /* NULL: none is allowed */
} car_weights_holding;
car_status car_validate_replay_weights(const car_validation *v, const car_weights_holding *holding, void *held);
car_status car_validate_versions(car_validation *v);
car_status car_validate_chains(car_validation *v);
/* The number of messages per worker and slot, and their receivers. */
car_status car_validate_bounds(car_validation *v);

#endif
