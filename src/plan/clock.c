/* Creates a plan and defines its formulas: the clocks of the rules, and who uses which version. docs/design.md
 * derives them.
 *
 * N = S = 3, k = 1, the cycle in steady state; rows are workers, columns slots, 2' is the backward of stage 2:
 *
 *   slot      0  1  2  3  4  5 | 6  7  8  9 10 11
 *   worker 0  0  1  2  2' 1' 0'| 0  1  2  2' 1' 0'
 *   worker 1  1' 0' 0  1  2  2'| 1' 0' 0  1  2  2'
 *   worker 2  2  2' 1' 0' 0  1 | 2  2' 1' 0' 0  1 */
#include <limits.h>

#include "plan/rules.h"
#include "plan/script.h"

car_plan_config car_plan_config_default(void) {
    return (car_plan_config){.workers = 4, .rule = CAR_RULE_CDP_V2};
}

/* ---- creating: which plans are possible --------------------------------------------------------- */

static car_status check_rule(car_context *context, const car_plan_config *config) {
    const car_rule_entry *rule = car_rule_entry_of(config->rule);
    if (rule->only && rule->only != car_placement_class_of(config->placement)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "rule %s %s: use placement %s", rule->info.name,
                                rule->because, rule->only->info.name);
    }
    return CAR_OK;
}

/* zero with spaced workers: how many copies of a version there are, and how early they are sent. */
static car_status check_copies(car_context *context, const car_partition *partition, car_plan_config *config) {
    const car_rule_info *rule = car_rule_info_of(config->rule);
    bool moves = car_placement_info_of(config->placement)->owned && (rule->spaced || rule->from_file);
    int most = 2 * partition->stage_count;
    if (!moves && (config->zero_copies != 0 || config->zero_ahead != 0)) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "zero-copies and zero-ahead can only be used with placement zero and rule cdp-v1, cdp-v2 or stagger");
    }
    config->zero_copies = config->zero_copies != 0 || !moves ? config->zero_copies : 2;
    if (moves && config->workers == 1) { /* there is nobody to pass anything on to */
        config->zero_copies = 1;
        config->zero_ahead = 0;
    }
    if (config->zero_copies < 0 || config->zero_copies > 2) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "zero-copies %d: it must be 1 or 2", config->zero_copies);
    }
    if (config->zero_copies < 2 && config->zero_ahead != 0) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "zero-ahead %d: a single copy of the weights can only be sent on after its use; use zero-copies 2",
            config->zero_ahead);
    }
    if (config->zero_copies == 2 && config->zero_ahead == 0) {
        config->zero_ahead = most / config->workers;
    }
    if (config->zero_ahead < 0 || config->zero_ahead > most) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "zero-ahead %d: it must be 1 to %d, the number of slots in a step", config->zero_ahead,
                                most);
    }
    return CAR_OK;
}

enum { most_accumulated = 1 << 16, most_batches = 1 << 20 };

/* Under dp each worker first adds up its own gradients: they are kept separate in one process, and added before a
 * collective over ranks. dp in a pipeline is gpipe, whose ranks have one sum. */
static bool adds_own_first(const car_plan_config *config) {
    return car_rule_info_of(config->rule)->together && !car_placement_class_of(config->placement)->in_line;
}

/* With one micro-batch per worker both orders are the same. */
static car_status choose_sum_order(car_context *context, car_plan_config *config) {
    const car_placement_class *placement = car_placement_class_of(config->placement);
    car_sum_order order = config->sum_order;
    if ((unsigned)order > CAR_SUM_ORDER_WORKER) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "there is no sum order %d", order);
    }
    bool own_first = adds_own_first(config);
    if (config->accumulate > 1 && order == CAR_SUM_ORDER_MICRO_BATCH && own_first) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "rule %s with placement %s cannot add gradients in the order of micro-batches: its "
                                "workers run side by side, so each first adds up its own; use sum-order worker, or "
                                "rule %s, which adds all micro-batches in order",
                                car_rule_text(config->rule), placement->info.name,
                                placement->info.one_process ? "accumulate" : "stagger");
    }
    if (config->accumulate > 1 && order == CAR_SUM_ORDER_WORKER && placement->roams && !own_first) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "in placement %s a worker's micro-batches move from rank to rank, so their gradients "
                                "cannot be added by worker: use sum-order micro-batch",
                                placement->info.name);
    }
    if (order == CAR_SUM_ORDER_AUTO) {
        order = own_first || placement->sums_by_worker ? CAR_SUM_ORDER_WORKER : CAR_SUM_ORDER_MICRO_BATCH;
    }
    config->sum_order = config->accumulate > 1 ? order : CAR_SUM_ORDER_MICRO_BATCH;
    return CAR_OK;
}

static car_status check_config(car_context *context, const car_partition *partition, car_plan_config *config) {
    int workers = config->workers;
    if ((unsigned)config->rule > CAR_RULE_CUSTOM || (unsigned)config->placement >= CAR_PLACEMENTS) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "invalid rule or placement: rule %d, placement %d",
                                config->rule, config->placement);
    }
    if (workers < 1 || workers > 1 << 16) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "there cannot be %d workers; use 1 to 65536", workers);
    }
    if (partition->stage_count % workers != 0) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "cannot plan %d stages for %d workers: the number of stages must be a multiple of the number of workers",
            partition->stage_count, workers);
    }
    if (config->freshness_slack < 0 || (config->freshness_slack > 0 && !car_rule_info_of(config->rule)->has_slack)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "freshness slack %d: it must not be negative, and only rule cdp-v2 can have one",
                                config->freshness_slack);
    }
    if (config->piece_bytes < 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "the size of pieces is %lld bytes, but must not be negative",
                                (long long)config->piece_bytes);
    }
    config->piece_bytes = config->piece_bytes ? config->piece_bytes : car_plan_default_piece_bytes(partition);
    if (config->accumulate < 0 || config->accumulate > most_accumulated ||
        (int64_t)workers * config->accumulate > most_batches) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "each worker takes %d micro-batches per step, with %d workers; use 1 to %d "
                                "micro-batches per worker, and at most %d in all",
                                config->accumulate, workers, most_accumulated, most_batches);
    }
    config->accumulate = config->accumulate ? config->accumulate : 1;
    config->threads = config->threads ? config->threads : workers;
    config->ranks = config->ranks ? config->ranks : workers;
    if (config->threads < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "there cannot be %d threads; use at least 1",
                                config->threads);
    }
    if (config->ranks < 1 || workers % config->ranks != 0 ||
        (config->ranks != workers && !car_placement_info_of(config->placement)->fewer_ranks)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "cannot use %d ranks for %d workers: the number of ranks must divide the number of "
                                "workers, and only placement replica can have fewer ranks than workers",
                                config->ranks, workers);
    }
    car_status status = check_copies(context, partition, config);
    status = status == CAR_OK ? check_rule(context, config) : status;
    return status == CAR_OK ? choose_sum_order(context, config) : status;
}

int64_t car_plan_config_devices(const car_plan_config *config) {
    const car_rule_info *rule = car_rule_info_of(config->rule);
    return car_placement_class_of(config->placement)->devices(config, rule->spaced || rule->from_file);
}

/* Devices and tags are ints. A plan that would need larger numbers is refused. */
static car_status check_size(const car_plan *plan, int64_t devices) {
    int64_t workers = plan->config.workers, bundles = plan->partition->bundle_count;
    bool sends = !plan->placement->info.one_process;
    if (devices > INT_MAX) {
        return car_context_fail(plan->context, CAR_ERROR_UNSUPPORTED,
                                "rule %s in placement %s with %lld workers needs %lld devices, but a plan can have at "
                                "most %d: use fewer workers",
                                car_rule_text(plan->config.rule), car_placement_text(plan->config.placement),
                                (long long)workers, (long long)devices, INT_MAX);
    }
    if (sends && CAR_CARGOS * (2 + 2 * bundles * (plan->batches + 2)) > INT_MAX) {
        return car_context_fail(
            plan->context, CAR_ERROR_UNSUPPORTED,
            "placement %s with %lld workers and %d stages needs more than %d message tags; use fewer workers or stages",
            car_placement_text(plan->config.placement), (long long)workers, plan->stages, INT_MAX);
    }
    return CAR_OK;
}

/* A forward or backward can name only one version besides its stage's own. */
static car_status check_ties(const car_plan *plan) {
    const car_partition *partition = plan->partition;
    for (int b = plan->stages; b < partition->bundle_count; b++) {
        for (int other = plan->stages; other < b; other++) {
            const car_bundle *x = &partition->bundles[other], *y = &partition->bundles[b];
            if (x->stage == y->stage &&
                car_plan_stale_workers(plan, x->home) != car_plan_stale_workers(plan, y->home)) {
                return car_context_fail(plan->context, CAR_ERROR_UNSUPPORTED,
                                        "stage %d uses parameters of stages %d and %d, which have different delays "
                                        "under rule %s: use fewer stages, or rule cdp-v1 or dp",
                                        x->stage, x->home, y->home, car_rule_text(plan->config.rule));
            }
        }
    }
    return CAR_OK;
}

car_status car_plan_create(car_context *context, const car_partition *partition, const car_plan_config *config,
                           car_plan **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, partition);
    CAR_REQUIRE(context, config);
    CAR_REQUIRE(context, out);
    if (config && config->rule == CAR_RULE_CUSTOM) {
        *out = NULL;
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a custom plan must be read from a file (car_plan_read)");
    }
    return car_plan_create_any(context, partition, config, out);
}

car_status car_plan_create_any(car_context *context, const car_partition *partition, const car_plan_config *config,
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
    plan->placement = car_placement_class_of(chosen.placement);
    plan->rule = car_rule_entry_of(chosen.rule);
    plan->clock = plan->placement->in_line && plan->rule->in_line ? plan->rule->in_line : chosen.rule;
    plan->rule = car_rule_entry_of(plan->clock);
    plan->stages = partition->stage_count;
    plan->per_worker = partition->stage_count / chosen.workers;
    plan->batches = chosen.workers * chosen.accumulate;
    int64_t devices = car_plan_config_devices(&chosen);
    CAR_TRY(check_size(plan, devices));
    plan->devices = (int)devices;
    plan->period = plan->rule->clock->period(plan);
    CAR_TRY(car_plan_cut_sums(plan));
    CAR_TRY(check_ties(plan));
    *out = plan;
done:
    if (status != CAR_OK) {
        car_plan_destroy(plan);
    }
    return status;
}

void car_plan_destroy(car_plan *plan) {
    if (plan) {
        car_script_destroy(plan);
        car_context_release(plan->context, plan->pieces, (size_t)plan->partition->bundle_count, sizeof *plan->pieces);
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
int car_plan_micro_batches(const car_plan *plan) {
    return plan->batches;
}
int car_plan_worker(const car_plan *plan, int micro_batch) {
    return micro_batch < 0 ? CAR_NONE : micro_batch % plan->config.workers;
}
int64_t car_plan_period(const car_plan *plan) {
    return plan->period;
}
bool car_plan_is_cyclic(const car_plan *plan) {
    return plan->rule->info.cyclic;
}
bool car_plan_is_spaced(const car_plan *plan) {
    return plan->rule->info.spaced;
}
bool car_plan_passes_sums(const car_plan *plan) {
    return plan->rule->info.spaced || plan->rule->info.from_file;
}
double car_plan_phase(const car_plan *plan, int64_t step, int micro_batch) {
    double length = (double)plan->period / (2.0 * plan->stages);
    return (double)step * length + (double)micro_batch / plan->config.workers;
}
bool car_plan_is_proven(const car_plan *plan) {
    return plan->proven;
}
void car_plan_trust(car_plan *plan) {
    plan->proven = true;
}
bool car_plan_drains_exactly(const car_plan *plan) {
    return !plan->script || plan->script->exact;
}
int64_t car_plan_most_steps(const car_plan *plan) {
    return plan->script && plan->script->end == 0 ? plan->script->steps : INT64_MAX;
}
bool car_plan_sums_by_worker(const car_plan *plan) {
    return plan->config.sum_order == CAR_SUM_ORDER_WORKER;
}
bool car_plan_reduces(const car_plan *plan) {
    return plan->rule->info.together && !plan->placement->info.one_process;
}

/* ---- clocks ---------------------------------------------------------------------------------- */

/* All workers at the same time. */
static int64_t one_pass(const car_plan *plan) {
    return 2 * (int64_t)plan->stages;
}
static int64_t period_together(const car_plan *plan) {
    return one_pass(plan) * plan->config.accumulate;
}
static int64_t forward_together(const car_plan *plan, int micro_batch, int stage) {
    return one_pass(plan) * (micro_batch / plan->config.workers) + stage;
}
static int64_t backward_together(const car_plan *plan, int micro_batch, int stage) {
    return one_pass(plan) * (micro_batch / plan->config.workers + 1) - 1 - stage;
}
const car_clock car_clock_together = {period_together, forward_together, backward_together, false};

/* Each micro-batch starts 2k slots after the one before. The last one ends long after the next step has begun. */
static int64_t forward_cycle(const car_plan *plan, int micro_batch, int stage) {
    return 2 * (int64_t)plan->per_worker * micro_batch + stage;
}
static int64_t backward_cycle(const car_plan *plan, int micro_batch, int stage) {
    return 2 * (int64_t)plan->per_worker * micro_batch + one_pass(plan) - 1 - stage;
}
const car_clock car_clock_cycle = {period_together, forward_cycle, backward_cycle, false};

/* The same distances, but a step begins only when the one before has ended. */
static int64_t period_stagger(const car_plan *plan) {
    return backward_cycle(plan, plan->batches - 1, 0) + 1;
}
const car_clock car_clock_stagger = {period_stagger, forward_cycle, backward_cycle, false};

/* As many workers at once as there are threads, then the next ones. */
static int64_t turn_of(const car_plan *plan, int micro_batch) {
    int workers = plan->config.workers, threads = plan->config.threads;
    return one_pass(plan) * (micro_batch / (threads < workers ? threads : workers));
}
static int64_t period_turns(const car_plan *plan) {
    return turn_of(plan, plan->batches - 1) + one_pass(plan);
}
static int64_t forward_turns(const car_plan *plan, int micro_batch, int stage) {
    return turn_of(plan, micro_batch) + stage;
}
static int64_t backward_turns(const car_plan *plan, int micro_batch, int stage) {
    return turn_of(plan, micro_batch) + one_pass(plan) - 1 - stage;
}
const car_clock car_clock_turns = {period_turns, forward_turns, backward_turns, false};

/* Pipelines: a visit to one rank takes k slots. GPipe flushes between all forwards and all backwards. */
static int64_t half_flush(const car_plan *plan) {
    return plan->stages + (int64_t)plan->per_worker * (plan->batches - 1);
}
static int64_t period_flush(const car_plan *plan) {
    return 2 * half_flush(plan);
}
static int64_t forward_gpipe(const car_plan *plan, int micro_batch, int stage) {
    return (int64_t)plan->per_worker * micro_batch + stage;
}
static int64_t backward_gpipe(const car_plan *plan, int micro_batch, int stage) {
    return half_flush(plan) + (int64_t)plan->per_worker * micro_batch + plan->stages - 1 - stage;
}
const car_clock car_clock_gpipe = {period_flush, forward_gpipe, backward_gpipe, true};

/* 1F1B on rank r, in visits: forwards until the first backward comes back, then one of each in turn.
 *
 *   N = 3       0 1 2 3 4 5 6 7 8 9
 *   rank 0      0 1 2     0'  1'  2'
 *   rank 1        0 1   0'2 1'  2'
 *   rank 2          0 0'1 1'2 2' */
static int64_t forward_1f1b(const car_plan *plan, int micro_batch, int stage) {
    int64_t k = plan->per_worker, rank = stage / k;
    int64_t visit = micro_batch < plan->config.workers - rank ? rank + micro_batch : 2 * (int64_t)micro_batch + rank;
    return k * visit + stage % k;
}
static int64_t backward_1f1b(const car_plan *plan, int micro_batch, int stage) {
    int64_t k = plan->per_worker, workers = plan->config.workers, rank = stage / k;
    int64_t visit = workers + 2 * (int64_t)micro_batch + (workers - 1 - rank);
    return k * visit + (k - 1 - stage % k);
}
const car_clock car_clock_1f1b = {period_flush, forward_1f1b, backward_1f1b, false};

int64_t car_plan_forward_slot(const car_plan *plan, int64_t step, int micro_batch, int stage) {
    if (plan->script) {
        return car_script_slot(plan, step, micro_batch, stage, false);
    }
    return plan->period * step + plan->rule->clock->forward(plan, micro_batch, stage);
}

int64_t car_plan_backward_slot(const car_plan *plan, int64_t step, int micro_batch, int stage) {
    if (plan->script) {
        return car_script_slot(plan, step, micro_batch, stage, true);
    }
    return plan->period * step + plan->rule->clock->backward(plan, micro_batch, stage);
}

int64_t car_plan_first_step_end(const car_plan *plan) {
    return plan->script ? plan->script->first_end : car_plan_backward_slot(plan, 0, plan->batches - 1, 0);
}

int64_t car_plan_update_slot(const car_plan *plan, int64_t step, int stage) {
    return car_plan_backward_slot(plan, step, plan->batches - 1, stage) + 1;
}

/* ---- versions -------------------------------------------------------------------------------- */

int car_plan_stale_workers(const car_plan *plan, int home) {
    return plan->rule->stale_workers(plan, home);
}

int car_plan_delay(const car_plan *plan, int micro_batch, int stage) {
    if (plan->script) {
        return plan->script->delays[micro_batch * plan->stages + stage];
    }
    return micro_batch < car_plan_stale_workers(plan, stage) ? 1 : 0;
}

int64_t car_plan_version(const car_plan *plan, int64_t n, int home) {
    int64_t version = car_plan_step_of(plan, n) - car_plan_delay(plan, car_plan_number_of(plan, n), home);
    return version > 0 ? version : 0; /* theta_-1 is theta_0 */
}

int64_t car_plan_first_user(const car_plan *plan, int64_t version, int home) {
    return version == 0 ? 0 : version * plan->batches + car_plan_stale_workers(plan, home);
}

int64_t car_plan_last_user(const car_plan *plan, int64_t version, int home) {
    return (version + 1) * plan->batches + car_plan_stale_workers(plan, home) - 1;
}

/* ---- devices --------------------------------------------------------------------------------- */

int car_plan_device_of(const car_plan *plan, int64_t n, int stage) {
    return plan->placement->device(plan, n, stage);
}

int car_plan_device(const car_plan *plan, int64_t step, int micro_batch, int stage) {
    return car_plan_device_of(plan, step * plan->batches + micro_batch, stage);
}

int car_plan_owner(const car_plan *plan, int64_t step, int stage) {
    bool any = plan->script && plan->placement->info.repeated; /* the file decides who makes it */
    return plan->placement->owner ? plan->placement->owner(plan, stage)
           : any                  ? car_script_maker(plan, step, stage)
                                  : car_plan_device(plan, step, plan->batches - 1, stage);
}

int car_plan_alive(const car_plan *plan, int group) {
    bool any = plan->rule->clock->forwards_first || plan->rule->info.from_file;
    return any ? plan->batches : car_plan_group_ranks(plan, group);
}

int car_plan_stage_ranks(const car_plan *plan, int stage) {
    return plan->placement->stage_ranks(plan, stage);
}
