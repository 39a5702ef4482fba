/* Simulates a plan without a network: how long a step takes and how much memory activations need. See machine.h. */
#include "carousel/predict.h"
#include "plan/machine.h"

enum {
    DEFAULT_STEPS = 8,
    LEAST_STEPS = CAR_MACHINE_FILL + 2,
    LARGE_TASKS = 100000 /* a larger step is simulated as few times as possible */
};

static int64_t steps_of(const car_plan *plan, const car_simulation_config *config) {
    int64_t tasks = 2 * (int64_t)plan->batches * plan->stages;
    int64_t steps = config->steps > 0 ? config->steps : tasks > LARGE_TASKS ? LEAST_STEPS : DEFAULT_STEPS;
    return steps < LEAST_STEPS ? LEAST_STEPS : steps;
}

/* True if only pacing keeps the workers at their distance. */
static bool has_pace(const car_plan *plan) {
    return car_plan_is_spaced(plan) && (plan->placement->info.one_process || car_plan_keeps_no_distance(plan));
}

static void report(const car_machine *m, car_simulation *out) {
    double time = car_machine_seconds(m), idle = 1 - m->copies * m->work / (time * m->config.executors);
    out->step_time = car_machine_step(m);
    out->idle = idle > 0 ? idle : 0; /* rounding may make it slightly negative */
    out->peak = (size_t)(m->copies * m->pools[m->ranks].peak);
    out->mean = (size_t)(m->copies * m->area / time + 0.5);
    for (int rank = 0; rank < m->ranks; rank++) {
        size_t peak = (size_t)m->pools[rank].peak;
        out->device_peak = peak > out->device_peak ? peak : out->device_peak;
    }
}

car_status car_plan_simulate(const car_plan *plan, const car_simulation_config *config, car_simulation *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), config);
    CAR_REQUIRE(car_plan_context(plan), out);
    int all = plan->placement->info.one_process ? plan->config.threads : plan->devices;
    car_machine_config machine = {.steps = steps_of(plan, config),
                                  .compute = 1,
                                  .executors = config->executors > 0 ? config->executors : all,
                                  .paced = config->paced && has_pace(plan),
                                  .lead = config->lead > 0 ? config->lead : plan->partition->longest_task,
                                  .by_memory = true,
                                  .jitter = config->jitter,
                                  .seed = config->seed};
    car_machine m;
    car_status status = CAR_OK;
    *out = (car_simulation){0};
    CAR_TRY(car_machine_create(plan, &machine, &m));
    CAR_TRY(car_machine_run(&m));
    report(&m, out);
done:
    car_machine_release(&m);
    return status;
}
