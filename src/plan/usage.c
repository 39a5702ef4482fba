/* Answers how the tasks of a rank use sums and weights, and when those are used for the last time. See usage.h. */
#include "plan/script.h"
#include "plan/usage_internal.h"

/* ---- facts of custom plans ----------------------------------------------------------------------- */

/* What script_facts.c found out about a task of a custom plan. Step numbers in a fact are relative to *since. */
static const car_script_fact *fact_of(const car_usage *usage, const car_task *task, int64_t *since) {
    return car_script_fact_of(usage->plan, usage->rank, task, since);
}

/* True if the run is too short for something that happens only in runs of more than `least` steps. */
static bool is_not_in(const car_usage *usage, int64_t least, int64_t since) {
    return least == INT64_MAX || usage->steps <= least + since;
}

/* ---- sums ---------------------------------------------------------------------------------------- */

/* True if this rank computes the stage for micro-batch n. */
static bool is_here(const car_usage *usage, int64_t n, int stage) {
    return car_plan_rank_of(usage->plan, car_plan_device_of(usage->plan, n, stage)) == usage->rank;
}

int car_usage_tapes(const car_usage *usage) {
    return usage->tapes;
}

/* Ranks of a pipeline or grid give out tapes by micro-batch, in turn. Workers that share a tape wait for the one
 * before them. */
int car_usage_tape_of(const car_usage *usage, const car_task *task) {
    bool by_stage = usage->plan->placement->info.by_stage;
    return by_stage ? (int)(car_plan_batch_of(usage->plan, task) % usage->tapes) : task->micro_batch % usage->tapes;
}

bool car_usage_is_ring(const car_usage *usage) {
    return !car_plan_reduces(usage->plan);
}

bool car_usage_adds_in_order(const car_usage *usage) {
    return car_usage_is_ring(usage) && !usage->plan->script;
}

bool car_usage_adds_by_worker(const car_usage *usage) {
    return usage->by_worker;
}

int car_usage_own_of(const car_usage *usage, const car_task *task) {
    return usage->by_worker || usage->apart ? car_usage_worker_of(usage, task) : 0;
}

bool car_usage_joins(const car_usage *usage, const car_task *task) {
    return usage->by_worker && car_usage_worker_of(usage, task) > 0 && car_usage_is_workers_last(usage, task);
}

bool car_usage_finishes(const car_usage *usage, const car_task *task) {
    int64_t since = 0;
    return usage->scripted && !usage->by_worker ? fact_of(usage, task, &since)->finishes
                                                : task->micro_batch == usage->plan->batches - 1;
}

bool car_usage_adds_late(const car_usage *usage, const car_task *task) {
    int64_t since = 0;
    if (usage->scripted && !usage->by_worker) {
        return fact_of(usage, task, &since)->late;
    }
    bool adds = usage->by_worker ? car_usage_joins(usage, task) : task->micro_batch > 0;
    return car_usage_is_ring(usage) && adds && !is_here(usage, car_plan_batch_of(usage->plan, task) - 1, task->stage);
}

int car_usage_leg(const car_usage *usage, const car_task *task) {
    int64_t since = 0;
    bool known = usage->scripted && !usage->by_worker;
    if (known && (task->kind == CAR_TASK_RECEIVE || task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_BACKWARD)) {
        return fact_of(usage, task, &since)->leg;
    }
    if (task->kind == CAR_TASK_RECEIVE) {
        return task->micro_batch + 1;
    }
    if (task->kind != CAR_TASK_BACKWARD && task->cargo != CAR_CARGO_PARTIAL) {
        return CAR_NONE;
    }
    if (usage->shared || !car_usage_is_ring(usage)) {
        return 0;
    }
    /* By worker, only the last micro-batch of each worker adds to the sum over all workers. */
    int last_round = usage->plan->batches - usage->plan->config.workers;
    int leg = usage->by_worker ? last_round + car_usage_worker_of(usage, task) : task->micro_batch;
    int64_t first = task->step * usage->plan->batches;
    while (leg > (usage->by_worker ? last_round : 0) && is_here(usage, first + leg - 1, task->stage)) {
        leg--;
    }
    return leg;
}

bool car_usage_keeps_apart(const car_usage *usage) {
    return usage->apart;
}

/* ---- weights ------------------------------------------------------------------------------------- */

/* The version of a bundle that a micro-batch of the first step uses after a restart. */
static int64_t first_version(const car_usage *usage, int micro_batch, int bundle, int64_t version) {
    const car_bundle *b = &usage->plan->partition->bundles[bundle];
    bool held = b->bytes == 0 || usage->holdings[usage->holdings[bundle].block].places > 0;
    return held && car_plan_delay(usage->plan, micro_batch, b->home) > 0 ? CAR_VERSION_BEFORE : version;
}

void car_usage_go_on(const car_usage *usage, car_task_list *list) {
    for (int k = 0; k < list->count; k++) {
        car_task *task = &list->tasks[k];
        if (!car_task_computes(task) || task->step > 0) {
            continue;
        }
        task->version = first_version(usage, task->micro_batch, task->stage, task->version);
        for (int b = usage->plan->stages; b < usage->bundles; b++) {
            if (usage->plan->partition->bundles[b].stage == task->stage) {
                task->tied_version = first_version(usage, task->micro_batch, b, task->tied_version);
            }
        }
    }
}

bool car_usage_adds_ties_early(const car_usage *usage) {
    return car_usage_is_ring(usage) && usage->plan->placement->info.repeated;
}

/* True if a forward or backward uses `bundle` as a tied bundle, not as its stage's own. */
static bool is_tied_use(const car_usage *usage, const car_task *task, int bundle) {
    return car_task_computes(task) && bundle >= usage->plan->stages;
}

car_copy car_usage_copy(const car_usage *usage, const car_task *task, int bundle) {
    int64_t since = 0;
    if (!car_plan_has_chains(usage->plan)) {
        return CAR_COPY_KEPT;
    }
    return usage->scripted ? fact_of(usage, task, &since)->copy[is_tied_use(usage, task, bundle)]
                           : usage->plan->placement->copy(usage->plan, usage->rank, task, bundle);
}

car_passing car_usage_passing(const car_usage *usage, const car_task *task, int bundle) {
    int64_t since = 0;
    if (usage->scripted) {
        const car_script_fact *fact = fact_of(usage, task, &since);
        return is_not_in(usage, fact->passed, since) ? CAR_PASSING_NOT
               : fact->passed_before                 ? CAR_PASSING_BEFORE
                                                     : CAR_PASSING_AFTER;
    }
    return usage->plan->placement->passing(usage->plan, task, bundle, usage->steps);
}

int car_usage_kept_block(const car_usage *usage, int bundle) {
    int home = usage->plan->partition->bundles[bundle].home;
    return car_plan_has_chains(usage->plan) && usage->holdings[home].owned ? home : usage->holdings[bundle].block;
}

bool car_usage_is_renewed(const car_usage *usage, const car_task *task) {
    const car_plan *plan = usage->plan;
    int64_t since = 0;
    return usage->scripted ? fact_of(usage, task, &since)->renewed
                           : task->slot >= car_plan_forward_slot(plan, task->version + 1, usage->rank, task->stage);
}

/* Custom plans where weights move. The only copy leaves with its message. What an owner keeps beside the copies ends
 * with the update that makes the next version. */
static bool ends_scripted(const car_usage *usage, const car_task *task, int bundle) {
    int64_t since = 0;
    const car_script_fact *fact = fact_of(usage, task, &since);
    int which = is_tied_use(usage, task, bundle);
    bool chains = car_plan_has_chains(usage->plan), sends = task->kind == CAR_TASK_SEND;
    if (task->kind == CAR_TASK_UPDATE) {
        return bundle < usage->plan->stages && (chains || is_not_in(usage, fact->weights_again[0], since));
    }
    if (!(sends || car_task_computes(task)) || (chains && fact->copy[which] == CAR_COPY_KEPT)) {
        return false;
    }
    return (sends && !chains) || is_not_in(usage, fact->weights_again[which], since);
}

bool car_usage_ends_weights(const car_usage *usage, const car_task *task, int bundle) {
    const car_plan *plan = usage->plan;
    if (usage->scripted) {
        return usage->moves && ends_scripted(usage, task, bundle);
    }
    return plan->placement->ends_weights &&
           plan->placement->ends_weights(plan, usage->rank, task, bundle, usage->steps);
}

/* ---- the end of a sum ------------------------------------------------------------------------------ */

/* A sum ends when its last piece was sent or when it was made into weights, unless the rank passes it on. A
 * collective leaves the sum on its peer, or on all ranks. */
bool car_usage_ends_sum(const car_usage *usage, const car_task *task) {
    const car_plan *plan = usage->plan;
    bool sends = task->kind == CAR_TASK_SEND && (task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED);
    if (sends && task->piece + 1 < car_plan_pieces(plan, task->bundle)) {
        return false;
    }
    if (task->kind == CAR_TASK_REDUCE) {
        return task->peer != CAR_NONE && task->peer != usage->rank;
    }
    if (usage->scripted) {
        int64_t since = 0;
        return (sends || task->kind == CAR_TASK_UPDATE) &&
               is_not_in(usage, fact_of(usage, task, &since)->sum_again, since);
    }
    return (sends || task->kind == CAR_TASK_UPDATE) &&
           !(plan->placement->passes_sum_on && plan->placement->passes_sum_on(plan, usage->rank, task, usage->steps));
}

bool car_usage_reads_sum(const car_usage *usage, const car_task *task) {
    return (task->kind == CAR_TASK_UPDATE && car_usage_adds_ties_early(usage)) ||
           (task->kind == CAR_TASK_SEND && task->cargo == CAR_CARGO_FINISHED);
}

bool car_usage_follows_computes(const car_usage *usage, const car_task *task) {
    return task->kind == CAR_TASK_UPDATE && usage->moves;
}
