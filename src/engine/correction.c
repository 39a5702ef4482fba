/* The correction of the delay that a run gets by its rule and optimizer. docs/delay.md has the sweep behind it. */
#include "carousel/correction.h"

#include <stdio.h>

#include "engine/optimizer_internal.h"

bool car_correction_is_on(const car_correction *correction) {
    return correction->c != 0 || correction->a != 0;
}

static double memory_of(const car_optimizer_config *config) {
    return car_optimizer_method_of(config)->memory(config);
}

/* Only a worker's first micro-batch can be late, so with M of them 1/M as much is to be predicted away: both weights are
 * those of one micro-batch over M. */
car_correction car_correction_choose(const car_plan_config *plan, const car_optimizer_config *config) {
    bool late = car_rule_info_of(plan->rule)->late != CAR_LATE_NEVER;
    double memory = memory_of(config), several = plan->accumulate > 1 ? plan->accumulate : 1;
    return late && memory > 0 ? (car_correction){.c = memory / several, .a = 1 / several} : (car_correction){0};
}

int64_t car_correction_warmup(car_rule rule, const car_optimizer_config *config, int64_t steps) {
    const car_optimizer_method *method = car_optimizer_method_of(config);
    const int64_t most = 2000; /* by then a long run has found its way */
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
