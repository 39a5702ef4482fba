/* What the tasks of a rank use. See usage.h. */
#include "plan/usage.h"

#include "plan/bundles.h"
#include "plan/rules.h"

struct car_usage {
    const car_plan *plan;
    int rank, bundles, tapes;
    bool spaced;           /* see car_rule_info */
    bool shared;           /* the group is the whole process */
    bool apart;            /* see car_usage_keeps_apart */
    bool by_worker;        /* each worker adds its own micro-batches first */
    car_holding *holdings; /* per bundle */
    bool borrowed;         /* another's */
    int64_t steps;         /* of the run */
};

/* ---- what a rank holds ----------------------------------------------------------------------- */

/* Whether micro-batch n is computed here, at a stage. */
static bool is_here(const car_usage *usage, int64_t n, int stage) {
    return car_plan_rank_of(usage->plan, car_plan_device_of(usage->plan, n, stage)) == usage->rank;
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
    if (!car_task_computes(task)) {
        return;
    }
    for (int b = car_bundle_of_stage(usage->plan->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(usage->plan->partition, task->stage, b)) {
        note_use(usage, newest, b, b == task->stage ? task->version : task->tied_version);
    }
}

/* Whether a stage is computed here. Ranks of whole workers compute all of them; else groups of k follow each other. */
bool car_usage_has_stage(const car_usage *usage, int stage) {
    const car_plan *plan = usage->plan;
    int next = stage + plan->per_worker;
    return !plan->placement->info.by_stage ||
           (car_plan_device_of(plan, 0, stage) <= usage->rank &&
            (next >= plan->stages || car_plan_device_of(plan, 0, next) > usage->rank));
}

/* A tied bundle has a place of its own only where its home has none. */
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

/* Where stages are owned: what this rank makes the versions of. Under dp it keeps them, and others get copies. */
static void find_owned(car_usage *usage) {
    for (int b = 0; b < usage->bundles; b++) {
        const car_bundle *bundle = &usage->plan->partition->bundles[b];
        bool owned = bundle->bytes > 0 && car_plan_owner(usage->plan, 0, bundle->home) == usage->rank;
        owned =
            owned && (b < usage->plan->stages || !car_plan_has_chains(usage->plan)); /* a tied one lies in its home */
        usage->holdings[b] = (car_holding){.places = owned && !usage->spaced ? 1 : 0, .block = b, .owned = owned};
    }
}

/* Nothing has more than two places. */
static bool has_two_of_all(const car_usage *usage) {
    for (int b = 0; b < usage->bundles; b++) {
        bool held =
            usage->holdings[b].block == b && car_usage_has_stage(usage, usage->plan->partition->bundles[b].stage);
        if (held && usage->plan->partition->bundles[b].bytes > 0 && usage->holdings[b].places < 2) {
            return false;
        }
    }
    return true;
}

/* Looks at as many windows of a long run as the pattern has, and at the one before, in which the newest are found. */
static car_status count_places(car_usage *usage) {
    enum { STEADY = 2, LONG_RUN = 1000 };
    const car_plan *plan = usage->plan;
    int64_t *newest = NULL, pattern = car_plan_pattern_steps(plan, usage->rank), steps = pattern + LONG_RUN;
    int64_t slot = STEADY * plan->period, end = slot + (pattern + 1) * plan->period;
    car_task_list list = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, (size_t)usage->bundles, sizeof *newest, &newest));
    while (slot < end && !has_two_of_all(usage)) {
        int64_t next = car_plan_piece_end(plan, slot);
        CAR_TRY(car_plan_expand_rank_slots(plan, usage->rank, slot, next, steps, &list));
        for (int k = 0; k < list.count; k++) {
            note_task(usage, newest, &list.tasks[k]);
        }
        slot = next;
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
        usage->holdings[b].sums = car_plan_is_cyclic(usage->plan) && waits ? 2 : 1;
    }
}

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
                         .spaced = car_plan_is_spaced(plan),
                         .shared = plan->placement->info.one_process};
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

int car_usage_tapes(const car_usage *usage) {
    return usage->tapes;
}

/* Ranks with stages take micro-batches in turn. Workers in turns wait for the one before them on their tape. */
int car_usage_tape_of(const car_usage *usage, const car_task *task) {
    int64_t n = car_plan_batch_of(usage->plan, task);
    return (int)((usage->plan->placement->info.by_stage ? n : task->worker) % usage->tapes);
}

bool car_usage_is_ring(const car_usage *usage) {
    return !car_plan_reduces(usage->plan);
}

bool car_usage_adds_in_order(const car_usage *usage) {
    return car_usage_is_ring(usage) && !usage->plan->script;
}

/* The last micro-batch of its worker in the step. */
static bool is_workers_last(const car_usage *usage, const car_task *task) {
    return task->worker >= usage->plan->batches - usage->plan->config.workers;
}

/* Whose gradients a task is about; where a device renews weights of its own accord, it is about the last worker's. */
static int worker_of(const car_usage *usage, const car_task *task) {
    int workers = usage->plan->config.workers;
    return task->worker >= 0 ? task->worker % workers : workers - 1;
}

bool car_usage_adds_by_worker(const car_usage *usage) {
    return usage->by_worker;
}

int car_usage_own_of(const car_usage *usage, const car_task *task) {
    return usage->by_worker || usage->apart ? worker_of(usage, task) : 0;
}

bool car_usage_joins(const car_usage *usage, const car_task *task) {
    return usage->by_worker && worker_of(usage, task) > 0 && is_workers_last(usage, task);
}

bool car_usage_adds_late(const car_usage *usage, const car_task *task) {
    bool adds = usage->by_worker ? car_usage_joins(usage, task) : task->worker > 0;
    return car_usage_is_ring(usage) && adds && !is_here(usage, car_plan_batch_of(usage->plan, task) - 1, task->stage);
}

int car_usage_leg(const car_usage *usage, const car_task *task) {
    if (task->kind == CAR_TASK_RECEIVE) {
        return task->worker + 1;
    }
    if (task->kind != CAR_TASK_BACKWARD && task->cargo != CAR_CARGO_PARTIAL) {
        return CAR_NONE;
    }
    if (usage->shared || !car_usage_is_ring(usage)) {
        return 0;
    }
    /* By worker, it is the last micro-batch of each that adds to the sum over all. */
    int last_round = usage->plan->batches - usage->plan->config.workers;
    int leg = usage->by_worker ? last_round + worker_of(usage, task) : task->worker;
    int64_t first = task->step * usage->plan->batches;
    while (leg > (usage->by_worker ? last_round : 0) && is_here(usage, first + leg - 1, task->stage)) {
        leg--;
    }
    return leg;
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
        if (!car_task_computes(task) || task->step > 0) {
            continue;
        }
        task->version = first_version(usage, task->worker, task->stage, task->version);
        for (int b = usage->plan->stages; b < usage->bundles; b++) {
            if (usage->plan->partition->bundles[b].stage == task->stage) {
                task->tied_version = first_version(usage, task->worker, b, task->tied_version);
            }
        }
    }
}

bool car_usage_adds_ties_early(const car_usage *usage) {
    return car_usage_is_ring(usage) && usage->plan->placement->info.repeated;
}

car_copy car_usage_copy(const car_usage *usage, const car_task *task, int bundle) {
    return car_plan_has_chains(usage->plan) ? usage->plan->placement->copy(usage->plan, usage->rank, task, bundle)
                                            : CAR_COPY_KEPT;
}

car_passing car_usage_passing(const car_usage *usage, const car_task *task, int bundle) {
    return usage->plan->placement->passing(usage->plan, task, bundle, usage->steps);
}

int car_usage_kept_block(const car_usage *usage, int bundle) {
    int home = usage->plan->partition->bundles[bundle].home;
    return car_plan_has_chains(usage->plan) && usage->holdings[home].owned ? home : usage->holdings[bundle].block;
}

bool car_usage_ends_weights(const car_usage *usage, const car_task *task, int bundle) {
    const car_plan *plan = usage->plan;
    return plan->placement->ends_weights &&
           plan->placement->ends_weights(plan, usage->rank, task, bundle, usage->steps);
}

/* A sum whose last piece was sent, or that was made into weights, is gone, unless the rank passes it on. A collective leaves
 * it with its peer, or with all. */
bool car_usage_ends_sum(const car_usage *usage, const car_task *task) {
    const car_plan *plan = usage->plan;
    bool sends = task->kind == CAR_TASK_SEND && (task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED);
    if (sends && task->piece + 1 < car_plan_pieces(plan, task->bundle)) {
        return false;
    }
    if (task->kind == CAR_TASK_REDUCE) {
        return task->peer != CAR_NONE && task->peer != usage->rank;
    }
    return (sends || task->kind == CAR_TASK_UPDATE) &&
           !(plan->placement->passes_sum_on && plan->placement->passes_sum_on(plan, usage->rank, task, usage->steps));
}

bool car_usage_reads_sum(const car_usage *usage, const car_task *task) {
    return (task->kind == CAR_TASK_UPDATE && car_usage_adds_ties_early(usage)) ||
           (task->kind == CAR_TASK_SEND && task->cargo == CAR_CARGO_FINISHED);
}

bool car_usage_follows_computes(const car_usage *usage, const car_task *task) {
    return task->kind == CAR_TASK_UPDATE && usage->spaced && usage->plan->placement->info.owned;
}

/* ---- the uses of a task ---------------------------------------------------------------------- */

/* One task's, while they are listed. */
typedef struct listing {
    const car_usage *usage;
    const car_task *task;
    car_use_list *list;
    car_status status;
} listing;

static void add_use(listing *l, car_use use) {
    car_use_list *list = l->list;
    if (l->status == CAR_OK) {
        l->status = car_context_grow(l->usage->plan->context, &list->uses, &list->capacity, list->count + 1,
                                     sizeof *list->uses);
    }
    if (l->status == CAR_OK) {
        list->uses[list->count++] = use;
    }
}

static void add(listing *l, car_resource_kind kind, int64_t a, int64_t b, car_use_mode mode) {
    add_use(l, (car_use){.resource = car_resource(kind, a, b), .mode = mode, .bundle = CAR_NONE});
}

/* A micro-batch leaves its tape with the backward of the first stage, or when its gradient goes to the rank before. */
static void use_tape(listing *l) {
    const car_task *task = l->task;
    bool last = task->kind == CAR_TASK_SEND ? task->cargo == CAR_CARGO_GRADIENT
                                            : task->kind == CAR_TASK_BACKWARD && task->stage == 0;
    add_use(l, (car_use){.resource = car_resource(CAR_RESOURCE_TAPE, car_usage_tape_of(l->usage, task), 0),
                         .mode = CAR_USE_WRITE,
                         .last = last,
                         .bundle = CAR_NONE});
}

static void use_weights(listing *l, int bundle, int64_t version, car_use_mode mode) {
    car_copy copy = car_usage_copy(l->usage, l->task, bundle);
    int block = copy == CAR_COPY_KEPT ? car_usage_kept_block(l->usage, bundle) : bundle;
    int place = car_holding_place(l->usage->holdings[block].places, version);
    bool made = l->task->kind == CAR_TASK_UPDATE && version == l->task->version;
    place = copy == CAR_COPY_KEPT ? place : 1 + (int)copy; /* behind the two places of what is kept */
    add_use(l, (car_use){.resource = car_resource(CAR_RESOURCE_WEIGHTS, block, place),
                         .mode = mode,
                         .last = !made && car_usage_ends_weights(l->usage, l->task, bundle),
                         .bundle = block,
                         .id = version,
                         .copy = copy});
}

/* zero: the same for the update that makes the next version of it. */
static void use_source(listing *l, int bundle, int64_t version, car_use_mode mode) {
    add_use(l, (car_use){.resource = car_resource(CAR_RESOURCE_SOURCE, bundle, version % 2),
                         .mode = mode,
                         .bundle = bundle,
                         .id = version});
}

/* A piece of a part of a sum: of what came, or of what the next worker adds. By worker, each has a sum of its own, which ends
 * where it joins that over all. */
static void use_piece(listing *l, car_resource_kind part, int bundle, int piece, car_use_mode mode) {
    const car_usage *usage = l->usage;
    const car_task *task = l->task;
    const car_bundle *b = &usage->plan->partition->bundles[bundle];
    int sums = usage->holdings[bundle].sums, own = 0;
    int64_t number = sums > 0 ? task->step % sums : task->step;
    bool tied = b->home == task->bundle && bundle != task->bundle; /* it went into its home's */
    bool last = tied || car_usage_ends_sum(usage, task);
    if (usage->by_worker && part == CAR_RESOURCE_OWN) {
        own = 1 + worker_of(usage, task);
        last = task->kind == CAR_TASK_BACKWARD && b->stage == task->stage && is_workers_last(usage, task);
        number = number * usage->plan->config.workers + own - 1;
    }
    add_use(l, (car_use){.resource = car_resource(part, (int64_t)bundle * CAR_MOST_PIECES + piece, number),
                         .mode = mode,
                         .last = last,
                         .bundle = bundle,
                         .part = own,
                         .id = task->step});
}

/* All pieces. */
static void use_part(listing *l, car_resource_kind part, int bundle, car_use_mode mode) {
    int pieces = car_plan_pieces(l->usage->plan, bundle);
    for (int piece = 0; piece < pieces; piece++) {
        use_piece(l, part, bundle, piece, mode);
    }
}

/* The sum as all before this task have left it. */
static void use_sum(listing *l, int bundle, car_use_mode mode) {
    use_part(l, CAR_RESOURCE_SUM, bundle, mode);
    use_part(l, CAR_RESOURCE_OWN, bundle, mode);
}

static void use_ties(listing *l, int home) {
    for (int b = l->usage->plan->stages; b < l->usage->bundles; b++) {
        if (l->usage->plan->partition->bundles[b].home == home && l->usage->plan->partition->bundles[b].bytes > 0) {
            use_sum(l, b, CAR_USE_WRITE);
        }
    }
}

/* dp in one process begins no backward before the forwards of all workers are done, as N devices would. */
static void use_gate(listing *l) {
    const car_task *task = l->task;
    bool last = task->stage == l->usage->plan->stages - 1;
    if (!l->usage->shared || !l->usage->plan->rule->info.together || !last) {
        return;
    }
    int64_t round = car_plan_batch_of(l->usage->plan, task) / l->usage->plan->config.workers;
    add(l, CAR_RESOURCE_GATE, round, 0, task->kind == CAR_TASK_FORWARD ? CAR_USE_READ : CAR_USE_FOLLOW);
}

/* A backward's gradients of a bundle. Where the sum that they are added to comes by a message, they do not wait for it. Until
 * they join it, a worker's own are nobody else's; worker 0's are what the sum begins with. */
static void add_gradients(listing *l, int bundle) {
    const car_usage *usage = l->usage;
    bool kept = usage->by_worker && worker_of(usage, l->task) > 0 && !car_usage_joins(usage, l->task);
    if (car_usage_adds_late(usage, l->task) || kept) {
        use_part(l, CAR_RESOURCE_OWN, bundle, CAR_USE_WRITE);
    } else if (usage->by_worker && worker_of(usage, l->task) == 0) {
        use_part(l, CAR_RESOURCE_SUM, bundle, CAR_USE_WRITE);
    } else {
        use_sum(l, bundle, usage->apart ? CAR_USE_READ : CAR_USE_WRITE);
    }
}

static void list_compute(listing *l) {
    const car_usage *usage = l->usage;
    const car_task *task = l->task;
    bool backward = task->kind == CAR_TASK_BACKWARD;
    use_tape(l);
    use_gate(l);
    for (int b = car_bundle_of_stage(usage->plan->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(usage->plan->partition, task->stage, b)) {
        /* Where weights move, what came for one use may go with it. */
        car_use_mode mode = car_usage_ends_weights(usage, task, b) ? CAR_USE_WRITE : CAR_USE_READ;
        use_weights(l, b, b == task->stage ? task->version : task->tied_version, mode);
        if (mode == CAR_USE_WRITE && b == task->stage && usage->spaced && usage->holdings[b].owned) {
            use_source(l, b, task->version, CAR_USE_WRITE); /* the next is made of it before it goes */
        }
        if (backward) {
            add_gradients(l, b);
        }
    }
    if (backward && task->worker == usage->plan->batches - 1 && car_usage_adds_ties_early(usage)) {
        use_ties(l, task->stage);
    }
}

static void list_update(listing *l) {
    const car_usage *usage = l->usage;
    const car_task *task = l->task;
    bool moves = usage->plan->placement->info.owned && usage->spaced, chains = car_plan_has_chains(usage->plan);
    bool passes = moves && !chains;
    use_sum(l, task->bundle, car_usage_reads_sum(usage, task) ? CAR_USE_READ : CAR_USE_WRITE);
    if (!car_usage_adds_ties_early(usage)) {
        use_ties(l, task->bundle);
    }
    if (passes) {
        use_source(l, task->bundle, task->version - 1, CAR_USE_READ);
        use_source(l, task->bundle, task->version, CAR_USE_WRITE);
    }
    if (!passes || car_usage_ends_weights(usage, task, task->bundle)) {
        use_weights(l, task->bundle, task->version - 1, moves ? CAR_USE_WRITE : CAR_USE_READ);
    }
    for (int b = car_bundle_of_home(usage->plan->partition, task->bundle, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(usage->plan->partition, task->bundle, b)) {
        bool made_too = usage->holdings[b].owned;
        if (made_too && b != task->bundle && !passes) {
            use_weights(l, b, task->version - 1, CAR_USE_READ);
        }
        if (b == task->bundle || made_too) {
            use_weights(l, b, task->version, CAR_USE_WRITE);
        }
    }
}

static void list_message(listing *l) {
    const car_task *task = l->task;
    bool sends = task->kind == CAR_TASK_SEND, chains = car_plan_has_chains(l->usage->plan), ends = false;
    if (sends) {
        add(l, CAR_RESOURCE_CHANNEL, task->peer, task->tag, CAR_USE_WRITE);
    }
    switch (task->cargo) {
    case CAR_CARGO_ACTIVATION:
    case CAR_CARGO_GRADIENT:
        use_tape(l);
        break;
    case CAR_CARGO_WEIGHTS:
    case CAR_CARGO_BACKWARD_WEIGHTS:
        ends =
            !chains && car_usage_ends_weights(l->usage, task, task->bundle); /* a copy is read by its user meanwhile */
        use_weights(l, task->bundle, task->version, !sends || ends ? CAR_USE_WRITE : CAR_USE_READ);
        if (!sends && !chains) {
            use_source(l, task->bundle, task->version, CAR_USE_WRITE);
        }
        break;
    default:
        if (sends) {
            car_use_mode mode = car_usage_reads_sum(l->usage, task) ? CAR_USE_READ : CAR_USE_WRITE;
            use_piece(l, CAR_RESOURCE_SUM, task->bundle, task->piece, mode);
            use_piece(l, CAR_RESOURCE_OWN, task->bundle, task->piece, mode);
        } else {
            use_piece(l, CAR_RESOURCE_SUM, task->bundle, task->piece, CAR_USE_WRITE);
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
