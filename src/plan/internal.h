/* The inside of a plan, for the files that generate the table. */
#ifndef CAR_PLAN_INTERNAL_H
#define CAR_PLAN_INTERNAL_H

#include "base/base.h"
#include "carousel/plan.h"
#include "plan/bundles.h"

typedef struct car_rule_entry car_rule_entry;           /* rules.h */
typedef struct car_placement_class car_placement_class; /* placement.h */

/* How a bundle's sums are cut. */
typedef struct car_sum_pieces {
    size_t size; /* bytes of all pieces but the last */
    int count;
} car_sum_pieces;

struct car_plan {
    car_context *context;
    const car_partition *partition;
    car_plan_config config;     /* resolved */
    car_rule clock;             /* whose clock: dp in a pipeline runs gpipe's */
    const car_rule_entry *rule; /* that one's entry */
    const car_placement_class *placement;
    int stages, per_worker, devices; /* S, k */
    int batches;                     /* micro-batches of a step: M*N */
    int64_t period;
    car_sum_pieces *pieces;    /* by bundle */
    int most_pieces;           /* of a sum */
    struct car_script *script; /* script.h: of a custom plan, its table; else NULL */
    bool proven;               /* see car_plan_is_proven */
};

/* As car_plan_create, also for CAR_RULE_CUSTOM, whose script is still to come. */
car_status car_plan_create_any(car_context *context, const car_partition *partition, const car_plan_config *config,
                               car_plan **out);

/* Micro-batch n = t*M*N + m is number m of step t, and worker n mod N's. */
static inline int64_t car_plan_step_of(const car_plan *plan, int64_t n) {
    return n / plan->batches;
}
static inline int car_plan_number_of(const car_plan *plan, int64_t n) {
    return (int)(n % plan->batches);
}
static inline int car_plan_worker_of(const car_plan *plan, int64_t n) {
    return (int)(n % plan->config.workers);
}
/* A task's micro-batch. */
static inline int64_t car_plan_batch_of(const car_plan *plan, const car_task *task) {
    return task->step * plan->batches + task->micro_batch;
}

/* Finds `pieces` and `most_pieces`. */
car_status car_plan_cut_sums(car_plan *plan);
/* The default size of pieces. */
int64_t car_plan_default_piece_bytes(const car_partition *partition);

/* Division rounding down, for slots before 0. */
static inline int64_t car_plan_floor_div(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

/* How many micro-batches of a step use last step's weights of a home: the first ones. 0 for dp, N for cdp-v1. */
int car_plan_stale_workers(const car_plan *plan, int home);
/* The version that micro-batch n uses of a home. */
int64_t car_plan_version(const car_plan *plan, int64_t n, int home);
/* The users of a version are the micro-batches first .. last. */
int64_t car_plan_first_user(const car_plan *plan, int64_t version, int home);
int64_t car_plan_last_user(const car_plan *plan, int64_t version, int home);
/* The slots of micro-batch n. */
static inline int64_t car_plan_forward_slot_of(const car_plan *plan, int64_t n, int stage) {
    return car_plan_forward_slot(plan, car_plan_step_of(plan, n), car_plan_number_of(plan, n), stage);
}
static inline int64_t car_plan_backward_slot_of(const car_plan *plan, int64_t n, int stage) {
    return car_plan_backward_slot(plan, car_plan_step_of(plan, n), car_plan_number_of(plan, n), stage);
}
/* zero: whether two copies of each version go from user to user, rather than the one there is. */
static inline bool car_plan_has_chains(const car_plan *plan) {
    return plan->config.zero_copies > 1;
}
/* Whether sums go from worker to worker over ranks, rather than into collectives: of spaced workers, and in custom
 * plans. */
bool car_plan_passes_sums(const car_plan *plan);
/* Device of micro-batch n. */
int car_plan_device_of(const car_plan *plan, int64_t n, int stage);
/* The group of a stage, as a pipeline has them on its ranks: k after each other. */
static inline int car_plan_group(const car_plan *plan, int stage) {
    return stage / plan->per_worker;
}
/* The most micro-batches that are between their forward and their backward of a group; in a grid it has as many ranks.
 */
int car_plan_group_ranks(const car_plan *plan, int group);
int car_plan_group_first(const car_plan *plan, int group); /* grid: its first rank */
/* The same in a pipeline, where all micro-batches of a step may have their forwards first. */
int car_plan_alive(const car_plan *plan, int group);
/* Whether each worker adds its own micro-batches of a step first, and the sums of workers are added then. */
bool car_plan_sums_by_worker(const car_plan *plan);

/* zero: slots before their use that copies could be passed on, the least first; of powers of two times k only, from 2k
 * on, if so asked. Returns how many there are, at most CAR_AHEAD_TRIALS. */
int car_plan_list_aheads(int stages, int per_worker, bool powers, int *values);

/* ---- building a window ----------------------------------------------------------------------- */

/* The order inside a slot. */
typedef enum car_subslot {
    CAR_SUBSLOT_RECEIVE,
    CAR_SUBSLOT_BROADCAST,
    CAR_SUBSLOT_UPDATE_FIRST, /* an update that was waited for until its first use */
    CAR_SUBSLOT_COMPUTE,
    CAR_SUBSLOT_REDUCE,
    CAR_SUBSLOT_UPDATE_LAST, /* an update made right after the last backward */
    CAR_SUBSLOT_SEND
} car_subslot;

typedef struct car_window {
    const car_plan *plan;
    int device;
    int64_t begin, end; /* slots, of one period; what begins at 0 also takes what lies before */
    int64_t steps;
    car_task_list *list;
    car_status status;
} car_window;

/* The table of slots begin .. end - 1 alone, which must lie in one window: for whoever wants less at a time. */
car_status car_plan_expand_slots(const car_plan *plan, int device, int64_t begin, int64_t end, int64_t steps,
                                 car_task_list *list);
car_status car_plan_expand_rank_slots(const car_plan *plan, int rank, int64_t begin, int64_t end, int64_t steps,
                                      car_task_list *list);
/* A rank's table can be taken in stretches that are not too large: where the one that begins at a slot ends. */
int64_t car_plan_stretch_end(const car_plan *plan, int64_t slot);

/* Puts tasks in the order of car_task_compare; equal ones stay in theirs. */
car_status car_task_list_sort(const car_plan *plan, car_task_list *list);

/* Appends if the slot lies in the window and nothing has failed. */
void car_window_add(car_window *window, car_task task);
/* Whether micro-batch n is part of the run. */
bool car_window_runs(const car_window *window, int64_t n);
/* A message seen from this device: a SEND in slot `sent` if it is the sender, a RECEIVE in slot `used`
 * if it is the receiver, nothing if both ends are one device. */
void car_window_message(car_window *window, car_task what, int from, int64_t sent, int to, int64_t used);

/* What is computed on a device: all by one worker, or the stages of a group by micro-batches n = residue mod modulus.
 */
void car_window_visit_worker(car_window *window, int worker);
void car_window_visit_group(car_window *window, int group, int64_t modulus, int64_t residue);

/* ---- what placements are made of: sums.c ------------------------------------------------------ */

/* A message with weights of a bundle, for a micro-batch or for a whole device (CAR_NONE). */
car_task car_window_weights_message(const car_plan *plan, int bundle, int64_t version, int micro_batch);
/* A message with a bundle's sum over all workers, from which `version` is made. */
car_task car_window_finished_sum(const car_plan *plan, int bundle, int64_t version);
/* An update that was waited for: it makes the weights for a forward of the same slot. */
void car_window_update(car_window *window, int bundle, int64_t version, int64_t slot);
/* An update right after a backward, `task`. */
void car_window_update_after(car_window *window, const car_task *task);

/* Passes, for each forward and backward of the device: */
/* activations and their gradients, where the stages before and after are on other devices; */
void car_window_boundaries(car_window *window, const car_task *task, int64_t n);
/* sums and weights of parameters that are used in several stages, where these are on different devices; */
void car_window_ties(car_window *window, const car_task *task, int64_t n);
/* the cycle's sums, from micro-batch to micro-batch, or from worker to worker; */
void car_window_pass_sums(car_window *window, const car_task *task, int64_t n);
/* the update of a stage, right after the backward that finishes its sum; */
void car_window_make(car_window *window, const car_task *task);
/* dp over ranks: a collective for each sum, and the update where it is kept. */
void car_window_reduce(car_window *window, const car_task *task, int64_t n);

#endif
