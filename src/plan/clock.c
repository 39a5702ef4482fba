/* The clock, the rules and the devices: pure formulas. docs/design.md has their derivation.
 *
 * N = S = 3, k = 1, the cycle in steady state; rows are workers, columns slots, 2' is the backward of
 * stage 2:
 *
 *   slot      0  1  2  3  4  5 | 6  7  8  9 10 11
 *   worker 0  0  1  2  2' 1' 0'| 0  1  2  2' 1' 0'
 *   worker 1  1' 0' 0  1  2  2'| 1' 0' 0  1  2  2'
 *   worker 2  2  2' 1' 0' 0  1 | 2  2' 1' 0' 0  1
 */
#include <limits.h>

#include "plan/internal.h"

car_plan_config car_plan_config_default(void) {
    return (car_plan_config){.workers = 4, .rule = CAR_RULE_CDP_V2};
}

/* ---- creating: what can be planned ----------------------------------------------------------- */

static bool is_pipeline_rule(car_rule rule) {
    return rule == CAR_RULE_GPIPE || rule == CAR_RULE_1F1B || rule == CAR_RULE_2BW;
}

static car_status check_rule(car_context *context, const car_plan_config *config) {
    if (is_pipeline_rule(config->rule) && config->placement != CAR_PLACEMENT_PIPELINE) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "rule %s is a schedule of pipelines: use --placement pipeline",
                                car_rule_text(config->rule));
    }
    if (config->rule == CAR_RULE_ACCUMULATE && config->placement != CAR_PLACEMENT_SHARED) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "rule accumulate runs on one machine: use --placement shared");
    }
    return CAR_OK;
}

static car_status check_config(car_context *context, const car_partition *partition, car_plan_config *config) {
    int workers = config->workers;
    if (workers < 1 || workers > 1 << 16) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "%d workers; there must be 1 to 65536", workers);
    }
    if (partition->stage_count % workers != 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "%d stages for %d workers: stages must be a multiple of workers",
                                partition->stage_count, workers);
    }
    if (config->freshness_slack < 0 || (config->freshness_slack > 0 && config->rule != CAR_RULE_CDP_V2)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a freshness slack of %d: it must not be negative, and only cdp-v2 has one",
                                config->freshness_slack);
    }
    config->threads = config->threads ? config->threads : workers;
    config->ranks = config->ranks ? config->ranks : workers;
    if (config->threads < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "%d threads; there must be at least 1", config->threads);
    }
    if (config->ranks < 1 || workers % config->ranks != 0 ||
        (config->ranks != workers && config->placement != CAR_PLACEMENT_REPLICA)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "%d ranks for %d workers: ranks must divide workers, and only replica can have fewer",
                                config->ranks, workers);
    }
    return check_rule(context, config);
}

static int64_t count_devices(const car_plan *plan) {
    int64_t workers = plan->config.workers;
    switch (plan->config.placement) {
    case CAR_PLACEMENT_REPLICA:
        return plan->config.ranks;
    case CAR_PLACEMENT_GRID:
        return car_plan_is_cyclic(plan) ? workers * (workers + 1) / 2 : workers * workers;
    default:
        return workers;
    }
}

/* Devices and tags are ints: a plan that needs more of them is refused rather than made wrong. */
static car_status check_size(const car_plan *plan, int64_t devices) {
    int64_t workers = plan->config.workers, bundles = plan->partition->bundle_count;
    bool sends = plan->config.placement != CAR_PLACEMENT_SHARED;
    if (devices > INT_MAX) {
        return car_context_fail(plan->context, CAR_ERROR_UNSUPPORTED,
                                "rule %s over a %s of %lld workers wants %lld devices, and at most %d can be planned: "
                                "use fewer workers",
                                car_rule_text(plan->config.rule), car_placement_text(plan->config.placement),
                                (long long)workers, (long long)devices, INT_MAX);
    }
    if (sends && CAR_CARGOS * (2 + 2 * bundles * (workers + 2)) > INT_MAX) {
        return car_context_fail(
            plan->context, CAR_ERROR_UNSUPPORTED,
            "placement %s with %lld workers and %d stages: its messages want more than %d tags; use "
            "fewer workers or stages",
            car_placement_text(plan->config.placement), (long long)workers, plan->stages, INT_MAX);
    }
    return CAR_OK;
}

static int64_t period_of(const car_plan *plan) {
    int64_t stages = plan->stages, workers = plan->config.workers, threads = plan->config.threads;
    switch (plan->clock) {
    case CAR_RULE_GPIPE:
    case CAR_RULE_1F1B:
        return 2 * (stages + plan->per_worker * (workers - 1));
    case CAR_RULE_ACCUMULATE:
        return 2 * stages * ((workers + threads - 1) / threads);
    default:
        return 2 * stages;
    }
}

car_status car_plan_create(car_context *context, const car_partition *partition, const car_plan_config *config,
                           car_plan **out) {
    car_plan_config chosen = config ? *config : car_plan_config_default();
    car_plan *plan = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(check_config(context, partition, &chosen));
    CAR_TRY(car_context_allocate(context, 1, sizeof *plan, &plan));
    plan->context = context;
    plan->partition = partition;
    plan->config = chosen;
    plan->clock = chosen.rule;
    if (chosen.rule == CAR_RULE_DP && chosen.placement == CAR_PLACEMENT_PIPELINE) {
        plan->clock = CAR_RULE_GPIPE; /* data parallelism over a pipeline is a pipeline with a flush */
    } else if (chosen.rule == CAR_RULE_2BW) {
        plan->clock = CAR_RULE_CDP_V1;
    }
    plan->stages = partition->stage_count;
    plan->per_worker = partition->stage_count / chosen.workers;
    int64_t devices = count_devices(plan);
    CAR_TRY(check_size(plan, devices));
    plan->devices = (int)devices;
    plan->period = period_of(plan);
    *out = plan;
done:
    if (status != CAR_OK) {
        car_plan_destroy(plan);
    }
    return status;
}

void car_plan_destroy(car_plan *plan) {
    if (plan) {
        car_context_release(plan->context, plan, 1, sizeof *plan);
    }
}

car_context *car_plan_context(const car_plan *plan) {
    return plan->context;
}
const car_partition *car_plan_partition(const car_plan *plan) {
    return plan->partition;
}
const car_plan_config *car_plan_config_of(const car_plan *plan) {
    return &plan->config;
}
int car_plan_devices(const car_plan *plan) {
    return plan->devices;
}
int car_plan_per_worker(const car_plan *plan) {
    return plan->per_worker;
}
int64_t car_plan_period(const car_plan *plan) {
    return plan->period;
}
bool car_plan_is_cyclic(const car_plan *plan) {
    return plan->clock == CAR_RULE_CDP_V1 || plan->clock == CAR_RULE_CDP_V2;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* 1F1B on rank r, in units of one rank's visit: it takes forwards until the first backward comes back
 * to it, then one of each.
 *
 *   N = 3       0 1 2 3 4 5 6 7 8 9
 *   rank 0      0 1 2     0'  1'  2'
 *   rank 1        0 1   0'2 1'  2'
 *   rank 2          0 0'1 1'2 2'
 */
static int64_t visit_1f1b(const car_plan *plan, int worker, int rank, bool backward) {
    int64_t workers = plan->config.workers;
    if (backward) {
        return workers + 2 * (int64_t)worker + (workers - 1 - rank);
    }
    return worker < workers - rank ? rank + worker : 2 * (int64_t)worker + rank;
}

int64_t car_plan_forward_slot(const car_plan *plan, int64_t step, int worker, int stage) {
    int64_t k = plan->per_worker, base = plan->period * step;
    switch (plan->clock) {
    case CAR_RULE_CDP_V1:
    case CAR_RULE_CDP_V2:
        return base + 2 * k * worker + stage;
    case CAR_RULE_ACCUMULATE:
        return base + 2 * (int64_t)plan->stages * (worker / plan->config.threads) + stage;
    case CAR_RULE_GPIPE:
        return base + k * worker + stage;
    case CAR_RULE_1F1B:
        return base + k * visit_1f1b(plan, worker, (int)(stage / k), false) + stage % k;
    default:
        return base + stage;
    }
}

int64_t car_plan_backward_slot(const car_plan *plan, int64_t step, int worker, int stage) {
    int64_t k = plan->per_worker, stages = plan->stages, base = plan->period * step;
    switch (plan->clock) {
    case CAR_RULE_CDP_V1:
    case CAR_RULE_CDP_V2:
        return base + 2 * k * worker + 2 * stages - 1 - stage;
    case CAR_RULE_ACCUMULATE:
        return base + 2 * stages * (worker / plan->config.threads) + 2 * stages - 1 - stage;
    case CAR_RULE_GPIPE:
        return base + stages + k * (plan->config.workers - 1) + k * worker + stages - 1 - stage;
    case CAR_RULE_1F1B:
        return base + k * visit_1f1b(plan, worker, (int)(stage / k), true) + (k - 1 - stage % k);
    default:
        return base + 2 * stages - 1 - stage;
    }
}

int64_t car_plan_update_slot(const car_plan *plan, int64_t step, int stage) {
    return car_plan_backward_slot(plan, step, plan->config.workers - 1, stage) + 1;
}

/* ---- versions -------------------------------------------------------------------------------- */

int car_plan_stale_workers(const car_plan *plan, int home) {
    int workers = plan->config.workers, k = plan->per_worker;
    if (plan->clock == CAR_RULE_CDP_V1) {
        return workers;
    }
    if (plan->clock != CAR_RULE_CDP_V2) {
        return 0;
    }
    /* Fresh iff k*(i+1) + home >= S + slack. */
    int64_t needed = (int64_t)plan->stages + plan->config.freshness_slack - home;
    int64_t first_fresh = needed <= 0 ? 0 : (needed + k - 1) / k - 1;
    return first_fresh < workers ? (int)first_fresh : workers;
}

int car_plan_delay(const car_plan *plan, int worker, int stage) {
    return worker < car_plan_stale_workers(plan, stage) ? 1 : 0;
}

int64_t car_plan_version(const car_plan *plan, int64_t n, int home) {
    int64_t version = car_plan_step_of(plan, n) - car_plan_delay(plan, car_plan_worker_of(plan, n), home);
    return version > 0 ? version : 0; /* theta_-1 is theta_0 */
}

int64_t car_plan_first_user(const car_plan *plan, int64_t version, int home) {
    return version == 0 ? 0 : version * plan->config.workers + car_plan_stale_workers(plan, home);
}

int64_t car_plan_last_user(const car_plan *plan, int64_t version, int home) {
    return (version + 1) * plan->config.workers + car_plan_stale_workers(plan, home) - 1;
}

/* ---- devices --------------------------------------------------------------------------------- */

int car_plan_group(const car_plan *plan, int stage) {
    return stage / plan->per_worker;
}

int car_plan_group_ranks(const car_plan *plan, int group) {
    return car_plan_is_cyclic(plan) ? plan->config.workers - group : plan->config.workers;
}

int car_plan_group_first(const car_plan *plan, int group) {
    int64_t workers = plan->config.workers, before = group;
    return (int)(car_plan_is_cyclic(plan) ? before * workers - before * (before - 1) / 2 : before * workers);
}

int car_plan_group_of_device(const car_plan *plan, int device) {
    int low = 0, high = plan->config.workers - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (car_plan_group_first(plan, middle) <= device) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

static int rank_of_worker(const car_plan *plan, int worker) {
    int ranks = plan->config.ranks;
    return plan->config.mapping == CAR_MAPPING_INTERLEAVED ? worker % ranks : worker / (plan->config.workers / ranks);
}

int car_plan_device_of(const car_plan *plan, int64_t n, int stage) {
    switch (plan->config.placement) {
    case CAR_PLACEMENT_REPLICA:
        return rank_of_worker(plan, car_plan_worker_of(plan, n));
    case CAR_PLACEMENT_PIPELINE:
        return car_plan_group(plan, stage);
    case CAR_PLACEMENT_GRID: {
        /* At most N-r consecutive micro-batches are alive in group r, so in turn no two meet. */
        int group = car_plan_group(plan, stage);
        return car_plan_group_first(plan, group) + (int)(n % car_plan_group_ranks(plan, group));
    }
    default:
        return car_plan_worker_of(plan, n);
    }
}

int car_plan_device(const car_plan *plan, int64_t step, int worker, int stage) {
    return car_plan_device_of(plan, step * plan->config.workers + worker, stage);
}

int car_plan_owner(const car_plan *plan, int64_t step, int stage) {
    int workers = plan->config.workers;
    if (plan->config.placement == CAR_PLACEMENT_ZERO) {
        return workers - 1 - stage / plan->per_worker;
    }
    return car_plan_device(plan, step, workers - 1, stage);
}
