/* Self-timed execution of a plan, as events: how long a step takes and what activations need.
 *
 * The clock of the plan gives order and versions; here a task starts as soon as
 *   - its worker's task before it is done (forward, then backward, stage after stage);
 *   - its weights are there: version v of a home exists once every worker's backward of step v-1 is done there and in
 *     the stages tied to it (it overwrites version v-2, whose last users are workers of step v-1: they are done);
 *   - the cycle: the backward of the micro-batch before it has begun in this stage. Gradients are computed apart and
 *     added in that order; what began earlier and costs the same is there when it is needed;
 *   - dp: all forwards of the step are done, as on N devices; accumulate: fewer than P micro-batches are under way;
 *   - zero: whoever has the version before it in the order of the clock has passed it on;
 *   - pipeline, grid: its device has done all that the clock puts before it;
 *   - the pace allows it: its phase t + i/N + c, with c the share of the step's cost before it, is at most the slowest
 *     worker's plus the window. Only `shared` and `replica` need that; elsewhere order does the same;
 * and an executor is free; the smallest phase goes first.
 *
 * Memory follows the curve of the partition inside a task. Of a worker that waits between two operations it is known
 * that what it holds is alive during both, so the smaller of the two is taken: an upper bound. */
#include <float.h>

#include "plan/simulate_internal.h"

/* Times and phases that differ by less are equal. */
static const double moment = 1e-11;

enum { WOKEN = -2 }; /* not in a queue: whoever does what is missing looks for the worker */

/* ---- heaps ----------------------------------------------------------------------------------- */

static bool comes_before(car_entry a, car_entry b) {
    return a.key < b.key || (a.key <= b.key && a.worker < b.worker);
}

static void heap_push(car_heap *h, double key, int worker) {
    car_entry added = {key, worker};
    int at = h->count++;
    while (at > 0 && comes_before(added, h->entries[(at - 1) / 2])) {
        h->entries[at] = h->entries[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->entries[at] = added;
}

static int heap_pop(car_heap *h) {
    int top = h->entries[0].worker, at = 0;
    car_entry moved = h->entries[--h->count];
    for (int child = 1; child < h->count; child = 2 * at + 1) {
        if (child + 1 < h->count && comes_before(h->entries[child + 1], h->entries[child])) {
            child++;
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

/* ---- memory ---------------------------------------------------------------------------------- */

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

static void close_moment(car_machine *m) {
    bool steady = m->steady_begin >= 0 && m->steady_end < 0;
    for (int c = 0; c < m->changed_count; c++) {
        car_pool *p = &m->pools[m->changed[c]];
        int64_t most = (p->before > p->bytes ? p->before : p->bytes) + p->on_top;
        p->peak = steady && most > p->peak ? most : p->peak;
        p->changed = false;
    }
    m->changed_count = 0;
}

static int device_of(const car_machine *m, int worker, const car_position *p) {
    int64_t step = m->runners[worker].done / m->count;
    return m->shared ? 0 : car_plan_device(m->plan, step, worker, p->stage);
}

/* A worker's activations change; `highest` is what operations without duration had in between. */
static void hold(car_machine *m, int worker, const car_position *p, int64_t bytes, int64_t highest) {
    car_runner *r = &m->runners[worker];
    int64_t base = r->bytes > bytes ? r->bytes : bytes;
    int64_t on_top = highest > base ? highest - base : 0;
    pool_change(m, m->devices, bytes - r->bytes, on_top);
    if (!m->in_order) { /* a micro-batch is on one device; else devices count by stages, see start and finish */
        pool_change(m, device_of(m, worker, p), bytes - r->bytes, on_top);
    }
    r->bytes = bytes;
}

/* ---- what a task waits for -------------------------------------------------------------------- */

static const car_position *next_position(const car_machine *m, int worker) {
    return &m->positions[m->runners[worker].done % m->count];
}

/* Whether micro-batch n has done its task at a position; those before the first have. */
static bool is_done(const car_machine *m, int64_t n, int at) {
    return n < 0 || m->runners[n % m->workers].done > n / m->workers * m->count + at;
}

static bool is_begun(const car_machine *m, int64_t n, int at) {
    const car_runner *r = &m->runners[n < 0 ? 0 : n % m->workers];
    bool runs_it = r->state == CAR_RUNNER_COMPUTING && r->done == n / m->workers * m->count + at;
    return is_done(m, n, at) || runs_it;
}

/* zero, the cycle: the version moves from user to user in the order of the clock, in which forwards and backwards
 * alternate: F(n) = 2k*n + j comes right after B(n + floor((j-S)/k)), B(n) right after F(n + floor((S-1-j)/k)). */
static bool is_passed_on(const car_machine *m, int64_t n, const car_position *p, int home) {
    int S = m->stages, k = car_plan_per_worker(m->plan), forward = m->position_of[p->stage];
    int64_t version = car_plan_version(m->plan, n, home);
    int64_t first = car_plan_first_user(m->plan, version, home), last = car_plan_last_user(m->plan, version, home);
    last = last < m->steps * m->workers ? last : m->steps * m->workers - 1;
    if (!p->backward) {
        int64_t other = n - (S - p->stage + k - 1) / k;
        return other >= first ? is_done(m, other, m->count - 1 - forward) : n == first || is_done(m, n - 1, forward);
    }
    int64_t other = n + (S - 1 - p->stage) / k;
    if (other <= last) {
        return is_done(m, other, forward);
    }
    return n == first ? is_done(m, last, forward) : is_done(m, n - 1, m->count - 1 - forward);
}

/* The queue of weights that the task waits for, or CAR_NONE: until they exist, until they are passed on. */
static int waits_for_bundle(const car_machine *m, int64_t n, const car_position *p, int home) {
    if (!p->backward && m->newest[home] < car_plan_version(m->plan, n, home)) {
        return home;
    }
    return m->zero && !is_passed_on(m, n, p, home) ? p->stage : CAR_NONE;
}

static int waits_for_weights(const car_machine *m, int64_t n, const car_position *p) {
    int queue = waits_for_bundle(m, n, p, p->stage);
    for (int b = m->stages; b < m->partition->bundle_count && queue == CAR_NONE; b++) {
        if (m->partition->bundles[b].stage == p->stage) {
            queue = waits_for_bundle(m, n, p, m->partition->bundles[b].home);
        }
    }
    return queue;
}

/* Whether dp's or accumulate's order holds the task back. */
static bool waits_at_gate(const car_machine *m, int64_t n, int at) {
    const car_plan_config *config = car_plan_config_of(m->plan);
    if (config->rule == CAR_RULE_DP) {
        return at == m->count / 2 && m->turned < (n / m->workers + 1) * m->workers;
    }
    return config->rule == CAR_RULE_ACCUMULATE && at == 0 && n >= m->finished + config->threads;
}

/* The queue that a worker has to wait in before its next task, CAR_NONE or WOKEN. */
static int waits_for(const car_machine *m, int worker) {
    const car_position *p = next_position(m, worker);
    int at = (int)(p - m->positions), device = device_of(m, worker, p);
    int64_t n = m->runners[worker].done / m->count * m->workers + worker;
    int queue = waits_for_weights(m, n, p);
    if (queue != CAR_NONE) {
        return queue;
    }
    if (waits_at_gate(m, n, at)) {
        return m->stages;
    }
    if (m->cyclic && p->backward && !is_begun(m, n - 1, at)) {
        return WOKEN;
    }
    if (m->in_order) {
        return m->appointments[m->next_appointment[device]].task == n * m->count + at ? CAR_NONE : WOKEN;
    }
    return !m->shared && m->busy[device] ? m->stages + 1 + device : CAR_NONE;
}

/* The cycle's phase. Without it only the order counts: dp takes its workers abreast, others one after another. */
static double phase_of(const car_machine *m, int worker) {
    int64_t step = m->runners[worker].done / m->count;
    double before = next_position(m, worker)->before;
    if (step == m->steps) {
        return DBL_MAX; /* it holds nobody up */
    }
    if (m->cyclic) {
        return (double)step + (double)worker / m->workers + before;
    }
    return car_plan_config_of(m->plan)->rule == CAR_RULE_DP ? (double)step + before
                                                            : (double)(step * m->workers + worker) + before;
}

/* Makes a waiting worker's next task ready if nothing is missing, or lines the worker up. */
static void consider(car_machine *m, int worker) {
    car_runner *r = &m->runners[worker];
    if (r->state != CAR_RUNNER_WAITING || r->queue != CAR_NONE || r->done == m->steps * m->count) {
        return;
    }
    int queue = waits_for(m, worker);
    if (queue == CAR_NONE) {
        r->state = CAR_RUNNER_READY;
        heap_push(&m->ready, phase_of(m, worker), worker);
    } else if (queue != WOKEN) {
        r->queue = queue;
        r->next_waiting = m->queues[queue];
        m->queues[queue] = worker;
    }
}

static void wake(car_machine *m, int queue) {
    int worker = m->queues[queue];
    m->queues[queue] = CAR_NONE;
    while (worker != CAR_NONE) {
        int next = m->runners[worker].next_waiting;
        m->runners[worker].queue = CAR_NONE;
        consider(m, worker);
        worker = next;
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* An operation's time over its cost: real kernels do not all run at one rate. */
static double slowness(const car_machine *m, int worker, int event) {
    uint64_t n = (uint64_t)(m->runners[worker].done / m->count * m->workers + worker);
    return 1 + m->jitter * (2 * (double)car_random_uniform(car_random_u64(m->seed, n), (uint64_t)event) - 1);
}

/* Runs the next task's events from `event` on up to one that takes time, or to its end. */
static void enter(car_machine *m, int worker, int event) {
    const car_position *p = next_position(m, worker);
    const car_curve *curve = &m->partition->curve;
    int64_t highest = 0;
    double duration = 0;
    for (; event < p->end; event++) {
        duration = (event + 1 < curve->events ? curve->begin[event + 1] : 1) - curve->begin[event];
        if (duration > moment) {
            break;
        }
        highest = (int64_t)curve->during[event] > highest ? (int64_t)curve->during[event] : highest;
    }
    m->runners[worker].event = event;
    hold(m, worker, p, (int64_t)(event < p->end ? curve->during[event] : p->after), highest);
    heap_push(&m->timers, m->now + (event < p->end ? duration * slowness(m, worker, event) : 0), worker);
}

static void start(car_machine *m, int worker) {
    const car_position *p = next_position(m, worker);
    int device = device_of(m, worker, p);
    m->runners[worker].state = CAR_RUNNER_COMPUTING;
    m->busy[device] = true;
    m->computing++;
    m->free--;
    if (m->in_order && !p->backward) {
        pool_change(m, device, (int64_t)m->partition->stages[p->stage].held_bytes, 0);
    }
    enter(m, worker, p->first);
    if (m->cyclic && p->backward) {
        consider(m, (worker + 1) % m->workers);
    }
}

/* A backward of a home's stage, or of one tied to it, is done. */
static void credit(car_machine *m, int home, int64_t step) {
    int *missing = &m->missing[2 * home + step % 2];
    if (--*missing == 0) {
        m->newest[home] = step + 1;
        *missing = m->needed[home];
        wake(m, home);
    }
}

/* What others were waiting for: versions, the sum, the gates. */
static void announce(car_machine *m, int64_t step, int at) {
    int stage = m->positions[at].stage;
    if (m->positions[at].backward) {
        credit(m, stage, step);
        for (int b = m->stages; b < m->partition->bundle_count; b++) {
            if (m->partition->bundles[b].stage == stage) {
                credit(m, m->partition->bundles[b].home, step);
            }
        }
    }
    if (m->zero) {
        wake(m, stage);
    }
    if (at == m->count / 2 - 1 && ++m->turned % m->workers == 0) {
        wake(m, m->stages);
    }
    if (at == m->count - 1) {
        m->finished++;
        wake(m, m->stages);
        m->steady_begin = m->finished == (int64_t)CAR_MACHINE_FILL * m->workers ? m->now : m->steady_begin;
        m->steady_end = m->finished == (m->steps - 1) * m->workers ? m->now : m->steady_end;
    }
}

static void release_device(car_machine *m, int device, const car_position *p) {
    m->busy[device] = false;
    m->computing--;
    m->free++;
    if (!m->in_order) {
        wake(m, m->stages + 1 + device);
        return;
    }
    if (p->backward) {
        pool_change(m, device, -(int64_t)m->partition->stages[p->stage].held_bytes, 0);
    }
    int64_t next = ++m->next_appointment[device];
    if (next < m->end_appointment[device]) {
        consider(m, (int)(m->appointments[next].task / m->count % m->workers));
    }
}

static void update_slowest(car_machine *m, int worker) {
    int node = m->leaves + worker;
    m->slowest[node] = phase_of(m, worker);
    for (node /= 2; node > 0; node /= 2) {
        double left = m->slowest[2 * node], right = m->slowest[2 * node + 1];
        m->slowest[node] = left < right ? left : right;
    }
}

static void finish(car_machine *m, int worker) {
    car_runner *r = &m->runners[worker];
    const car_position *p = next_position(m, worker);
    int device = device_of(m, worker, p);
    int64_t step = r->done / m->count;
    hold(m, worker, p, (int64_t)p->after, 0);
    r->state = CAR_RUNNER_WAITING;
    r->done++;
    update_slowest(m, worker);
    announce(m, step, (int)(p - m->positions));
    release_device(m, device, p);
    consider(m, worker);
}

/* A timer went off: on to the next event, or the end. */
static void proceed(car_machine *m, int worker) {
    const car_position *p = next_position(m, worker);
    int next = m->runners[worker].event + 1;
    if (next < p->end) {
        enter(m, worker, next);
    } else {
        finish(m, worker);
    }
}

/* Starts what may start. A pace that lets nobody run would be a deadlock, so then the first in line may. */
static void dispatch(car_machine *m) {
    while (m->free > 0 && m->ready.count > 0) {
        bool too_early = m->ready.entries[0].key > m->slowest[1] + m->window + moment;
        if (m->paced && too_early && m->computing > 0) {
            return;
        }
        int worker = heap_pop(&m->ready);
        m->runners[worker].state = CAR_RUNNER_WAITING;
        if (!m->shared && m->busy[device_of(m, worker, next_position(m, worker))]) {
            consider(m, worker); /* another worker of the rank was faster */
        } else {
            start(m, worker);
        }
    }
}

static void run(car_machine *m) {
    for (int i = 0; i < m->workers; i++) {
        update_slowest(m, i);
        consider(m, i);
    }
    dispatch(m);
    close_moment(m);
    while (m->timers.count > 0) {
        double next = m->timers.entries[0].key;
        if (m->steady_begin >= 0 && m->steady_end < 0) {
            m->area += (next - m->now) * (double)m->pools[m->devices].bytes;
            m->work += (next - m->now) * m->computing;
        }
        m->now = next;
        do {
            while (m->timers.count > 0 && m->timers.entries[0].key <= m->now + moment) {
                proceed(m, heap_pop(&m->timers));
            }
            dispatch(m);
        } while (m->timers.count > 0 && m->timers.entries[0].key <= m->now + moment);
        close_moment(m);
    }
}

static void report(const car_machine *m, car_simulation *out) {
    double time = m->steady_end - m->steady_begin, idle = 1 - m->work / (time * m->executors);
    out->step_time = time / (double)(m->steps - 1 - CAR_MACHINE_FILL);
    out->idle = idle > 0 ? idle : 0; /* rounding may leave less than none */
    out->peak = (size_t)m->pools[m->devices].peak;
    out->mean = (size_t)(m->area / time + 0.5);
    for (int d = 0; d < m->devices; d++) {
        size_t peak = (size_t)m->pools[d].peak;
        out->device_peak = peak > out->device_peak ? peak : out->device_peak;
    }
}

car_status car_plan_simulate(const car_plan *plan, const car_simulation_config *config, car_simulation *out) {
    car_machine m;
    car_status status = CAR_OK;
    *out = (car_simulation){0};
    CAR_TRY(car_machine_create(plan, config, &m));
    run(&m);
    int64_t all = m.steps * m.workers;
    if (m.finished < all) {
        status =
            car_context_fail(m.context, CAR_ERROR_INTERNAL, "a simulated run stopped after %lld of %lld micro-batches",
                             (long long)m.finished, (long long)all);
        goto done;
    }
    report(&m, out);
done:
    car_machine_release(&m);
    return status;
}
