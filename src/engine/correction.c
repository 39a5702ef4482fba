/* The default correction of the delay, by rule and optimizer. docs/delay.md has the sweep that it is based on. */
#include "carousel/correction.h"

#include <stdio.h>

#include "engine/optimizer_internal.h"

bool car_correction_is_on(const car_correction *correction) {
    return correction->c != 0 || correction->a != 0;
}

static double memory_of(const car_optimizer_config *config) {
    return car_optimizer_method_of(config)->memory(config);
}

/* A momentum of at most this gains no stability by a correction, or loses some (docs/delay.md). */
static const double least_memory = 0.5;

/* Only the first of a worker's M micro-batches can be late, so there is 1/M as much to correct as with one: c =
 * momentum / M, a = 1 / M. Where every stage is late, SGD also looks ahead as far as Nesterov's momentum does: c =
 * momentum * (1 + momentum / M). */
car_correction car_correction_choose(const car_plan_config *plan, const car_optimizer_config *config) {
    car_lateness late = car_rule_info_of(plan->rule)->late;
    double memory = memory_of(config), several = plan->accumulate > 1 ? plan->accumulate : 1;
    bool ahead = late == CAR_LATE_EVERYWHERE && car_optimizer_method_of(config)->looks_ahead;
    bool alone = plan->workers == 1 && plan->freshness_slack == 0;
    bool never = late == CAR_LATE_NEVER || (late == CAR_LATE_PARTLY && alone);
    if (never || memory <= least_memory) {
        return (car_correction){0};
    }
    return (car_correction){.c = ahead ? memory * (1 + memory / several) : memory / several, .a = 1 / several};
}

int64_t car_correction_warmup(car_rule rule, const car_optimizer_config *config, int64_t steps) {
    const car_optimizer_method *method = car_optimizer_method_of(config);
    const int64_t most = 2000; /* a longer run needs no more */
    if (car_rule_info_of(rule)->late != CAR_LATE_EVERYWHERE || memory_of(config) == 0) {
        return 0;
    }
    int64_t warmup = steps * method->warmup.part / method->warmup.of;
    return warmup < most ? warmup : most;
}

int car_correction_text(const car_correction *correction, char *text, size_t capacity) {
    return car_correction_is_on(correction) ? snprintf(text, capacity, "c %g, a %g", correction->c, correction->a)
                                            : snprintf(text, capacity, "off");
}
