/* What a worker's operations hold and take, inside of the machine's forwards and backwards.
 *
 * Memory follows the curve of the partition. Of a worker that waits between two tasks it is known that what it holds is
 * alive during the operations on both sides, so the smaller of the two is taken: an upper bound. */
#include "plan/machine.h"

/* The events of the curve that a task is, and the bytes that are held until the next one begins. */
typedef struct span {
    int first, end;
    size_t after;
} span;

static span span_of(const car_machine *m, const car_machine_task *task) {
    const car_stage *stage = &m->partition->stages[task->stage];
    const car_curve *curve = &m->partition->curve;
    bool forward = task->kind == CAR_TASK_FORWARD;
    span s = {.first = forward ? stage->first : car_curve_backward(curve, stage->end - 1),
              .end = forward ? stage->end : car_curve_backward(curve, stage->first - 1)};
    if (s.end > 0 && s.end < curve->events) {
        size_t last = curve->during[s.end - 1], next = curve->during[s.end];
        s.after = last < next ? last : next;
    }
    return s;
}

static const car_machine_task *task_of(const car_machine *m, int worker) {
    const car_runner *runner = &m->runners[worker];
    return car_machine_at(&m->rank[runner->rank], runner->task);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void pool_change(car_machine *m, int index, int64_t bytes, int64_t on_top) {
    car_pool *p = &m->pools[index];
    if (!p->changed) {
        p->changed = true;
        p->before = p->bytes;
        p->on_top = 0;
        m->changed[m->changed_count++] = index;
    }
    p->bytes += bytes;
    p->on_top += on_top;
}

void car_machine_close_moment(car_machine *m) {
    for (int c = 0; c < m->changed_count; c++) {
        car_pool *p = &m->pools[m->changed[c]];
        int64_t most = (p->before > p->bytes ? p->before : p->bytes) + p->on_top;
        p->peak = m->steady && most > p->peak ? most : p->peak;
        p->changed = false;
    }
    m->changed_count = 0;
}

/* A worker's activations change; `highest` is what operations without duration had in between. */
static void hold(car_machine *m, int worker, int64_t bytes, int64_t highest) {
    car_runner *r = &m->runners[worker];
    int64_t base = r->bytes > bytes ? r->bytes : bytes;
    int64_t on_top = highest > base ? highest - base : 0;
    pool_change(m, m->ranks, bytes - r->bytes, on_top);
    if (!m->in_order) { /* a micro-batch is on one rank; else ranks count by stages */
        pool_change(m, r->rank, bytes - r->bytes, on_top);
    }
    r->bytes = bytes;
}

/* Where a micro-batch is on many ranks, each holds its stages of it from forward to backward. */
static void hold_stage(car_machine *m, int worker, bool begins) {
    const car_machine_task *task = task_of(m, worker);
    int64_t bytes = (int64_t)m->partition->stages[task->stage].held_bytes;
    if (m->in_order && begins == (task->kind == CAR_TASK_FORWARD)) {
        pool_change(m, m->runners[worker].rank, begins ? bytes : -bytes, 0);
    }
    if (m->in_order && begins && task->kind == CAR_TASK_BACKWARD) {
        pool_change(m, m->runners[worker].rank, 0, (int64_t)m->partition->stages[task->stage].again_bytes);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

/* An operation's time over its cost: real kernels do not all run at one rate. */
static double slowness(const car_machine *m, int worker, int event) {
    uint64_t n = (uint64_t)(m->runners[worker].done / (2 * (int64_t)m->stages) * m->batches + worker);
    uint64_t seed = car_random_u64(m->config.seed, n);
    return 1 + m->config.jitter * (2 * (double)car_random_uniform(seed, (uint64_t)event) - 1);
}

/* Runs events from `event` on up to one that takes time; false if there is none. */
static bool enter(car_machine *m, int worker, span s, int event, double *seconds) {
    const car_curve *curve = &m->partition->curve;
    int64_t highest = 0;
    for (; event < s.end; event++) {
        double share = (event + 1 < curve->events ? curve->begin[event + 1] : 1) - curve->begin[event];
        if (share * m->config.compute > m->moment) {
            *seconds = m->config.compute * share * slowness(m, worker, event);
            break;
        }
        highest = (int64_t)curve->during[event] > highest ? (int64_t)curve->during[event] : highest;
    }
    m->runners[worker].event = event;
    if (event > s.first || event < s.end) { /* a stage without operations changes nothing */
        hold(m, worker, (int64_t)(event < s.end ? curve->during[event] : s.after), highest);
    }
    return event < s.end;
}

bool car_machine_begin(car_machine *m, int worker, double *seconds) {
    const car_machine_task *task = task_of(m, worker);
    if (!m->config.by_memory) {
        const car_stage *stage = &m->partition->stages[task->stage];
        *seconds = m->config.compute * (task->kind == CAR_TASK_FORWARD ? stage->forward : stage->backward);
        return *seconds > 0;
    }
    span s = span_of(m, task);
    hold_stage(m, worker, true);
    return enter(m, worker, s, s.first, seconds);
}

bool car_machine_proceed(car_machine *m, int worker, double *seconds) {
    return m->config.by_memory &&
           enter(m, worker, span_of(m, task_of(m, worker)), m->runners[worker].event + 1, seconds);
}

void car_machine_hold_after(car_machine *m, int worker) {
    if (m->config.by_memory) {
        hold_stage(m, worker, false);
    }
}
