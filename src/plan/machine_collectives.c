/* Collectives of the simulated machine. They run as rings over a group's ranks, one after another in each group, in
 * parallel with computing.
 *
 * A collective of b bytes over g ranks takes 2(g-1) rounds if all ranks get the result, and g-1 rounds to or from
 * one rank; each round takes the latency and the time for b/g bytes. Consecutive all-reduces are combined into
 * buckets, as in DDP. */
#include <math.h>

#include "plan/machine.h"

/* ---- buckets and groups ---------------------------------------------------------------------- */

/* Fills the buckets from the first device of a group; all ranks of a group reduce the same bundles in the same
 * order. Returns the number of buckets per step. */
static car_status fill_buckets(car_machine *m, int device, int *buckets) {
    int last = CAR_NONE;
    double bytes = 0;
    car_status status = CAR_OK;
    *buckets = 0;
    CAR_TRY(car_plan_expand(m->plan, device, 0, 1, &m->list));
    for (int t = 0; t < m->list.count; t++) {
        const car_task *task = &m->list.tasks[t];
        if (task->kind != CAR_TASK_REDUCE || task->peer != CAR_NONE) {
            continue;
        }
        bytes += (double)car_plan_task_bytes(m->plan, task);
        last = task->bundle;
        if (bytes >= m->config.bucket) {
            m->closes[last] = bytes;
            ++*buckets;
            bytes = 0;
        }
    }
    if (bytes > 0) {
        m->closes[last] = bytes;
        ++*buckets;
    }
done:
    return status;
}

static car_status create_sequence(car_machine *m, car_machine_sequence *s, int room) {
    size_t count = (size_t)room;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(m->context, count, sizeof *s->joined, &s->joined));
    CAR_TRY(car_context_allocate(m->context, count, sizeof *s->order, &s->order));
    CAR_TRY(car_context_allocate(m->context, count, sizeof *s->seconds, &s->seconds));
    CAR_TRY(car_context_allocate(m->context, count, sizeof *s->rates, &s->rates));
done:
    return status;
}

car_status car_machine_create_groups(car_machine *m) {
    const car_plan *plan = m->plan;
    car_status status = CAR_OK;
    for (int device = 0; device < plan->devices; device++) {
        car_machine_group *g = &m->groups[car_plan_collective_group(plan, device)];
        g->first = g->ranks++ == 0 ? device : g->first;
    }
    for (int r = 0; r < m->group_count; r++) {
        car_machine_group *g = &m->groups[r];
        int buckets = 0;
        g->members = m->copies > 1 ? 1 : g->ranks;
        g->running = CAR_NONE;
        CAR_TRY(fill_buckets(m, g->first, &buckets));
        /* No rank is two steps ahead of another. Per step a bundle has at most one reduction, and two broadcasts for
         * each micro-batch. */
        g->room = 2 * (buckets > 0 ? buckets : 2 * plan->config.accumulate * m->partition->bundle_count) + 8;
        CAR_TRY(create_sequence(m, &g->sequences[0], g->room));
        CAR_TRY(create_sequence(m, &g->sequences[1], g->room));
    }
done:
    return status;
}

void car_machine_release_groups(car_machine *m) {
    for (int r = 0; m->groups && r < m->group_count; r++) {
        for (int k = 0; k < 2; k++) {
            car_machine_sequence *s = &m->groups[r].sequences[k];
            size_t room = (size_t)m->groups[r].room;
            car_context_release(m->context, s->rates, room, sizeof *s->rates);
            car_context_release(m->context, s->seconds, room, sizeof *s->seconds);
            car_context_release(m->context, s->order, room, sizeof *s->order);
            car_context_release(m->context, s->joined, room, sizeof *s->joined);
        }
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* The seconds that a collective of b bytes takes, and the bytes per second that all ranks of the group send
 * meanwhile. */
static void price(const car_machine *m, car_machine_group *g, double bytes, bool to_all, double *seconds,
                  double *rate) {
    const car_cluster *c = m->config.cluster;
    *seconds = *rate = 0;
    if (!c || g->ranks == 1) {
        return;
    }
    int last = g->first + g->ranks - 1;
    bool spans = g->first / c->devices_per_node != last / c->devices_per_node;
    double bandwidth = spans ? c->between.bandwidth : c->inside.bandwidth;
    if (spans && c->devices_per_node > 1) {
        bandwidth = fmin(bandwidth, c->inside.bandwidth);
    }
    double latency = spans ? c->between.latency : c->inside.latency, part = bytes / g->ranks;
    g->bandwidth = bandwidth;
    double rounds = (to_all ? 2.0 : 1.0) * (g->ranks - 1);
    *seconds = rounds * (latency + part / bandwidth);
    *rate = *seconds > 0 ? rounds * part * g->ranks / *seconds : 0;
}

/* Begins the group's next collective if all ranks have joined it and the last one is over. */
static car_status begin_next(car_machine *m, int group) {
    car_machine_group *g = &m->groups[group];
    int kind = CAR_NONE;
    int64_t order = 0;
    for (int k = 0; k < 2 && g->running == CAR_NONE; k++) {
        const car_machine_sequence *s = &g->sequences[k];
        int64_t item = s->next % g->room;
        if (s->joined[item] == g->members && (kind == CAR_NONE || s->order[item] < order)) {
            kind = k;
            order = s->order[item];
        }
    }
    if (kind == CAR_NONE) {
        return CAR_OK;
    }
    const car_machine_sequence *s = &g->sequences[kind];
    g->running = kind;
    g->rate = s->rates[s->next % g->room];
    car_network_add_rate(&m->network, g->rate);
    return car_agenda_set(&m->agenda, group, m->now + s->seconds[s->next % g->room]);
}

/* A rank reaches a collective. All-reduces wait until their bucket is full. */
static car_status join(car_machine *m, int at, int number, int kind) {
    car_machine_rank *rank = &m->rank[at];
    const car_machine_task *task = car_machine_at(rank, number);
    int group = car_plan_collective_group(m->plan, at);
    car_machine_group *g = &m->groups[group];
    bool to_all = kind == 0 && task->peer == CAR_NONE;
    car_machine_append(rank, &rank->joined[kind], number);
    if (to_all && m->closes[task->bundle] <= 0) {
        return CAR_OK;
    }
    car_machine_sequence *s = &g->sequences[kind];
    int64_t item = rank->collectives[kind]++ % g->room;
    if (s->joined[item]++ == 0) {
        const car_bundle *bundle = &m->partition->bundles[task->bundle];
        double bytes = to_all ? m->closes[task->bundle] : (double)(kind == 0 ? bundle->bytes : bundle->copy_bytes);
        price(m, g, bytes, to_all, &s->seconds[item], &s->rates[item]);
    }
    s->order[item] = s->joined[item] == g->members ? g->complete++ : 0;
    return begin_next(m, group);
}

/* True if the next collective of a kind may start on a rank. The giver must have its data; a receiver may start some
 * slots ahead. */
static bool may_call(const car_machine *m, const car_machine_rank *rank, int number, int kind) {
    const car_machine_task *task = car_machine_at(rank, number);
    bool gives = kind == 0 || car_usage_holding(rank->usage, task->bundle)->owned;
    return gives ? car_machine_wait_of(rank, number)->blockers == 0
                 : task->slot <= car_machine_slot(rank) + m->broadcast_ahead;
}

car_status car_machine_call(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    car_status status = CAR_OK;
    for (int kind = 0; kind < 2; kind++) {
        car_machine_line *line = &rank->calls[kind];
        while (line->first != CAR_NONE && may_call(m, rank, line->first, kind)) {
            CAR_TRY(join(m, at, car_machine_take(rank, line), kind));
        }
    }
done:
    return status;
}

/* Completes what a rank has joined, up to the end of the bucket. */
static car_status arrive_on_rank(car_machine *m, int at, int kind) {
    car_machine_rank *rank = &m->rank[at];
    bool last = false;
    car_status status = CAR_OK;
    while (!last) {
        int number = car_machine_take(rank, &rank->joined[kind]);
        const car_machine_task *task = car_machine_at(rank, number);
        last = kind != 0 || task->peer != CAR_NONE || m->closes[task->bundle] > 0;
        CAR_TRY(car_machine_arrive(m, at, number));
    }
done:
    return status;
}

car_status car_machine_end_collective(car_machine *m, int group) {
    car_machine_group *g = &m->groups[group];
    int kind = g->running;
    car_machine_sequence *s = &g->sequences[kind];
    int64_t item = s->next % g->room;
    car_status status = CAR_OK;
    car_network_add_rate(&m->network, -g->rate);
    if (m->network.counting) {
        m->network.sent += g->rate * s->seconds[item];
        g->carried += g->rate * s->seconds[item] / g->ranks;
    }
    g->running = CAR_NONE;
    s->joined[item] = 0;
    s->next++;
    for (int member = 0; member < g->members; member++) {
        CAR_TRY(arrive_on_rank(m, g->first + member, kind));
    }
    CAR_TRY(begin_next(m, group));
done:
    return status;
}
