/* The private definition of a plan, and the helpers for generating its table of tasks.
 *
 * The files in src/plan that generate, describe or predict a plan include this header. expand.c builds a window of
 * tasks with the functions under "building a window"; the placements attach messages, sums and updates to it with
 * the passes at the end (sums.c). */
#ifndef CAR_PLAN_INTERNAL_H
#define CAR_PLAN_INTERNAL_H

#include "base/base.h"
#include "carousel/plan.h"
#include "plan/bundles.h"

typedef struct car_rule_entry car_rule_entry;           /* rules.h */
typedef struct car_placement_class car_placement_class; /* placement.h */

/* How the sums of a bundle are cut into pieces. */
typedef struct car_sum_pieces {
    size_t size; /* bytes of each piece except the last */
    int count;
} car_sum_pieces;

struct car_plan {
    car_context *context;
    const car_partition *partition;
    car_plan_config config;     /* with all defaults filled in */
    car_rule clock;             /* the rule whose clock is used: dp in a pipeline uses gpipe's */
    const car_rule_entry *rule; /* the entry of `clock` */
    const car_placement_class *placement;
    int stages, per_worker, devices; /* stages: S; per_worker: k */
    int batches;                     /* micro-batches per step: M*N */
    int64_t period;
    car_sum_pieces *pieces;    /* by bundle */
    int most_pieces;           /* the largest piece count of any sum */
    struct car_script *script; /* custom plans only: the table read from a file (script.h); else NULL */
    bool proven;               /* see car_plan_is_proven */
};

/* Like car_plan_create, but also accepts CAR_RULE_CUSTOM. The caller attaches the script afterwards. */
car_status car_plan_create_any(car_context *context, const car_partition *partition, const car_plan_config *config,
                               car_plan **out);

/* Micro-batch n = t*M*N + m has number m in step t and belongs to worker n mod N. */
static inline int64_t car_plan_step_of(const car_plan *plan, int64_t n) {
    return n / plan->batches;
}
static inline int car_plan_number_of(const car_plan *plan, int64_t n) {
    return (int)(n % plan->batches);
}
static inline int car_plan_worker_of(const car_plan *plan, int64_t n) {
    return (int)(n % plan->config.workers);
}
/* The micro-batch n that a task belongs to. */
static inline int64_t car_plan_batch_of(const car_plan *plan, const car_task *task) {
    return task->step * plan->batches + task->micro_batch;
}

/* Sets `pieces` and `most_pieces`. */
car_status car_plan_cut_sums(car_plan *plan);
/* The default piece size in bytes. */
int64_t car_plan_default_piece_bytes(const car_partition *partition);

/* Division that rounds down: slots before slot 0 are negative. */
static inline int64_t car_plan_floor_div(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

/* How many micro-batches at the start of a step use the previous step's weights of a home: 0 for dp, N for cdp-v1. */
int car_plan_stale_workers(const car_plan *plan, int home);
/* The version of a home's weights that micro-batch n uses. */
int64_t car_plan_version(const car_plan *plan, int64_t n, int home);
/* The users of a version are the consecutive micro-batches first .. last. */
int64_t car_plan_first_user(const car_plan *plan, int64_t version, int home);
int64_t car_plan_last_user(const car_plan *plan, int64_t version, int home);
/* The slots of micro-batch n. */
static inline int64_t car_plan_forward_slot_of(const car_plan *plan, int64_t n, int stage) {
    return car_plan_forward_slot(plan, car_plan_step_of(plan, n), car_plan_number_of(plan, n), stage);
}
static inline int64_t car_plan_backward_slot_of(const car_plan *plan, int64_t n, int stage) {
    return car_plan_backward_slot(plan, car_plan_step_of(plan, n), car_plan_number_of(plan, n), stage);
}
/* zero: true if two copies of each version go from user to user, false if only one exists. */
static inline bool car_plan_has_chains(const car_plan *plan) {
    return plan->config.zero_copies > 1;
}
/* True if sums travel from worker to worker over ranks: for spaced rules and custom plans. Otherwise collectives add
 * them. */
bool car_plan_passes_sums(const car_plan *plan);
/* The device that computes a stage of micro-batch n. */
int car_plan_device_of(const car_plan *plan, int64_t n, int stage);
/* A group is k consecutive stages: what a pipeline places on one rank. */
static inline int car_plan_group(const car_plan *plan, int stage) {
    return stage / plan->per_worker;
}
/* The largest number of micro-batches that are between forward and backward of a group at once. In a grid, this is
 * also the number of ranks of the group. */
int car_plan_group_ranks(const car_plan *plan, int group);
int car_plan_group_first(const car_plan *plan, int group); /* grid: the group's first rank */
/* The same count for a pipeline, where all forwards of a step may come before its backwards. */
int car_plan_alive(const car_plan *plan, int group);
/* True if each worker first adds up its own micro-batches of a step, and the workers' sums are added afterwards. */
bool car_plan_sums_by_worker(const car_plan *plan);

/* zero: lists the candidates for zero_ahead (how many slots before its use a copy may be sent on) in ascending
 * order. With `powers`, lists only k times powers of two, starting at 2k. Returns the count, at most
 * CAR_AHEAD_TRIALS. */
int car_plan_list_aheads(int stages, int per_worker, bool powers, int *values);

/* ---- building a window ----------------------------------------------------------------------- */

/* The order of tasks inside a slot. */
typedef enum car_subslot {
    CAR_SUBSLOT_RECEIVE,
    CAR_SUBSLOT_BROADCAST,
    CAR_SUBSLOT_UPDATE_FIRST, /* an update delayed until its first use */
    CAR_SUBSLOT_COMPUTE,
    CAR_SUBSLOT_REDUCE,
    CAR_SUBSLOT_UPDATE_LAST, /* an update made right after the last backward */
    CAR_SUBSLOT_SEND
} car_subslot;

typedef struct car_window {
    const car_plan *plan;
    int device;
    /* Slots begin .. end - 1 of one period; a window that begins at 0 also takes tasks in negative slots. */
    int64_t begin, end;
    int64_t steps;
    car_task_list *list;
    car_status status;
} car_window;

/* Generates only the slots begin .. end - 1, which must lie in one window. Use this to keep the list short. */
car_status car_plan_expand_slots(const car_plan *plan, int device, int64_t begin, int64_t end, int64_t steps,
                                 car_task_list *list);
car_status car_plan_expand_rank_slots(const car_plan *plan, int rank, int64_t begin, int64_t end, int64_t steps,
                                      car_task_list *list);
/* A rank's table can be generated in stretches of bounded size. Returns the end of the stretch that begins at
 * `slot`. */
int64_t car_plan_stretch_end(const car_plan *plan, int64_t slot);

/* Sorts tasks by car_task_compare. The sort is stable. */
car_status car_task_list_sort(const car_plan *plan, car_task_list *list);

/* Appends the task if its slot lies in the window. Does nothing after a failure. */
void car_window_add(car_window *window, car_task task);
/* True if micro-batch n is part of the run. */
bool car_window_runs(const car_window *window, int64_t n);
/* Adds this device's end of a message: a SEND in slot `sent` if it is the sender, a RECEIVE in slot `used` if it is
 * the receiver, nothing if both ends are the same device. */
void car_window_message(car_window *window, car_task what, int from, int64_t sent, int to, int64_t used);

/* Add the forwards and backwards of a device: everything one worker computes, or the stages of a group for the
 * micro-batches n = residue mod modulus. */
void car_window_visit_worker(car_window *window, int worker);
void car_window_visit_group(car_window *window, int group, int64_t modulus, int64_t residue);

/* ---- shared passes of the placements: sums.c ---------------------------------------------------- */

/* A message with a bundle's weights, for one micro-batch, or for a whole device (micro_batch CAR_NONE). */
car_task car_window_weights_message(const car_plan *plan, int bundle, int64_t version, int micro_batch);
/* A message with a bundle's finished sum, from which `version` is made. */
car_task car_window_finished_sum(const car_plan *plan, int bundle, int64_t version);
/* An update delayed until its first use: it makes the weights for a forward in the same slot. */
void car_window_update(car_window *window, int bundle, int64_t version, int64_t slot);
/* An update right after the backward `task`. */
void car_window_update_after(car_window *window, const car_task *task);

/* The passes below are called for each forward and backward of the device. */
/* Sends and receives activations and their gradients where the neighbouring stages are on other devices. */
void car_window_boundaries(car_window *window, const car_task *task, int64_t n);
/* Sends and receives the sums and weights of a parameter whose stages are on different devices. */
void car_window_ties(car_window *window, const car_task *task, int64_t n);
/* Passes the cycle's sums from micro-batch to micro-batch, or from worker to worker. */
void car_window_pass_sums(car_window *window, const car_task *task, int64_t n);
/* Updates a stage right after the backward that finishes its sum. */
void car_window_make(car_window *window, const car_task *task);
/* dp over ranks: one collective per sum, then the update on the devices that keep the result. */
void car_window_reduce(car_window *window, const car_task *task, int64_t n);

#endif
