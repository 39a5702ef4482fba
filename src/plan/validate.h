/* The validator on other tables than the plan's own: how tests see that it notices what is wrong. */
#ifndef CAR_PLAN_VALIDATE_H
#define CAR_PLAN_VALIDATE_H

#include "carousel/plan.h"
#include "plan/usage.h"

/* Where the tasks come from: the plan itself, or a changed copy of it in tests, which may also change what a task of a rank
 * uses, and which tasks it waits for. `number` counts the rank's tasks, edges from `first`. */
typedef struct car_task_source {
    car_status (*expand)(void *user, int device, int64_t window, int64_t steps,
                         car_task_list *list); /* NULL: the plan's */
    void *user;
    void (*change_uses)(void *user, int rank, int number, const car_task *task, car_use_list *uses); /* or NULL */
    /* The same; there is room for one more. */
    void (*change_edges)(void *user, int rank, int number, int *edges, int first, int *count);
} car_task_source;

/* car_plan_validate of the tasks of a source. `source` NULL: the plan's own. The plan does not count as proven by others. */
car_status car_plan_validate_tasks(car_plan *plan, int64_t steps, const car_task_source *source);

#endif
