/* The table of rules, one entry each. Nothing else in src/plan knows rules by name, except the validator, which
 * derives everything it checks independently. */
#include "plan/rules.h"

#include "plan/names.h"

/* ---- how many workers are stale ---------------------------------------------------------------- */

static int none(const car_plan *plan, int home) {
    (void)plan, (void)home;
    return 0;
}

static int all(const car_plan *plan, int home) {
    (void)home;
    return plan->config.workers;
}

/* Fresh iff k*(i+1) + home >= S + slack. */
static int unless_fresh(const car_plan *plan, int home) {
    int workers = plan->config.workers, k = plan->per_worker;
    int64_t needed = (int64_t)plan->stages + plan->config.freshness_slack - home;
    int64_t first_fresh = needed <= 0 ? 0 : (needed + k - 1) / k - 1;
    return first_fresh < workers ? (int)first_fresh : workers;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const car_rule_entry rules[CAR_RULES + 1] = {
    [CAR_RULE_DP] =
        {.info = {.name = "dp", .summary = "all workers at once; the baseline", .together = true, .anywhere = true},
         .clock = &car_clock_together,
         .stale_workers = none,
         .in_line = CAR_RULE_GPIPE}, /* workers follow each other, and the pipeline is flushed */
    [CAR_RULE_CDP_V1] = {.info = {.name = "cdp-v1",
                                  .summary = "the cycle; last step's weights everywhere",
                                  .late = CAR_LATE_EVERYWHERE,
                                  .spaced = true,
                                  .cyclic = true,
                                  .anywhere = true},
                         .clock = &car_clock_cycle,
                         .stale_workers = all},
    [CAR_RULE_CDP_V2] = {.info = {.name = "cdp-v2",
                                  .summary = "the cycle; fresh weights where timing allows",
                                  .late = CAR_LATE_PARTLY,
                                  .spaced = true,
                                  .cyclic = true,
                                  .has_slack = true,
                                  .anywhere = true},
                         .clock = &car_clock_cycle,
                         .stale_workers = unless_fresh},
    [CAR_RULE_ACCUMULATE] = {.info = {.name = "accumulate",
                                      .summary = "dp's mathematics, as many micro-batches at a time as threads",
                                      .in_turns = true},
                             .clock = &car_clock_turns,
                             .stale_workers = none,
                             .only = &car_placement_shared,
                             .because = "runs on one machine"},
    [CAR_RULE_STAGGER] = {.info = {.name = "stagger",
                                   .summary = "dp's mathematics, workers an N-th of a micro-batch apart; no delay",
                                   .spaced = true,
                                   .anywhere = true},
                          .clock = &car_clock_stagger,
                          .stale_workers = none,
                          .in_line = CAR_RULE_1F1B},
    [CAR_RULE_GPIPE] = {.info = {.name = "gpipe", .summary = "pipeline: all forwards, flush, all backwards"},
                        .clock = &car_clock_gpipe,
                        .stale_workers = none,
                        .only = &car_placement_pipeline,
                        .because = "is a pipeline schedule"},
    [CAR_RULE_1F1B] = {.info = {.name = "1f1b", .summary = "pipeline: one forward, one backward, flush"},
                       .clock = &car_clock_1f1b,
                       .stale_workers = none,
                       .only = &car_placement_pipeline,
                       .because = "is a pipeline schedule"},
    [CAR_RULE_2BW] = {.info = {.name = "2bw",
                               .summary = "PipeDream-2BW: cdp-v1 in a pipeline",
                               .late = CAR_LATE_EVERYWHERE,
                               .spaced = true,
                               .cyclic = true},
                      .clock = &car_clock_cycle,
                      .stale_workers = all,
                      .only = &car_placement_pipeline,
                      .because = "is a pipeline schedule"},
    [CAR_RULE_CUSTOM] = {.info = {.name = "custom", .summary = "a schedule from a file", .from_file = true},
                         .clock = &car_clock_together, /* never used: the file gives the slots */
                         .stale_workers = none},
};

/* ---- by name --------------------------------------------------------------------------------- */

const car_rule_entry *car_rule_entry_of(car_rule rule) {
    return &rules[rule];
}

const car_rule_info *car_rule_info_of(car_rule rule) {
    return &rules[rule].info;
}

const char *car_rule_text(car_rule rule) {
    return (unsigned)rule <= CAR_RULE_CUSTOM ? rules[rule].info.name : "unknown rule";
}

static const char *name_at(int n) {
    return rules[n].info.name;
}

car_status car_rule_find(car_context *context, const char *name, car_rule *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, out);
    int found = 0;
    car_status status = car_names_find(context, "rule", name_at, CAR_RULES, name, &found);
    if (status == CAR_OK) {
        *out = (car_rule)found;
    }
    return status;
}

bool car_rule_is_known(const char *name, car_rule *out) {
    int found = car_names_index(name_at, CAR_RULES, name);
    *out = found == CAR_NONE ? *out : (car_rule)found;
    return found != CAR_NONE;
}
