/* What a placement is made of. Each has one file in placements/ with its class; the passes in sums.c are what they
 * share.
 *
 *   plan       which device computes a stage for a micro-batch, and how many devices there are
 *   window     what a device does besides computing: where gradients, sums and weights go next
 *   usage      what a rank has to hold
 *   executor   how far ahead messages are asked for, and which ranks meet in a collective (usage.h) */
#ifndef CAR_PLAN_PLACEMENT_H
#define CAR_PLAN_PLACEMENT_H

#include "plan/internal.h"
#include "plan/usage.h"

struct car_placement_class {
    car_placement_info info;

    /* ---- the plan: which device ---- */
    int64_t (*devices)(const car_plan_config *config, bool spaced); /* see car_rule_info */
    int (*device)(const car_plan *plan, int64_t n, int stage);      /* of micro-batch n */
    int (*owner)(const car_plan *plan, int stage);                  /* where stages are owned; else NULL */
    int (*stage_ranks)(const car_plan *plan, int stage);            /* see car_plan_stage_ranks */
    int (*pattern_steps)(const car_plan *plan, int rank);           /* NULL: 1; see car_plan_pattern_steps */
    bool in_line; /* one device has a stage for all workers, so that they cannot compute it at once */

    /* ---- the window of a device ---- */
    /* Calls car_window_visit_* for all that it computes. */
    void (*visit)(car_window *window);
    /* What belongs to a forward or backward of micro-batch n, besides itself: messages, sums, updates, weights. */
    void (*attach)(car_window *window, const car_task *task, int64_t n);
    /* What belongs to no forward or backward of this device; or NULL. */
    void (*besides)(car_window *window);

    /* ---- usage: what a rank holds ---- */
    int (*tapes)(const car_plan *plan, int rank); /* micro-batches that are alive at once */
    int (*like)(const car_plan *plan, int rank);  /* NULL: itself; see car_plan_rank_like */
    /* In a run of so many steps: whether the device needs the weights of a bundle, which the task uses, no longer after it.
     * NULL: it keeps all. */
    bool (*ends_weights)(const car_plan *plan, int device, const car_task *task, int bundle, int64_t steps);
    /* Whether it still needs the sum that an update was made of, or that was sent. NULL: it never does. */
    bool (*passes_sum_on)(const car_plan *plan, int device, const car_task *task, int64_t steps);
    /* Where copies of weights are passed on along chains (see car_plan_has_chains); else NULL. */
    car_copy (*copy)(const car_plan *plan, int rank, const car_task *task, int bundle); /* see car_usage_copy */
    car_passing (*passing)(const car_plan *plan, const car_task *task, int bundle, int64_t steps);

    /* ---- the executor ---- */
    int64_t (*slots_ahead)(const car_plan *plan, const car_task *task); /* NULL: 2k; see car_plan_slots_ahead */
    int (*group_of_device)(const car_plan *plan, int device);           /* NULL: all are one group */
    bool sums_by_worker;    /* where nobody says otherwise: sums travel once a step, not once a micro-batch */
    bool roams;             /* in the cycle a worker's micro-batches change devices */
    bool keeps_no_distance; /* in the cycle nothing that its ranks send keeps them apart: beats do */
    bool sums_queue_up;     /* several stages' sums wait for one way: those that are used first go first */
};

#define CAR_PLACEMENT_DECLARE(code, name) extern const car_placement_class car_placement_##name;
CAR_PLACEMENT_LIST(CAR_PLACEMENT_DECLARE)
#undef CAR_PLACEMENT_DECLARE

const car_placement_class *car_placement_class_of(car_placement placement);

/* Whether, in the cycle, nothing that its ranks send keeps workers at their distance: copies of weights are passed on
 * as soon as they come. */
static inline bool car_plan_keeps_no_distance(const car_plan *plan) {
    return plan->placement->keeps_no_distance || car_plan_has_chains(plan);
}
/* After how many steps a rank's pattern repeats. */
int car_plan_pattern_steps(const car_plan *plan, int rank);
/* The same plan with its workers on `hosts` devices, several on each: for what a machine with several ranks holds. */
car_plan_config car_plan_config_hosted(const car_plan_config *config, int hosts);

#endif
