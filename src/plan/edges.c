/* Edges: derives from the uses of tasks which tasks wait for which.
 *
 * The uses of a resource, in the plan's order, form rounds of uses that do not conflict: one writer, several
 * readers, or several followers. A task waits for every task of the previous round. It need not wait for older
 * rounds, because the previous round already did. */
#include <string.h>

#include "base/base.h"
#include "plan/usage.h"

enum { FIRST_CAPACITY = 16 }; /* all capacities in this file are powers of two */

/* Tasks whose uses do not conflict. Most rounds have one task, which is stored without an allocation. */
typedef struct round {
    int count, capacity; /* capacity 0: holds at most one task, in of.one */
    union {
        int64_t one;
        int64_t *many;
    } of;
} round;

/* The last two rounds of a resource. */
typedef struct record {
    uint64_t resource; /* 0: this entry is free */
    car_use_mode mode; /* of the current round */
    round before, current;
} record;

struct car_edges {
    car_context *context;
    int64_t added, below; /* `added` counts all tasks; those below `below` are over */
    record *records;      /* a hash table with open addressing */
    int64_t capacity, used;
    /* By task number mod seen_capacity: the last task that was found to wait for it, so that each is listed once. */
    int64_t *seen;
    int64_t seen_capacity;
    int64_t *before;
    int before_count, before_capacity;
};

car_status car_edges_create(car_context *context, car_edges **out) {
    car_status status = car_context_allocate(context, 1, sizeof **out, out);
    if (status == CAR_OK) {
        (*out)->context = context;
    }
    return status;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static const int64_t *tasks_of(const round *r) {
    return r->capacity > 0 ? r->of.many : &r->of.one;
}

static void release_round(car_edges *edges, round *r) {
    if (r->capacity > 0) {
        car_context_release(edges->context, r->of.many, (size_t)r->capacity, sizeof(int64_t));
    }
    *r = (round){0};
}

static car_status add_to_round(car_edges *edges, round *r, int64_t task) {
    int64_t *many = r->capacity > 0 ? r->of.many : NULL, first = *tasks_of(r);
    int capacity = r->capacity;
    car_status status = CAR_OK;
    if (r->count == 0 && capacity == 0) {
        r->of.one = task;
        r->count = 1;
        return CAR_OK;
    }
    CAR_TRY(car_context_grow(edges->context, &many, &capacity, r->count + 1, sizeof *many));
    if (r->capacity == 0) {
        many[0] = first;
    }
    many[r->count++] = task;
    r->of.many = many;
    r->capacity = capacity;
done:
    return status;
}

/* ---- clearing and destroying --------------------------------------------------------------------- */

static void release_records(car_edges *edges, record *records, int64_t capacity) {
    for (int64_t r = 0; r < capacity; r++) {
        release_round(edges, &records[r].before);
        release_round(edges, &records[r].current);
    }
    car_context_release(edges->context, records, (size_t)capacity, sizeof *records);
}

void car_edges_destroy(car_edges *edges) {
    if (edges) {
        release_records(edges, edges->records, edges->capacity);
        car_context_release(edges->context, edges->seen, (size_t)edges->seen_capacity, sizeof *edges->seen);
        car_context_release(edges->context, edges->before, (size_t)edges->before_capacity, sizeof *edges->before);
        car_context_release(edges->context, edges, 1, sizeof *edges);
    }
}

void car_edges_clear(car_edges *edges) {
    release_records(edges, edges->records, edges->capacity);
    edges->records = NULL;
    edges->capacity = edges->used = 0;
    edges->added = edges->below = 0;
    if (edges->seen) {
        memset(edges->seen, 0xff, (size_t)edges->seen_capacity * sizeof *edges->seen); /* numbers start again */
    }
}

/* ---- the table of resources ------------------------------------------------------------------ */

static record *find(record *records, int64_t capacity, uint64_t resource) {
    uint64_t mask = (uint64_t)capacity - 1, at = car_random_mix(resource) & mask;
    while (records[at].resource != 0 && records[at].resource != resource) {
        at = (at + 1) & mask;
    }
    return &records[at];
}

/* True if a task that is not over has used it. The last task of the current round is the newest. */
static bool is_alive(const car_edges *edges, const record *r) {
    return r->resource != 0 && r->current.count > 0 && tasks_of(&r->current)[r->current.count - 1] >= edges->below;
}

/* Rebuilds the table without the resources that only finished tasks have used. The rest fills at most three eighths
 * of the new table. */
static car_status rebuild(car_edges *edges) {
    int64_t alive = 0, capacity = FIRST_CAPACITY;
    record *records = NULL;
    for (int64_t r = 0; r < edges->capacity; r++) {
        alive += is_alive(edges, &edges->records[r]);
    }
    while (3 * capacity < 8 * (alive + 1)) {
        capacity *= 2;
    }
    car_status status = car_context_allocate(edges->context, (size_t)capacity, sizeof *records, &records);
    if (status != CAR_OK) {
        return status;
    }
    for (int64_t r = 0; r < edges->capacity; r++) {
        record *old = &edges->records[r];
        if (is_alive(edges, old)) {
            *find(records, capacity, old->resource) = *old;
            old->before = old->current = (round){0}; /* moved */
        }
    }
    release_records(edges, edges->records, edges->capacity);
    edges->records = records;
    edges->capacity = capacity;
    edges->used = alive;
    return CAR_OK;
}

static car_status open_record(car_edges *edges, uint64_t resource, record **out) {
    car_status status = CAR_OK;
    if (4 * (edges->used + 1) > 3 * edges->capacity) {
        CAR_TRY(rebuild(edges));
    }
    *out = find(edges->records, edges->capacity, resource);
    if ((*out)->resource == 0) {
        **out = (record){.resource = resource};
        edges->used++;
    }
done:
    return status;
}

/* ---- one task -------------------------------------------------------------------------------- */

/* Makes `seen` large enough for every task that is not over. */
static car_status make_room(car_edges *edges) {
    int64_t capacity = edges->seen_capacity ? edges->seen_capacity : FIRST_CAPACITY, *seen = NULL;
    while (capacity <= edges->added - edges->below) {
        capacity *= 2;
    }
    if (capacity == edges->seen_capacity) {
        return CAR_OK;
    }
    car_status status = car_context_allocate(edges->context, (size_t)capacity, sizeof *seen, &seen);
    if (status == CAR_OK) {
        /* Nobody: between two calls `seen` need not remember anything. */
        memset(seen, 0xff, (size_t)capacity * sizeof *seen);
        car_context_release(edges->context, edges->seen, (size_t)edges->seen_capacity, sizeof *seen);
        edges->seen = seen;
        edges->seen_capacity = capacity;
    }
    return status;
}

static car_status wait_for(car_edges *edges, int64_t number) {
    car_status status = CAR_OK;
    if (number < edges->below || number == edges->added || edges->seen[number % edges->seen_capacity] == edges->added) {
        return CAR_OK;
    }
    CAR_TRY(car_context_grow(edges->context, &edges->before, &edges->before_capacity, edges->before_count + 1,
                             sizeof *edges->before));
    edges->before[edges->before_count++] = number;
    edges->seen[number % edges->seen_capacity] = edges->added;
done:
    return status;
}

static car_status use(car_edges *edges, const car_use *u) {
    record *r = NULL;
    car_status status = CAR_OK;
    CAR_TRY(open_record(edges, u->resource, &r));
    /* The task has used this resource before, in another mode. */
    bool own = r->current.count == 1 && *tasks_of(&r->current) == edges->added;
    if (r->current.count > 0 && car_use_conflicts(r->mode, u->mode) && !own) {
        round spare = r->before;
        r->before = r->current;
        r->current = spare;
        r->current.count = 0;
    }
    for (int k = 0; k < r->before.count; k++) {
        CAR_TRY(wait_for(edges, tasks_of(&r->before)[k]));
    }
    if (!own) {
        CAR_TRY(add_to_round(edges, &r->current, edges->added));
    }
    r->mode = own && r->mode == CAR_USE_WRITE ? CAR_USE_WRITE : u->mode;
done:
    return status;
}

car_status car_edges_add(car_edges *edges, const car_use_list *uses, const int64_t **before, int *before_count) {
    car_status status = CAR_OK;
    edges->before_count = 0;
    CAR_TRY(make_room(edges));
    for (int u = 0; u < uses->count; u++) {
        CAR_TRY(use(edges, &uses->uses[u]));
    }
    edges->added++;
    *before = edges->before;
    *before_count = edges->before_count;
done:
    return status;
}

void car_edges_forget(car_edges *edges, int64_t below) {
    edges->below = below > edges->below ? below : edges->below;
}
