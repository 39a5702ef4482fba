/* The validator: what a task touches, derived from what an executor does with it. usage.c says the same for the
 * edges and is not used here. Besides the order, this follows what each place contains: the version in a place of
 * weights, the micro-batch on a tape. */
#include "plan/validate_touch.h"

#include <string.h>

enum { EMPTY = CAR_TOUCH_EMPTY, UNKNOWN = CAR_TOUCH_UNKNOWN, CAME = -5 };

typedef enum thing_kind {
    WEIGHTS = 1, /* bundle, place; zero's chains: places 0 and 1 are the owner's kept versions, 2 and 3 the copies */
    STOCK,       /* zero's owner: the version from which the next is made; it may be sent on before */
    SUM,         /* bundle and piece, step */
    OWN,         /* the same for a gradient that waits for the sum it is added to */
    TAPE,        /* number of the tape */
    CHANNEL,     /* device, tag */
    OPTIMIZER,   /* the bundle's optimizer state */
    FORWARDS     /* step and round: dp in one process starts no backward before all forwards are done */
} thing_kind;

typedef car_touch_thing thing;
typedef car_touch_mode touch_mode;
typedef car_toucher checker;

/* ---- order --------------------------------------------------------------------------------------- */

static car_status touch_thing(checker *c, thing_kind kind, int64_t a, int64_t b, touch_mode mode) {
    thing *t = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_touch_find(c, kind, a, b, &t));
    CAR_TRY(car_touch_order(c, t, mode));
done:
    return status;
}

/* ---- weights ------------------------------------------------------------------------------------ */

static bool has_bytes(const car_validation *v, int bundle) {
    return v->partition->bundles[bundle].bytes > 0;
}

/* zero's chains: the place of the weights that a task uses, sends or brings. */
static car_status find_copy(checker *c, int bundle, int64_t version, thing **out) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int home = v->partition->bundles[bundle].home;
    bool backward = task->kind == CAR_TASK_BACKWARD || task->cargo == CAR_CARGO_BACKWARD_WEIGHTS, kept = false;
    if (v->custom && task->kind != CAR_TASK_RECEIVE) { /* the received copy, if there is one */
        car_status status = car_touch_find(c, WEIGHTS, bundle, 2 + backward, out);
        kept = status == CAR_OK && (*out)->content != version;
    } else if (car_task_computes(task)) {
        kept = car_validate_uses_kept(v, task->step * v->batches + task->micro_batch, version, home);
    } else if (task->kind == CAR_TASK_SEND) {
        int64_t n = car_validate_weights_user(v, task);
        kept = n == car_validate_first_user(v, version, home) || car_validate_uses_kept(v, n - 1, version, home);
    }
    return kept || task->kind == CAR_TASK_UPDATE ? car_touch_find(c, WEIGHTS, home, version % 2, out)
                                                 : car_touch_find(c, WEIGHTS, bundle, 2 + backward, out);
}

static car_status find_place(checker *c, int bundle, int64_t version, thing **out) {
    if (c->v->chains && c->task) {
        return find_copy(c, bundle, version, out);
    }
    int block = car_usage_holding(c->usage, bundle)->block, places = car_usage_holding(c->usage, block)->places;
    return car_touch_find(c, WEIGHTS, block, car_holding_place(places, version), out);
}

/* Fills in what a rank begins with: theta_0, and after a drain the version before it if there are two places. */
static car_status fill_places(checker *c) {
    const car_validation *v = c->v;
    thing *t = NULL;
    car_status status = CAR_OK;
    for (int b = 0; c->from_start && b < v->bundles; b++) {
        const car_holding *h = car_usage_holding(c->usage, b);
        if (h->block == b && (h->places > 0 || h->owned)) {
            CAR_TRY(find_place(c, b, 0, &t));
            t->content = 0;
        }
        if (h->block == b && h->places == 2 && c->goes_on) {
            CAR_TRY(find_place(c, b, CAR_VERSION_BEFORE, &t));
            t->content = CAR_VERSION_BEFORE;
        }
    }
done:
    return status;
}

static bool ends_weights(const checker *c, int bundle, int64_t version) {
    return car_validate_ends(c->v, c->v->sequence[c->place], CAR_RESOURCE_WEIGHTS, bundle, version);
}

/* Uses a version, which must be what its place contains. A rank with one place keeps the version before a drain
 * separately. */
static car_status use_weights(checker *c, int bundle, int64_t version, touch_mode mode) {
    thing *t = NULL;
    car_status status = CAR_OK;
    int block = car_usage_holding(c->usage, bundle)->block;
    if (version == CAR_VERSION_BEFORE && car_usage_holding(c->usage, block)->places < 2) {
        return CAR_OK;
    }
    CAR_TRY(find_place(c, bundle, version, &t));
    if (t->content != version && t->content != UNKNOWN) {
        CAR_TRY(car_validate_fail(c->v, c->v->sequence[c->place], "the place of version %lld of bundle %d holds %s",
                                  (long long)version, bundle, t->content < 0 ? "nothing" : "another version"));
    }
    CAR_TRY(car_touch_order(c, t, mode));
    if (mode == CAR_TOUCH_WRITE || (c->v->chains && c->v->custom && ends_weights(c, bundle, version))) {
        t->content = EMPTY;
    }
done:
    return status;
}

static car_status make_weights(checker *c, int bundle, int64_t version) {
    thing *t = NULL;
    car_status status = CAR_OK;
    CAR_TRY(find_place(c, bundle, version, &t));
    CAR_TRY(car_touch_order(c, t, CAR_TOUCH_WRITE));
    t->content = version;
done:
    return status;
}

/* ---- sums --------------------------------------------------------------------------------------- */

static car_status touch_piece(checker *c, thing_kind part, int bundle, int piece, touch_mode mode) {
    return touch_thing(c, part, (int64_t)piece * c->v->bundles + bundle, c->task->step, mode);
}

/* All pieces of a sum, or of a gradient. */
static car_status touch_part(checker *c, thing_kind part, int bundle, touch_mode mode) {
    int pieces = car_validate_pieces(c->v, bundle);
    car_status status = CAR_OK;
    for (int piece = 0; piece < pieces && status == CAR_OK; piece++) {
        status = touch_piece(c, part, bundle, piece, mode);
    }
    return status;
}

/* By worker, each worker has its own sum, which others touch only after it has joined the sum over all. Nothing is
 * cut into pieces then. */
static car_status touch_own(checker *c, int bundle, touch_mode mode) {
    const car_validation *v = c->v;
    int worker = c->task->micro_batch == CAR_NONE ? v->workers - 1 : c->task->micro_batch % v->workers;
    return v->by_worker ? touch_thing(c, OWN, bundle, c->task->step * v->workers + worker, mode)
                        : touch_part(c, OWN, bundle, mode);
}

/* Sum and own gradient together: everything added so far. */
static car_status touch_sum(checker *c, int bundle, touch_mode mode) {
    car_status status = touch_part(c, SUM, bundle, mode);
    return status == CAR_OK ? touch_own(c, bundle, mode) : status;
}

/* A message carries one piece. A receive touches no worker's own gradient. */
static car_status touch_carried(checker *c, touch_mode mode) {
    const car_task *task = c->task;
    car_status status = touch_piece(c, SUM, task->bundle, task->piece, mode);
    if (status != CAR_OK || task->kind != CAR_TASK_SEND) {
        return status;
    }
    return c->v->by_worker ? touch_own(c, task->bundle, mode) : touch_piece(c, OWN, task->bundle, task->piece, mode);
}

static car_status touch_ties(checker *c, int home) {
    const car_validation *v = c->v;
    car_status status = CAR_OK;
    for (int b = v->stages; b < v->bundles; b++) {
        if (v->partition->bundles[b].home == home && has_bytes(v, b)) {
            CAR_TRY(touch_sum(c, b, CAR_TOUCH_WRITE));
        }
    }
done:
    return status;
}

/* If the sum arrives in a message, a backward keeps its gradient separate until then. In a custom plan that is the
 * first backward after the message, which leaves a mark in its first piece. */
static car_status find_late(checker *c, int bundle, bool *late) {
    const car_task *task = c->task;
    thing *t = NULL;
    car_status status = CAR_OK;
    if (c->v->custom && !c->v->by_worker) {
        CAR_TRY(car_touch_find(c, SUM, bundle, task->step, &t));
        *late = t->content == CAME;
        t->content = EMPTY;
    } else {
        *late = c->ring && task->micro_batch > 0 &&
                c->v->rank_of[car_validate_device(c->v, task->step, task->micro_batch - 1, task->stage)] != c->rank;
    }
done:
    return status;
}

static car_status mark_arrival(checker *c) {
    thing *t = NULL;
    car_status status = car_touch_find(c, SUM, c->task->bundle, c->task->step, &t);
    if (status == CAR_OK && c->task->piece == 0) {
        t->content = c->task->cargo == CAR_CARGO_PARTIAL ? CAME : EMPTY;
    }
    return status;
}

/* By worker: worker 0 begins the sum over all workers and adds all its gradients to it. The others have their own
 * sum until their last micro-batch, which joins the two. */
static car_status add_by_worker(checker *c, int bundle) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    bool first = task->micro_batch % v->workers == 0, joins = !first && task->micro_batch >= v->batches - v->workers,
         late = false;
    car_status status = CAR_OK;
    CAR_TRY(find_late(c, bundle, &late));
    if (!first) {
        CAR_TRY(touch_own(c, bundle, CAR_TOUCH_WRITE));
    }
    if (first || (joins && !late)) {
        CAR_TRY(touch_thing(c, SUM, bundle, task->step, CAR_TOUCH_WRITE));
    }
done:
    return status;
}

static car_status add_gradients(checker *c, int bundle) {
    const car_validation *v = c->v;
    /* dp in one process keeps each worker's gradients separate. */
    bool apart = v->config.rule == CAR_RULE_DP && v->config.placement == CAR_PLACEMENT_SHARED, late = false;
    car_status status = CAR_OK;
    if (v->by_worker && c->ring && !apart) {
        return add_by_worker(c, bundle);
    }
    CAR_TRY(find_late(c, bundle, &late));
    status = late ? touch_part(c, OWN, bundle, CAR_TOUCH_WRITE)
                  : touch_sum(c, bundle, apart ? CAR_TOUCH_READ : CAR_TOUCH_WRITE);
done:
    return status;
}

/* ---- tapes -------------------------------------------------------------------------------------- */

static bool begins_here(const checker *c) {
    const car_task *task = c->task;
    bool arrives = task->kind == CAR_TASK_RECEIVE && task->cargo == CAR_CARGO_ACTIVATION;
    return arrives || (task->kind == CAR_TASK_FORWARD && task->stage == 0);
}

/* A tape has one micro-batch at a time: the content is its number, and EMPTY after its last use. */
static car_status touch_tape(checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int64_t n = task->step * v->batches + task->micro_batch;
    thing *t = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_touch_find(c, TAPE, car_usage_tape_of(c->usage, task), 0, &t));
    bool known = t->content != UNKNOWN;
    if (begins_here(c) && known && t->content >= 0) {
        CAR_TRY(car_validate_fail(v, v->sequence[c->place],
                                  "it begins on a tape that still holds micro-batch %d of step %lld",
                                  (int)(t->content % v->batches), (long long)(t->content / v->batches)));
    }
    if (!begins_here(c) && known && t->content != n) {
        CAR_TRY(car_validate_fail(v, v->sequence[c->place], "its micro-batch is not on its tape"));
    }
    CAR_TRY(car_touch_order(c, t, CAR_TOUCH_WRITE));
    bool last = car_validate_ends(v, v->sequence[c->place], CAR_RESOURCE_TAPE, CAR_NONE, 0);
    t->content = last ? EMPTY : begins_here(c) || known ? n : UNKNOWN;
done:
    return status;
}

/* ---- tasks -------------------------------------------------------------------------------------- */

static car_status touch_bundle(checker *c, int b) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    car_status status = CAR_OK;
    int64_t version = b < v->stages ? task->version : task->tied_version;
    bool ends = !v->chains && ends_weights(c, b, version);
    CAR_TRY(use_weights(c, b, version, ends ? CAR_TOUCH_WRITE : CAR_TOUCH_READ));
    if (ends && v->passes && b < v->stages && car_usage_holding(c->usage, b)->owned) {
        CAR_TRY(touch_thing(c, STOCK, b, version % 2, CAR_TOUCH_WRITE)); /* the next version was made from it first */
    }
    if (task->kind == CAR_TASK_BACKWARD) {
        CAR_TRY(add_gradients(c, b));
    }
done:
    return status;
}

static car_status touch_compute(checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    bool backward = task->kind == CAR_TASK_BACKWARD;
    bool gate = v->config.rule == CAR_RULE_DP && v->config.placement == CAR_PLACEMENT_SHARED;
    car_status status = CAR_OK;
    CAR_TRY(touch_tape(c));
    if (gate && task->stage == v->stages - 1) {
        CAR_TRY(touch_thing(c, FORWARDS, 0, (task->step * v->batches + task->micro_batch) / v->workers,
                            backward ? CAR_TOUCH_FOLLOW : CAR_TOUCH_READ));
    }
    for (int b = car_bundle_of_stage(v->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(v->partition, task->stage, b)) {
        CAR_TRY(touch_bundle(c, b));
    }
    bool last = v->custom ? v->finishing[v->sequence[c->place]] : task->micro_batch == v->batches - 1;
    if (backward && last && car_validate_carries_ties(v)) {
        CAR_TRY(touch_ties(c, task->stage));
    }
done:
    return status;
}

static car_status touch_update(checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int b = task->bundle;
    bool moves = c->moves && v->passes, passes = moves && !v->chains;
    car_status status = CAR_OK;
    CAR_TRY(touch_thing(c, OPTIMIZER, b, 0, CAR_TOUCH_WRITE));
    CAR_TRY(touch_sum(c, b, car_validate_carries_ties(v) ? CAR_TOUCH_READ : CAR_TOUCH_WRITE));
    if (!car_validate_carries_ties(v)) {
        CAR_TRY(touch_ties(c, b));
    }
    if (passes) {
        CAR_TRY(touch_thing(c, STOCK, b, (task->version - 1) % 2, CAR_TOUCH_READ));
        CAR_TRY(touch_thing(c, STOCK, b, task->version % 2, CAR_TOUCH_WRITE));
    }
    if (!passes || ends_weights(c, b, task->version - 1)) {
        CAR_TRY(use_weights(c, b, task->version - 1, moves ? CAR_TOUCH_WRITE : CAR_TOUCH_READ));
    }
    CAR_TRY(make_weights(c, b, task->version));
    for (int tied = v->stages; c->moves && !v->chains && tied < v->bundles; tied++) {
        if (v->partition->bundles[tied].home == b && has_bytes(v, tied)) {
            CAR_TRY(make_weights(c, tied, task->version));
        }
    }
done:
    return status;
}

/* zero's chains: true if the next user gets the copy that a message brings. */
static bool is_passed_on(const checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int64_t n = car_validate_weights_user(v, task);
    return n != car_validate_last_user(v, task->version, v->partition->bundles[task->bundle].home) &&
           n + 1 < v->steps * v->batches;
}

/* The same for a custom plan: the copy is sent before another of its kind arrives. */
static bool is_sent_on(const checker *c) {
    const car_validation *v = c->v;
    for (int place = c->place + 1; place < v->rank_first[c->rank + 1]; place++) {
        const car_task *later = &v->tasks[v->sequence[place]];
        if (later->cargo == c->task->cargo && later->bundle == c->task->bundle &&
            (later->kind == CAR_TASK_RECEIVE || later->version == c->task->version)) {
            return later->kind == CAR_TASK_SEND;
        }
    }
    return false;
}

/* An executor drops a copy after the number of reads that this implies. */
static car_status check_reads(const checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    bool passes = v->custom ? is_sent_on(c) : is_passed_on(c);
    bool said = car_usage_passing(c->usage, task, task->bundle) != CAR_PASSING_NOT;
    return said == passes ? CAR_OK
                          : car_validate_fail(v, v->sequence[c->place], "it is%s passed on", passes ? "" : " not");
}

static car_status touch_moved(checker *c) {
    const car_task *task = c->task;
    car_status status = CAR_OK;
    if (c->v->chains) {
        CAR_TRY(task->kind == CAR_TASK_RECEIVE ? check_reads(c) : CAR_OK);
        return task->kind == CAR_TASK_SEND ? use_weights(c, task->bundle, task->version, CAR_TOUCH_READ)
                                           : make_weights(c, task->bundle, task->version);
    }
    if (task->kind == CAR_TASK_SEND) {
        return use_weights(c, task->bundle, task->version,
                           ends_weights(c, task->bundle, task->version) ? CAR_TOUCH_WRITE : CAR_TOUCH_READ);
    }
    CAR_TRY(make_weights(c, task->bundle, task->version));
    if (c->moves) {
        CAR_TRY(touch_thing(c, STOCK, task->bundle, task->version % 2, CAR_TOUCH_WRITE));
    }
done:
    return status;
}

static car_status touch_message(checker *c) {
    const car_task *task = c->task;
    bool sends = task->kind == CAR_TASK_SEND;
    car_status status = CAR_OK;
    if (sends) {
        CAR_TRY(touch_thing(c, CHANNEL, task->peer, task->tag, CAR_TOUCH_WRITE));
    }
    switch (task->cargo) {
    case CAR_CARGO_ACTIVATION:
    case CAR_CARGO_GRADIENT:
        return touch_tape(c);
    case CAR_CARGO_WEIGHTS:
    case CAR_CARGO_BACKWARD_WEIGHTS:
        return touch_moved(c);
    default:
        CAR_TRY(sends ? CAR_OK : mark_arrival(c));
        /* A finished sum is read by those who pass it on and by updates, in any order. */
        return touch_carried(c, sends && task->cargo == CAR_CARGO_FINISHED ? CAR_TOUCH_READ : CAR_TOUCH_WRITE);
    }
done:
    return status;
}

car_status car_touch_all(checker *c) {
    const car_task *task = c->task;
    bool owned = task->kind == CAR_TASK_BROADCAST && car_usage_holding(c->usage, task->bundle)->owned;
    switch (task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        return touch_compute(c);
    case CAR_TASK_UPDATE:
        return touch_update(c);
    case CAR_TASK_REDUCE:
        return touch_sum(c, task->bundle, CAR_TOUCH_WRITE);
    case CAR_TASK_BROADCAST:
        return owned ? use_weights(c, task->bundle, task->version, CAR_TOUCH_READ)
                     : make_weights(c, task->bundle, task->version);
    default:
        return touch_message(c);
    }
}

car_status car_touch_end(checker *c) {
    for (size_t t = 0; c->from_start && t < c->capacity; t++) {
        const thing *tape = &c->things[t];
        if (tape->key >> 60 == TAPE && tape->content >= 0) {
            return car_validate_fail(c->v, c->v->sequence[c->marks[tape->current].place],
                                     "its activations are never freed");
        }
    }
    return CAR_OK;
}

car_status car_touch_begin(checker *c) {
    if (c->things) {
        memset(c->things, 0, c->capacity * sizeof *c->things);
    }
    c->used = 0;
    c->mark_count = 0;
    c->task = NULL;
    return fill_places(c);
}
