/* The text form's inside: what its writer and its reader share. The notation is in docs/plan.md. */
#ifndef CAR_PLAN_TEXT_H
#define CAR_PLAN_TEXT_H

#include "carousel/plan.h"

enum { CAR_TASK_TEXT = 192 }; /* room for any task as text */

/* Whether a task is named after a bundle (sums, weights, updates) or after a stage. */
bool car_task_names_bundle(const car_task *task);

/* Fills in what the notation leaves out because it follows from the rest and the slot: stage or bundle, step,
 * buffer and tag. Where a task differs from this, its text says so. Kind, cargo, the stage or bundle that it is
 * named after, worker, version and slot must be there, and the step of a finished sum. */
void car_task_derive(const car_plan *plan, car_task *task);

/* The first line of the text form, without newline. Returns its length. */
int car_plan_header(const car_plan *plan, int64_t steps, char *text, size_t capacity);

#endif
