/* The rules: who computes when, and with which version of the weights. Each is an entry of the table in
 * src/plan/rules.c; docs/design.md has the mathematics. */
#ifndef CAROUSEL_RULE_H
#define CAROUSEL_RULE_H

#include <stdbool.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum car_rule {
    CAR_RULE_DP,
    CAR_RULE_CDP_V1,
    CAR_RULE_CDP_V2,
    CAR_RULE_ACCUMULATE,
    CAR_RULE_STAGGER,
    CAR_RULE_GPIPE,
    CAR_RULE_1F1B,
    CAR_RULE_2BW,
    CAR_RULES,
    CAR_RULE_CUSTOM = CAR_RULES /* a plan from a file: its table decides. Cannot be selected by name */
} car_rule;

/* Which gradients are computed with weights that are one step old. */
typedef enum car_lateness {
    CAR_LATE_NEVER,
    CAR_LATE_EVERYWHERE,
    CAR_LATE_PARTLY /* those of some workers, depending on the stage */
} car_lateness;

/* A rule's description and properties. */
typedef struct car_rule_info {
    const char *name, *summary;
    car_lateness late;
    bool spaced;    /* micro-batches are 2k slots apart, and each adds to the sum of the one before */
    bool cyclic;    /* spaced, and no step waits for the one before */
    bool together;  /* all workers compute in the same slots; over ranks, collectives reduce the sums */
    bool in_turns;  /* at most as many micro-batches at a time as there are threads, all added to one sum */
    bool has_slack; /* supports --freshness-slack */
    bool anywhere;  /* works with every placement */
    bool from_file; /* the schedule is the user's own */
} car_rule_info;

/* `rule` must be below CAR_RULES, or CAR_RULE_CUSTOM. */
const car_rule_info *car_rule_info_of(car_rule rule);
const char *car_rule_text(car_rule rule);
/* Finds a rule by name. CAR_ERROR_UNKNOWN_NAME, with the known names, for any other. */
car_status car_rule_find(car_context *context, const char *name, car_rule *out);
bool car_rule_is_known(const char *name, car_rule *out); /* the same without a message */

/* Whether a step's first updates may be due before its last gradients exist. */
static inline bool car_rule_updates_early(car_rule rule) {
    const car_rule_info *info = car_rule_info_of(rule);
    return info->from_file || (info->cyclic && info->late != CAR_LATE_EVERYWHERE);
}

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
