/* What the writer (text.c) and the reader (parse.c) of a plan's text form share. docs/plan.md describes the
 * notation. */
#ifndef CAR_PLAN_TEXT_H
#define CAR_PLAN_TEXT_H

#include "carousel/plan.h"

enum { CAR_TASK_TEXT = 192, CAR_HEADER_TEXT = 512 }; /* buffer sizes that fit any task, any header */

/* True if the text names a task by its bundle (sums, weights, updates); otherwise it names it by its stage. */
bool car_task_names_bundle(const car_task *task);

/* Compares everything that the text form has, so not `due`. */
bool car_task_equals(const car_task *a, const car_task *b);

/* Fills in what the notation leaves out because it follows from the rest: stage or bundle, step and tag. A task that
 * differs from this says so in its text. The caller must have set kind, cargo, the stage or bundle it is named by,
 * micro-batch, version and slot, and the step of a finished sum. */
void car_task_derive(const car_plan *plan, car_task *task);

/* CAR_ERROR_FORMAT with a message that ends in the grid, with the task's cell marked. */
car_status car_plan_fail_at(const car_plan *plan, int64_t steps, const car_task *task, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Like car_plan_parse; `name` names the text in error messages. */
car_status car_plan_parse_named(const car_plan *plan, const char *name, const char *text, car_task_list *devices,
                                int count);

/* The first line of the text form, without newline. Returns its length. */
int car_plan_format_header(const car_plan *plan, int64_t steps, char *text, size_t capacity);

#endif
