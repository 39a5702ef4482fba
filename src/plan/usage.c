/* What the tasks of a rank use. See usage.h. */
#include "plan/usage.h"

#include "plan/rules.h"

struct car_usage {
    const car_plan *plan;
    int rank, bundles, tapes;
    bool cyclic;
    bool shared;           /* the group is the whole process */
    bool apart;            /* see car_usage_keeps_apart */
    car_holding *holdings; /* per bundle */
};

/* ---- what a rank holds ----------------------------------------------------------------------- */

/* Whether micro-batch n is computed here, at a stage. */
static bool is_here(const car_usage *usage, int64_t n, int stage) {
    return car_plan_rank_of(usage->plan, car_plan_device_of(usage->plan, n, stage)) == usage->rank;
}

static bool is_of_stage(const car_usage *usage, int bundle, int stage) {
    const car_bundle *b = &usage->plan->partition->bundles[bundle];
    return b->stage == stage && b->bytes > 0;
}

/* Versions of a bundle that are alive here at once: two, if one is used after the next was made. */
static void note_use(car_usage *usage, const int64_t *newest, int bundle, int64_t version) {
    car_holding *holding = &usage->holdings[usage->holdings[bundle].block];
    holding->places = holding->places > 0 ? holding->places : 1;
    if (newest[usage->holdings[bundle].block] > version) {
        holding->places = 2;
    }
}

static void note_task(car_usage *usage, int64_t *newest, const car_task *task) {
    if (task->kind == CAR_TASK_UPDATE || (task->kind == CAR_TASK_RECEIVE && task->cargo == CAR_CARGO_WEIGHTS)) {
        note_use(usage, newest, task->bundle, newest[task->bundle]);
        newest[task->bundle] = task->version > newest[task->bundle] ? task->version : newest[task->bundle];
    }
    for (int b = task->stage; car_task_computes(task) && b < usage->bundles; b = car_plan_next_bundle(usage->plan, b)) {
        if (is_of_stage(usage, b, task->stage)) {
            note_use(usage, newest, b, b == task->stage ? task->version : task->tied_version);
        }
    }
}

/* A tied bundle has a place of its own only where its home has none. */
static void find_blocks(car_usage *usage) {
    const car_plan *plan = usage->plan;
    int64_t pattern = plan->config.workers; /* no stage has more ranks, and they take turns */
    for (int j = 0; j < plan->stages; j++) {
        int64_t n = 0;
        while (n < pattern && !is_here(usage, n, j)) {
            n++;
        }
        usage->holdings[j].places = n < pattern && plan->partition->bundles[j].bytes > 0;
    }
    for (int b = 0; b < usage->bundles; b++) {
        int home = plan->partition->bundles[b].home;
        usage->holdings[b].block = usage->holdings[home].places > 0 ? home : b;
    }
}

/* Where stages are owned: what this rank makes the versions of. Under dp it keeps them, and others get copies. */
static void find_owned(car_usage *usage) {
    for (int b = 0; b < usage->bundles; b++) {
        const car_bundle *bundle = &usage->plan->partition->bundles[b];
        bool owned = bundle->bytes > 0 && car_plan_owner(usage->plan, 0, bundle->home) == usage->rank;
        usage->holdings[b] = (car_holding){.places = owned && !usage->cyclic ? 1 : 0, .block = b, .owned = owned};
    }
}

static car_status count_places(car_usage *usage) {
    const car_plan *plan = usage->plan;
    int64_t *newest = NULL, steps = car_plan_pattern_steps(plan) + 6;
    car_task_list list = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, (size_t)usage->bundles, sizeof *newest, &newest));
    for (int64_t window = 0; window < car_plan_windows(plan, steps); window++) {
        CAR_TRY(car_plan_expand_rank(plan, usage->rank, window, steps, &list));
        for (int k = 0; k < list.count; k++) {
            note_task(usage, newest, &list.tasks[k]);
        }
    }
done:
    car_task_list_release(plan, &list);
    car_context_release(plan->context, newest, newest ? (size_t)usage->bundles : 0, sizeof *newest);
    return status;
}

/* In one process a step's sum takes the place of the one before. In the cycle those that wait for others have a second:
 * a tied one's waits for its home's. */
static void count_sums(car_usage *usage, bool deferred) {
    for (int b = 0; usage->shared && !usage->plan->script && b < usage->bundles; b++) {
        bool waits = deferred || b >= usage->plan->stages;
        usage->holdings[b].sums = usage->cyclic && waits ? 2 : 1;
    }
}

car_status car_usage_create(const car_plan *plan, int rank, car_usage **out) {
    car_usage *usage = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(plan->context, 1, sizeof *usage, &usage));
    *usage = (car_usage){.plan = plan,
                         .rank = rank,
                         .bundles = plan->partition->bundle_count,
                         .cyclic = car_plan_is_cyclic(plan),
                         .shared = plan->placement->info.one_process};
    usage->tapes = plan->placement->tapes(plan, rank);
    usage->apart = usage->shared && plan->rule->info.together;
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
        car_context_release(usage->plan->context, usage->holdings, usage->holdings ? (size_t)usage->bundles : 0,
                            sizeof *usage->holdings);
        car_context_release(usage->plan->context, usage, 1, sizeof *usage);
    }
}

const car_holding *car_usage_holding(const car_usage *usage, int bundle) {
    return &usage->holdings[bundle];
}

int car_usage_tapes(const car_usage *usage) {
    return usage->tapes;
}

/* Ranks with stages take micro-batches in turn. Workers in turns wait for the one before them on their tape. */
int car_usage_tape_of(const car_usage *usage, const car_task *task) {
    int64_t n = task->step * usage->plan->config.workers + task->worker;
    return (int)((usage->plan->placement->info.by_stage ? n : task->worker) % usage->tapes);
}

bool car_usage_is_ring(const car_usage *usage) {
    return !car_plan_reduces(usage->plan);
}

bool car_usage_adds_by_worker(const car_usage *usage) {
    return car_usage_is_ring(usage) && !usage->plan->script;
}

bool car_usage_adds_late(const car_usage *usage, const car_task *task) {
    return car_usage_is_ring(usage) && task->worker > 0 &&
           !is_here(usage, task->step * usage->plan->config.workers + task->worker - 1, task->stage);
}

bool car_usage_keeps_apart(const car_usage *usage) {
    return usage->apart;
}

void car_usage_defer_updates(car_usage *usage) {
    count_sums(usage, true);
}

/* The version of a bundle that a micro-batch of the first step uses. */
static int64_t first_version(const car_usage *usage, int worker, int bundle, int64_t version) {
    const car_bundle *b = &usage->plan->partition->bundles[bundle];
    bool held = b->bytes == 0 || usage->holdings[usage->holdings[bundle].block].places > 0;
    return held && car_plan_delay(usage->plan, worker, b->home) > 0 ? CAR_VERSION_BEFORE : version;
}

void car_usage_go_on(const car_usage *usage, car_task_list *list) {
    for (int k = 0; k < list->count; k++) {
        car_task *task = &list->tasks[k];
        for (int b = task->stage; car_task_computes(task) && task->step == 0 && b < usage->bundles;
             b = car_plan_next_bundle(usage->plan, b)) {
            int64_t *version = b == task->stage ? &task->version : &task->tied_version;
            if (usage->plan->partition->bundles[b].stage == task->stage) {
                *version = first_version(usage, task->worker, b, *version);
            }
        }
    }
}

bool car_usage_adds_ties_early(const car_usage *usage) {
    return car_usage_is_ring(usage) && usage->plan->placement->info.repeated;
}

bool car_usage_reads_sum(const car_usage *usage, const car_task *task) {
    return (task->kind == CAR_TASK_UPDATE && car_usage_adds_ties_early(usage)) ||
           (task->kind == CAR_TASK_SEND && task->cargo == CAR_CARGO_FINISHED);
}

/* ---- the uses of a task ---------------------------------------------------------------------- */

/* One task's, while they are listed. */
typedef struct listing {
    const car_usage *usage;
    const car_task *task;
    car_use_list *list;
    car_status status;
} listing;

static void add(listing *l, car_resource_kind kind, int64_t a, int64_t b, car_use_mode mode) {
    car_use_list *list = l->list;
    if (l->status == CAR_OK) {
        l->status = car_context_grow(l->usage->plan->context, &list->uses, &list->capacity, list->count + 1,
                                     sizeof *list->uses);
    }
    if (l->status == CAR_OK) {
        list->uses[list->count++] = (car_use){car_resource(kind, a, b), mode};
    }
}

static void use_weights(listing *l, int bundle, int64_t version, car_use_mode mode) {
    int block = l->usage->holdings[bundle].block, places = l->usage->holdings[block].places;
    add(l, CAR_RESOURCE_WEIGHTS, block, car_holding_place(places, version), mode);
}

/* The sum as all before this task have left it: what came, and what was added to it. */
static void use_sum(listing *l, int bundle, car_use_mode mode) {
    int sums = l->usage->holdings[bundle].sums;
    int64_t which = sums > 0 ? l->task->step % sums : l->task->step;
    add(l, CAR_RESOURCE_SUM, bundle, which, mode);
    add(l, CAR_RESOURCE_OWN, bundle, which, mode);
}

static void use_ties(listing *l, int home) {
    for (int b = l->usage->plan->stages; b < l->usage->bundles; b++) {
        if (l->usage->plan->partition->bundles[b].home == home) {
            use_sum(l, b, CAR_USE_WRITE);
        }
    }
}

/* dp in one process begins no backward before all forwards are done, as N devices would. */
static void use_gate(listing *l) {
    const car_task *task = l->task;
    bool last = task->stage == l->usage->plan->stages - 1;
    if (!l->usage->shared || !l->usage->plan->rule->info.together || !last) {
        return;
    }
    add(l, CAR_RESOURCE_GATE, task->step, 0, task->kind == CAR_TASK_FORWARD ? CAR_USE_READ : CAR_USE_FOLLOW);
}

static void list_compute(listing *l) {
    const car_usage *usage = l->usage;
    const car_task *task = l->task;
    bool backward = task->kind == CAR_TASK_BACKWARD;
    add(l, CAR_RESOURCE_TAPE, car_usage_tape_of(usage, task), 0, CAR_USE_WRITE);
    use_gate(l);
    for (int b = task->stage; b < usage->bundles; b = car_plan_next_bundle(usage->plan, b)) {
        if (!is_of_stage(usage, b, task->stage)) {
            continue;
        }
        /* Where weights move, what came for one use may go with it. */
        car_use_mode mode = task->frees & CAR_FREES_WEIGHTS ? CAR_USE_WRITE : CAR_USE_READ;
        use_weights(l, b, b == task->stage ? task->version : task->tied_version, mode);
        if (mode == CAR_USE_WRITE && b == task->stage && usage->cyclic && usage->holdings[b].owned) {
            add(l, CAR_RESOURCE_SOURCE, b, task->version % 2,
                CAR_USE_WRITE); /* the next is made of it before it goes */
        }
        if (backward && car_usage_adds_late(usage, task)) {
            add(l, CAR_RESOURCE_OWN, b, task->step, CAR_USE_WRITE);
        } else if (backward) {
            use_sum(l, b, usage->apart ? CAR_USE_READ : CAR_USE_WRITE);
        }
    }
    if (backward && task->worker == usage->plan->config.workers - 1 && car_usage_adds_ties_early(usage)) {
        use_ties(l, task->stage);
    }
}

static void list_update(listing *l) {
    const car_usage *usage = l->usage;
    const car_task *task = l->task;
    bool passes = usage->plan->placement->info.owned && usage->cyclic;
    use_sum(l, task->bundle, car_usage_reads_sum(usage, task) ? CAR_USE_READ : CAR_USE_WRITE);
    use_ties(l, task->bundle);
    if (passes) {
        add(l, CAR_RESOURCE_SOURCE, task->bundle, (task->version - 1) % 2, CAR_USE_READ);
        add(l, CAR_RESOURCE_SOURCE, task->bundle, task->version % 2, CAR_USE_WRITE);
    }
    if (!passes || (task->frees & CAR_FREES_WEIGHTS)) {
        use_weights(l, task->bundle, task->version - 1, passes ? CAR_USE_WRITE : CAR_USE_READ);
    }
    for (int b = task->bundle; b < usage->bundles; b = car_plan_next_bundle(usage->plan, b)) {
        bool made_too = usage->holdings[b].owned && usage->plan->partition->bundles[b].home == task->bundle;
        if (b == task->bundle || made_too) {
            use_weights(l, b, task->version, CAR_USE_WRITE);
        }
    }
}

static void list_message(listing *l) {
    const car_task *task = l->task;
    bool sends = task->kind == CAR_TASK_SEND;
    if (sends) {
        add(l, CAR_RESOURCE_CHANNEL, task->peer, task->tag, CAR_USE_WRITE);
    }
    switch (task->cargo) {
    case CAR_CARGO_ACTIVATION:
    case CAR_CARGO_GRADIENT:
        add(l, CAR_RESOURCE_TAPE, car_usage_tape_of(l->usage, task), 0, CAR_USE_WRITE);
        break;
    case CAR_CARGO_WEIGHTS:
        use_weights(l, task->bundle, task->version,
                    !sends || (task->frees & CAR_FREES_WEIGHTS) ? CAR_USE_WRITE : CAR_USE_READ);
        if (!sends) {
            add(l, CAR_RESOURCE_SOURCE, task->bundle, task->version % 2, CAR_USE_WRITE);
        }
        break;
    default:
        if (sends) {
            use_sum(l, task->bundle, car_usage_reads_sum(l->usage, task) ? CAR_USE_READ : CAR_USE_WRITE);
        } else {
            add(l, CAR_RESOURCE_SUM, task->bundle, task->step, CAR_USE_WRITE);
        }
    }
}

car_status car_usage_list(const car_usage *usage, const car_task *task, car_use_list *list) {
    listing l = {.usage = usage, .task = task, .list = list};
    list->count = 0;
    switch (task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        list_compute(&l);
        break;
    case CAR_TASK_UPDATE:
        list_update(&l);
        break;
    case CAR_TASK_REDUCE:
        use_sum(&l, task->bundle, CAR_USE_WRITE);
        break;
    case CAR_TASK_BROADCAST:
        use_weights(&l, task->bundle, task->version,
                    usage->holdings[task->bundle].owned ? CAR_USE_READ : CAR_USE_WRITE);
        break;
    default:
        list_message(&l);
    }
    return l.status;
}

void car_use_list_release(const car_plan *plan, car_use_list *list) {
    car_context_release(plan->context, list->uses, (size_t)list->capacity, sizeof *list->uses);
    *list = (car_use_list){0};
}
