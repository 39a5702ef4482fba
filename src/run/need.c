/* The memory that a run in one process needs: see carousel/fit.h. */
#include <math.h>

#include "base/base.h"
#include "carousel/fit.h"
#include "carousel/predict.h"

/* Larger plans (micro-batches times stages) are not simulated, because that would delay the start. */
static const int64_t few_enough = 4096;
/* Without a simulation, this share of the theoretical minimum for evenly spaced workers counts as needed. */
static const double certain_share = 0.8;

double car_need_total(const car_need *n) {
    return n->activations + n->weights + n->gradients + n->optimizer + n->workspace + n->snapshot + n->tasks;
}

/* A worker's task list has two tasks per stage; its capacity is a power of two. */
double car_need_task_bytes(double workers, double stages) {
    return workers * exp2(ceil(log2(2 * stages))) * (double)sizeof(car_task);
}

/* Activations of all workers together, as the trainer runs them. */
static car_status predict_activations(const car_plan *plan, double *out, bool *simulated) {
    const car_plan_config *config = car_plan_config_of(plan);
    const car_partition *partition = car_plan_partition(plan);
    double workers = config->workers, together = config->threads < config->workers ? config->threads : config->workers;
    car_simulation timed;
    car_status status = CAR_OK;
    *simulated = (int64_t)car_plan_micro_batches(plan) * partition->stage_count <= few_enough;
    if (config->rule == CAR_RULE_CUSTOM) { /* each worker holds at most one micro-batch */
        *out = workers * (double)partition->held_bytes;
    } else if (*simulated) {
        CAR_TRY(car_plan_predict_timed(plan, 0, &timed));
        *out = (double)timed.peak;
    } else if (car_plan_is_spaced(plan)) {
        *out = certain_share * partition->limit * workers * (double)partition->held_bytes;
    } else {
        *out = (car_rule_info_of(config->rule)->in_turns ? together : workers) * (double)partition->held_bytes;
    }
done:
    return status;
}

/* Gradient sums: one for each use of a weight. In the cycle, sums that wait for others need a second buffer: those of
 * weights used in several stages, and all sums if the update depends on their norm. */
static double gradient_bytes(const car_plan *plan, double weights, bool deferred) {
    const car_plan_config *config = car_plan_config_of(plan);
    const car_partition *partition = car_plan_partition(plan);
    double tied = 0;
    for (int b = partition->stage_count; b < partition->bundle_count; b++) {
        tied += (double)partition->bundles[b].bytes;
    }
    bool by_worker = config->sum_order == CAR_SUM_ORDER_WORKER;
    if (car_plan_is_spaced(plan)) {
        double waiting = !car_plan_is_cyclic(plan) ? 0 : deferred ? weights + tied : tied;
        return (by_worker ? config->workers : 1) * (weights + tied) + waiting;
    }
    /* A custom plan has one sum for each step in progress. */
    const car_rule_info *rule = car_rule_info_of(config->rule);
    return (rule->in_turns && !by_worker ? 1 : rule->from_file ? 2 : config->workers) * (weights + tied);
}

/* Bytes of derived forms of the weights that kernels use, for one version. */
static double derived_bytes(const car_program *program) {
    double bytes = 0;
    for (int l = 0; l < car_graph_op_count(car_program_graph(program)); l++) {
        bytes += (double)car_program_derived_bytes(program, l);
    }
    return bytes;
}

car_status car_need_predict(const car_plan *plan, const car_program *program, const car_trainer_config *config,
                            bool saves, car_need *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(NULL, out);
    const car_rule rule = car_plan_config_of(plan)->rule;
    const car_graph *graph = car_plan_partition(plan)->graph;
    const car_optimizer_config *optimizer = &config->optimizer;
    double weights = (double)car_graph_param_bytes(graph), versions = car_plan_delay(plan, 0, 0) > 0 ? 2 : 1;
    double copies = (double)car_graph_copy_bytes(graph), master = copies < weights ? weights : 0;
    double states = optimizer->rule_count > 0 ? (double)car_optimizer_state_bytes(optimizer, graph)
                                              : car_optimizer_config_states(optimizer) * weights;
    double snapshot = saves ? versions * weights + states : 0;
    bool adds = !car_rule_info_of(rule)->together && car_plan_micro_batches(plan) > 1;
    bool deferred = (config->clip_norm > 0 || config->skip_nonfinite) && !car_rule_updates_early(rule);
    car_status status = CAR_OK;
    *out =
        (car_need){.weights = versions * copies + master,
                   .gradients = gradient_bytes(plan, weights, deferred),
                   .optimizer = states,
                   .tasks = car_need_task_bytes(car_plan_micro_batches(plan), car_plan_partition(plan)->stage_count)};
    CAR_TRY(predict_activations(plan, &out->planned, &out->simulated));
    out->activations = out->planned;
    if (config->snapshot_every) {
        out->snapshot = snapshot;
    } else { /* it is taken after the activations are released */
        out->activations = fmax(out->activations, snapshot);
    }
    if (program) {
        out->weights += versions * derived_bytes(program);
        out->workspace = config->threads * (double)car_trainer_thread_bytes(program, adds);
    }
done:
    return status;
}
