/* The default correction for gradients that are one step late (docs/delay.md). */
#ifndef CAROUSEL_CORRECTION_H
#define CAROUSEL_CORRECTION_H

#include "carousel/optimizer.h"
#include "carousel/plan.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* What `auto` means: the correction for a plan's rule, its micro-batches per worker (`accumulate`: only one in M can
 * be late) and an optimizer. None for rules without a delay, for cdp-v2 with one worker and no slack, whose gradients
 * are never late, and for a momentum of at most 0.5. */
car_correction car_correction_choose(const car_plan_config *plan, const car_optimizer_config *config);

/* The matching warm-up in steps, for a run of `steps` steps in all; 0: none. */
int64_t car_correction_warmup(car_rule rule, const car_optimizer_config *config, int64_t steps);

/* Whether any coefficient is not zero. */
bool car_correction_is_on(const car_correction *correction);

/* Writes e.g. "c 0.9, a 1" or "off". Returns the length. */
int car_correction_text(const car_correction *correction, char *text, size_t capacity);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
