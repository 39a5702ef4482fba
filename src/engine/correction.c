/* The correction of the delay that a run gets by its rule and optimizer. docs/delay.md has the sweep behind it. */
#include "carousel/correction.h"

#include <stdio.h>

bool car_correction_is_on(const car_correction *correction) {
    return correction->c != 0 || correction->a != 0;
}

/* Rules that use weights of the step before. */
static bool is_late(car_rule rule) {
    return rule == CAR_RULE_CDP_V1 || rule == CAR_RULE_CDP_V2 || rule == CAR_RULE_2BW;
}

car_correction car_correction_choose(car_rule rule, const car_optimizer_config *config) {
    double memory = config->kind == CAR_OPTIMIZER_SGD ? config->momentum : config->beta1;
    if (!is_late(rule) || memory == 0) {
        return (car_correction){0};
    }
    return (car_correction){.c = memory, .a = 1, .by_share = true};
}

int64_t car_correction_warmup(car_rule rule, const car_optimizer_config *config, int64_t steps) {
    bool everywhere = rule == CAR_RULE_CDP_V1 || rule == CAR_RULE_2BW; /* stale */
    bool wanted = everywhere && (config->kind != CAR_OPTIMIZER_SGD || config->momentum != 0);
    return wanted ? steps / 4 : 0;
}

int car_correction_text(const car_correction *correction, char *text, size_t capacity) {
    if (!car_correction_is_on(correction)) {
        return snprintf(text, capacity, "off");
    }
    return snprintf(text, capacity, "c %g, a %g%s", correction->c, correction->a,
                    correction->by_share && correction->a != 0 ? " x share of stale workers" : "");
}

double car_plan_stale_share(const car_plan *plan, int stage) {
    int workers = car_plan_config_of(plan)->workers, stale = 0;
    for (int i = 0; i < workers; i++) {
        stale += car_plan_delay(plan, i, stage) > 0;
    }
    return (double)stale / workers;
}
