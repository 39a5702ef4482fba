/* Lists the uses of a task: which resources it needs, in which mode, and whether for the last time. See usage.h. */
#include "plan/usage_internal.h"

/* The list of one task's uses, while it is built. */
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

/* A micro-batch gives up its tape with the backward of the first stage, or when its gradient is sent to the previous
 * rank. */
static void use_tape(listing *l) {
    const car_task *task = l->task;
    bool last = task->kind == CAR_TASK_SEND ? task->cargo == CAR_CARGO_GRADIENT
                                            : task->kind == CAR_TASK_BACKWARD && task->stage == 0;
    add_use(l, (car_use){.resource = car_resource(CAR_RESOURCE_TAPE, car_usage_tape_of(l->usage, task), 0),
                         .mode = CAR_USE_WRITE,
                         .last = last,
                         .bundle = CAR_NONE});
}

static void use_weights(listing *l, int bundle, int64_t version, car_use_mode mode, bool last) {
    car_copy copy = car_usage_copy(l->usage, l->task, bundle);
    int block = copy == CAR_COPY_KEPT ? car_usage_kept_block(l->usage, bundle) : bundle;
    int place = car_holding_place(l->usage->holdings[block].places, version);
    place = copy == CAR_COPY_KEPT ? place : 1 + (int)copy; /* after the two places of the kept copy */
    add_use(l, (car_use){.resource = car_resource(CAR_RESOURCE_WEIGHTS, block, place),
                         .mode = mode,
                         .last = last,
                         .bundle = block,
                         .id = version,
                         .copy = copy});
}

/* zero: the version as the source from which an update makes the next one. */
static void use_source(listing *l, int bundle, int64_t version, car_use_mode mode) {
    add_use(l, (car_use){.resource = car_resource(CAR_RESOURCE_SOURCE, bundle, version % 2),
                         .mode = mode,
                         .bundle = bundle,
                         .id = version});
}

/* Uses one piece of a part of a sum: of what was received, or of what the next worker adds. When sums are kept by
 * worker, each worker's own sum ends where it joins the one over all workers. */
static void use_piece(listing *l, car_resource_kind part, int bundle, int piece, car_use_mode mode) {
    const car_usage *usage = l->usage;
    const car_task *task = l->task;
    const car_bundle *b = &usage->plan->partition->bundles[bundle];
    int sums = usage->holdings[bundle].sums, own = 0;
    int64_t number = sums > 0 ? task->step % sums : task->step;
    bool tied = b->home == task->bundle && bundle != task->bundle; /* it was added to its home's sum */
    bool last = tied || car_usage_ends_sum(usage, task);
    if (usage->by_worker && part == CAR_RESOURCE_OWN) {
        own = 1 + car_usage_worker_of(usage, task);
        last = task->kind == CAR_TASK_BACKWARD && b->stage == task->stage && car_usage_is_workers_last(usage, task);
        number = number * usage->plan->config.workers + own - 1;
    }
    add_use(l, (car_use){.resource = car_resource(part, (int64_t)bundle * CAR_MOST_PIECES + piece, number),
                         .mode = mode,
                         .last = last,
                         .bundle = bundle,
                         .part = own,
                         .id = task->step});
}

/* All pieces of a part of a sum. */
static void use_part(listing *l, car_resource_kind part, int bundle, car_use_mode mode) {
    int pieces = car_plan_pieces(l->usage->plan, bundle);
    for (int piece = 0; piece < pieces; piece++) {
        use_piece(l, part, bundle, piece, mode);
    }
}

/* The sum with everything that was added before this task. */
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

/* dp in one process starts no backward before the forwards of all workers are done, as N devices would. */
static void use_gate(listing *l) {
    const car_task *task = l->task;
    bool last = task->stage == l->usage->plan->stages - 1;
    if (!l->usage->shared || !l->usage->plan->rule->info.together || !last) {
        return;
    }
    int64_t round = car_plan_batch_of(l->usage->plan, task) / l->usage->plan->config.workers;
    add(l, CAR_RESOURCE_GATE, round, 0, task->kind == CAR_TASK_FORWARD ? CAR_USE_READ : CAR_USE_FOLLOW);
}

/* The gradients that a backward makes for a bundle. If their sum arrives in a message, the backward does not wait
 * for it. Nobody else uses a worker's own gradients until they join the sum, which begins with worker 0's. */
static void add_gradients(listing *l, int bundle) {
    const car_usage *usage = l->usage;
    bool kept = usage->by_worker && car_usage_worker_of(usage, l->task) > 0 && !car_usage_joins(usage, l->task);
    if (car_usage_adds_late(usage, l->task) || kept) {
        use_part(l, CAR_RESOURCE_OWN, bundle, CAR_USE_WRITE);
    } else if (usage->by_worker && car_usage_worker_of(usage, l->task) == 0) {
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
        /* Where weights move, a copy that was received for one use may end with it. */
        bool last = car_usage_ends_weights(usage, task, b);
        use_weights(l, b, b == task->stage ? task->version : task->tied_version, last ? CAR_USE_WRITE : CAR_USE_READ,
                    last);
        if (last && b == task->stage && usage->moves && usage->holdings[b].owned) {
            use_source(l, b, task->version, CAR_USE_WRITE); /* the next version is made from it first */
        }
        if (backward) {
            add_gradients(l, b);
        }
    }
    if (backward && car_usage_finishes(usage, task) && car_usage_adds_ties_early(usage)) {
        use_ties(l, task->stage);
    }
}

static void list_update(listing *l) {
    const car_usage *usage = l->usage;
    const car_task *task = l->task;
    bool passes = usage->moves && !car_plan_has_chains(usage->plan);
    use_sum(l, task->bundle, car_usage_reads_sum(usage, task) ? CAR_USE_READ : CAR_USE_WRITE);
    if (!car_usage_adds_ties_early(usage)) {
        use_ties(l, task->bundle);
    }
    if (passes) {
        use_source(l, task->bundle, task->version - 1, CAR_USE_READ);
        use_source(l, task->bundle, task->version, CAR_USE_WRITE);
    }
    bool last = car_usage_ends_weights(usage, task, task->bundle);
    if (!passes || last) {
        use_weights(l, task->bundle, task->version - 1, usage->moves ? CAR_USE_WRITE : CAR_USE_READ, last);
    }
    for (int b = car_bundle_of_home(usage->plan->partition, task->bundle, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(usage->plan->partition, task->bundle, b)) {
        bool made_too = usage->holdings[b].owned;
        if (made_too && b != task->bundle && !passes) {
            use_weights(l, b, task->version - 1, CAR_USE_READ, car_usage_ends_weights(usage, task, b));
        }
        if (b == task->bundle || made_too) {
            use_weights(l, b, task->version, CAR_USE_WRITE, false);
        }
    }
}

/* A message with weights. A copy may be sent on while its user still reads it; the only copy (--zero-copies 1) may
 * not. */
static void move_weights(listing *l, bool sends) {
    const car_task *task = l->task;
    bool chains = car_plan_has_chains(l->usage->plan), last = car_usage_ends_weights(l->usage, task, task->bundle);
    use_weights(l, task->bundle, task->version, !sends || (last && !chains) ? CAR_USE_WRITE : CAR_USE_READ, last);
    if (!sends && !chains) {
        use_source(l, task->bundle, task->version, CAR_USE_WRITE);
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
        use_tape(l);
        break;
    case CAR_CARGO_WEIGHTS:
    case CAR_CARGO_BACKWARD_WEIGHTS:
        move_weights(l, sends);
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
        use_weights(&l, task->bundle, task->version, usage->holdings[task->bundle].owned ? CAR_USE_READ : CAR_USE_WRITE,
                    car_usage_ends_weights(usage, task, task->bundle));
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
