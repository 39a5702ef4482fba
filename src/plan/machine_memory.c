/* The memory and time of single operations inside the machine's forwards and backwards.
 *
 * Memory follows the curve of the partition. A runner that waits between two tasks holds only what is alive during
 * the operations on both sides. So the smaller of the two amounts is used, which is an upper bound. */
#include "plan/machine.h"

/* Finds the events of the curve that make up a task, and the bytes that stay held until the next task begins. */
static void find_span(const car_machine *m, const car_machine_task *task, car_runner *r) {
    const car_stage *stage = &m->partition->stages[task->stage];
    const car_curve *curve = &m->partition->curve;
    bool forward = task->kind == CAR_TASK_FORWARD;
    r->event = forward ? stage->first : car_curve_backward(curve, stage->end - 1);
    r->end = forward ? stage->end : car_curve_backward(curve, stage->first - 1);
    r->after = 0;
    if (r->end > 0 && r->end < curve->events) {
        size_t last = curve->during[r->end - 1], next = curve->during[r->end];
        r->after = (int64_t)(last < next ? last : next);
    }
}

static const car_machine_task *task_of(const car_machine *m, int runner) {
    const car_runner *r = &m->runners[runner];
    return car_machine_at(&m->rank[r->rank], r->task);
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

/* Changes a runner's activations to `bytes`; `highest` is the peak of operations without duration in between. */
static void hold(car_machine *m, int runner, int64_t bytes, int64_t highest) {
    car_runner *r = &m->runners[runner];
    int64_t base = r->bytes > bytes ? r->bytes : bytes;
    int64_t on_top = highest > base ? highest - base : 0;
    pool_change(m, m->ranks, bytes - r->bytes, on_top);
    if (!m->in_order) { /* then a micro-batch is on one rank; otherwise ranks count by stage */
        pool_change(m, r->rank, bytes - r->bytes, on_top);
    }
    r->bytes = bytes;
}

/* Where a micro-batch is spread over ranks, each holds its stages of it from forward to backward. */
static void hold_stage(car_machine *m, int runner, bool begins) {
    const car_machine_task *task = task_of(m, runner);
    int64_t bytes = (int64_t)m->partition->stages[task->stage].held_bytes;
    if (m->in_order && begins == (task->kind == CAR_TASK_FORWARD)) {
        pool_change(m, m->runners[runner].rank, begins ? bytes : -bytes, 0);
    }
    if (m->in_order && begins && task->kind == CAR_TASK_BACKWARD) {
        pool_change(m, m->runners[runner].rank, 0, (int64_t)m->partition->stages[task->stage].again_bytes);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

/* The factor by which an operation's time differs from its cost: real kernels do not all run at one rate. */
static double slowness(const car_machine *m, int runner, int event) {
    if (!(m->config.jitter > 0)) {
        return 1;
    }
    uint64_t n = (uint64_t)(m->runners[runner].done / (2 * (int64_t)m->stages) * m->batches + runner);
    uint64_t seed = car_random_u64(m->config.seed, n);
    return 1 + m->config.jitter * (2 * (double)car_random_uniform(seed, (uint64_t)event) - 1);
}

/* Runs events from `event` on until one takes time. Returns false if none does. */
static bool enter(car_machine *m, int runner, int event, double *seconds) {
    const car_curve *curve = &m->partition->curve;
    car_runner *r = &m->runners[runner];
    int64_t highest = 0;
    for (; event < r->end; event++) {
        double share = (event + 1 < curve->events ? curve->begin[event + 1] : 1) - curve->begin[event];
        if (share * m->config.compute > m->moment) {
            *seconds = m->config.compute * share * slowness(m, runner, event);
            break;
        }
        highest = (int64_t)curve->during[event] > highest ? (int64_t)curve->during[event] : highest;
    }
    r->event = event;
    hold(m, runner, event < r->end ? (int64_t)curve->during[event] : r->after, highest);
    return event < r->end;
}

bool car_machine_begin(car_machine *m, int runner, double *seconds) {
    const car_machine_task *task = task_of(m, runner);
    if (!m->config.by_memory) {
        const car_stage *stage = &m->partition->stages[task->stage];
        *seconds = m->config.compute * (task->kind == CAR_TASK_FORWARD ? stage->forward : stage->backward);
        return *seconds > 0;
    }
    car_runner *r = &m->runners[runner];
    find_span(m, task, r);
    hold_stage(m, runner, true);
    return r->event < r->end && enter(m, runner, r->event, seconds); /* a stage may have no operations */
}

bool car_machine_proceed(car_machine *m, int runner, double *seconds) {
    return m->config.by_memory && enter(m, runner, m->runners[runner].event + 1, seconds);
}

void car_machine_hold_after(car_machine *m, int runner) {
    if (m->config.by_memory) {
        hold_stage(m, runner, false);
    }
}
