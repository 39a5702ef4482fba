/* Lower bounds for a plan in closed form: seconds of its busiest device, seconds of its busiest link, and bytes of
 * the device that needs most. No bound exceeds what the machine (plan/machine.h) and the ledger find, so a plan that
 * a bound rules out need not be timed. */
#include <math.h>

#include "plan/internal.h"
#include "plan/machine.h"
#include "recommend/search.h"

/* The certain part of an estimate that holds on average, over all devices or in steady state.
 *
 * A device with some stages has, on average, as many of their micro-batches alive as are computed in the time from a
 * forward to its backward. A network that makes the step longer reduces that number. */
static const double certain_share = 0.9;
/* The share of activations that is held even if everything possible is recomputed. */
static const double least_held = 0.1;

/* ---- seconds --------------------------------------------------------------------------------- */

static double stage_cost(const car_partition *p, int stage) {
    return p->stages[stage].forward + p->stages[stage].backward;
}

/* The cost of stages first .. end - 1. */
static double cost_of(const car_partition *p, int first, int end) {
    double cost = 0;
    for (int j = first; j < end; j++) {
        cost += stage_cost(p, j);
    }
    return cost;
}

/* How many micro-batches each rank of a stage computes per step. */
static double passes_of(const car_plan *plan, int stage) {
    return (double)plan->batches / car_plan_stage_ranks(plan, stage);
}

/* In micro-batches. A flush adds the time of the stages before a device to its own work, once in each direction. */
static double bound_groups(const car_plan *plan) {
    const car_partition *p = plan->partition;
    int k = plan->per_worker;
    bool flushes = !plan->rule->info.cyclic;
    double most = 1, before = 0;
    for (int first = 0; first < plan->stages; first += k) {
        double own = cost_of(p, first, first + k);
        most = fmax(most, passes_of(plan, first) * own + (flushes ? before : 0));
        before += own;
    }
    return most;
}

static double bound_compute(const car_plan *plan) {
    const car_plan_config *c = &plan->config;
    const car_placement_info *placement = &plan->placement->info;
    if (placement->one_process) {
        double turns = (double)plan->batches / (c->threads < c->workers ? c->threads : c->workers);
        return fmax(1, plan->rule->info.in_turns ? ceil(turns) : turns);
    }
    return placement->by_stage ? bound_groups(plan) : (double)plan->batches / plan->devices;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* Bytes of all parameters: of their sums, and of the weights in the precision in which they travel. */
typedef struct parameters {
    double sums, copies;
} parameters;

static parameters count_parameters(const car_partition *p) {
    parameters all = {0};
    for (int j = 0; j < p->stage_count; j++) {
        all.sums += (double)p->stages[j].weight_bytes;
        all.copies += (double)p->stages[j].copy_bytes;
    }
    return all;
}

/* Bytes per second of the first link on a message's path. */
static double own_bandwidth(const car_cluster *cluster) {
    return cluster->devices_per_node > 1 ? cluster->inside.bandwidth : cluster->between.bandwidth;
}

/* Activations leave a group in forward, their gradients in backward. */
static double bound_boundaries(const car_plan *plan, const car_cluster *cluster) {
    const car_partition *p = plan->partition;
    int k = plan->per_worker;
    double most = 0;
    for (int first = 0; first < plan->stages; first += k) {
        double in = first > 0 ? (double)p->stages[first].boundary_bytes : 0;
        double out = first + k < plan->stages ? (double)p->stages[first + k].boundary_bytes : 0;
        most = fmax(most, passes_of(plan, first) * (in + out));
    }
    return most / own_bandwidth(cluster);
}

/* The least bytes that travel round the devices in a step. Sums go out to every other device and come back, as sums
 * or as weights. A sum by micro-batch goes round once for each of a worker's micro-batches. Owned weights are
 * fetched, or passed on in two copies, for each forward and each backward. */
static double round_bytes(const car_plan *plan) {
    int M = plan->config.accumulate;
    parameters all = count_parameters(plan->partition);
    double out = M > 1 && !car_plan_sums_by_worker(plan) ? M : 1;
    bool owned = plan->placement->info.owned;
    double back = owned ? all.copies * (car_plan_reduces(plan) || car_plan_has_chains(plan) ? 2 * M : 1) : all.sums;
    return out * all.sums + back;
}

/* For devices with whole workers: round all devices, and round all nodes. */
static double bound_rounds(const car_plan *plan, const car_cluster *cluster) {
    double bytes = round_bytes(plan), devices = plan->devices;
    double nodes = ceil(devices / cluster->devices_per_node);
    double inside = bytes * (devices - 1) / devices / own_bandwidth(cluster);
    return fmax(inside, bytes * (nodes - 1) / nodes / cluster->between.bandwidth);
}

/* The share of hops between workers `distance` apart on the ring that leave a node. */
static double crossing(const car_plan *plan, int distance, int per_node) {
    int other = plan->config.workers - distance;
    return fmin(1, (double)(distance < other ? distance : other) / per_node);
}

/* A single copy of owned weights goes to whoever is next in the clock. At a stage, forwards alternate with the
 * backwards of the worker that is `behind` workers before. A hop from a worker to itself sends nothing. */
static double bound_hops(const car_plan *plan, const car_cluster *cluster) {
    const car_partition *p = plan->partition;
    double inside = 0, between = 0, nodes = ceil((double)plan->devices / cluster->devices_per_node);
    for (int j = 0; j < plan->stages; j++) {
        int behind = (2 * (plan->stages - j) - 1) / (2 * plan->per_worker);
        bool back = behind > 0, on = behind + 1 < plan->config.workers;
        double bytes = (double)p->stages[j].copy_bytes;
        inside += (back + on) * bytes;
        between += (crossing(plan, behind, cluster->devices_per_node) +
                    crossing(plan, behind + 1, cluster->devices_per_node)) *
                   bytes;
    }
    double per_device = certain_share * plan->config.accumulate * inside / own_bandwidth(cluster);
    double per_node = nodes > 1 ? certain_share * plan->batches * between / nodes / cluster->between.bandwidth : 0;
    return fmax(per_device, per_node);
}

static double bound_links(const car_plan *plan, const car_cluster *cluster) {
    if (!cluster || plan->placement->info.one_process) {
        return 0;
    }
    if (plan->placement->info.by_stage) {
        return bound_boundaries(plan, cluster);
    }
    bool hops = plan->placement->info.owned && car_plan_is_spaced(plan) && plan->config.workers > 1 &&
                !car_plan_has_chains(plan);
    return fmax(bound_rounds(plan, cluster), hops ? bound_hops(plan, cluster) : 0);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The least bytes of a device. weights: everything that training a weight takes (weights, a sum of gradients,
 * optimizer state). */
typedef struct bytes {
    double weights, activations;
} bytes;

static double sum_of(bytes b) {
    return b.weights + b.activations;
}

/* True if a rank adds up all its micro-batches of a step before their sum leaves. Then it has the sums of all its
 * stages at once; otherwise a backward has only that of its own stage. */
static bool sums_stay(const car_plan *plan, int stage) {
    const car_placement_info *placement = &plan->placement->info;
    if (placement->one_process) {
        return false;
    }
    if (placement->by_stage) {
        bool alone = car_plan_stage_ranks(plan, stage) == 1;
        return passes_of(plan, stage) >= 2 && (alone || car_plan_reduces(plan));
    }
    return plan->config.accumulate >= 2 && (car_plan_reduces(plan) || car_plan_sums_by_worker(plan));
}

/* For a rank with some of the stages. */
static bytes group_bytes(const car_plan *plan, int first, double slowest, int states) {
    const car_partition *p = plan->partition;
    int end = first + plan->per_worker;
    double weights = 0, held = 0, largest = 0;
    for (int j = first; j < end; j++) {
        weights += (double)p->stages[j].weight_bytes;
        largest = fmax(largest, (double)p->stages[j].weight_bytes);
        held += (double)p->stages[j].held_bytes;
    }
    bool one_each = plan->placement->info.repeated; /* there are as many ranks as micro-batches alive */
    double waiting = certain_share * cost_of(p, first, plan->stages) / slowest;
    double alive = one_each ? 1 : plan->rule->clock->forwards_first ? passes_of(plan, first) : fmax(1, waiting);
    return (bytes){(1 + states) * weights + (sums_stay(plan, first) ? weights : largest), alive * held};
}

/* For a rank that computes all stages and owns some of them. An owner that keeps its weights also has a copy of
 * another's. */
static double owner_bytes(const car_plan *plan, int first, int states) {
    const car_partition *p = plan->partition;
    int end = first + plan->per_worker;
    bool keeps = car_plan_reduces(plan) || car_plan_has_chains(plan);
    double own = 0, inside = 0, outside = 0;
    for (int j = 0; j < p->stage_count; j++) {
        bool owned = j >= first && j < end;
        double copy = (double)p->stages[j].copy_bytes;
        own += owned ? (double)p->stages[j].weight_bytes : 0;
        inside = owned ? fmax(inside, copy) : inside;
        outside = owned ? outside : fmax(outside, copy);
    }
    return states * own + (keeps ? own + outside : fmax(inside, outside));
}

/* For a rank with all stages: weights, sums and optimizer state. */
static double worker_bytes(const car_plan *plan, int states) {
    const car_partition *p = plan->partition;
    double all = count_parameters(p).sums, largest = 0, most = 0;
    for (int j = 0; j < p->stage_count; j++) {
        largest = fmax(largest, (double)p->stages[j].weight_bytes);
    }
    for (int first = 0; plan->placement->info.owned && first < plan->stages; first += plan->per_worker) {
        most = fmax(most, owner_bytes(plan, first, states));
    }
    return (plan->placement->info.owned ? most : (1 + states) * all) + (sums_stay(plan, 0) ? all : largest);
}

static bytes bound_memory(const car_plan *plan, int states) {
    const car_partition *p = plan->partition;
    const car_placement_info *placement = &plan->placement->info;
    double slowest = 0;
    bytes most = {0};
    if (!placement->by_stage) {
        return (bytes){worker_bytes(plan, states), (double)p->curve.peak};
    }
    for (int first = 0; first < plan->stages; first += plan->per_worker) {
        slowest = fmax(slowest, cost_of(p, first, first + plan->per_worker));
    }
    for (int first = 0; first < plan->stages; first += plan->per_worker) {
        bytes group = group_bytes(plan, first, slowest, states);
        most.weights = fmax(most.weights, group.weights); /* a prediction, too, adds up the maximum of each */
        most.activations = fmax(most.activations, group.activations);
    }
    return most;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int late_steps(const car_plan *plan) {
    int delay = 0;
    for (int j = 0; j < plan->stages; j++) {
        int here = car_plan_delay(plan, 0, j); /* no worker is later than the first */
        delay = here > delay ? here : delay;
    }
    return delay;
}

static car_status bound(car_search *search, const car_choice *choice, car_candidate *out) {
    const car_subject *subject = NULL;
    const car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_status status = CAR_OK;
    *out = (car_candidate){.choice = *choice};
    CAR_TRY(car_search_find_partition(search, choice, &partition));
    if (!partition) {
        goto done;
    }
    CAR_TRY(car_search_find_subject(search, choice, &subject));
    double compute = car_search_compute(subject, partition);
    status = car_search_plan(search, choice, subject, partition, &plan);
    /* Settings that exclude each other, or a plan that is too large. */
    if (status == CAR_ERROR_ARGUMENT || status == CAR_ERROR_UNSUPPORTED) {
        car_context_clear_error(search->context);
        status = CAR_OK;
        goto done;
    }
    CAR_TRY(status);
    car_optimizer_config optimizer = car_search_optimizer(search, &choice->plan);
    /* An optimizer that keeps fewer states for some parameters is counted with none, so that this stays a lower
     * bound. */
    bool uneven = car_optimizer_info_of(optimizer.kind)->uneven;
    int states = uneven ? 0 : car_optimizer_config_states(&optimizer);
    bool alike = car_plan_reduces(plan) && !plan->placement->info.by_stage;
    out->devices = plan->placement->info.one_process ? 1 : plan->devices;
    out->computes = compute * bound_compute(plan);
    out->links = bound_links(plan, search->config->cluster);
    bytes memory = bound_memory(plan, states);
    out->memory = sum_of(memory);
    out->activations = memory.activations;
    out->memory_at_best = memory.weights + least_held * memory.activations;
    out->effort =
        2.0 * (alike ? plan->config.accumulate : plan->batches) * plan->stages * (double)car_plan_timed_steps(plan);
    out->gradient_delay = late_steps(plan);
done:
    car_plan_destroy(plan);
    return status;
}

/* The most recomputation that is possible, as a share that a user can type. Off if nothing can be recomputed, or if
 * a listed share does nearly as much. */
static car_status find_least_share(car_search *search, const car_choice *choice, car_recompute_config *out) {
    const double fineness = 1000, near = 0.95;
    const car_partition *partition = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_search_find_partition(search, choice, &partition));
    double all = (double)partition->recomputation.held_bytes;
    double share = all > 0 ? ceil(fineness * (double)partition->held_bytes / all) / fineness : 1;
    bool another = share < 1;
    for (int n = 0; n < car_search_share_count; n++) {
        double listed = car_search_shares[n];
        another = another && (share > listed || share < near * listed);
    }
    *out = (car_recompute_config){.how = another ? CAR_RECOMPUTE_SHARE : CAR_RECOMPUTE_OFF, .share = share};
done:
    return status;
}

/* Reuses the last bound: choices that differ in recomputation only come one after another. */
static car_status bound_plain(car_search *search, const car_choice *choice, car_candidate *out) {
    car_choice plain = *choice;
    car_status status = CAR_OK;
    plain.recompute = (car_recompute_config){.how = CAR_RECOMPUTE_OFF};
    if (!search->has_plain || !car_search_is_same_but_recomputed(&plain, &search->plain.choice)) {
        search->has_plain = false;
        CAR_TRY(bound(search, &plain, &search->plain));
        search->plain.choice = plain;
        search->has_plain = true;
    }
    *out = search->plain;
done:
    return status;
}

/* Finding out what is recomputed takes time, so it is done only where it may help. */
car_status car_search_bound(car_search *search, const car_choice *choice, car_candidate *out) {
    car_status status = CAR_OK;
    CAR_TRY(bound_plain(search, choice, out));
    if (choice->recompute.how == CAR_RECOMPUTE_OFF || out->devices == 0) {
        goto done;
    }
    if (search->available > 0 && out->memory_at_best > search->available && !search->config->fixed.recompute) {
        out->devices = 0;
        goto done;
    }
    car_choice again = *choice;
    if (choice->recompute.how == CAR_RECOMPUTE_FIRST) {
        CAR_TRY(find_least_share(search, choice, &again.recompute));
        if (again.recompute.how == CAR_RECOMPUTE_OFF) {
            out->devices = 0;
            goto done;
        }
    }
    CAR_TRY(bound(search, &again, out));
done:
    return status;
}
