/* What the two forms of zero share: zero.c (a single copy of each version) and zero_chains.c (two copies). */
#ifndef CAR_PLAN_ZERO_H
#define CAR_PLAN_ZERO_H

#include "plan/rules.h"

/* Sends the finished sum of a bundle to its owner, which uses it for an update in slot `used`. */
void car_zero_finished_to_owner(car_window *window, int bundle, int64_t step, int64_t used);

/* The slot in which the owner makes the version from a step's sum, with a single copy or where steps do not overlap. */
int64_t car_zero_renewal_slot(const car_plan *plan, int64_t step, int home);
/* Adds that update in its slot. */
void car_zero_update(car_window *window, int home, int64_t step, int64_t slot);

/* ---- chains: zero_chains.c ------------------------------------------------------------------- */

/* The slot in which the owner makes a version (1 or later). */
int64_t car_zero_update_slot(const car_plan *plan, int64_t version, int home);
/* Adds all weights that this device sends and receives, and the updates that it makes. */
void car_zero_pass_weights(car_window *window);
car_copy car_zero_copy(const car_plan *plan, int rank, const car_task *task, int bundle);
car_passing car_zero_passing(const car_plan *plan, const car_task *task, int bundle, int64_t steps);
bool car_zero_ends_copy(const car_plan *plan, int rank, const car_task *task, int bundle, int64_t steps);
/* How many slots before its receive slot a copy's receive may be posted. */
int64_t car_zero_slots_ahead(const car_plan *plan);

#endif
