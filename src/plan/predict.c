/* Combines the predictions of a plan. The ones in slots are made here: in the idealised clock, a stage's activations
 * are alive from the start of its forward to the end of its backward. */
#include "plan/pace.h"
#include "plan/predict_internal.h"

/* ---- activations in slots -------------------------------------------------------------------- */

/* The change in bytes at each slot of a period. What is alive over whole periods is counted in `always`. */
typedef struct tally {
    const car_plan *plan;
    int64_t *changes;
    int64_t always;
    double area; /* bytes * slots */
} tally;

static void clear(tally *t) {
    for (int64_t slot = 0; slot < t->plan->period; slot++) {
        t->changes[slot] = 0;
    }
    t->always = 0;
    t->area = 0;
}

static void add_bytes(tally *t, int64_t first, int64_t length, int64_t bytes) {
    int64_t period = t->plan->period, begin = first % period, end = (first + length) % period;
    t->always += bytes * (length / period) + (end < begin ? bytes : 0);
    t->changes[begin] += bytes;
    t->changes[end] -= bytes;
    t->area += (double)bytes * (double)length;
}

static void add_stage(tally *t, int number, int j) {
    const car_stage *stage = &t->plan->partition->stages[j];
    int64_t forward = car_plan_forward_slot(t->plan, 0, number, j),
            backward = car_plan_backward_slot(t->plan, 0, number, j);
    if (stage->held_bytes > 0) {
        add_bytes(t, forward, backward + 1 - forward, (int64_t)stage->held_bytes);
    }
    if (stage->again_bytes > 0) {
        add_bytes(t, backward, 1, (int64_t)stage->again_bytes);
    }
}

static size_t peak_of(const tally *t) {
    int64_t bytes = t->always, peak = bytes;
    for (int64_t slot = 0; slot < t->plan->period; slot++) {
        bytes += t->changes[slot];
        peak = bytes > peak ? bytes : peak;
    }
    return (size_t)peak;
}

/* Adds the workers and stages of a device in step 0; except in a grid, every step is alike. */
static void add_device(tally *t, int device) {
    const car_plan *plan = t->plan;
    bool by_stage = plan->placement->info.by_stage;
    int first = by_stage ? device * plan->per_worker : 0, end = by_stage ? first + plan->per_worker : plan->stages;
    for (int i = 0; i < plan->batches; i++) {
        if (by_stage || car_plan_device(plan, 0, i, 0) == device) {
            for (int j = first; j < end; j++) {
                add_stage(t, i, j);
            }
        }
    }
}

/* A rank of a grid has one micro-batch at a time, and all its stages are alive between forward and backward. */
static size_t grid_peak(const car_plan *plan) {
    size_t peak = 0;
    for (int group = 0; group < plan->config.workers; group++) {
        size_t bytes = 0, again = 0;
        for (int j = group * plan->per_worker; j < (group + 1) * plan->per_worker; j++) {
            const car_stage *stage = &plan->partition->stages[j];
            bytes += stage->held_bytes;
            again = stage->again_bytes > again ? stage->again_bytes : again;
        }
        bytes += again;
        peak = bytes > peak ? bytes : peak;
    }
    return peak;
}

static size_t device_peak(tally *t) {
    size_t peak = 0;
    for (int d = 0; d < t->plan->devices; d++) {
        clear(t);
        add_device(t, d);
        size_t bytes = peak_of(t);
        peak = bytes > peak ? bytes : peak;
    }
    return peak;
}

static car_status predict_slots(const car_plan *plan, car_prediction *out) {
    tally t = {.plan = plan};
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, (size_t)plan->period, sizeof *t.changes, &t.changes));
    for (int i = 0; i < plan->batches; i++) {
        for (int j = 0; j < plan->stages; j++) {
            add_stage(&t, i, j);
        }
    }
    out->slots_peak = peak_of(&t);
    out->slots_mean = (size_t)(t.area / (double)plan->period + 0.5);
    out->slots_device_peak = plan->placement->info.one_process  ? out->slots_peak
                             : plan->placement->group_of_device ? grid_peak(plan)
                                                                : device_peak(&t);
done:
    car_context_release(plan->context, t.changes, (size_t)plan->period, sizeof *t.changes);
    return status;
}

/* ---- self-timed ------------------------------------------------------------------------------ */

enum { TIMINGS = 6 };
static const double timing_jitter = 0.2;
static const int many_ranks = 40000;
static const int64_t few_enough = 20000; /* workers times stages: plans up to this size are simulated several times */

/* With very many ranks of stages, the ranks are not simulated one by one. Their workers are as far apart as those of
 * replicas and together hold the same to within 0.4 %. A rank holds its group's part of one micro-batch. */
static car_status simulate_as_replicas(const car_plan *plan, const car_simulation_config *config, car_simulation *out) {
    car_plan_config hosted = car_plan_config_hosted(&plan->config, plan->config.workers);
    car_plan *replicas = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_plan_create(plan->context, plan->partition, &hosted, &replicas));
    CAR_TRY(car_plan_simulate(replicas, config, out));
    out->device_peak = grid_peak(plan);
    out->idle = 1 - (1 - out->idle) * plan->config.workers / plan->devices;
done:
    car_plan_destroy(replicas);
    return status;
}

static car_status simulate(const car_plan *plan, const car_simulation_config *config, car_simulation *out) {
    bool many = plan->placement->group_of_device && plan->devices > many_ranks;
    return many ? simulate_as_replicas(plan, config, out) : car_plan_simulate(plan, config, out);
}

/* With fewer threads than workers, memory depends on which tasks happen to run together, and real operations do not
 * take exactly their share of time. So the prediction is the highest of several simulated timings. With a thread for
 * every worker, pacing keeps the workers evenly spaced and within a budget (plan/pace.h); between ranks the messages
 * keep the order. */
car_status car_plan_predict_timed(const car_plan *plan, int threads, car_simulation *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    car_simulation_config config = {.paced = true, .executors = threads};
    int executors = threads > 0 ? threads : plan->config.threads;
    int workers = plan->config.workers;
    bool spaced = car_plan_is_spaced(plan) && plan->placement->info.one_process;
    bool uncertain = spaced && executors < workers && (int64_t)plan->batches * plan->stages <= few_enough;
    car_status status = simulate(plan, &config, out);
    if (status == CAR_OK && spaced && workers > 1 && executors >= workers) {
        size_t most = (size_t)car_pace_budget(plan->partition, workers);
        out->peak = most < out->peak ? most : out->peak;
        out->device_peak = out->peak;
    }
    config.jitter = timing_jitter;
    for (config.seed = 1; status == CAR_OK && uncertain && config.seed <= TIMINGS; config.seed++) {
        car_simulation other;
        status = car_plan_simulate(plan, &config, &other);
        out->peak = other.peak > out->peak ? other.peak : out->peak;
        out->device_peak = other.device_peak > out->device_peak ? other.device_peak : out->device_peak;
    }
    return status;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int logarithm(int ranks) {
    int rounds = 0;
    while ((int64_t)1 << rounds < ranks) {
        rounds++;
    }
    return rounds;
}

static int rounds_between_slots(const car_plan *plan) {
    if (plan->placement->info.one_process || plan->devices == 1) {
        return 0;
    }
    bool by_stage = plan->placement->info.by_stage;
    return car_plan_reduces(plan) ? logarithm(by_stage ? plan->config.workers : plan->devices) : 1;
}

static double free_running(const car_plan *plan) {
    int workers = plan->config.workers, threads = plan->config.threads;
    if (car_plan_is_spaced(plan)) {
        return car_predict_free_running(plan->partition, workers);
    }
    return plan->rule->info.in_turns && threads < workers ? (double)threads / workers : 1;
}

static int gradient_delay(const car_plan *plan) {
    int delay = 0;
    for (int j = 0; j < plan->stages; j++) {
        int here = car_plan_delay(plan, 0, j); /* no worker is later than the first */
        delay = here > delay ? here : delay;
    }
    return delay;
}

static double stale_share(const car_plan *plan) {
    double late = 0, all = 0;
    for (int j = 0; j < plan->stages; j++) {
        double bytes = (double)plan->partition->bundles[j].bytes;
        for (int i = 0; i < plan->config.workers; i++) { /* a worker's other micro-batches are fresh */
            late += car_plan_delay(plan, i, j) > 0 ? bytes : 0;
        }
        all += bytes * plan->batches;
    }
    return all > 0 ? late / all : 0;
}

car_status car_plan_predict(const car_plan *plan, int optimizer_states, car_prediction *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    return car_plan_predict_sized(plan, &(car_optimizer_sizes){.states = optimizer_states}, out);
}

car_status car_plan_predict_sized(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(NULL, optimizer);
    CAR_REQUIRE(NULL, out);
    const car_partition *partition = plan->partition;
    car_status status = CAR_OK;
    *out = (car_prediction){.devices = plan->devices, .limit = partition->limit};
    out->dp_peak = (size_t)plan->config.workers * partition->curve.peak;
    CAR_TRY(predict_slots(plan, out));
    CAR_TRY(car_plan_predict_timed(plan, 0, &out->timed));
    CAR_TRY(car_predict_table(plan, optimizer, out));
    double allowed = (double)plan->config.workers * (double)partition->held_bytes * partition->limit;
    out->peak_ratio_to_dp = out->dp_peak > 0 ? (double)out->timed.peak / (double)out->dp_peak : 1;
    out->above_limit = allowed > 0 ? (double)out->timed.peak / allowed - 1 : 0;
    out->free_running = free_running(plan);
    out->rounds_between_slots = rounds_between_slots(plan);
    out->gradient_delay = gradient_delay(plan);
    out->stale_share = stale_share(plan);
done:
    return status;
}
