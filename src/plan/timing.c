/* Predicts how long a step of a plan takes on a described cluster, by running the table on the simulated machine
 * (machine.h). */
#include <math.h>

#include "plan/machine.h"

/* The number of steps to run: the fewer tasks a step has, the more. Delayed rules repeat after two steps at the
 * earliest, so the number of counted steps is even. */
enum { MANY_STEPS = 19, STEPS = 7, FEW_STEPS = 5, FEW_TASKS = 1 << 12, MANY_TASKS = 1 << 17 };

/* The size of all-reduce buckets: as DDP's, but never so small that latency is more than a fifth of a round. */
static const double least_bucket = 25e6, parts_in_latency = 4;

static double busiest_wire(const car_machine *m, double seconds) {
    double most = 0;
    for (int w = 0; w < m->network.wire_count; w++) {
        const car_wire *wire = &m->network.wires[w];
        most = wire->bandwidth > 0 ? fmax(most, wire->carried / wire->bandwidth) : most;
    }
    for (int r = 0; m->config.cluster && r < m->group_count; r++) {
        most = m->groups[r].carried > 0 ? fmax(most, m->groups[r].carried / m->groups[r].bandwidth) : most;
    }
    return fmin(1, most / seconds); /* what was in flight when counting began counts in full */
}

/* One run; fills everything except what compares two runs. */
static car_status time_run(const car_plan *plan, const car_machine_config *config, car_timing *out) {
    car_machine m;
    car_status status = CAR_OK;
    CAR_TRY(car_machine_create(plan, config, &m));
    CAR_TRY(car_machine_run(&m));
    int64_t counted = config->steps - 1 - CAR_MACHINE_FILL;
    double seconds = car_machine_seconds(&m);
    *out = (car_timing){.compute = config->compute,
                        .step = car_machine_step(&m),
                        .bytes = m.network.sent / (double)counted,
                        .mean_rate = m.network.sent / seconds,
                        .peak_rate = m.network.peak_rate,
                        .busiest = busiest_wire(&m, seconds),
                        .bucket = config->bucket,
                        .steps = (int)config->steps};
done:
    car_machine_release(&m);
    return status;
}

/* The number of ranks in a collective. */
static int ranks_of_ring(const car_plan *plan) {
    return plan->placement->info.by_stage ? plan->config.workers : plan->devices;
}

int64_t car_plan_timed_steps(const car_plan *plan) {
    int64_t tasks = (int64_t)plan->batches * plan->stages;
    return tasks <= FEW_TASKS ? MANY_STEPS : tasks <= MANY_TASKS ? STEPS : FEW_STEPS;
}

static car_status prepare(const car_plan *plan, const car_cluster *cluster, double compute, car_machine_config *out) {
    if (plan->placement->info.one_process || !(compute > 0) || !isfinite(compute)) {
        return car_context_fail(plan->context, CAR_ERROR_ARGUMENT,
                                "cannot predict the time of a step over a network: %s",
                                compute > 0 ? "placement shared uses none; use replica, zero, pipeline or grid"
                                            : "the computing time of a step must be above 0 seconds");
    }
    double bucket = parts_in_latency * ranks_of_ring(plan) * cluster->between.latency * cluster->between.bandwidth;
    *out = (car_machine_config){.steps = car_plan_timed_steps(plan),
                                .compute = compute,
                                .bucket = fmax(least_bucket, bucket),
                                .staggered = true};
    return CAR_OK;
}

car_status car_plan_time_step(const car_plan *plan, const car_cluster *cluster, double compute, car_timing *out) {
    car_machine_config config = {0};
    car_status status = CAR_OK;
    *out = (car_timing){0};
    CAR_TRY(prepare(plan, cluster, compute, &config));
    config.cluster = cluster;
    CAR_TRY(time_run(plan, &config, out));
done:
    return status;
}

car_status car_plan_time(const car_plan *plan, const car_cluster *cluster, double compute, car_timing *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), cluster);
    CAR_REQUIRE(car_plan_context(plan), out);
    car_machine_config config = {0};
    car_timing free_of_network;
    car_status status = CAR_OK;
    *out = (car_timing){0};
    CAR_TRY(prepare(plan, cluster, compute, &config));
    CAR_TRY(time_run(plan, &config, &free_of_network));
    config.cluster = cluster;
    CAR_TRY(time_run(plan, &config, out));
    out->free_step = free_of_network.step;
    out->exposed = out->step > out->free_step ? out->step - out->free_step : 0;
done:
    return status;
}
