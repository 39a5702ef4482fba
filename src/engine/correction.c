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

/* The momentum that makes the delay worse, and that a correction looks ahead with. */
static double memory_of(const car_optimizer_config *config) {
    return config->kind == CAR_OPTIMIZER_SGD ? config->momentum : config->beta1;
}

car_correction car_correction_choose(car_rule rule, const car_optimizer_config *config) {
    double memory = memory_of(config);
    return is_late(rule) && memory > 0 ? (car_correction){.c = memory, .a = 1} : (car_correction){0};
}

int64_t car_correction_warmup(car_rule rule, const car_optimizer_config *config, int64_t steps) {
    static const struct {
        int64_t part, of;
    } shares[CAR_OPTIMIZERS] = {
        [CAR_OPTIMIZER_SGD] = {1, 6}, [CAR_OPTIMIZER_ADAMW] = {3, 8}, [CAR_OPTIMIZER_MUON] = {1, 4}};
    const int64_t most = 2000; /* by then a long run has found its way */
    bool late_everywhere = rule == CAR_RULE_CDP_V1 || rule == CAR_RULE_2BW;
    if (!late_everywhere || memory_of(config) == 0) {
        return 0;
    }
    int64_t warmup = steps * shares[config->kind].part / shares[config->kind].of;
    return warmup < most ? warmup : most;
}

int car_correction_text(const car_correction *correction, char *text, size_t capacity) {
    return car_correction_is_on(correction) ? snprintf(text, capacity, "c %g, a %g", correction->c, correction->a)
                                            : snprintf(text, capacity, "off");
}
