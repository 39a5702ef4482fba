/* The rules are those of src/plan/simulate.c, written down a second time without any of its machinery. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/plain_simulator.h"

typedef struct times {
    double start, computed, end; /* HUGE_VAL while it is not known */
} times;

/* All tasks of a run; task p < S of a micro-batch is the forward of stage p, then backwards follow. Empty stages
 * have tasks too, which take no time. */
typedef struct reference {
    const car_plan *plan;
    const car_partition *partition;
    const car_plan_config *config;
    car_simulation_config how;
    int N, S, steps;
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
    int k = r->S / r->N, i = n % r->N, t = n / r->N;
    bool stale = r->config->rule == CAR_RULE_CDP_V1 || r->config->rule == CAR_RULE_2BW ||
                 (r->config->rule == CAR_RULE_CDP_V2 && k * (i + 1) + home < r->S);
    return t - stale > 0 ? t - stale : 0;
}

static bool is_cyclic(const reference *r) {
    return r->config->rule == CAR_RULE_CDP_V1 || r->config->rule == CAR_RULE_CDP_V2 || r->config->rule == CAR_RULE_2BW;
}

static bool has_ended(const reference *r, int n, int p) {
    return at(r, n, p)->end <= r->now + 1e-11;
}

static bool weights_exist(const reference *r, int n, int home) {
    int version = version_of(r, n, home);
    for (int b = 0; b < r->partition->bundle_count && version > 0; b++) {
        for (int i = 0; i < r->N && r->partition->bundles[b].home == home; i++) {
            if (!has_ended(r, (version - 1) * r->N + i, 2 * r->S - 1 - r->partition->bundles[b].stage)) {
                return false;
            }
        }
    }
    return true;
}

static int64_t slot_of(const reference *r, int n, int p) {
    return p < r->S ? car_plan_forward_slot(r->plan, n / r->N, n % r->N, p)
                    : car_plan_backward_slot(r->plan, n / r->N, n % r->N, stage_of(r, p));
}

static int device_of(const reference *r, int n, int p) {
    return car_plan_device(r->plan, n / r->N, n % r->N, stage_of(r, p));
}

/* zero: all uses of the version before this one are over; pipeline, grid: all tasks of the device are. */
static bool is_my_turn(const reference *r, int n, int p, int home) {
    bool zero = r->config->placement == CAR_PLACEMENT_ZERO && is_cyclic(r);
    bool ordered = r->config->placement == CAR_PLACEMENT_PIPELINE || r->config->placement == CAR_PLACEMENT_GRID;
    for (int m = 0; m < r->N * r->steps && (zero || ordered); m++) {
        for (int q = 0; q < 2 * r->S; q++) {
            bool shares = zero ? stage_of(r, q) == stage_of(r, p) && version_of(r, m, home) == version_of(r, n, home)
                               : device_of(r, m, q) == device_of(r, n, p);
            if (shares && !is_empty(r, stage_of(r, q)) && slot_of(r, m, q) < slot_of(r, n, p) && !has_ended(r, m, q)) {
                return false;
            }
        }
    }
    return true;
}

static bool passes_gate(const reference *r, int n, int p) {
    int done = 0;
    for (int m = 0; m < r->N * r->steps; m++) {
        bool turned = has_ended(r, m, r->S - 1);
        if (r->config->rule == CAR_RULE_DP && p == r->S && m / r->N == n / r->N && !turned) {
            return false;
        }
        done += has_ended(r, m, 2 * r->S - 1);
    }
    return r->config->rule != CAR_RULE_ACCUMULATE || p > 0 || n < done + r->config->threads;
}

static bool device_is_free(const reference *r, int n, int p) {
    for (int m = 0; m < r->N * r->steps; m++) {
        for (int q = 0; q < 2 * r->S; q++) {
            const times *t = at(r, m, q);
            if (t->start < HUGE_VAL && !has_ended(r, m, q) && device_of(r, m, q) == device_of(r, n, p)) {
                return false;
            }
        }
    }
    return true;
}

/* The next task of a worker, or -1. */
static int next_task(const reference *r, int worker, int *n) {
    for (int t = 0; t < r->steps; t++) {
        *n = t * r->N + worker;
        for (int p = 0; p < 2 * r->S; p++) {
            if (!has_ended(r, *n, p)) {
                return p;
            }
        }
    }
    return -1;
}

static double phase_of(const reference *r, int n, int p) {
    if (is_cyclic(r)) {
        return n / r->N + (double)(n % r->N) / r->N + share_before(r, p);
    }
    return (r->config->rule == CAR_RULE_DP ? n / r->N : n) + share_before(r, p);
}

static bool may_start(const reference *r, int n, int p) {
    int stage = stage_of(r, p);
    for (int b = 0; b < r->partition->bundle_count; b++) {
        int home = r->partition->bundles[b].home;
        if (r->partition->bundles[b].stage == stage &&
            ((p < r->S && !weights_exist(r, n, home)) || (!is_empty(r, stage) && !is_my_turn(r, n, p, home)))) {
            return false;
        }
    }
    bool begun = n == 0 || p < r->S || !is_cyclic(r) || at(r, n - 1, p)->start < HUGE_VAL;
    bool shared = r->config->placement == CAR_PLACEMENT_SHARED;
    return begun && passes_gate(r, n, p) && (shared || is_empty(r, stage) || device_is_free(r, n, p));
}

/* Starts the ready task of the smallest phase that the pace allows, if there is one and a free executor. */
static bool start_one(reference *r, int executors) {
    int best_n = -1, best_p = -1, computing = 0;
    double best = HUGE_VAL, slowest = HUGE_VAL;
    for (int i = 0; i < r->N; i++) {
        int n, p = next_task(r, i, &n);
        if (p < 0) {
            continue;
        }
        double phase = phase_of(r, n, p);
        slowest = phase < slowest ? phase : slowest;
        bool running = at(r, n, p)->start < HUGE_VAL;
        executors -= running;
        computing += running && at(r, n, p)->computed > r->now + 1e-11;
        if (!running && phase < best && may_start(r, n, p)) {
            best = phase;
            best_n = n;
            best_p = p;
        }
    }
    bool pace = r->how.paced && is_cyclic(r) && r->config->placement <= CAR_PLACEMENT_REPLICA;
    double window = r->how.window > 0 ? r->how.window : r->partition->longest_task;
    if (best_n < 0 || executors < 1 || (pace && computing > 0 && best > slowest + window + 1e-11)) {
        return false;
    }
    at(r, best_n, best_p)->start = r->now;
    at(r, best_n, best_p)->computed = r->now + cost(r, best_p);
    return true;
}

/* Ends what is computed and, in the cycle, can be added to the sum; returns whether anything was. */
static bool end_some(reference *r) {
    bool any = false;
    for (int n = 0; n < r->N * r->steps; n++) {
        for (int p = 0; p < 2 * r->S; p++) {
            times *t = at(r, n, p);
            bool sum = n == 0 || p < r->S || !is_cyclic(r) || has_ended(r, n - 1, p);
            if (t->computed <= r->now + 1e-11 && t->end > r->now + 1e-11 && sum) {
                t->end = r->now;
                any = true;
            }
        }
    }
    return any;
}

static void run_reference(reference *r, int executors) {
    for (;;) {
        while (end_some(r) || start_one(r, executors)) {
        }
        double next = HUGE_VAL;
        for (int x = 0; x < r->N * r->steps * 2 * r->S; x++) {
            double computed = r->times[x].computed;
            next = computed > r->now + 1e-11 && computed < next ? computed : next;
        }
        if (next == HUGE_VAL) {
            return;
        }
        r->now = next;
    }
}

/* Bytes of a micro-batch at a time that no event falls on. */
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
        if (t->computed <= time) { /* waits: what is alive is alive during both neighbours */
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
    for (int i = 0; i < r->N; i++) {
        begin = fmax(begin, at(r, r->N + i, 2 * r->S - 1)->end);
        end = fmax(end, at(r, (r->steps - 2) * r->N + i, 2 * r->S - 1)->end);
    }
    int count = 0, events = r->partition->curve.events;
    double *moments = calloc((size_t)(r->N * r->steps * (2 * r->S + events) + 2), sizeof *moments);
    assert_non_null(moments);
    for (int x = 0; x < r->N * r->steps * 2 * r->S; x++) {
        const times *t = &r->times[x];
        int p = x % (2 * r->S);
        const car_stage *stage = &r->partition->stages[stage_of(r, p)];
        int first = first_event(r, p);
        work += fmax(0, fmin(t->computed, end) - fmax(t->start, begin));
        moments[count++] = t->computed;
        for (int e = first; e < first + stage->end - stage->first; e++) {
            moments[count++] = t->start + r->partition->curve.begin[e] - r->partition->curve.begin[first];
        }
    }
    qsort(moments, (size_t)count, sizeof *moments, compare_doubles);
    for (int c = 0; c + 1 < count; c++) {
        double sum = 0, length = fmin(moments[c + 1], end) - fmax(moments[c], begin);
        for (int n = 0; n < r->N * r->steps && length > 1e-10; n++) {
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
    r.S = r.partition->stage_count;
    r.steps = config->steps;
    size_t tasks = (size_t)(r.N * r.steps * 2 * r.S);
    r.times = malloc(tasks * sizeof *r.times);
    assert_non_null(r.times);
    for (size_t x = 0; x < tasks; x++) {
        r.times[x] = (times){HUGE_VAL, HUGE_VAL, HUGE_VAL};
    }
    bool shared = r.config->placement == CAR_PLACEMENT_SHARED;
    int executors = config->executors ? config->executors : shared ? r.config->threads : car_plan_devices(plan);
    run_reference(&r, executors);
    car_simulation s = measure(&r, executors);
    free(r.times);
    return s;
}
