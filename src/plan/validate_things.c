/* The validator: the table of things that a rank's tasks touch. For each thing it checks that edges order the tasks
 * that must not touch it at the same time. validate_touch.c says what each task touches. */
#include "plan/validate_touch.h"

enum { NOBODY = -1 };

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

car_status car_touch_find(checker *c, int kind, int64_t a, int64_t b, thing **out) {
    uint64_t key = (uint64_t)kind << 60 | (uint64_t)(a & 0xfffffff) << 32 | (uint64_t)(b & 0xffffffff);
    car_status status = make_room(c);
    if (status != CAR_OK) {
        return status;
    }
    *out = slot_of(c->things, c->capacity, key);
    if (!(*out)->key) {
        **out = (thing){.key = key, .current = NOBODY, .before = NOBODY};
        (*out)->content = c->from_start ? CAR_TOUCH_EMPTY : CAR_TOUCH_UNKNOWN;
        c->used++;
    }
    return CAR_OK;
}

/* ---- order -------------------------------------------------------------------------------------- */

/* True if edges put the current task after another one. Nearly always a direct edge does, which `seen` tells. */
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
                                     "race: no edge makes it wait for %s of slot %lld, which uses the same resource",
                                     text, (long long)v->tasks[v->sequence[other]].slot);
        }
    }
    return CAR_OK;
}

car_status car_touch_order(checker *c, thing *t, touch_mode mode) {
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
