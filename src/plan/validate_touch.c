/* The validator: what a task touches, and in which order. Derived from what an executor does with it, not from usage.c,
 * which says it once more for the edges. Besides the order, the replay follows what lies in each place: the version in a place
 * of weights, the micro-batch on a tape. */
#include "plan/validate_touch.h"

#include <string.h>

enum { NOBODY = -1, UNKNOWN = -4, EMPTY = -3 };

typedef enum thing_kind {
    WEIGHTS = 1, /* bundle, place; of zero's chains: what an owner keeps in 0 and 1, copies in 2 and 3 */
    STOCK,       /* zero's owner: the version that the next is made of; it may be sent on before */
    SUM,         /* bundle and piece, step */
    OWN,         /* the same of a gradient that waits for the sum it is added to */
    TAPE,        /* number of the tape */
    CHANNEL,     /* device, tag */
    OPTIMIZER,   /* bundle: its state */
    FORWARDS     /* step and round: dp in one process begins no backward before all forwards are done */
} thing_kind;

typedef car_touch_thing thing;
typedef car_touch_mark mark;
typedef car_touch_mode touch_mode;
typedef car_toucher checker;

/* ---- things ------------------------------------------------------------------------------------- */

static thing *slot_of(thing *things, size_t capacity, uint64_t key) {
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (capacity - 1);
    while (things[at].key && things[at].key != key) {
        at = (at + 1) & (capacity - 1);
    }
    return &things[at];
}

static car_status make_room(checker *c) {
    size_t capacity = c->capacity ? 2 * c->capacity : 1024;
    thing *things = NULL;
    car_status status = CAR_OK;
    if (c->things && 2 * (c->used + 1) <= c->capacity) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(c->v->context, capacity, sizeof *things, &things));
    for (size_t t = 0; c->things && t < c->capacity; t++) {
        if (c->things[t].key) {
            *slot_of(things, capacity, c->things[t].key) = c->things[t];
        }
    }
    car_context_release(c->v->context, c->things, c->capacity, sizeof *things);
    c->things = things;
    c->capacity = capacity;
done:
    return status;
}

static car_status find(checker *c, thing_kind kind, int64_t a, int64_t b, thing **out) {
    uint64_t key = (uint64_t)kind << 60 | (uint64_t)(a & 0xfffffff) << 32 | (uint64_t)(b & 0xffffffff);
    car_status status = make_room(c);
    if (status != CAR_OK) {
        return status;
    }
    *out = slot_of(c->things, c->capacity, key);
    if (!(*out)->key) {
        **out = (thing){.key = key, .current = NOBODY, .before = NOBODY};
        (*out)->content = c->from_start ? EMPTY : UNKNOWN;
        c->used++;
    }
    return CAR_OK;
}

/* ---- order -------------------------------------------------------------------------------------- */

/* Whether a task comes after another by edges. Nearly always one of its own says so, which `seen` knows. */
static bool comes_after(checker *c, int other) {
    const car_validation *v = c->v;
    int count = 0;
    if (c->seen[other] == c->stamp) {
        return true;
    }
    c->query++;
    c->stack[count++] = c->place;
    while (count > 0) {
        int place = c->stack[--count];
        for (int e = v->edge_first[place]; e < v->edge_first[place + 1]; e++) {
            int earlier = v->edges[e];
            if (earlier == other) {
                return true;
            }
            if (earlier > other && c->visited[earlier] != c->query) {
                c->visited[earlier] = c->query;
                c->stack[count++] = earlier;
            }
        }
    }
    return false;
}

static car_status check_after(checker *c, int first) {
    const car_validation *v = c->v;
    for (int m = first; m != NOBODY; m = c->marks[m].next) {
        int other = c->marks[m].place;
        if (other != c->place && !comes_after(c, other)) {
            char text[192];
            car_task_format(v->plan, &v->tasks[v->sequence[other]], text, sizeof text);
            return car_validate_fail(v, v->sequence[c->place],
                                     "a race: no edge makes it wait for %s of slot %lld, which touches the same thing",
                                     text, (long long)v->tasks[v->sequence[other]].slot);
        }
    }
    return CAR_OK;
}

static car_status touch(checker *c, thing *t, touch_mode mode) {
    car_status status = CAR_OK;
    bool alone = t->current != NOBODY && c->marks[t->current].place == c->place && c->marks[t->current].next == NOBODY;
    if (t->current != NOBODY && (mode != t->mode || mode == CAR_TOUCH_WRITE) && !alone) {
        t->before = t->current;
        t->current = NOBODY;
    }
    CAR_TRY(check_after(c, t->before));
    if (!alone) {
        CAR_TRY(car_context_grow(c->v->context, &c->marks, &c->mark_capacity, c->mark_count + 1, sizeof *c->marks));
        c->marks[c->mark_count] = (mark){c->place, t->current};
        t->current = c->mark_count++;
    }
    t->mode = alone && t->mode == CAR_TOUCH_WRITE ? CAR_TOUCH_WRITE : mode;
done:
    return status;
}

static car_status touch_thing(checker *c, thing_kind kind, int64_t a, int64_t b, touch_mode mode) {
    thing *t = NULL;
    car_status status = CAR_OK;
    CAR_TRY(find(c, kind, a, b, &t));
    CAR_TRY(touch(c, t, mode));
done:
    return status;
}

/* ---- weights ------------------------------------------------------------------------------------ */

static bool has_bytes(const car_validation *v, int bundle) {
    return v->partition->bundles[bundle].bytes > 0;
}

/* zero's chains: where the weights are that a task uses, sends or brings. */
static car_status find_copy(checker *c, int bundle, int64_t version, thing **out) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int home = v->partition->bundles[bundle].home;
    bool backward = task->kind == CAR_TASK_BACKWARD || task->cargo == CAR_CARGO_BACKWARD_WEIGHTS, kept = false;
    if (car_task_computes(task)) {
        kept = car_validate_uses_kept(v, task->step * v->workers + task->worker, version, home);
    } else if (task->kind == CAR_TASK_SEND) {
        int64_t n = car_validate_weights_user(v, task);
        kept = n == car_validate_first_user(v, version, home) || car_validate_uses_kept(v, n - 1, version, home);
    }
    return kept || task->kind == CAR_TASK_UPDATE ? find(c, WEIGHTS, home, version % 2, out)
                                                 : find(c, WEIGHTS, bundle, 2 + backward, out);
}

static car_status find_place(checker *c, int bundle, int64_t version, thing **out) {
    if (c->v->chains && c->task) {
        return find_copy(c, bundle, version, out);
    }
    int block = car_usage_holding(c->usage, bundle)->block, places = car_usage_holding(c->usage, block)->places;
    return find(c, WEIGHTS, block, car_holding_place(places, version), out);
}

/* What a rank begins with: theta_0, and after a drain the version before it where there are two places. */
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

/* A use of a version: it must be what lies in its place. With one place, the version before a drain is kept aside. */
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
    CAR_TRY(touch(c, t, mode));
    if (mode == CAR_TOUCH_WRITE) {
        t->content = EMPTY;
    }
done:
    return status;
}

static car_status make_weights(checker *c, int bundle, int64_t version) {
    thing *t = NULL;
    car_status status = CAR_OK;
    CAR_TRY(find_place(c, bundle, version, &t));
    CAR_TRY(touch(c, t, CAR_TOUCH_WRITE));
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

/* By worker each has a sum of its own, which others touch only when it has joined that over all. Then nothing is cut. */
static car_status touch_own(checker *c, int bundle, touch_mode mode) {
    const car_validation *v = c->v;
    int worker = c->task->worker == CAR_NONE ? v->workers - 1 : c->task->worker % v->workers;
    return v->by_worker ? touch_thing(c, OWN, bundle, c->task->step * v->workers + worker, mode)
                        : touch_part(c, OWN, bundle, mode);
}

/* Sum and gradient together: all that was added so far. */
static car_status touch_sum(checker *c, int bundle, touch_mode mode) {
    car_status status = touch_part(c, SUM, bundle, mode);
    return status == CAR_OK ? touch_own(c, bundle, mode) : status;
}

/* A message takes one piece of it. What arrives touches nobody's gradient. */
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

/* Where the sum comes by a message, a backward keeps its gradient apart until it is there. */
static bool is_late(const checker *c) {
    const car_task *task = c->task;
    return c->ring && !c->v->custom && task->worker > 0 &&
           c->v->rank_of[car_validate_device(c->v, task->step, task->worker - 1, task->stage)] != c->rank;
}

/* By worker: worker 0 begins the sum over all and adds all of its own to it. The others have one of their own until their last
 * micro-batch, which joins the two. */
static car_status add_by_worker(checker *c, int bundle) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    bool first = task->worker % v->workers == 0, joins = !first && task->worker >= v->batches - v->workers;
    car_status status = CAR_OK;
    if (!first) {
        CAR_TRY(touch_own(c, bundle, CAR_TOUCH_WRITE));
    }
    if (first || (joins && !is_late(c))) {
        CAR_TRY(touch_thing(c, SUM, bundle, task->step, CAR_TOUCH_WRITE));
    }
done:
    return status;
}

static car_status add_gradients(checker *c, int bundle) {
    const car_validation *v = c->v;
    /* dp in one process keeps each worker's apart. */
    bool apart = v->config.rule == CAR_RULE_DP && v->config.placement == CAR_PLACEMENT_SHARED;
    if (v->by_worker && c->ring && !apart) {
        return add_by_worker(c, bundle);
    }
    if (is_late(c)) {
        return touch_part(c, OWN, bundle, CAR_TOUCH_WRITE);
    }
    return touch_sum(c, bundle, apart ? CAR_TOUCH_READ : CAR_TOUCH_WRITE);
}

/* ---- tapes -------------------------------------------------------------------------------------- */

static bool begins_here(const checker *c) {
    const car_task *task = c->task;
    bool arrives = task->kind == CAR_TASK_RECEIVE && task->cargo == CAR_CARGO_ACTIVATION;
    return arrives || (task->kind == CAR_TASK_FORWARD && task->stage == 0);
}

/* One micro-batch after the other: content is its number, and nothing after its last use. */
static car_status touch_tape(checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int64_t n = task->step * v->batches + task->worker;
    thing *t = NULL;
    car_status status = CAR_OK;
    CAR_TRY(find(c, TAPE, car_usage_tape_of(c->usage, task), 0, &t));
    bool known = t->content != UNKNOWN;
    if (begins_here(c) && known && t->content >= 0) {
        CAR_TRY(car_validate_fail(v, v->sequence[c->place], "begins on a tape that holds worker %d's of step %lld",
                                  (int)(t->content % v->batches), (long long)(t->content / v->batches)));
    }
    if (!begins_here(c) && known && t->content != n) {
        CAR_TRY(car_validate_fail(v, v->sequence[c->place], "its micro-batch is not on its tape"));
    }
    CAR_TRY(touch(c, t, CAR_TOUCH_WRITE));
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
    if (ends && v->spaced && b < v->stages && car_usage_holding(c->usage, b)->owned) {
        CAR_TRY(touch_thing(c, STOCK, b, version % 2, CAR_TOUCH_WRITE)); /* the next was made of it before it goes */
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
        CAR_TRY(touch_thing(c, FORWARDS, 0, (task->step * v->batches + task->worker) / v->workers,
                            backward ? CAR_TOUCH_FOLLOW : CAR_TOUCH_READ));
    }
    for (int b = car_bundle_of_stage(v->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(v->partition, task->stage, b)) {
        CAR_TRY(touch_bundle(c, b));
    }
    if (backward && task->worker == v->batches - 1 && car_validate_carries_ties(v)) {
        CAR_TRY(touch_ties(c, task->stage));
    }
done:
    return status;
}

static car_status touch_update(checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int b = task->bundle;
    bool moves = c->moves && v->spaced, passes = moves && !v->chains;
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

/* An executor drops a copy after as many reads as this says. */
static car_status check_reads(const checker *c) {
    const car_validation *v = c->v;
    const car_task *task = c->task;
    int64_t n = car_validate_weights_user(v, task);
    bool last = n == car_validate_last_user(v, task->version, v->partition->bundles[task->bundle].home);
    bool passes = !last && n + 1 < v->steps * v->workers;
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
    default: /* a finished sum is read by those who pass it on and by those who make weights of it, in any order */
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
