/* Runs the validator on a table other than the plan's own. Tests use this to put mistakes into a table and check
 * that they are found. */
#ifndef CAR_PLAN_VALIDATE_H
#define CAR_PLAN_VALIDATE_H

#include "carousel/plan.h"
#include "plan/usage.h"

/* Where the tasks come from: the plan itself, or in tests a changed copy of it. A source may also change what a task
 * uses and which tasks it waits for. `number` counts the rank's tasks; edges count from `first`. */
typedef struct car_task_source {
    car_status (*expand)(void *user, int device, int64_t window, int64_t steps,
                         car_task_list *list); /* NULL: the plan's */
    void *user;
    void (*change_uses)(void *user, int rank, int number, const car_task *task, car_use_list *uses); /* or NULL */
    /* May change the edges of a task; there is room for one more. */
    void (*change_edges)(void *user, int rank, int number, int *edges, int first, int *count);
} car_task_source;

/* Like car_plan_validate, but with the tasks of a source; NULL: the plan's own. Other tables do not make the plan
 * count as proven. */
car_status car_plan_validate_tasks(car_plan *plan, int64_t steps, const car_task_source *source);

#endif
