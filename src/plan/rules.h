/* The definition of a rule: a clock, the delay of its weights, and the placements it may run on. The table of rules
 * is in rules.c, the clocks are in clock.c. */
#ifndef CAR_PLAN_RULES_H
#define CAR_PLAN_RULES_H

#include "carousel/plan.h"
#include "plan/placement.h"

/* The slots of a step's forwards and backwards, counted from the beginning of the step. */
typedef struct car_clock {
    int64_t (*period)(const car_plan *plan);
    int64_t (*forward)(const car_plan *plan, int micro_batch, int stage);
    int64_t (*backward)(const car_plan *plan, int micro_batch, int stage);
    bool forwards_first; /* all forwards of a step come before its backwards */
} car_clock;

extern const car_clock car_clock_together, car_clock_cycle, car_clock_turns, car_clock_stagger, car_clock_gpipe,
    car_clock_1f1b;

typedef struct car_rule_entry {
    car_rule_info info;
    const car_clock *clock;
    /* How many micro-batches at the start of a step use the previous step's weights of a home; at most one per
     * worker. */
    int (*stale_workers)(const car_plan *plan, int home);
    const car_placement_class *only; /* the only placement it runs on; NULL: all */
    const char *because;             /* the reason for an error message: "rule gpipe ..." */
    car_rule in_line; /* the rule it becomes where one device computes a stage for all workers; 0: it does not change */
} car_rule_entry;

const car_rule_entry *car_rule_entry_of(car_rule rule);

#endif
