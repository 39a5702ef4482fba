/* What a task reads and writes on its rank.
 *
 * Two tasks of which one writes what the other touches keep the plan's order; all others may run in any. So a rank
 * goes on with what it can while a message is late, and several threads share the work of one rank, without a second
 * description of the schedule. */
#include "engine/rank_internal.h"

typedef enum car_thing {
    THING_WEIGHTS = 1, /* a bundle, the place of a version */
    THING_SOURCE,      /* the same for an update that makes the next version of it: it may be sent on before */
    THING_SUM,         /* a bundle, a step */
    THING_OWN,         /* the same: the gradient of the worker that adds to it next */
    THING_TAPE,
    THING_WAY /* messages of one tag to one rank stay in order */
} car_thing;

static uint64_t name(car_thing kind, int64_t a, int64_t b) {
    return (uint64_t)kind << 60 | (uint64_t)(a & 0xfffffff) << 32 | (uint64_t)(b & 0xffffffff);
}

/* Those beyond the room for them are only counted. */
static void add(car_entry *entry, car_thing kind, int64_t a, int64_t b, bool writes) {
    if (entry->access_count < CAR_MAX_ACCESSES) {
        entry->access[entry->access_count] = (car_access){name(kind, a, b), writes};
    }
    entry->access_count++;
}

int car_rank_tape_of(const car_rank *rank, const car_task *task) {
    int64_t n = task->step * rank->workers + task->worker;
    switch (rank->placement) {
    case CAR_PLACEMENT_PIPELINE:
        return (int)(n % rank->tape_count);
    case CAR_PLACEMENT_GRID:
        return 0;
    default:
        return task->worker;
    }
}

static void touch_weights(const car_rank *rank, car_entry *entry, int bundle, int64_t version, bool writes) {
    int place = car_rank_weights_place(rank, bundle);
    int places = rank->holding[place].places;
    add(entry, THING_WEIGHTS, place, version % (places > 0 ? places : 2), writes);
}

/* The sum as all before this task have left it: what came, and what was added to it. */
static void touch_sum(car_entry *entry, int bundle, int64_t step, bool writes) {
    add(entry, THING_SUM, bundle, step, writes);
    add(entry, THING_OWN, bundle, step, writes);
}

bool car_rank_reads_sum(const car_entry *entry, int bundle, int64_t step) {
    for (int a = 0; a < entry->access_count; a++) {
        if (!entry->access[a].writes && entry->access[a].thing == name(THING_SUM, bundle, step)) {
            return true;
        }
    }
    return false;
}

static void touch_ties(const car_rank *rank, car_entry *entry, int home) {
    for (int b = rank->stages; b < rank->bundles; b++) {
        if (rank->partition->bundles[b].home == home) {
            touch_sum(entry, b, entry->task.step, true);
        }
    }
}

static void list_compute(const car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    bool backward = task->kind == CAR_TASK_BACKWARD;
    add(entry, THING_TAPE, car_rank_tape_of(rank, task), 0, true);
    for (int b = task->stage; b < rank->bundles; b = b < rank->stages ? rank->stages : b + 1) {
        if (rank->partition->bundles[b].stage != task->stage || rank->partition->bundles[b].bytes == 0) {
            continue;
        }
        /* Under zero what came for one use may go with it. */
        bool frees = task->frees & CAR_FREES_WEIGHTS;
        touch_weights(rank, entry, b, b < rank->stages ? task->version : task->tied_version, frees);
        if (backward && car_rank_adds_late(rank, task)) {
            add(entry, THING_OWN, b, task->step, true);
        } else if (backward) {
            touch_sum(entry, b, task->step, true);
        }
    }
    if (backward && task->worker == rank->workers - 1) {
        touch_ties(rank, entry, task->stage);
    }
}

static void list_update(const car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    touch_sum(entry, task->bundle, task->step, !car_rank_adds_ties_early(rank));
    touch_ties(rank, entry, task->bundle);
    bool passes = rank->placement == CAR_PLACEMENT_ZERO && rank->cyclic;
    if (passes) {
        add(entry, THING_SOURCE, task->bundle, (task->version - 1) % 2, false);
        add(entry, THING_SOURCE, task->bundle, task->version % 2, true);
    }
    if (!passes || (task->frees & CAR_FREES_WEIGHTS)) {
        touch_weights(rank, entry, task->bundle, task->version - 1, passes);
    }
    for (int b = task->bundle; b < rank->bundles; b = b < rank->stages ? rank->stages : b + 1) {
        if (b == task->bundle || (rank->holding[b].owned && rank->partition->bundles[b].home == task->bundle)) {
            touch_weights(rank, entry, b, task->version, true);
        }
    }
}

static void list_message(const car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    bool sends = task->kind == CAR_TASK_SEND;
    if (sends) {
        add(entry, THING_WAY, task->peer, task->tag, true);
    }
    switch (task->cargo) {
    case CAR_CARGO_ACTIVATION:
    case CAR_CARGO_GRADIENT:
        add(entry, THING_TAPE, car_rank_tape_of(rank, task), 0, true);
        break;
    case CAR_CARGO_WEIGHTS:
        touch_weights(rank, entry, task->bundle, task->version, !sends || (task->frees & CAR_FREES_WEIGHTS));
        if (!sends) {
            add(entry, THING_SOURCE, task->bundle, task->version % 2, true);
        }
        break;
    default:
        if (sends) { /* a finished sum is only read, so that it may go on before the update or after it */
            touch_sum(entry, task->bundle, task->step, task->cargo == CAR_CARGO_PARTIAL);
        } else {
            add(entry, THING_SUM, task->bundle, task->step, true);
        }
    }
}

car_status car_rank_list_accesses(const car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    entry->access_count = 0;
    switch (task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        list_compute(rank, entry);
        break;
    case CAR_TASK_UPDATE:
        list_update(rank, entry);
        break;
    case CAR_TASK_REDUCE:
        touch_sum(entry, task->bundle, task->step, true);
        break;
    case CAR_TASK_BROADCAST:
        touch_weights(rank, entry, task->bundle, task->version, !rank->holding[task->bundle].owned);
        break;
    default:
        list_message(rank, entry);
    }
    if (entry->access_count > CAR_MAX_ACCESSES) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL,
                                "a task of stage %d touches %d things, and there is room for %d", task->stage,
                                entry->access_count, CAR_MAX_ACCESSES);
    }
    return CAR_OK;
}
