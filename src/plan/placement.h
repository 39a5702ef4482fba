/* The interface of a placement: which device computes what, and which messages that causes.
 *
 * Each placement has one file in placements/ that defines its class. The passes they share are in sums.c. The class
 * has four parts:
 *
 *   plan       which device computes a stage for a micro-batch, and how many devices there are
 *   window     what a device does besides computing: where gradients, sums and weights go next
 *   usage      what a rank has to hold
 *   executor   how early receives are posted, and which ranks join in a collective (usage.h) */
#ifndef CAR_PLAN_PLACEMENT_H
#define CAR_PLAN_PLACEMENT_H

#include "plan/internal.h"
#include "plan/usage.h"

struct car_placement_class {
    car_placement_info info;

    /* ---- the plan: which device ---- */
    int64_t (*devices)(const car_plan_config *config, bool spaced); /* `spaced`: see car_rule_info */
    int (*device)(const car_plan *plan, int64_t n, int stage);      /* which device computes it */
    int (*owner)(const car_plan *plan, int stage);                  /* NULL if stages have no owner */
    int (*stage_ranks)(const car_plan *plan, int stage);            /* see car_plan_stage_ranks */
    int (*pattern_steps)(const car_plan *plan, int rank);           /* NULL: always 1; see car_plan_pattern_steps */
    bool in_line; /* one device computes a stage for all workers, so they take turns */

    /* ---- the window of a device ---- */
    /* Calls car_window_visit_* for everything that the device computes. */
    void (*visit)(car_window *window);
    /* Adds the messages, sums, updates and weights that belong to a forward or backward of micro-batch n. */
    void (*attach)(car_window *window, const car_task *task, int64_t n);
    /* Adds tasks that belong to no forward or backward of this device. May be NULL. */
    void (*besides)(car_window *window);

    /* ---- usage: what a rank holds ---- */
    int (*tapes)(const car_plan *plan, int rank); /* the most micro-batches alive at once */
    int (*like)(const car_plan *plan, int rank);  /* NULL: the rank itself; see car_plan_rank_like */
    /* True if `task` is the device's last use of the weights of `bundle` in a run of `steps` steps. NULL: the device
     * keeps all weights. */
    bool (*ends_weights)(const car_plan *plan, int device, const car_task *task, int bundle, int64_t steps);
    /* True if the device still needs a sum after `task` updated from it or sent it. NULL: never. */
    bool (*passes_sum_on)(const car_plan *plan, int device, const car_task *task, int64_t steps);
    /* Only for placements that pass copies of weights along chains (see car_plan_has_chains); else NULL. */
    car_copy (*copy)(const car_plan *plan, int rank, const car_task *task, int bundle); /* see car_usage_copy */
    car_passing (*passing)(const car_plan *plan, const car_task *task, int bundle, int64_t steps);

    /* ---- the executor ---- */
    int64_t (*slots_ahead)(const car_plan *plan, const car_task *task); /* NULL: always 2k; see car_plan_slots_ahead */
    int (*group_of_device)(const car_plan *plan, int device);           /* NULL: all devices form one group */
    /* The default sum order is by worker: sums travel once per step instead of once per micro-batch. */
    bool sums_by_worker;
    bool roams;             /* in the cycle, a worker's micro-batches move between devices */
    bool keeps_no_distance; /* in the cycle, the plan's messages do not hold ranks apart, so beats must */
    bool sums_queue_up;     /* sums of several stages wait for one link; the one that is used first goes first */
};

#define CAR_PLACEMENT_DECLARE(code, name) extern const car_placement_class car_placement_##name;
CAR_PLACEMENT_LIST(CAR_PLACEMENT_DECLARE)
#undef CAR_PLACEMENT_DECLARE

const car_placement_class *car_placement_class_of(car_placement placement);

/* True if, in the cycle, the plan's messages do not hold the workers at their distance. Chains do not, because
 * copies of weights are sent on as soon as they arrive. */
static inline bool car_plan_keeps_no_distance(const car_plan *plan) {
    return plan->placement->keeps_no_distance || car_plan_has_chains(plan);
}
/* The number of steps after which a rank's pattern repeats. */
int car_plan_pattern_steps(const car_plan *plan, int rank);
/* The same plan with its workers on `hosts` devices, several on each. Used to predict what a machine with several
 * ranks holds. */
car_plan_config car_plan_config_hosted(const car_plan_config *config, int hosts);

#endif
