/* The validator: the dry run. It simulates all ranks with an executor's freedom and limits, and they must reach the
 * end. Slots only decide how early a receive is posted.
 *
 *   any order      a task runs when those that it waits for are over, whatever its slot
 *   windows        a rank knows only the window of its first unfinished task, and the next one
 *   receives       are posted car_plan_slots_ahead before their slot; a message arrives when both ends are there
 *   sends          do not wait. Where sums queue up for one link, only the one whose receive is posted first goes. An
 *                  executor has two in flight, so this is stricter
 *   collectives    start in the plan's order on each rank, and end when all ranks have started
 *   moving weights are made in the plan's order, after all forwards and backwards before
 *   beats          a micro-batch of a replica, or over zero's chains, begins when the one before is 2k slots ahead
 *
 * A condition that is true stays true, so the order in which tasks are tried does not matter. But it does matter
 * which sums wait for one link. Those go last, when nothing else can run, so that as many as possible block each
 * other.
 *
 * Options that add waiting are not covered: norms of gradients that updates wait for (--clip-norm). */
#include <stdio.h>

#include "plan/validate_internal.h"

typedef struct rank_state {
    int first, end;     /* places; first: the first unfinished one */
    int arrival;        /* the first receive or collective that may not have been started */
    int computing;      /* the first unfinished forward or backward */
    int started[2];     /* number of collectives of each kind */
    int ready, waiting; /* lists of places: ready: nothing blocks them; waiting: ready ones that could not run */
    int sums;           /* list of sends that wait for the one link */
    bool queued;
} rank_state;

typedef struct walk {
    car_validation *v;
    rank_state *ranks;
    int *place_of; /* task -> place */
    int *blockers; /* place -> number of unfinished tasks that it waits for */
    int *dependent_first, *dependents;
    int *next; /* place -> the next in its list */
    bool *started, *arrived, *over;
    int *turns;   /* place of a collective -> its number on its rank */
    int *meeting; /* place of a collective on a group's first rank -> how many of the group have started it */
    int *of_turn; /* [place of a rank's first task + number of a collective][kind] -> place */
    bool *beats;  /* micro-batch -> true if it may begin */
    int *queue;   /* ranks that may be able to continue */
    int head, length;
    bool has_beats, orders_sums;
} walk;

static const car_task *task_at(const walk *w, int place) {
    return &w->v->tasks[w->v->sequence[place]];
}

static int rank_at(const walk *w, int place) {
    return w->v->rank_of[w->v->device_of[w->v->sequence[place]]];
}

static void enqueue(walk *w, int rank) {
    if (!w->ranks[rank].queued) {
        w->ranks[rank].queued = true;
        w->queue[(w->head + w->length++) % w->v->ranks] = rank;
    }
}

static void push(walk *w, int *list, int place) {
    w->next[place] = *list;
    *list = place;
}

static bool is_sum(const car_task *task) {
    return task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
}

static int other_end(const walk *w, int place) {
    return w->place_of[w->v->partner[w->v->sequence[place]]];
}

/* ---- arrivals ----------------------------------------------------------------------------------- */

static void arrive(walk *w, int place) {
    w->arrived[place] = true;
    enqueue(w, rank_at(w, place));
}

/* The devices that take part in a collective: first .. first + size - 1. */
static void find_party(const walk *w, int rank, int *first, int *size) {
    const car_validation *v = w->v;
    *first = 0;
    *size = v->devices;
    if (v->config.placement == CAR_PLACEMENT_GRID) {
        car_validate_group(v, v->groups[rank], first, size);
    }
}

static int kind_of(const car_task *task) {
    return task->kind == CAR_TASK_BROADCAST;
}

/* The place of a rank's collective of a kind by its number; CAR_NONE if there is none. */
static int place_of_turn(const walk *w, int rank, int kind, int turn) {
    int first = w->v->rank_first[rank], end = w->v->rank_first[rank + 1];
    return turn < end - first ? w->of_turn[2 * (first + turn) + kind] : CAR_NONE;
}

/* A rank reaches a collective; the last one to reach it lets all go on. Collectives are matched by their order, so
 * all must mean the same one. */
static car_status meet(walk *w, int rank, int place) {
    const car_validation *v = w->v;
    const car_task *task = task_at(w, place);
    int first = 0, size = 0, kind = kind_of(task), turn = w->turns[place];
    find_party(w, rank, &first, &size);
    int counted = place_of_turn(w, first, kind, turn);
    if (counted == CAR_NONE || ++w->meeting[counted] < size) {
        return CAR_OK;
    }
    for (int r = first; r < first + size; r++) {
        int theirs = place_of_turn(w, r, kind, turn);
        const car_task *other = task_at(w, theirs);
        if (other->bundle != task->bundle || other->step != task->step || other->version != task->version ||
            other->peer != task->peer || other->slot != task->slot) {
            char text[192];
            car_task_format(v->plan, task, text, sizeof text);
            return car_validate_fail(v, v->sequence[theirs], "device %d reaches the same collective with %s", rank,
                                     text);
        }
        arrive(w, theirs);
    }
    return CAR_OK;
}

static bool may_start(const walk *w, int rank, int place, int64_t now) {
    const car_validation *v = w->v;
    const car_task *task = task_at(w, place);
    bool soon = task->slot <= now + car_plan_slots_ahead(v->plan, task);
    if (task->kind == CAR_TASK_RECEIVE) {
        return soon;
    }
    bool takes = task->kind == CAR_TASK_BROADCAST && task->peer != v->device_of[v->sequence[place]];
    return w->turns[place] == w->ranks[rank].started[kind_of(task)] && (takes ? soon : w->blockers[place] == 0);
}

/* Posts receives and starts collectives as far as allowed. */
static car_status start_arrivals(walk *w, int rank) {
    rank_state *r = &w->ranks[rank];
    int64_t window = w->v->period, now = task_at(w, r->first)->slot;
    int64_t known = now < 0 ? 2 * window : (now / window + 2) * window; /* tasks below this slot are known */
    car_status status = CAR_OK;
    while (r->arrival < r->end &&
           (w->started[r->arrival] || task_at(w, r->arrival)->kind == CAR_TASK_SEND ||
            car_task_computes(task_at(w, r->arrival)) || task_at(w, r->arrival)->kind == CAR_TASK_UPDATE)) {
        r->arrival++;
    }
    for (int p = r->arrival; p < r->end && task_at(w, p)->slot < known; p++) {
        const car_task *task = task_at(w, p);
        bool arrives = task->kind == CAR_TASK_RECEIVE || car_validate_is_collective(task);
        if (!arrives || w->started[p] || !may_start(w, rank, p, now)) {
            continue;
        }
        w->started[p] = true;
        if (task->kind != CAR_TASK_RECEIVE) {
            r->started[kind_of(task)]++;
            CAR_TRY(meet(w, rank, p));
        } else if (w->over[other_end(w, p)] && !(w->orders_sums && is_sum(task))) {
            arrive(w, p);
        }
    }
done:
    return status;
}

/* ---- running ------------------------------------------------------------------------------------ */

static bool has_beat(const walk *w, int rank, const car_task *task) {
    const car_validation *v = w->v;
    int64_t n = task->step * v->batches + task->micro_batch;
    bool begins = task->kind == CAR_TASK_FORWARD && task->stage == 0 && n > 0;
    if (!w->has_beats || !begins) {
        return true;
    }
    int before = car_validate_device(v, (n - 1) / v->batches, (int)((n - 1) % v->batches), 0);
    return v->rank_of[before] == rank || w->beats[n];
}

static bool may_run(walk *w, int rank, int place) {
    const car_validation *v = w->v;
    rank_state *r = &w->ranks[rank];
    const car_task *task = task_at(w, place);
    int64_t now = task_at(w, r->first)->slot;
    int64_t window = now < 0 ? 0 : now / v->period;
    if (task->slot >= (window + 2) * v->period) {
        return false; /* not known yet */
    }
    if (task->kind == CAR_TASK_RECEIVE || car_validate_is_collective(task)) {
        return w->arrived[place];
    }
    if (v->moving[place]) {
        while (r->computing < place && (w->over[r->computing] || !car_task_computes(task_at(w, r->computing)))) {
            r->computing++;
        }
        return r->computing >= place;
    }
    return has_beat(w, rank, task);
}

/* A rank that begins a task may send the beat for the next micro-batch. */
static void note_beat(walk *w, const car_task *task) {
    const car_validation *v = w->v;
    int64_t n = task->step * v->batches + task->micro_batch;
    if (w->has_beats && car_task_computes(task) && n + 1 < v->steps * v->batches &&
        task->slot - car_validate_slot(v, task->step, task->micro_batch, 0, false) >= 2 * (int64_t)v->per_worker) {
        w->beats[n + 1] = true;
        enqueue(w, v->rank_of[car_validate_device(v, (n + 1) / v->batches, (int)((n + 1) % v->batches), 0)]);
    }
}

static void run(walk *w, int rank, int place) {
    const car_task *task = task_at(w, place);
    w->over[place] = true;
    if (task->kind == CAR_TASK_SEND && w->orders_sums && is_sum(task)) {
        push(w, &w->ranks[rank].sums, place);
    } else if (task->kind == CAR_TASK_SEND && w->started[other_end(w, place)]) {
        arrive(w, other_end(w, place));
    }
    note_beat(w, task);
    for (int d = w->dependent_first[place]; d < w->dependent_first[place + 1]; d++) {
        int dependent = w->dependents[d];
        if (--w->blockers[dependent] == 0) {
            push(w, &w->ranks[rank].ready, dependent);
        }
    }
}

/* Runs tasks on a rank until none can run. */
static car_status advance(walk *w, int rank) {
    rank_state *r = &w->ranks[rank];
    car_status status = CAR_OK;
    bool moved = true;
    while (moved) {
        moved = false;
        while (r->first < r->end && w->over[r->first]) {
            r->first++;
        }
        if (r->first == r->end) {
            return CAR_OK;
        }
        CAR_TRY(start_arrivals(w, rank));
        for (r->waiting = CAR_NONE; r->ready != CAR_NONE;) {
            int place = r->ready;
            r->ready = w->next[place];
            if (may_run(w, rank, place)) {
                run(w, rank, place);
                moved = true;
            } else {
                push(w, &r->waiting, place);
            }
        }
        r->ready = r->waiting;
    }
done:
    return status;
}

/* The slot in which a sum's receive is posted. */
static int64_t posted(const walk *w, int place) {
    const car_task *receive = task_at(w, other_end(w, place));
    return receive->slot - car_plan_slots_ahead(w->v->plan, receive);
}

/* Of the sums that wait for a rank's link, sends the one whose receive is posted first. */
static bool pass_sum(walk *w, int rank) {
    int *best = NULL;
    for (int *at = &w->ranks[rank].sums; *at != CAR_NONE; at = &w->next[*at]) {
        best = !best || posted(w, *at) < posted(w, *best) ? at : best;
    }
    if (!best || !w->started[other_end(w, *best)]) {
        return false;
    }
    int place = *best;
    *best = w->next[place];
    arrive(w, other_end(w, place));
    return true;
}

static car_status run_all(walk *w) {
    bool passed = true;
    car_status status = CAR_OK;
    while (passed) {
        while (w->length > 0) {
            int rank = w->queue[w->head];
            w->head = (w->head + 1) % w->v->ranks;
            w->length--;
            w->ranks[rank].queued = false;
            CAR_TRY(advance(w, rank));
        }
        passed = false;
        for (int rank = 0; w->orders_sums && rank < w->v->ranks; rank++) {
            passed = pass_sum(w, rank) || passed;
        }
    }
done:
    return status;
}

/* ---- after the run ------------------------------------------------------------------------------ */

static void explain(const walk *w, int place, char *text, size_t capacity) {
    const car_task *task = task_at(w, place);
    char other[192] = "";
    for (int e = w->v->edge_first[place]; e < w->v->edge_first[place + 1] && !other[0]; e++) {
        if (!w->over[w->v->edges[e]]) {
            car_task_format(w->v->plan, task_at(w, w->v->edges[e]), other, sizeof other);
        }
    }
    if (other[0]) {
        snprintf(text, capacity, "%s", other);
    } else if (task->kind == CAR_TASK_RECEIVE) {
        snprintf(text, capacity, "device %d, which cannot send it", task->peer);
    } else {
        snprintf(text, capacity, "%s",
                 car_validate_is_collective(task) ? "devices that never reach this collective" : "its turn");
    }
}

static car_status check_ends(const walk *w) {
    const car_validation *v = w->v;
    for (int rank = 0; rank < v->ranks; rank++) {
        int place = w->ranks[rank].first;
        if (place < w->ranks[rank].end) {
            char text[224];
            explain(w, place, text, sizeof text);
            return car_validate_fail(v, v->sequence[place], "deadlock: %s %d waits for %s",
                                     v->ranks < v->devices ? "process" : "device", rank, text);
        }
    }
    return CAR_OK;
}

/* ---- setting up --------------------------------------------------------------------------------- */

static void reverse_edges(walk *w) {
    const car_validation *v = w->v;
    for (int e = 0; e < v->edge_first[v->count]; e++) {
        w->dependent_first[v->edges[e] + 1]++;
    }
    for (int p = 0; p < v->count; p++) {
        w->dependent_first[p + 1] += w->dependent_first[p];
        w->next[p] = w->dependent_first[p]; /* where the next dependent goes */
    }
    for (int p = 0; p < v->count; p++) {
        w->blockers[p] = v->edge_first[p + 1] - v->edge_first[p];
        for (int e = v->edge_first[p]; e < v->edge_first[p + 1]; e++) {
            w->dependents[w->next[v->edges[e]]++] = p;
        }
    }
}

static void set_up_ranks(walk *w) {
    const car_validation *v = w->v;
    for (int p = 0; p < 2 * v->count; p++) {
        w->of_turn[p] = CAR_NONE;
    }
    for (int rank = 0; rank < v->ranks; rank++) {
        int first = v->rank_first[rank], end = v->rank_first[rank + 1], turns[2] = {0, 0};
        w->ranks[rank] = (rank_state){
            .first = first, .end = end, .arrival = first, .computing = first, .ready = CAR_NONE, .sums = CAR_NONE};
        for (int p = end - 1; p >= first; p--) {
            if (w->blockers[p] == 0) {
                push(w, &w->ranks[rank].ready, p);
            }
        }
        for (int p = first; p < end; p++) {
            int kind = kind_of(task_at(w, p));
            w->place_of[v->sequence[p]] = p;
            if (car_validate_is_collective(task_at(w, p))) {
                w->turns[p] = turns[kind];
                w->of_turn[2 * (first + turns[kind]++) + kind] = p;
            }
        }
        enqueue(w, rank);
    }
}

car_status car_validate_dry_run(car_validation *v) {
    walk w = {.v = v};
    size_t count = (size_t)v->count, ranks = (size_t)v->ranks, edges = (size_t)v->edge_first[v->count];
    size_t batches = (size_t)(v->steps * v->batches);
    car_status status = CAR_OK;
    w.has_beats = v->spaced && v->devices > 1 && (v->config.placement == CAR_PLACEMENT_REPLICA || v->chains);
    w.orders_sums = v->config.placement == CAR_PLACEMENT_REPLICA && v->passes;
    for (int b = 0; b < v->bundles; b++) {
        w.orders_sums = w.orders_sums || car_validate_pieces(v, b) > 1;
    }
    CAR_TRY(car_context_allocate(v->context, ranks, sizeof *w.ranks, &w.ranks));
    CAR_TRY(car_context_allocate(v->context, ranks, sizeof *w.queue, &w.queue));
    CAR_TRY(car_context_allocate(v->context, count, sizeof *w.place_of, &w.place_of));
    CAR_TRY(car_context_allocate(v->context, count, sizeof *w.blockers, &w.blockers));
    CAR_TRY(car_context_allocate(v->context, count + 1, sizeof *w.dependent_first, &w.dependent_first));
    CAR_TRY(car_context_allocate(v->context, edges, sizeof *w.dependents, &w.dependents));
    CAR_TRY(car_context_allocate(v->context, count, sizeof *w.next, &w.next));
    CAR_TRY(car_context_allocate(v->context, 3 * count, sizeof *w.started, &w.started));
    CAR_TRY(car_context_allocate(v->context, 4 * count, sizeof *w.turns, &w.turns));
    CAR_TRY(car_context_allocate(v->context, batches, sizeof *w.beats, &w.beats));
    w.arrived = w.started + count;
    w.over = w.started + 2 * count;
    w.meeting = w.turns + count;
    w.of_turn = w.turns + 2 * count;
    reverse_edges(&w);
    set_up_ranks(&w);
    CAR_TRY(run_all(&w));
    CAR_TRY(check_ends(&w));
done:
    car_context_release(v->context, w.beats, batches, sizeof *w.beats);
    car_context_release(v->context, w.turns, 4 * count, sizeof *w.turns);
    car_context_release(v->context, w.started, 3 * count, sizeof *w.started);
    car_context_release(v->context, w.next, count, sizeof *w.next);
    car_context_release(v->context, w.dependents, edges, sizeof *w.dependents);
    car_context_release(v->context, w.dependent_first, w.dependent_first ? count + 1 : 0, sizeof *w.dependent_first);
    car_context_release(v->context, w.blockers, count, sizeof *w.blockers);
    car_context_release(v->context, w.place_of, count, sizeof *w.place_of);
    car_context_release(v->context, w.queue, ranks, sizeof *w.queue);
    car_context_release(v->context, w.ranks, ranks, sizeof *w.ranks);
    return status;
}
