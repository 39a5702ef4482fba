/* Finds what a rank permanently holds of each bundle: how many versions of its weights at once, in whose block they
 * lie, and how many sums. See usage.h. */
#include "plan/usage_internal.h"

/* ---- blocks and owners --------------------------------------------------------------------------- */

/* True if the rank computes the stage. Ranks of whole workers compute every stage; other ranks have groups of k
 * consecutive stages. */
bool car_usage_has_stage(const car_usage *usage, int stage) {
    const car_plan *plan = usage->plan;
    int next = stage + plan->per_worker;
    return !plan->placement->info.by_stage ||
           (car_plan_device_of(plan, 0, stage) <= usage->rank &&
            (next >= plan->stages || car_plan_device_of(plan, 0, next) > usage->rank));
}

/* A tied bundle has its own place only if its home has none on this rank. */
static void find_blocks(car_usage *usage) {
    const car_plan *plan = usage->plan;
    for (int j = 0; j < plan->stages; j++) {
        usage->holdings[j].places = car_usage_has_stage(usage, j) && plan->partition->bundles[j].bytes > 0;
    }
    for (int b = 0; b < usage->bundles; b++) {
        int home = plan->partition->bundles[b].home;
        usage->holdings[b].block = usage->holdings[home].places > 0 ? home : b;
    }
}

/* For placements with owners: finds the bundles whose versions this rank makes. Under dp it keeps them, and others
 * get copies. */
static void find_owned(car_usage *usage) {
    for (int b = 0; b < usage->bundles; b++) {
        const car_bundle *bundle = &usage->plan->partition->bundles[b];
        bool owned = bundle->bytes > 0 && car_plan_owner(usage->plan, 0, bundle->home) == usage->rank;
        /* With chains, a tied bundle lies in its home's block. */
        owned = owned && (b < usage->plan->stages || !car_plan_has_chains(usage->plan));
        usage->holdings[b] = (car_holding){.places = owned && !usage->moves ? 1 : 0, .block = b, .owned = owned};
    }
}

/* ---- versions alive at once, found by walking the table ------------------------------------------ */

/* Counts how many versions of each bundle are alive at once. */
typedef struct counting {
    car_usage *usage;
    int64_t *newest; /* by bundle: the newest version that was made or received */
    int left;        /* blocks that may still turn out to hold two versions; none holds more */
} counting;

/* True if a bundle has its own block on this rank. */
static bool has_block(const car_usage *usage, int bundle) {
    const car_bundle *b = &usage->plan->partition->bundles[bundle];
    return usage->holdings[bundle].block == bundle && b->bytes > 0 && car_usage_has_stage(usage, b->stage);
}

/* Two versions are needed if one is used after the next was made. */
static void count_use(counting *c, int bundle, int64_t version) {
    int block = c->usage->holdings[bundle].block;
    car_holding *holding = &c->usage->holdings[block];
    holding->places = holding->places > 0 ? holding->places : 1;
    if (c->newest[block] > version && holding->places < 2) {
        holding->places = 2;
        c->left -= has_block(c->usage, block);
    }
}

static void count_task(counting *c, const car_task *task) {
    const car_partition *partition = c->usage->plan->partition;
    if (task->kind == CAR_TASK_UPDATE || (task->kind == CAR_TASK_RECEIVE && task->cargo == CAR_CARGO_WEIGHTS)) {
        int64_t *newest = &c->newest[task->bundle];
        count_use(c, task->bundle, *newest);
        *newest = task->version > *newest ? task->version : *newest;
    }
    if (!car_task_computes(task)) {
        return;
    }
    for (int b = car_bundle_of_stage(partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(partition, task->stage, b)) {
        count_use(c, b, b == task->stage ? task->version : task->tied_version);
    }
}

/* Walks as many windows of a long run as the pattern has steps, and the window before, which gives the newest
 * versions. */
static car_status count_places(car_usage *usage) {
    enum { STEADY = 2, LONG_RUN = 1000 };
    const car_plan *plan = usage->plan;
    int64_t pattern = car_plan_pattern_steps(plan, usage->rank), steps = pattern + LONG_RUN;
    int64_t slot = STEADY * plan->period, end = slot + (pattern + 1) * plan->period;
    counting c = {.usage = usage};
    car_task_list list = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, (size_t)usage->bundles, sizeof *c.newest, &c.newest));
    for (int b = 0; b < usage->bundles; b++) {
        c.left += has_block(usage, b) && usage->holdings[b].places < 2;
    }
    while (slot < end && c.left > 0) {
        int64_t next = car_plan_stretch_end(plan, slot);
        CAR_TRY(car_plan_expand_rank_slots(plan, usage->rank, slot, next, steps, &list));
        for (int k = 0; k < list.count; k++) {
            count_task(&c, &list.tasks[k]);
        }
        slot = next;
    }
done:
    car_task_list_release(plan, &list);
    car_context_release(plan->context, c.newest, (size_t)usage->bundles, sizeof *c.newest);
    return status;
}

/* ---- number of sums ------------------------------------------------------------------------------ */

/* In one process a step's sum reuses the memory of the previous one. In the cycle, sums that wait for others need a
 * second place: a tied bundle's sum waits for its home's. */
static void count_sums(car_usage *usage, bool deferred) {
    for (int b = 0; usage->shared && !usage->plan->script && b < usage->bundles; b++) {
        bool waits = deferred || b >= usage->plan->stages;
        usage->holdings[b].sums = car_plan_is_cyclic(usage->plan) && waits ? 2 : 1;
    }
}

/* ---- creating ------------------------------------------------------------------------------------ */

car_status car_usage_create(const car_plan *plan, int rank, car_usage **out) {
    return car_usage_create_like(plan, rank, NULL, out);
}

car_status car_usage_create_like(const car_plan *plan, int rank, const car_usage *like, car_usage **out) {
    car_usage *usage = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(plan->context, 1, sizeof *usage, &usage));
    *usage = (car_usage){.plan = plan,
                         .rank = rank,
                         .bundles = plan->partition->bundle_count,
                         .moves = plan->placement->info.owned && car_plan_passes_sums(plan),
                         .shared = plan->placement->info.one_process,
                         .scripted = plan->script && !plan->placement->info.one_process};
    usage->tapes = plan->placement->tapes(plan, rank);
    usage->steps = INT64_MAX;
    usage->apart = usage->shared && plan->rule->info.together;
    usage->by_worker = car_plan_sums_by_worker(plan) && !usage->apart && !car_plan_reduces(plan);
    usage->borrowed = like != NULL;
    if (like) {
        usage->holdings = like->holdings;
        *out = usage;
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(plan->context, (size_t)usage->bundles, sizeof *usage->holdings, &usage->holdings));
    if (plan->placement->info.owned) {
        find_owned(usage);
    } else {
        find_blocks(usage);
        CAR_TRY(count_places(usage));
    }
    count_sums(usage, false);
    *out = usage;
    usage = NULL;
done:
    car_usage_destroy(usage);
    return status;
}

void car_usage_destroy(car_usage *usage) {
    if (usage) {
        size_t own = usage->holdings && !usage->borrowed ? (size_t)usage->bundles : 0;
        car_context_release(usage->plan->context, own ? usage->holdings : NULL, own, sizeof *usage->holdings);
        car_context_release(usage->plan->context, usage, 1, sizeof *usage);
    }
}

void car_usage_set_steps(car_usage *usage, int64_t steps) {
    usage->steps = steps;
}

const car_holding *car_usage_holding(const car_usage *usage, int bundle) {
    return &usage->holdings[bundle];
}

void car_usage_defer_updates(car_usage *usage) {
    count_sums(usage, true);
}
