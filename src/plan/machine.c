/* The event loop of the simulated machine: what may start, and what has ended. See machine.h.
 *
 * Whatever an event allows without taking time (sends, updates, posting receives) is done at once, from lists
 * instead of by recursion. Forwards and backwards are dispatched afterwards. */
#include <float.h>

#include "plan/machine.h"

/* ---- the heap of ready runners --------------------------------------------------------------- */

/* Branch-free, because a branch would be mispredicted half of the time. */
static bool comes_before(car_ready a, car_ready b) {
    return (a.phase < b.phase) | ((a.phase <= b.phase) & (a.runner < b.runner));
}

static void push(car_ready_heap *h, double phase, int runner) {
    car_ready added = {phase, runner};
    int at = h->count++;
    while (at > 0 && comes_before(added, h->entries[(at - 1) / 2])) {
        h->entries[at] = h->entries[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->entries[at] = added;
}

static int pop(car_ready_heap *h) {
    int top = h->entries[0].runner, at = 0;
    car_ready moved = h->entries[--h->count];
    for (int child = 1; child < h->count; child = 2 * at + 1) {
        if (child + 1 < h->count) {
            child += comes_before(h->entries[child + 1], h->entries[child]);
        }
        if (!comes_before(h->entries[child], moved)) {
            break;
        }
        h->entries[at] = h->entries[child];
        at = child;
    }
    h->entries[at] = moved;
    return top;
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* The share of a micro-batch's cost that lies before the task at `position`. */
static double share_before(const car_machine *m, int64_t position) {
    const car_curve *curve = &m->partition->curve;
    bool forward = position < m->stages;
    const car_stage *stage = &m->partition->stages[forward ? position : 2 * (int64_t)m->stages - 1 - position];
    int first = forward ? stage->first : car_curve_backward(curve, stage->end - 1);
    return first < curve->events ? curve->begin[first] : 1;
}

/* When a runner's next task is due if all proceed evenly, in micro-batches: worker i begins i/N after the first, and
 * takes its micro-batches one after another. Rules without spacing need only an order: all workers side by side, or
 * one after another. */
static double find_phase(const car_machine *m, int runner) {
    int64_t tasks = 2 * (int64_t)m->stages, step = m->runners[runner].done / tasks;
    if (step == m->config.steps) {
        return DBL_MAX; /* a runner that is done holds nobody back */
    }
    double before = share_before(m, m->runners[runner].done % tasks);
    const car_rule_info *rule = &m->plan->rule->info;
    int workers = m->plan->config.workers;
    if (rule->spaced) {
        return car_plan_phase(m->plan, step, runner) + before;
    }
    int64_t n = step * m->batches + runner;
    return (double)(rule->together ? n / workers : n) + before;
}

/* Recomputes a runner's phase because its next task has changed. */
static void update_phase(car_machine *m, int runner) {
    int node = m->leaves + runner;
    m->runners[runner].phase = find_phase(m, runner);
    if (!m->config.paced) {
        return;
    }
    m->slowest[node] = m->runners[runner].phase;
    for (node /= 2; node > 0; node /= 2) {
        double left = m->slowest[2 * node], right = m->slowest[2 * node + 1], least = left < right ? left : right;
        if (m->slowest[node] <= least && m->slowest[node] >= least) {
            return; /* nothing changes further up the tree */
        }
        m->slowest[node] = least;
    }
}

/* Phases are in micro-batches, so the tolerance `moment` has to be divided by a micro-batch's time. */
static bool is_too_early(const car_machine *m, double phase) {
    return m->config.paced && phase > m->slowest[1] + m->config.lead + m->moment / m->config.compute;
}

/* ---- tasks that take no time ----------------------------------------------------------------- */

void car_machine_enqueue(car_machine *m, int rank) {
    if (!m->rank[rank].queued) {
        m->rank[rank].queued = true;
        m->queue[m->queue_count++] = rank;
    }
}

car_status car_machine_unblock(car_machine *m, int at, int number) {
    const car_machine_task *task = car_machine_at(&m->rank[at], number);
    car_status status = CAR_OK;
    switch ((car_task_kind)task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        m->runners[task->micro_batch].rank = at;
        m->runners[task->micro_batch].task = number;
        push(&m->ready, m->runners[task->micro_batch].phase, task->micro_batch);
        break;
    case CAR_TASK_SEND:
    case CAR_TASK_UPDATE:
        CAR_TRY(car_context_grow(m->context, &m->due, &m->due_capacity, m->due_count + 1, sizeof *m->due));
        m->due[m->due_count++] = (car_machine_due){at, number};
        break;
    case CAR_TASK_RECEIVE:
        return task->arrived ? car_machine_retire(m, at, number) : CAR_OK;
    default:
        car_machine_enqueue(m, at); /* its turn may have come */
        return task->arrived ? car_machine_retire(m, at, number) : CAR_OK;
    }
done:
    return status;
}

car_status car_machine_arrive(car_machine *m, int at, int number) {
    car_machine_task *task = car_machine_at(&m->rank[at], number);
    task->arrived = true;
    return car_machine_wait_of(&m->rank[at], number)->blockers == 0 ? car_machine_retire(m, at, number) : CAR_OK;
}

/* The network identifies a receive by its rank and number. */
static int64_t name_of(int rank, int number) {
    return (int64_t)rank << 32 | (int64_t)number;
}

static bool is_sum(const car_machine_task *task) {
    return task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
}

car_status car_machine_arrive_by_name(car_machine *m, int64_t name) {
    int at = (int)(name >> 32), number = (int)(name & 0xffffffff);
    car_status status = CAR_OK;
    if (name == CAR_NONE) {
        return CAR_OK;
    }
    const car_machine_task task = *car_machine_at(&m->rank[at], number);
    CAR_TRY(car_machine_arrive(m, at, number));
    if (m->orders_sums && is_sum(&task)) {
        CAR_TRY(car_machine_note_sum(m, task.peer, at, task.tag));
    }
done:
    return status;
}

static double bytes_of(const car_machine *m, const car_machine_task *task) {
    const car_task message = {
        .cargo = (car_cargo)task->cargo, .stage = task->stage, .bundle = task->bundle, .piece = task->piece};
    return (double)car_plan_task_bytes(m->plan, &message);
}

static car_status run_due(car_machine *m, car_machine_due due) {
    const car_machine_task task_now = *car_machine_at(&m->rank[due.rank], due.task), *task = &task_now;
    int64_t woken = CAR_NONE;
    car_status status = CAR_OK;
    if (task->kind == CAR_TASK_SEND && m->orders_sums && is_sum(task)) {
        CAR_TRY(car_machine_send_sum(m, due.rank, task, bytes_of(m, task)));
    } else if (task->kind == CAR_TASK_SEND) {
        CAR_TRY(car_network_send(&m->network, m->now, due.rank, task->peer, task->tag, bytes_of(m, task), &woken));
        CAR_TRY(car_machine_arrive_by_name(m, woken));
    }
    CAR_TRY(car_machine_retire(m, due.rank, due.task));
done:
    return status;
}

static car_status post_receives(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    car_status status = CAR_OK;
    for (int d = 0; d < m->distance_count; d++) {
        car_machine_line *line = &rank->arrivals[d];
        while (line->first != CAR_NONE &&
               car_machine_at(rank, line->first)->slot <= car_machine_slot(rank) + m->distances[d]) {
            int number = car_machine_take(rank, line);
            const car_machine_task *task = car_machine_at(rank, number);
            int64_t woken = CAR_NONE;
            CAR_TRY(car_network_post(&m->network, m->now, task->peer, at, task->tag, name_of(at, number), &woken));
            CAR_TRY(car_machine_arrive_by_name(m, woken));
        }
    }
done:
    return status;
}

/* Does everything that takes no time. */
static car_status settle(car_machine *m) {
    car_status status = CAR_OK;
    while (m->due_first < m->due_count || m->queue_count > 0) {
        while (m->due_first < m->due_count) {
            CAR_TRY(run_due(m, m->due[m->due_first++]));
        }
        m->due_first = m->due_count = 0;
        if (m->queue_count > 0) {
            int rank = m->queue[--m->queue_count];
            m->rank[rank].queued = false;
            CAR_TRY(car_machine_list(m, rank));
            CAR_TRY(post_receives(m, rank));
            CAR_TRY(car_machine_call(m, rank));
        }
    }
done:
    return status;
}

/* ---- computing ------------------------------------------------------------------------------- */

static void end_micro_batch(car_machine *m, int64_t step) {
    if (--m->unfinished[step] > 0) {
        return;
    }
    m->finished[step] = m->now;
    if (step == CAR_MACHINE_FILL - 1) {
        m->steady = true;
        car_network_start_counting(&m->network);
    } else if (step == m->config.steps - 2) {
        m->steady = m->network.counting = false;
        m->known = true;
    }
}

/* Where all of a runner's tasks are on one rank, its next task is listed only when it is needed. */
static void want_next(car_machine *m, int runner) {
    const car_runner *r = &m->runners[runner];
    if (!m->in_order && r->listed == r->done && r->done < m->config.steps * 2 * m->stages) {
        push(&m->unlisted, r->phase, runner);
    }
}

static car_status finish(car_machine *m, int runner) {
    car_runner *r = &m->runners[runner];
    car_machine_rank *rank = &m->rank[r->rank];
    int at = r->rank, number = r->task;
    int64_t tasks = 2 * (int64_t)m->stages;
    car_status status = CAR_OK;
    car_machine_hold_after(m, runner);
    rank->busy = false;
    rank->computes--;
    m->computing--;
    m->free++;
    if (++r->done % tasks == 0) {
        end_micro_batch(m, r->done / tasks - 1);
    }
    update_phase(m, runner);
    want_next(m, runner);
    for (int other = rank->waiting; other != CAR_NONE; other = m->runners[other].next_waiting) {
        push(&m->ready, m->runners[other].phase, other);
    }
    rank->waiting = CAR_NONE;
    car_machine_enqueue(m, at);
    CAR_TRY(car_machine_retire(m, at, number));
done:
    return status;
}

/* How long a rank waits before it computes for the first time. */
static double delay_of(const car_machine *m, const car_machine_rank *rank, int slot) {
    double begin = m->config.compute / (2.0 * m->stages) * slot;
    return m->config.staggered && !rank->begun && car_plan_is_spaced(m->plan) && begin > m->now ? begin - m->now : 0;
}

static car_status start(car_machine *m, int runner) {
    car_machine_rank *rank = &m->rank[m->runners[runner].rank];
    double seconds = 0, delay = delay_of(m, rank, car_machine_at(rank, m->runners[runner].task)->slot);
    car_status status = CAR_OK;
    rank->busy = rank->begun = true;
    m->computing++;
    m->free--;
    if (car_machine_begin(m, runner, &seconds) || delay > 0) {
        return car_agenda_set(&m->agenda, m->group_count + runner, m->now + delay + seconds);
    }
    CAR_TRY(finish(m, runner));
    CAR_TRY(settle(m));
done:
    return status;
}

/* Lists the tasks of runners that the pace would let run. */
static car_status list_runners(car_machine *m) {
    car_status status = CAR_OK;
    while (m->unlisted.count > 0 &&
           (!is_too_early(m, m->unlisted.entries[0].phase) || (m->computing == 0 && m->ready.count == 0))) {
        CAR_TRY(car_machine_list_runner(m, pop(&m->unlisted)));
        CAR_TRY(settle(m));
    }
done:
    return status;
}

/* Starts what may start. If pacing lets nobody run, that would be a deadlock, so the first in line may start anyway. */
static car_status dispatch(car_machine *m) {
    car_status status = CAR_OK;
    CAR_TRY(list_runners(m));
    while (m->free > 0 && m->ready.count > 0) {
        if (is_too_early(m, m->ready.entries[0].phase) && m->computing > 0) {
            break;
        }
        int runner = pop(&m->ready);
        car_machine_rank *rank = &m->rank[m->runners[runner].rank];
        if (rank->busy && !m->one_process) {
            m->runners[runner].next_waiting = rank->waiting;
            rank->waiting = runner;
            continue;
        }
        CAR_TRY(start(m, runner));
        CAR_TRY(list_runners(m));
    }
done:
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static car_status handle(car_machine *m, int64_t id) {
    int64_t runner = id - m->group_count, flow = runner - m->batches, woken = CAR_NONE;
    double seconds = 0;
    car_status status = CAR_OK;
    if (runner < 0) {
        return car_machine_end_collective(m, (int)id);
    }
    if (flow < 0) {
        return car_machine_proceed(m, (int)runner, &seconds) ? car_agenda_set(&m->agenda, id, m->now + seconds)
                                                             : finish(m, (int)runner);
    }
    CAR_TRY(car_network_proceed(&m->network, m->now, (int)flow, &woken));
    CAR_TRY(car_machine_arrive_by_name(m, woken));
done:
    return status;
}

/* Handles everything that happens at one point in time. */
static car_status run_moment(car_machine *m) {
    car_status status = CAR_OK;
    do {
        while (m->agenda.count > 0 && m->agenda.events[0].time <= m->now + m->moment) {
            CAR_TRY(handle(m, car_agenda_pop(&m->agenda).id));
        }
        CAR_TRY(settle(m));
        CAR_TRY(dispatch(m));
    } while (m->agenda.count > 0 && m->agenda.events[0].time <= m->now + m->moment);
    car_machine_close_moment(m);
done:
    return status;
}

static car_status check_end(const car_machine *m) {
    for (int64_t step = 0; step < m->config.steps - 1; step++) {
        if (m->unfinished[step] > 0) {
            return car_context_fail(m->context, CAR_ERROR_INTERNAL,
                                    "a simulated run stopped early: %lld micro-batches of step %lld are unfinished",
                                    (long long)m->unfinished[step], (long long)step);
        }
    }
    return CAR_OK;
}

car_status car_machine_run(car_machine *m) {
    car_status status = CAR_OK;
    for (int runner = 0; runner < m->batches; runner++) {
        update_phase(m, runner);
        if (m->runners[runner].rank != CAR_NONE) {
            want_next(m, runner);
        }
    }
    for (int rank = m->ranks - 1; rank >= 0; rank--) {
        car_machine_enqueue(m, rank);
    }
    CAR_TRY(run_moment(m));
    while (m->agenda.count > 0 && !m->known) {
        double next = m->agenda.events[0].time;
        if (m->steady) {
            m->area += (next - m->now) * (double)m->pools[m->ranks].bytes;
            m->work += (next - m->now) * m->computing;
        }
        m->now = next;
        CAR_TRY(run_moment(m));
    }
    CAR_TRY(check_end(m));
done:
    return status;
}

double car_machine_seconds(const car_machine *m) {
    return m->finished[m->config.steps - 2] - m->finished[CAR_MACHINE_FILL - 1];
}

double car_machine_step(const car_machine *m) {
    return car_machine_seconds(m) / (double)(m->config.steps - 1 - CAR_MACHINE_FILL);
}
