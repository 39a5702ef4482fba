/* When tasks may run, written from the definitions of rules and placements (docs/design.md), without tables, uses or
 * edges. A second opinion on what src/plan/machine.c computes from those. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/plain_simulator.h"

typedef struct times {
    double start, end; /* HUGE_VAL until it is known */
} times;

/* All tasks of a run. Task p < S of a micro-batch is the forward of stage p; the backwards follow. Empty stages have
 * tasks, too, which take no time. */
typedef struct reference {
    const car_plan *plan;
    const car_partition *partition;
    const car_plan_config *config;
    car_simulation_config how;
    int N, S, steps;
    int B;        /* micro-batches of a step: M*N */
    times *times; /* [n * 2S + p] */
    double now;
} reference;

static times *at(const reference *r, int n, int p) {
    return &r->times[n * 2 * r->S + p];
}

static int stage_of(const reference *r, int p) {
    return p < r->S ? p : 2 * r->S - 1 - p;
}

static bool is_empty(const reference *r, int stage) {
    return r->partition->stages[stage].first == r->partition->stages[stage].end;
}

static double cost(const reference *r, int p) {
    const car_stage *stage = &r->partition->stages[stage_of(r, p)];
    return p < r->S ? stage->forward : stage->backward;
}

static int first_event(const reference *r, int p) {
    const car_stage *stage = &r->partition->stages[stage_of(r, p)];
    return p < r->S ? stage->first : r->partition->curve.events - stage->end;
}

static double share_before(const reference *r, int p) {
    int first = first_event(r, p);
    return first < r->partition->curve.events ? r->partition->curve.begin[first] : 1;
}

static int version_of(const reference *r, int n, int home) {
    int k = r->S / r->N, i = n % r->B, t = n / r->B;
    bool stale = r->config->rule == CAR_RULE_CDP_V1 || r->config->rule == CAR_RULE_2BW ||
                 (r->config->rule == CAR_RULE_CDP_V2 && k * (i + 1) + home < r->S);
    /* Only a worker's first micro-batch is stale: the update is made before its second. */
    stale = stale && i < r->N;
    return t - stale > 0 ? t - stale : 0;
}

static bool is_cyclic(const reference *r) {
    return r->config->rule == CAR_RULE_CDP_V1 || r->config->rule == CAR_RULE_CDP_V2 || r->config->rule == CAR_RULE_2BW;
}

/* Micro-batches are 2k slots apart. */
static bool is_spaced(const reference *r) {
    return is_cyclic(r) || (r->config->rule == CAR_RULE_STAGGER && r->config->placement != CAR_PLACEMENT_PIPELINE);
}

static bool has_ended(const reference *r, int n, int p) {
    return at(r, n, p)->end <= r->now + 1e-11;
}

static bool has_bytes(const reference *r, int bundle) {
    return r->partition->bundles[bundle].bytes > 0;
}

/* All gradients of a home for a version exist, including those of its ties. */
static bool sum_is_finished(const reference *r, int version, int home) {
    for (int b = 0; b < r->partition->bundle_count && version > 0; b++) {
        for (int i = 0; i < r->B && r->partition->bundles[b].home == home && has_bytes(r, b); i++) {
            if (!has_ended(r, (version - 1) * r->B + i, 2 * r->S - 1 - r->partition->bundles[b].stage)) {
                return false;
            }
        }
    }
    return true;
}

static int64_t slot_of(const reference *r, int n, int p) {
    return p < r->S ? car_plan_forward_slot(r->plan, n / r->B, n % r->B, p)
                    : car_plan_backward_slot(r->plan, n / r->B, n % r->B, stage_of(r, p));
}

static int device_of(const reference *r, int n, int p) {
    return car_plan_device(r->plan, n / r->B, n % r->B, stage_of(r, p));
}

static bool is_moving(const reference *r) {
    return r->config->placement == CAR_PLACEMENT_ZERO && is_spaced(r);
}

/* zero with two copies of a version: they travel in no time. */
static bool is_copied(const reference *r) {
    return r->config->zero_copies == 2;
}

/* The slot in which the owner then makes a version: at most 2k slots after its sum exists; early enough for the
 * first user if that is another rank; otherwise in the slot of its own forward. */
static int64_t renewal_of(const reference *r, int version, int home, int owner) {
    int k = r->S / r->N, n = 0;
    while (version_of(r, n, home) < version) {
        n++;
    }
    int64_t summed = car_plan_backward_slot(r->plan, version - 1, r->B - 1, home);
    int64_t latest = slot_of(r, n, home) - (n % r->N == owner ? 0 : r->config->zero_ahead);
    latest = latest < summed + 2 * k + 1 ? latest : summed + 2 * k + 1;
    return latest > summed ? latest : summed + 1;
}

/* zero: all uses of a version in earlier slots are done. */
static bool is_passed_on(const reference *r, int stage, int version, int home, int64_t slot) {
    for (int m = 0; m < r->B * r->steps; m++) {
        for (int q = stage; q < 2 * r->S; q += 2 * (r->S - stage) - 1) {
            if (version_of(r, m, home) == version && slot_of(r, m, q) < slot && !has_ended(r, m, q)) {
                return false;
            }
            if (q >= r->S) {
                break;
            }
        }
    }
    return true;
}

/* zero: the owner makes a version in the slot of its own first forward or, without the cycle, right after the step's
 * last backward. It needs the version before, which must have arrived, and must have finished all earlier work. */
static bool is_made_by_owner(const reference *r, int version, int home) {
    int owner = r->N - 1 - home / (r->S / r->N), turn = version * r->B + owner;
    int64_t renewal = car_plan_forward_slot(r->plan, version, owner, home);
    if (!is_cyclic(r)) {
        renewal = car_plan_backward_slot(r->plan, version - 1, r->B - 1, home) + 1;
    } else if (is_copied(r)) {
        renewal = renewal_of(r, version, home, owner);
    }
    for (int m = owner; m <= turn && m < r->B * r->steps; m += r->N) {
        for (int q = 0; q < 2 * r->S; q++) {
            if (slot_of(r, m, q) < renewal && !has_ended(r, m, q)) {
                return false;
            }
        }
    }
    return version == 0 || is_copied(r) || is_passed_on(r, home, version - 1, home, renewal);
}

static bool weights_are_there(const reference *r, int n, int p, int home) {
    int version = version_of(r, n, home), stage = stage_of(r, p);
    if (p < r->S && !sum_is_finished(r, version, home)) {
        return false;
    }
    return !is_moving(r) || ((is_copied(r) || is_passed_on(r, stage, version, home, slot_of(r, n, p))) &&
                             (version == 0 || is_made_by_owner(r, version, home)));
}

/* pipeline, grid: all earlier tasks of the device are done. */
static bool is_my_turn(const reference *r, int n, int p) {
    bool ordered = r->config->placement == CAR_PLACEMENT_PIPELINE || r->config->placement == CAR_PLACEMENT_GRID;
    for (int m = 0; m < r->B * r->steps && ordered; m++) {
        for (int q = 0; q < 2 * r->S; q++) {
            if (device_of(r, m, q) == device_of(r, n, p) && slot_of(r, m, q) < slot_of(r, n, p) &&
                !has_ended(r, m, q)) {
                return false;
            }
        }
    }
    return true;
}

/* One process has one sum: its workers add to it in turn, except dp's, which keep separate ones. Between ranks the
 * sum so far arrives by message and is added on arrival; but a worker whose predecessor is on the same rank waits. */
static bool may_add(const reference *r, int n, int p) {
    int stage = stage_of(r, p);
    bool adds = false, shared = r->config->placement == CAR_PLACEMENT_SHARED;
    for (int b = 0; b < r->partition->bundle_count; b++) {
        adds = adds || (r->partition->bundles[b].stage == stage && has_bytes(r, b));
    }
    if (n == 0 || p < r->S || !adds || (r->config->rule == CAR_RULE_DP)) {
        return true;
    }
    /* By worker, only the first micro-batch of a step, which starts the sum, and the last of each worker, which
     * joins it, use the sum. */
    bool by_worker = r->config->sum_order == CAR_SUM_ORDER_WORKER;
    int i = n % r->B, last = r->B - r->N;
    if (by_worker && !(i == 0 && shared) && !(i > last)) {
        return true;
    }
    if (shared) {
        return has_ended(r, n - 1, p);
    }
    for (int m = n / r->B * r->B + (by_worker ? last : 0); m < n && device_of(r, n - 1, p) == device_of(r, n, p); m++) {
        if (!has_ended(r, m, p)) {
            return false;
        }
    }
    return true;
}

/* dp in one process starts its backwards when all workers have finished their forwards. Accumulation has one tape
 * per thread, which workers take in turn. */
static bool passes_gate(const reference *r, int n, int p) {
    if (r->config->rule == CAR_RULE_DP && r->config->placement == CAR_PLACEMENT_SHARED && p == r->S) {
        for (int i = 0; i < r->N; i++) { /* the corresponding micro-batch of each worker */
            if (!has_ended(r, n / r->N * r->N + i, r->S - 1)) {
                return false;
            }
        }
    }
    int tapes = r->config->threads < r->N ? r->config->threads : r->N, before = n - 1;
    bool in_stages = r->config->placement == CAR_PLACEMENT_PIPELINE || r->config->placement == CAR_PLACEMENT_GRID;
    if (p > 0 || in_stages) {
        return true;
    }
    if (r->config->rule != CAR_RULE_ACCUMULATE) { /* a worker takes one micro-batch after the other */
        return n < r->N || has_ended(r, n - r->N, 2 * r->S - 1);
    }
    while (before >= 0 && before % r->B % tapes != n % r->B % tapes) {
        before--;
    }
    return before < 0 || has_ended(r, before, 2 * r->S - 1);
}

static bool device_is_free(const reference *r, int n, int p) {
    for (int m = 0; m < r->B * r->steps; m++) {
        for (int q = 0; q < 2 * r->S; q++) {
            const times *t = at(r, m, q);
            if (t->start < HUGE_VAL && !has_ended(r, m, q) && device_of(r, m, q) == device_of(r, n, p)) {
                return false;
            }
        }
    }
    return true;
}

/* The next unfinished task of micro-batch `number` of a step, or -1. */
static int next_task(const reference *r, int number, int *n) {
    for (int t = 0; t < r->steps; t++) {
        *n = t * r->B + number;
        for (int p = 0; p < 2 * r->S; p++) {
            if (!has_ended(r, *n, p)) {
                return p;
            }
        }
    }
    return -1;
}

static double phase_of(const reference *r, int n, int p) {
    if (is_spaced(r)) { /* a step is M long, or as long as its last worker takes */
        double slots = 2.0 * (r->S / r->N) * r->B + (is_cyclic(r) ? 0 : 2.0 * r->S - 2.0 * (r->S / r->N));
        double length = slots / (2.0 * r->S);
        return n / r->B * length + (double)(n % r->B) / r->N + share_before(r, p);
    }
    return (r->config->rule == CAR_RULE_DP ? n / r->N : n) + share_before(r, p);
}

static bool may_start(const reference *r, int n, int p) {
    int stage = stage_of(r, p);
    for (int b = 0; b < r->partition->bundle_count; b++) {
        if (r->partition->bundles[b].stage == stage && has_bytes(r, b) &&
            !weights_are_there(r, n, p, r->partition->bundles[b].home)) {
            return false;
        }
    }
    bool shared = r->config->placement == CAR_PLACEMENT_SHARED;
    return is_my_turn(r, n, p) && may_add(r, n, p) && passes_gate(r, n, p) && (shared || device_is_free(r, n, p));
}

/* Starts the ready task with the smallest phase that pacing allows, if there is one and an executor is free. */
static bool start_one(reference *r, int executors) {
    int best_n = -1, best_p = -1, computing = 0;
    double best = HUGE_VAL, slowest = HUGE_VAL;
    for (int i = 0; i < r->B; i++) {
        int n, p = next_task(r, i, &n);
        if (p < 0) {
            continue;
        }
        double phase = phase_of(r, n, p);
        slowest = phase < slowest ? phase : slowest;
        bool running = at(r, n, p)->start < HUGE_VAL;
        executors -= running;
        computing += running;
        if (!running && phase < best && may_start(r, n, p)) {
            best = phase;
            best_n = n;
            best_p = p;
        }
    }
    bool pace = r->how.paced && is_spaced(r) && (r->config->placement <= CAR_PLACEMENT_REPLICA || is_copied(r));
    double lead = r->how.lead > 0 ? r->how.lead : r->partition->longest_task;
    if (best_n < 0 || executors < 1 || (pace && computing > 0 && best > slowest + lead + 1e-11)) {
        return false;
    }
    at(r, best_n, best_p)->start = r->now;
    at(r, best_n, best_p)->end = r->now + cost(r, best_p);
    return true;
}

static void run_reference(reference *r, int executors) {
    for (;;) {
        while (start_one(r, executors)) {
        }
        double next = HUGE_VAL;
        for (int x = 0; x < r->B * r->steps * 2 * r->S; x++) {
            double end = r->times[x].end;
            next = end > r->now + 1e-11 && end < next ? end : next;
        }
        if (next == HUGE_VAL) {
            return;
        }
        r->now = next;
    }
}

/* Bytes of a micro-batch at a time between events. */
static double bytes_at(const reference *r, int n, double time) {
    const car_curve *curve = &r->partition->curve;
    for (int p = 2 * r->S - 1; p >= 0; p--) {
        const times *t = at(r, n, p);
        const car_stage *stage = &r->partition->stages[stage_of(r, p)];
        if (t->start > time || is_empty(r, stage_of(r, p))) {
            continue;
        }
        int first = first_event(r, p);
        int end = first + stage->end - stage->first;
        if (t->end <= time) { /* waiting: what is alive is alive in both neighbouring events */
            return end == curve->events ? 0 : fmin((double)curve->during[end - 1], (double)curve->during[end]);
        }
        int e = first;
        while (e + 1 < end && curve->begin[e + 1] - curve->begin[first] <= time - t->start) {
            e++;
        }
        return (double)curve->during[e];
    }
    return 0;
}

static int compare_doubles(const void *left, const void *right) {
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* Steady state is from the end of the second step to the end of the last but one. */
static car_simulation measure(const reference *r, int executors) {
    car_simulation s = {0};
    double begin = 0, end = 0, work = 0, area = 0;
    for (int i = 0; i < r->B; i++) {
        begin = fmax(begin, at(r, r->B + i, 2 * r->S - 1)->end);
        end = fmax(end, at(r, (r->steps - 2) * r->B + i, 2 * r->S - 1)->end);
    }
    int count = 0, events = r->partition->curve.events;
    double *moments = calloc((size_t)(r->B * r->steps * (2 * r->S + events) + 2), sizeof *moments);
    assert_non_null(moments);
    for (int x = 0; x < r->B * r->steps * 2 * r->S; x++) {
        const times *t = &r->times[x];
        int p = x % (2 * r->S);
        const car_stage *stage = &r->partition->stages[stage_of(r, p)];
        int first = first_event(r, p);
        work += fmax(0, fmin(t->end, end) - fmax(t->start, begin));
        moments[count++] = t->end;
        for (int e = first; e < first + stage->end - stage->first; e++) {
            moments[count++] = t->start + r->partition->curve.begin[e] - r->partition->curve.begin[first];
        }
    }
    qsort(moments, (size_t)count, sizeof *moments, compare_doubles);
    for (int c = 0; c + 1 < count; c++) {
        double sum = 0, length = fmin(moments[c + 1], end) - fmax(moments[c], begin);
        for (int n = 0; n < r->B * r->steps && length > 1e-10; n++) {
            sum += bytes_at(r, n, (moments[c] + moments[c + 1]) / 2);
        }
        area += fmax(length, 0) * sum;
        s.peak = (size_t)fmax((double)s.peak, sum);
    }
    free(moments);
    s.step_time = (end - begin) / (r->steps - 3);
    s.idle = 1 - work / ((end - begin) * executors);
    s.mean = (size_t)(area / (end - begin) + 0.5);
    return s;
}

car_simulation car_plain_simulate(const car_plan *plan, const car_simulation_config *config) {
    reference r = {
        .plan = plan, .partition = car_plan_partition(plan), .config = car_plan_config_of(plan), .how = *config};
    r.N = r.config->workers;
    r.B = r.N * r.config->accumulate;
    r.S = r.partition->stage_count;
    r.steps = config->steps;
    size_t tasks = (size_t)(r.B * r.steps * 2 * r.S);
    r.times = malloc(tasks * sizeof *r.times);
    assert_non_null(r.times);
    for (size_t x = 0; x < tasks; x++) {
        r.times[x] = (times){HUGE_VAL, HUGE_VAL};
    }
    bool shared = r.config->placement == CAR_PLACEMENT_SHARED;
    int executors = config->executors ? config->executors : shared ? r.config->threads : car_plan_devices(plan);
    run_reference(&r, executors);
    car_simulation s = measure(&r, executors);
    free(r.times);
    return s;
}
