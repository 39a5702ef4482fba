/* What a rule is made of: a clock, the delay of its weights, and where it may run. The table is in rules.c, the clocks
 * are in clock.c. */
#ifndef CAR_PLAN_RULES_H
#define CAR_PLAN_RULES_H

#include "carousel/plan.h"
#include "plan/placement.h"

/* When a step's forwards and backwards are, in slots from the step's beginning. */
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
    /* How many micro-batches of a step, the first ones, use last step's weights of a home: at most one of each worker. */
    int (*stale_workers)(const car_plan *plan, int home);
    const car_placement_class *only; /* the one placement that it goes with; NULL: all */
    const char *because;             /* how an error message says so: "rule gpipe ..." */
    car_rule in_line; /* what it becomes where one device has a stage for all workers; 0: it stays what it is */
} car_rule_entry;

const car_rule_entry *car_rule_entry_of(car_rule rule);

#endif
