/* How long a step of a plan takes on a described cluster: every device walks its part of the table, see cluster.h.
 *
 * All is events: a device has computed, a message's first or last byte is there, a collective is done. What an event
 * allows is done at once, by a list of devices to look at, so that chains of messages need no recursion. */
#include <math.h>

#include "plan/timing_internal.h"

/* Steps of the run: the first ones fill the cycle, the last drains it. Delayed rules repeat after two steps at the
 * earliest, so an even number is counted; the fewer tasks a step has, the more. */
enum { FILL = 2, MANY_STEPS = 19, STEPS = 7, FEW_STEPS = 5, FEW_TASKS = 1 << 12, MANY_TASKS = 1 << 17 };

/* All-reduces go together until they are worth a ring: as DDP's buckets, but never so small that a round's latency is
 * more than a fifth of it. */
static const double least_bucket = 25e6, parts_in_latency = 4;

/* A job: receives that were posted, and what is done when all have come. */
typedef struct job {
    int device, missing, count;
    car_deed *deeds;
} job;

typedef struct walker {
    car_deed_list list;
    int at;
    int64_t window;
    bool busy;    /* it computes, or waits for a message: what is next will be said */
    bool begun;   /* it has computed something */
    bool in_line; /* for its group's collectives */
    int next_in_line;
    int64_t joined;    /* collectives */
    int64_t *versions; /* made here, by place */
} walker;

typedef struct machine {
    const car_plan *plan;
    const car_cluster *cluster; /* NULL: messages take no time */
    car_context *context;
    double compute, bucket;
    int64_t steps;
    car_agenda agenda;
    car_network network;
    car_compiler compiler;
    walker *walkers;
    int64_t *versions;
    int devices, places, group_count;
    car_ring *rings;
    job *jobs;
    int job_count, job_capacity;
    int *look; /* devices to be looked at */
    int look_count, look_capacity;
    int64_t *unfinished; /* by step: backwards that are not done */
    double *finished;    /* by step: when the last was */
    double now;
} machine;

/* Ids in the agenda: groups, devices, then messages. Waiters of messages: devices, then jobs. */

static car_status look_at(machine *m, int device) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(m->context, &m->look, &m->look_capacity, m->look_count + 1, sizeof *m->look));
    m->look[m->look_count++] = device;
done:
    return status;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static car_status wake(machine *m, int64_t waiter);

static car_status send(machine *m, int device, const car_deed *deed) {
    int64_t woken = CAR_NONE;
    car_status status = CAR_OK;
    CAR_TRY(car_network_send(&m->network, m->now, device, deed->a, deed->b, deed->of.bytes, &woken));
    if (woken != CAR_NONE) {
        CAR_TRY(wake(m, woken));
    }
done:
    return status;
}

static void make(machine *m, int device, const car_deed *deed) {
    int64_t *version = &m->walkers[device].versions[deed->a];
    *version = deed->of.number > *version ? deed->of.number : *version;
}

static car_status finish_job(machine *m, int number) {
    job done = m->jobs[number];
    car_status status = CAR_OK;
    m->jobs[number] = (job){.device = CAR_NONE};
    for (int d = 0; d < done.count; d++) {
        if (done.deeds[d].kind == CAR_DEED_SEND) {
            CAR_TRY(send(m, done.device, &done.deeds[d]));
        } else if (done.deeds[d].kind == CAR_DEED_MADE) {
            make(m, done.device, &done.deeds[d]);
        }
    }
    CAR_TRY(look_at(m, done.device)); /* it may need what was made */
done:
    car_context_release(m->context, done.deeds, (size_t)done.count, sizeof *done.deeds);
    return status;
}

static car_status find_job(machine *m, int *out) {
    car_status status = CAR_OK;
    for (*out = m->job_count - 1; *out >= 0 && *out >= m->job_count - 64; --*out) {
        if (m->jobs[*out].device == CAR_NONE) {
            return CAR_OK;
        }
    }
    CAR_TRY(car_context_grow(m->context, &m->jobs, &m->job_capacity, m->job_count + 1, sizeof *m->jobs));
    *out = m->job_count++;
done:
    return status;
}

static car_status start_job(machine *m, int device, const car_deed *deeds, int count) {
    job started = {.device = device, .count = count, .missing = 1}; /* it cannot be over while it is begun */
    int number = 0;
    car_status status = CAR_OK;
    CAR_TRY(find_job(m, &number));
    m->jobs[number] = (job){.device = CAR_NONE};
    CAR_TRY(car_context_allocate(m->context, (size_t)count, sizeof *deeds, &started.deeds));
    m->jobs[number] = started;
    for (int d = 0; d < count; d++) {
        started.deeds[d] = deeds[d];
        if (deeds[d].kind == CAR_DEED_RECEIVE) {
            bool there = false;
            CAR_TRY(car_network_receive(&m->network, deeds[d].a, device, deeds[d].b, m->devices + number, &there));
            m->jobs[number].missing += !there;
        }
    }
    if (--m->jobs[number].missing == 0) {
        CAR_TRY(finish_job(m, number));
    }
done:
    return status;
}

/* A message has come that a device or a job waits for. */
static car_status wake(machine *m, int64_t waiter) {
    if (waiter < m->devices) {
        m->walkers[waiter].at++; /* the receive is done */
        m->walkers[waiter].busy = false;
        return look_at(m, (int)waiter);
    }
    int number = (int)(waiter - m->devices);
    return --m->jobs[number].missing == 0 ? finish_job(m, number) : CAR_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* The ring's time for b bytes, and what all its ranks send a second meanwhile. */
static void price(const machine *m, int group, double bytes, bool to_all, double *seconds, double *rate) {
    const car_ring *ring = &m->rings[group];
    const car_cluster *c = m->cluster;
    *seconds = *rate = 0;
    if (!c || ring->ranks == 1) {
        return;
    }
    int first = group * ring->ranks, last = first + ring->ranks - 1;
    bool spans = first / c->devices_per_node != last / c->devices_per_node;
    double bandwidth = spans ? c->between.bandwidth : c->inside.bandwidth;
    if (spans && c->devices_per_node > 1) {
        bandwidth = fmin(bandwidth, c->inside.bandwidth);
    }
    double latency = spans ? c->between.latency : c->inside.latency, part = bytes / ring->ranks;
    m->rings[group].bandwidth = bandwidth;
    double rounds = (to_all ? 2.0 : 1.0) * (ring->ranks - 1);
    *seconds = rounds * (latency + part / bandwidth);
    *rate = *seconds > 0 ? rounds * part * ring->ranks / *seconds : 0;
}

/* Begins the group's next collective if all have joined it and the last is over. */
static car_status begin_collective(machine *m, int group) {
    car_ring *ring = &m->rings[group];
    int slot = (int)(ring->next % ring->room);
    if (ring->running || ring->joined[slot] < ring->members) {
        return CAR_OK;
    }
    ring->joined[slot] = 0;
    ring->running = true;
    ring->rate = ring->rates[slot];
    car_network_add_rate(&m->network, ring->rate);
    return car_agenda_set(&m->agenda, group, m->now + ring->seconds[slot]);
}

static car_status join(machine *m, int device, const car_deed *deed) {
    int group = car_timing_group(m->plan, device);
    car_ring *ring = &m->rings[group];
    int slot = (int)(m->walkers[device].joined++ % ring->room);
    if (ring->joined[slot]++ == 0) {
        price(m, group, deed->of.bytes, deed->b, &ring->seconds[slot], &ring->rates[slot]);
    }
    return begin_collective(m, group);
}

static car_status finish_collective(machine *m, int group) {
    car_ring *ring = &m->rings[group];
    int slot = (int)(ring->next % ring->room), waiting = ring->first_waiting;
    car_status status = CAR_OK;
    car_network_add_rate(&m->network, -ring->rate);
    if (m->network.counting) {
        m->network.sent += ring->rate * ring->seconds[slot];
        ring->carried += ring->rate * ring->seconds[slot] / ring->ranks;
    }
    ring->running = false;
    ring->done = ++ring->next;
    ring->first_waiting = CAR_NONE;
    while (waiting != CAR_NONE) {
        m->walkers[waiting].in_line = false;
        CAR_TRY(look_at(m, waiting));
        waiting = m->walkers[waiting].next_in_line;
    }
    CAR_TRY(begin_collective(m, group));
done:
    return status;
}

/* ---- walking --------------------------------------------------------------------------------- */

static double duration_of(const machine *m, const car_deed *deed) {
    const car_stage *stage = &m->plan->partition->stages[deed->a];
    return m->compute * (deed->b ? stage->backward : stage->forward);
}

static car_status end_compute(machine *m, const car_deed *deed) {
    int64_t step = deed->of.step;
    if (!deed->b || --m->unfinished[step] > 0) {
        return CAR_OK;
    }
    m->finished[step] = m->now;
    if (step == FILL - 1) {
        car_network_start_counting(&m->network);
    } else if (step == m->steps - 2) {
        m->network.counting = false;
    }
    return CAR_OK;
}

/* In the cycle devices begin one after another, as the clock has it. */
static double begin_of(const machine *m, const car_deed *deed) {
    double slot = m->compute / (double)m->plan->period * (double)deed->slot;
    return car_plan_is_cyclic(m->plan) && slot > m->now ? slot : m->now;
}

/* Whether the device goes on to its next deed. */
static car_status do_deed(machine *m, int device, const car_deed *deed, bool *goes_on) {
    walker *w = &m->walkers[device];
    car_status status = CAR_OK;
    *goes_on = true;
    switch (deed->kind) {
    case CAR_DEED_COMPUTE: {
        double begin = w->begun ? m->now : begin_of(m, deed), duration = duration_of(m, deed);
        *goes_on = !(begin + duration > m->now);
        w->busy = !*goes_on;
        w->begun = true;
        return *goes_on ? end_compute(m, deed) : car_agenda_set(&m->agenda, m->group_count + device, begin + duration);
    }
    case CAR_DEED_SEND:
        return send(m, device, deed);
    case CAR_DEED_RECEIVE:
        CAR_TRY(car_network_receive(&m->network, deed->a, device, deed->b, device, goes_on));
        w->busy = !*goes_on;
        return CAR_OK;
    case CAR_DEED_JOB:
        w->at += deed->a;
        return start_job(m, device, deed + 1, deed->a);
    case CAR_DEED_ISSUE:
        return join(m, device, deed);
    case CAR_DEED_WAIT: {
        car_ring *ring = &m->rings[car_timing_group(m->plan, device)];
        *goes_on = ring->done > deed->of.number;
        if (!*goes_on && !w->in_line) {
            w->in_line = true;
            w->next_in_line = ring->first_waiting;
            ring->first_waiting = device;
        }
        return CAR_OK;
    }
    case CAR_DEED_MADE:
        make(m, device, deed);
        return CAR_OK;
    case CAR_DEED_NEED:
        *goes_on = w->versions[deed->a] >= deed->of.number;
        return CAR_OK;
    }
done:
    return status;
}

/* Goes on until the device computes or waits, or the run is over. */
static car_status walk(machine *m, int device) {
    walker *w = &m->walkers[device];
    int64_t windows = car_plan_windows(m->plan, m->steps);
    car_status status = CAR_OK;
    while (!w->busy) {
        bool goes_on = true;
        if (w->at >= w->list.count) {
            if (w->window == windows) {
                break;
            }
            w->at = 0;
            CAR_TRY(car_compiler_window(&m->compiler, device, w->window++, m->steps, &w->list));
            continue;
        }
        CAR_TRY(do_deed(m, device, &w->list.deeds[w->at], &goes_on));
        if (!goes_on) {
            break;
        }
        w->at++;
    }
done:
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static car_status handle(machine *m, int64_t id) {
    int64_t device = id - m->group_count, flow = device - m->devices, woken = CAR_NONE;
    car_status status = CAR_OK;
    if (device < 0) {
        return finish_collective(m, (int)id);
    }
    if (flow < 0) {
        walker *w = &m->walkers[device];
        w->busy = false;
        CAR_TRY(end_compute(m, &w->list.deeds[w->at++]));
        return look_at(m, (int)device);
    }
    CAR_TRY(car_network_proceed(&m->network, m->now, (int)flow, &woken));
    if (woken != CAR_NONE) {
        CAR_TRY(wake(m, woken));
    }
done:
    return status;
}

static car_status run(machine *m) {
    car_status status = CAR_OK;
    for (int d = m->devices - 1; d >= 0; d--) {
        CAR_TRY(look_at(m, d));
    }
    while (m->look_count > 0 || m->agenda.count > 0) {
        if (m->look_count > 0) {
            CAR_TRY(walk(m, m->look[--m->look_count]));
            continue;
        }
        car_event event = car_agenda_pop(&m->agenda);
        m->now = event.time;
        CAR_TRY(handle(m, event.id));
    }
    for (int64_t step = 0; step < m->steps; step++) {
        if (m->unfinished[step] > 0) {
            status = car_context_fail(m->context, CAR_ERROR_INTERNAL,
                                      "the timed run came to a halt: %lld backwards of step %lld were not done",
                                      (long long)m->unfinished[step], (long long)step);
            goto done;
        }
    }
done:
    return status;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static car_status create_rings(machine *m) {
    const car_plan *plan = m->plan;
    car_status status = CAR_OK;
    bool grid = plan->config.placement == CAR_PLACEMENT_GRID;
    for (int g = 0; g < m->group_count; g++) {
        car_ring *ring = &m->rings[g];
        *ring = (car_ring){.ranks = grid ? plan->config.workers : plan->devices,
                           .members = grid ? plan->config.workers : m->devices,
                           .first_waiting = CAR_NONE};
        /* Nobody is two steps ahead of another; dp over zero has three for each bundle in a step. */
        int per_step =
            plan->config.placement == CAR_PLACEMENT_ZERO ? 3 * plan->partition->bundle_count : m->compiler.per_step[g];
        int room = 2 * per_step + 8;
        CAR_TRY(car_context_allocate(m->context, (size_t)room, sizeof *ring->joined, &ring->joined));
        ring->room = room;
        CAR_TRY(car_context_allocate(m->context, (size_t)room, sizeof *ring->seconds, &ring->seconds));
        CAR_TRY(car_context_allocate(m->context, (size_t)room, sizeof *ring->rates, &ring->rates));
    }
done:
    return status;
}

static car_status create(machine *m) {
    const car_plan *plan = m->plan;
    car_status status = CAR_OK;
    /* dp's ranks do the same at the same time, and only their rings connect them: one stands for all. */
    bool alike = plan->clock == CAR_RULE_DP && plan->config.placement != CAR_PLACEMENT_GRID;
    m->devices = alike ? 1 : plan->devices;
    m->places = car_timing_places(plan);
    m->group_count = car_timing_groups(plan);
    int64_t tasks = (int64_t)plan->config.workers * plan->stages;
    m->steps = tasks <= FEW_TASKS ? MANY_STEPS : tasks <= MANY_TASKS ? STEPS : FEW_STEPS;
    m->agenda.context = m->context;
    CAR_TRY(car_compiler_create(plan, m->bucket, &m->compiler));
    CAR_TRY(car_context_allocate(m->context, (size_t)m->group_count, sizeof *m->rings, &m->rings));
    CAR_TRY(create_rings(m));
    CAR_TRY(car_context_allocate(m->context, (size_t)m->devices, sizeof *m->walkers, &m->walkers));
    CAR_TRY(
        car_context_allocate(m->context, (size_t)m->devices * (size_t)m->places, sizeof *m->versions, &m->versions));
    for (int d = 0; d < m->devices; d++) {
        m->walkers[d].versions = m->versions + (size_t)d * (size_t)m->places;
    }
    CAR_TRY(car_context_allocate(m->context, (size_t)m->steps, sizeof *m->unfinished, &m->unfinished));
    CAR_TRY(car_context_allocate(m->context, (size_t)m->steps, sizeof *m->finished, &m->finished));
    for (int64_t step = 0; step < m->steps; step++) {
        m->unfinished[step] = tasks / (plan->devices / m->devices);
    }
    CAR_TRY(
        car_network_create(m->context, m->cluster, m->devices, m->group_count + m->devices, &m->agenda, &m->network));
done:
    return status;
}

static void destroy(machine *m) {
    car_context *context = m->context;
    for (int d = 0; m->walkers && d < m->devices; d++) {
        car_context_release(context, m->walkers[d].list.deeds, (size_t)m->walkers[d].list.capacity, sizeof(car_deed));
    }
    for (int j = 0; j < m->job_count; j++) {
        car_context_release(context, m->jobs[j].deeds, (size_t)m->jobs[j].count, sizeof(car_deed));
    }
    for (int g = 0; m->rings && g < m->group_count; g++) {
        size_t room = (size_t)m->rings[g].room;
        car_context_release(context, m->rings[g].rates, room, sizeof *m->rings[g].rates);
        car_context_release(context, m->rings[g].seconds, room, sizeof *m->rings[g].seconds);
        car_context_release(context, m->rings[g].joined, room, sizeof *m->rings[g].joined);
    }
    car_network_release(&m->network);
    car_compiler_release(&m->compiler);
    car_context_release(context, m->finished, (size_t)m->steps, sizeof *m->finished);
    car_context_release(context, m->unfinished, (size_t)m->steps, sizeof *m->unfinished);
    car_context_release(context, m->versions, (size_t)m->devices * (size_t)m->places, sizeof *m->versions);
    car_context_release(context, m->walkers, (size_t)m->devices, sizeof *m->walkers);
    car_context_release(context, m->rings, (size_t)m->group_count, sizeof *m->rings);
    car_context_release(context, m->look, (size_t)m->look_capacity, sizeof *m->look);
    car_context_release(context, m->jobs, (size_t)m->job_capacity, sizeof *m->jobs);
    car_agenda_release(&m->agenda);
}

/* ---- the result ------------------------------------------------------------------------------ */

static double busiest_wire(const machine *m, double seconds) {
    double most = 0;
    for (int w = 0; w < m->network.wire_count; w++) {
        const car_wire *wire = &m->network.wires[w];
        most = wire->bandwidth > 0 ? fmax(most, wire->carried / wire->bandwidth) : most;
    }
    for (int g = 0; m->cluster && g < m->group_count; g++) {
        most = m->rings[g].carried > 0 ? fmax(most, m->rings[g].carried / m->rings[g].bandwidth) : most;
    }
    return most / seconds;
}

/* One run; fills everything but what compares two. */
static car_status time_run(const car_plan *plan, const car_cluster *cluster, double compute, double bucket,
                           car_timing *out) {
    machine m = {.plan = plan, .cluster = cluster, .context = plan->context, .compute = compute, .bucket = bucket};
    car_status status = CAR_OK;
    CAR_TRY(create(&m));
    CAR_TRY(run(&m));
    int64_t counted = m.steps - 1 - FILL;
    double seconds = m.finished[m.steps - 2] - m.finished[FILL - 1];
    *out = (car_timing){.compute = compute,
                        .step = seconds / (double)counted,
                        .bytes = m.network.sent / (double)counted,
                        .mean_rate = m.network.sent / seconds,
                        .peak_rate = m.network.peak_rate,
                        .busiest = busiest_wire(&m, seconds),
                        .bucket = bucket,
                        .steps = (int)m.steps};
done:
    destroy(&m);
    return status;
}

static int ranks_of_ring(const car_plan *plan) {
    return plan->config.placement == CAR_PLACEMENT_REPLICA ? plan->devices : plan->config.workers;
}

car_status car_plan_time(const car_plan *plan, const car_cluster *cluster, double compute, car_timing *out) {
    car_timing free_of_network;
    car_status status = CAR_OK;
    *out = (car_timing){0};
    if (plan->config.placement == CAR_PLACEMENT_SHARED || !(compute > 0) || !isfinite(compute)) {
        return car_context_fail(plan->context, CAR_ERROR_ARGUMENT, "the time over a network: %s",
                                compute > 0 ? "placement shared has none; use replica, zero, pipeline or grid"
                                            : "a step's computing must take more than 0 seconds");
    }
    double bucket = fmax(least_bucket, parts_in_latency * ranks_of_ring(plan) * cluster->between.latency *
                                           cluster->between.bandwidth);
    CAR_TRY(time_run(plan, NULL, compute, bucket, &free_of_network));
    CAR_TRY(time_run(plan, cluster, compute, bucket, out));
    out->free_step = free_of_network.step;
    out->exposed = out->step > out->free_step ? out->step - out->free_step : 0;
done:
    return status;
}
