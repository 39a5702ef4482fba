/* The text form's inside: what its writer and its reader share. The notation is in docs/plan.md. */
#ifndef CAR_PLAN_TEXT_H
#define CAR_PLAN_TEXT_H

#include "carousel/plan.h"

enum { CAR_TASK_TEXT = 192, CAR_HEADER_TEXT = 512 }; /* room for any task as text, for any header */

/* Whether a task is named after a bundle (sums, weights, updates) or after a stage. */
bool car_task_names_bundle(const car_task *task);

/* In all that is in the text: not in `due`. */
bool car_task_equals(const car_task *a, const car_task *b);

/* Fills in what the notation leaves out because it follows from the rest and the slot: stage or bundle, step
 * and tag. Where a task differs from this, its text says so. Kind, cargo, the stage or bundle that it is named after,
 * worker, version and slot must be there, and the step of a finished sum. */
void car_task_derive(const car_plan *plan, car_task *task);

/* CAR_ERROR_FORMAT with a message that ends in the grid with a task's cell marked. */
car_status car_plan_fail_at(const car_plan *plan, int64_t steps, const car_task *task, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* As car_plan_parse; `name` is of the text, for messages. */
car_status car_plan_parse_named(const car_plan *plan, const char *name, const char *text, car_task_list *devices,
                                int count);

/* The first line of the text form, without newline. Returns its length. */
int car_plan_format_header(const car_plan *plan, int64_t steps, char *text, size_t capacity);

#endif
