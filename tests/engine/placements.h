/* Ranks against the shared engine, over any transport: small runs in every placement, whose weights must be those of the
 * shared engine, to the bit under the cyclic rules and within 1e-5 under dp. Under zero's cycle it is also looked how much
 * of the weights all ranks have at any one time. */
#ifndef CAR_TESTS_PLACEMENTS_H
#define CAR_TESTS_PLACEMENTS_H

#include "carousel/rank.h"
#include "engine/session.h"

/* A line of the list of cases. */
typedef struct car_placement_setting {
    car_placement placement;
    int workers, per_worker, ranks, threads;
    car_mapping mapping;
    bool full;                         /* not in CI */
    int snapshot_every, weights_every; /* snapshots on the way; 0: none */
    int accumulate;                    /* micro-batches a worker in a step; 0: 1 */
    int zero_copies;                   /* zero in the cycle; 0: two */
} car_placement_setting;

extern const car_placement_setting car_placement_settings[];
extern const int car_placement_setting_count;
extern const char *const car_placement_models[3];
/* A further one: gpt2-nano in bf16. */
#define CAR_PLACEMENT_BF16 "gpt2-nano, bf16"
extern const car_rule car_placement_rules[3];

/* What is trained, and the shared engine's session of it; the ranks' plan, of that session's. */
car_session_config car_placement_configure(const car_placement_setting *setting, const char *model, car_rule rule,
                                           bool guarded);
car_plan_config car_placement_plan(const car_placement_setting *setting, const car_plan_config *shared);
/* dp's grid has N^2 ranks, the cycle's N(N+1)/2. */
int car_placement_ranks(const car_placement_setting *setting, car_rule rule);
/* One rank's share of a run, `guarded` with clipping and a step that is skipped, whose reports must be the same, too. Called
 * by all ranks; the first compares, prints a line and returns whether all is well, the
 * others return true. Whatever else goes wrong ends the process. */
bool car_placement_run(car_transport *transport, const car_placement_setting *setting, const char *model, car_rule rule,
                       bool guarded);

/* A run of 40 steps that is told to stop when `stopper` (of 0 .. N - 1) is fed for step `step`: it must end soon, after the same step on
 * all ranks, with the state that the shared engine has after that step, and its reports. Called by all ranks. */
bool car_placement_stop(car_transport *transport, const car_placement_setting *setting, const char *model,
                        car_rule rule, int64_t step, int stopper, bool guarded);

#endif
