/* The validator: edges. An executor runs tasks in any order that the edges allow, so the edges must prevent races.
 * If two tasks of a rank touch the same thing and one of them writes it, they must be connected by edges in the
 * plan's order, directly or through other tasks.
 *
 * validate_touch.c derives what a task touches and follows the content of each place. This also shows that a rank
 * has enough places. */
#include "plan/validate_touch.h"

/* A task must not wait for itself or a later one, which would be a deadlock, and each edge must be there once. */
static car_status check_edges(const car_validation *v, car_toucher *c, int place) {
    c->stamp++;
    for (int e = v->edge_first[place]; e < v->edge_first[place + 1]; e++) {
        int other = v->edges[e];
        if (other < v->rank_first[c->rank] || other >= place) {
            return car_validate_fail(v, v->sequence[place], "deadlock: it waits for itself or for a later task");
        }
        if (c->seen[other] == c->stamp) {
            return car_validate_fail(v, v->sequence[place], "it waits twice for the same task");
        }
        c->seen[other] = c->stamp;
    }
    return CAR_OK;
}

/* Lists the edges that executors get, for the tasks of a rank up to a place. `tasks`: use these instead of the
 * table's. */
static car_status list_edges(car_validation *v, car_toucher *c, const car_task *tasks, int end) {
    int rank = c->rank;
    car_edges *edges = NULL;
    car_use_list uses = {0};
    const int64_t *before = NULL;
    int count = 0, first = v->rank_first[rank];
    car_status status = CAR_OK;
    CAR_TRY(car_edges_create(v->context, &edges));
    for (int place = first; place < end; place++) {
        const car_task *task = tasks ? &tasks[place - first] : &v->tasks[v->sequence[place]];
        CAR_TRY(car_validate_list_uses(v, rank, place - first, task, &uses));
        CAR_TRY(car_edges_add(edges, &uses, &before, &count));
        int begin = v->edge_first[place];
        CAR_TRY(car_context_grow(v->context, &v->edges, &v->edge_capacity, begin + count + 1, sizeof *v->edges));
        for (int e = 0; e < count; e++) {
            v->edges[begin + e] = first + (int)before[e];
        }
        if (v->source && v->source->change_edges) {
            v->source->change_edges(v->source->user, rank, place - first, v->edges + begin, first, &count);
        }
        v->edge_first[place + 1] = begin + count;
        CAR_TRY(check_edges(v, c, place));
    }
done:
    car_use_list_release(v->plan, &uses);
    car_edges_destroy(edges);
    return status;
}

static car_status check_touches(car_validation *v, car_toucher *c, const car_task *tasks, int end) {
    int first = v->rank_first[c->rank];
    car_status status = CAR_OK;
    CAR_TRY(car_touch_begin(c));
    for (int place = first; place < end; place++) {
        c->place = place;
        c->task = tasks ? &tasks[place - first] : &v->tasks[v->sequence[place]];
        c->stamp++;
        for (int e = v->edge_first[place]; e < v->edge_first[place + 1]; e++) {
            c->seen[v->edges[e]] = c->stamp;
        }
        CAR_TRY(car_touch_all(c));
    }
done:
    return status;
}

/* After a drain, the stale micro-batches of the first step use the version before it. Repeats the check with that
 * version, for as many tasks as it can matter. */
static car_status check_going_on(car_validation *v, car_toucher *c) {
    int first = v->rank_first[c->rank], end = first, stale = 0;
    car_task_list list = {0};
    car_status status = CAR_OK;
    while (end < v->rank_first[c->rank + 1] && v->tasks[v->sequence[end]].slot < 3 * v->period) {
        CAR_TRY(car_context_grow(v->context, &list.tasks, &list.capacity, list.count + 1, sizeof *list.tasks));
        list.tasks[list.count++] = v->tasks[v->sequence[end++]];
    }
    car_usage_go_on(c->usage, &list);
    for (int n = 0; n < list.count; n++) {
        stale += list.tasks[n].version == CAR_VERSION_BEFORE || list.tasks[n].tied_version == CAR_VERSION_BEFORE;
    }
    if (stale > 0) {
        c->goes_on = true;
        CAR_TRY(list_edges(v, c, list.tasks, end));
        CAR_TRY(check_touches(v, c, list.tasks, end));
        c->goes_on = false;
    }
done:
    car_task_list_release(v->plan, &list);
    return status;
}

static car_status check_rank(car_validation *v, car_toucher *c, bool from_start) {
    int end = v->rank_first[c->rank + 1];
    car_status status = CAR_OK;
    CAR_TRY(car_validate_usage(v, c->rank, &c->usage));
    c->from_start = from_start;
    if (from_start && !v->spread) {
        CAR_TRY(check_going_on(v, c)); /* first, so that the edges of the whole run remain */
    }
    CAR_TRY(list_edges(v, c, NULL, end));
    CAR_TRY(check_touches(v, c, NULL, end));
    CAR_TRY(car_touch_end(c));
    for (int place = v->rank_first[c->rank]; place < end; place++) {
        const car_task *task = &v->tasks[v->sequence[place]];
        v->moving[place] = task->kind == CAR_TASK_UPDATE && car_usage_holding(c->usage, task->bundle)->places == 0;
    }
done:
    return status;
}

car_status car_validate_edges(car_validation *v, bool from_start) {
    car_toucher c = {.v = v, .ring = !v->spread, .moves = v->config.placement == CAR_PLACEMENT_ZERO};
    size_t count = (size_t)v->count;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, count, sizeof *c.seen, &c.seen));
    CAR_TRY(car_context_allocate(v->context, count, sizeof *c.visited, &c.visited));
    CAR_TRY(car_context_allocate(v->context, count, sizeof *c.stack, &c.stack));
    for (c.rank = 0; c.rank < v->ranks; c.rank++) {
        if (v->rank_first[c.rank] < v->rank_first[c.rank + 1] || from_start) {
            CAR_TRY(check_rank(v, &c, from_start));
        }
    }
done:
    car_context_release(v->context, c.marks, (size_t)c.mark_capacity, sizeof *c.marks);
    car_context_release(v->context, c.things, c.capacity, sizeof *c.things);
    car_context_release(v->context, c.stack, count, sizeof *c.stack);
    car_context_release(v->context, c.visited, count, sizeof *c.visited);
    car_context_release(v->context, c.seen, count, sizeof *c.seen);
    return status;
}
