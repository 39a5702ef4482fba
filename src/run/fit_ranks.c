/* Checks that a run over ranks fits. The plan gives each rank's memory; the sum over ranks that share a machine or a
 * control group is compared with what is available there. Every rank knows all shares, so all ranks decide the same. */
#include <math.h>
#include <stdio.h>

#include "carousel/predict.h"
#include "run/internal.h"

/* Larger plans (micro-batches times stages) are not simulated, because that would delay the start. */
static const int64_t few_enough = 65536;

/* What a rank tells the others, in bytes. */
typedef struct share {
    double activations, others; /* what it needs */
    car_available available;
    uint64_t addresses;
} share;

/* Ranks that share memory. */
typedef struct pool {
    double activations, others, bytes;
    int ranks;
    const char *source;
} pool;

/* ---- memory of a rank ------------------------------------------------------------------------ */

/* Most bytes of stages that a rank copies for a snapshot. In a grid, its stages change from step to step. */
static double copied_bytes(const car_plan *plan, int rank) {
    const car_partition *partition = car_plan_partition(plan);
    double most = 0;
    for (int64_t step = 0; step < car_plan_config_of(plan)->workers; step++) {
        double bytes = 0;
        for (int j = 0; j < partition->stage_count; j++) {
            bool own = car_plan_rank_of(plan, car_plan_owner(plan, step, j)) == rank;
            bytes += own ? (double)partition->bundles[j].bytes : 0;
        }
        most = fmax(most, bytes);
    }
    return most;
}

/* Upper bound of the activations that a custom plan lets a rank have: one micro-batch of each of its workers. If ranks
 * have stages, all micro-batches of a step, since all forwards may come first. And what a backward needs on top. */
static size_t held_bytes(const car_plan *plan, int rank) {
    const car_partition *partition = car_plan_partition(plan);
    const car_plan_config *config = car_plan_config_of(plan);
    bool by_stage = car_placement_info_of(config->placement)->by_stage;
    int batches = config->workers * (by_stage && config->accumulate > 1 ? config->accumulate : 1);
    size_t bytes = 0;
    for (int j = 0; j < partition->stage_count; j++) {
        for (int n = 0; n < batches; n++) {
            bool own = car_plan_rank_of(plan, car_plan_device(plan, 0, n, j)) == rank;
            bytes += own ? partition->stages[j].held_bytes : 0;
        }
    }
    return bytes + partition->curve.peak - partition->held_bytes;
}

/* What evaluations beside training need on rank 0: weights, their average, and about three times the largest tensor for
 * each thread. */
static double evaluation_bytes(const car_run *run) {
    double largest = 0, threads = fmin(run->training.threads, run->options.workers);
    for (int t = 0; t < car_graph_tensor_count(run->graph); t++) {
        largest = fmax(largest, (double)car_graph_tensor(run->graph, t)->bytes);
    }
    return (car_run_average_decay(run) > 0 ? 2 : 1) * (double)car_graph_param_bytes(run->graph) +
           threads * (3 * largest + (double)car_program_scratch_bytes(run->program));
}

/* Memory for snapshots: every rank copies what it owns, and rank 0 assembles all of it. */
static double snapshot_bytes(const car_member *member, int states) {
    const car_run *run = member->run;
    const car_run_options *o = &run->options;
    bool saves = car_run_saves(run) && o->checkpoint_every, first = car_member_is_first(member);
    double whole = 1 + car_plan_delay(run->plan, 0, 0) + states;
    double evaluated = !o->eval_every                   ? 0
                       : !car_run_evaluates_beside(run) ? whole
                       : saves                          ? 0
                                                        : 1 + (car_run_average_decay(run) > 0);
    double bytes = first ? (double)car_graph_param_bytes(run->graph)
                         : copied_bytes(run->plan, car_transport_rank(member->transport));
    return ((saves ? whole : 0) + evaluated) * bytes + (first && o->eval_every ? evaluation_bytes(run) : 0);
}

static car_status predict_share(const car_member *member, share *out) {
    car_run *run = member->run;
    const car_plan_config *config = car_plan_config_of(run->plan);
    int states = car_optimizer_config_states(&run->training.optimizer), rank = car_transport_rank(member->transport);
    car_device_prediction d;
    car_status status = CAR_OK;
    if (config->rule == CAR_RULE_CUSTOM) { /* an estimate: equal shares of all weights */
        const car_placement_info *placement = car_placement_info_of(config->placement);
        bool divided = placement->by_stage || placement->owned; /* among as many ranks as workers */
        size_t weights = car_graph_param_bytes(run->graph) / (size_t)(divided ? config->workers : 1);
        d = (car_device_prediction){.activations = held_bytes(run->plan, rank),
                                    .weights = 2 * weights,
                                    .gradients = 2 * weights,
                                    .optimizer = (size_t)states * weights};
    } else {
        CAR_TRY(car_plan_predict_device(run->plan, rank, states, &d));
    }
    if (car_member_is_first(member)) {
        run->planned = (double)d.activations;
    }
    double lane = (double)car_trainer_thread_bytes(run->program, true);
    *out = (share){.activations = (double)d.activations,
                   .others = (double)d.weights + (double)d.gradients + (double)d.optimizer +
                             run->training.threads * lane + snapshot_bytes(member, states),
                   .available = run->available,
                   .addresses = car_arena_reserved(member->arena)};
done:
    return status;
}

/* ---- ranks that share memory ----------------------------------------------------------------- */

enum { OF_MACHINE, OF_GROUP, OF_PROCESS, POOLS };

static bool shares_with(const car_transport *transport, const share *all, int kind, int rank, int other) {
    bool machine = car_transport_machine(transport, rank) == car_transport_machine(transport, other);
    return kind == OF_PROCESS ? rank == other
           : kind == OF_GROUP ? machine && all[rank].available.group_id == all[other].available.group_id
                              : machine;
}

static pool pool_of(const car_transport *transport, const share *all, int kind, int rank) {
    static const char *const sources[POOLS] = {"free there", "left within the limit of their control group",
                                               "available as address space (see ulimit -v)"};
    pool p = {.bytes = INFINITY, .source = sources[kind]};
    for (int r = 0; r < car_transport_size(transport); r++) {
        if (shares_with(transport, all, kind, rank, r)) {
            uint64_t bytes = kind == OF_MACHINE ? all[r].available.machine
                             : kind == OF_GROUP ? all[r].available.group
                                                : all[r].addresses;
            p.activations += all[r].activations;
            p.others += all[r].others;
            p.bytes = fmin(p.bytes, (double)bytes);
            p.ranks++;
        }
    }
    return p;
}

static car_status refuse(const car_member *member, const pool *p, int rank) {
    const car_run *run = member->run;
    const car_run_options *o = &run->options;
    double needed = p->activations + p->others;
    int samples = o->model ? o->shape.batch : 0; /* the batch of a custom graph is fixed */
    int batch = p->activations > 0 ? (int)(samples * (p->bytes - p->others) / p->activations) : 0;
    char who[64], fits[96] = "more machines";
    if (p->ranks == 1) {
        snprintf(who, sizeof who, "rank %d needs", rank);
    } else {
        snprintf(who, sizeof who, "the %d ranks on rank %d's machine need", p->ranks, rank);
    }
    if (batch >= 1) {
        snprintf(fits, sizeof fits, "%s %d, or more machines",
                 car_run_name(o, o->dashes ? "batch" : "shape.batch").text, batch);
    }
    if (o->force) {
        if (car_member_is_first(member)) {
            car_context_log(run->context, CAR_LOG_WARNING, "%s about %s of memory, but only %s are %s", who,
                            car_size_shown(needed).text, car_size_shown(p->bytes).text, p->source);
        }
        return CAR_OK;
    }
    return car_context_fail(run->context, CAR_ERROR_MEMORY,
                            "%s about %s of memory (activations %s, everything else %s), but only %s are %s; what "
                            "would fit: %s; %s runs it anyway",
                            who, car_size_shown(needed).text, car_size_shown(p->activations).text,
                            car_size_shown(p->others).text, car_size_shown(p->bytes).text, p->source, fits,
                            car_run_name(o, "force").text);
}

/* Activations of all ranks at the same time. In the cycle ranks peak at different times, so it is less than the sum of
 * their peaks. */
static car_status predict_together(const car_plan *plan, double *out) {
    const car_partition *partition = car_plan_partition(plan);
    int64_t workers = car_plan_config_of(plan)->workers;
    car_simulation timed;
    car_status status = CAR_OK;
    *out = (car_plan_is_spaced(plan) ? partition->limit : 1) * (double)workers * (double)partition->held_bytes;
    if ((int64_t)car_plan_micro_batches(plan) * partition->stage_count <= few_enough) {
        CAR_TRY(car_plan_predict_timed(plan, 0, &timed));
        *out = (double)timed.peak;
    }
done:
    return status;
}

static car_status compare(const car_member *member, const share *all, double together) {
    for (int rank = 0; rank < car_transport_size(member->transport); rank++) {
        for (int kind = 0; kind < POOLS; kind++) {
            pool p = pool_of(member->transport, all, kind, rank);
            p.activations = fmin(p.activations, together);
            if (p.activations + p.others > p.bytes) {
                return refuse(member, &p, rank);
            }
        }
    }
    return CAR_OK;
}

car_status car_member_check_memory(car_member *member) {
    const car_run *run = member->run;
    size_t size = (size_t)car_transport_size(member->transport);
    share own = {0}, *all = NULL;
    double together = 0;
    car_status status = predict_share(member, &own);
    status = status == CAR_OK ? predict_together(run->plan, &together) : status;
    status = status == CAR_OK ? car_context_allocate(run->context, size, sizeof *all, &all) : status;
    CAR_TRY(car_member_settle(member, status));
    if (!all) {
        return CAR_ERROR_MEMORY; /* not reached: the allocation has failed above */
    }
    CAR_TRY(car_transport_all_gather(member->transport, &own, sizeof own, all));
    CAR_TRY(car_member_settle(member, compare(member, all, together)));
done:
    car_context_release(run->context, all, all ? size : 0, sizeof *all);
    return status;
}
