/* Iterates over the bundles of a stage or of a home that have bytes: first its own, then those of parameters tied to
 * another stage.
 *
 *     for (int b = car_bundle_of_stage(p, j, CAR_NONE); b != CAR_NONE; b = car_bundle_of_stage(p, j, b)) */
#ifndef CAR_PLAN_BUNDLES_H
#define CAR_PLAN_BUNDLES_H

#include "carousel/partition.h"

/* The next bundle after `after` (CAR_NONE: the first) whose weights the stage uses; CAR_NONE if there is none. */
static inline int car_bundle_of_stage(const car_partition *partition, int stage, int after) {
    int b = after == CAR_NONE ? stage : after < partition->stage_count ? partition->stage_count : after + 1;
    for (; b < partition->bundle_count; b = b < partition->stage_count ? partition->stage_count : b + 1) {
        if (partition->bundles[b].stage == stage && partition->bundles[b].bytes > 0) {
            return b;
        }
    }
    return CAR_NONE;
}

/* The same for the bundles that the update of a stage makes. */
static inline int car_bundle_of_home(const car_partition *partition, int home, int after) {
    int b = after == CAR_NONE ? home : after < partition->stage_count ? partition->stage_count : after + 1;
    for (; b < partition->bundle_count; b = b < partition->stage_count ? partition->stage_count : b + 1) {
        if (partition->bundles[b].home == home && partition->bundles[b].bytes > 0) {
            return b;
        }
    }
    return CAR_NONE;
}

#endif
