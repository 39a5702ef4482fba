/* Which correction of the delay a run gets if nobody says otherwise (docs/delay.md). */
#ifndef CAROUSEL_CORRECTION_H
#define CAROUSEL_CORRECTION_H

#include "carousel/optimizer.h"
#include "carousel/plan.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* What `auto` is: the correction for a plan's rule, its micro-batches a worker (`accumulate`, of which one in M can be
 * late) and an optimizer. None for rules without a delay, and for SGD without momentum. */
car_correction car_correction_choose(const car_plan_config *plan, const car_optimizer_config *config);

/* The warm-up that goes with it, in steps, for a run of `steps` in all; 0: none. */
int64_t car_correction_warmup(car_rule rule, const car_optimizer_config *config, int64_t steps);

bool car_correction_is_on(const car_correction *correction);

/* "c 0.9, a 1", "off". Returns the length. */
int car_correction_text(const car_correction *correction, char *text, size_t capacity);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
