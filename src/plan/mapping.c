/* Chooses which workers share a rank and which ranks share a machine (the mapping).
 *
 * A machine's activations are predicted with a plan that has one rank per machine, because its workers share the
 * memory. The traffic between machines is counted in the plan's table, from messages whose ends are on different
 * machines. */
#include "carousel/mapping.h"

#include "base/base.h"
#include "carousel/predict.h"
#include "plan/placement.h"

/* The share of a machine's memory that a run may use; the rest is for the system, data and MPI. */
static const double usable = 0.8;

/* A window of steady state: neither among the first two nor the last two. */
enum { STEPS = 8, WINDOW = 3 };

int car_machines_of_device(const car_machines *machines, int devices, car_mapping mapping, int device) {
    return mapping == CAR_MAPPING_INTERLEAVED ? device % machines->count : device / (devices / machines->count);
}

static car_status count_crossing(const car_plan *plan, const car_machines *machines, car_mapping mapping, double *out) {
    int devices = car_plan_devices(plan);
    car_task_list list = {0};
    car_status status = CAR_OK;
    *out = 0;
    for (int d = 0; d < devices; d++) {
        CAR_TRY(car_plan_expand(plan, d, WINDOW, STEPS, &list));
        for (int k = 0; k < list.count; k++) {
            const car_task *task = &list.tasks[k];
            if (task->kind == CAR_TASK_SEND && car_machines_of_device(machines, devices, mapping, d) !=
                                                   car_machines_of_device(machines, devices, mapping, task->peer)) {
                *out += (double)car_plan_task_bytes(plan, task);
            }
        }
    }
done:
    car_task_list_release(plan, &list);
    return status;
}

/* The most activations of all workers on one machine. */
static car_status predict_machine(car_context *context, const car_partition *partition, const car_plan_config *config,
                                  int machines, size_t *out) {
    const car_simulation_config timing = {.paced = true};
    car_plan_config together = car_plan_config_hosted(config, machines);
    car_simulation simulation;
    car_plan *plan = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_plan_create(context, partition, &together, &plan));
    CAR_TRY(car_plan_simulate(plan, &timing, &simulation));
    *out = simulation.device_peak;
done:
    car_plan_destroy(plan);
    return status;
}

static car_status weigh(car_context *context, const car_partition *partition, const car_plan_config *config,
                        const car_machines *machines, car_mapping_choice *out) {
    car_mapping mapping = config->mapping;
    car_prediction p;
    car_plan *plan = NULL;
    size_t activations = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_plan_create(context, partition, config, &plan));
    CAR_TRY(car_plan_predict(plan, machines->optimizer_states, &p));
    CAR_TRY(count_crossing(plan, machines, mapping, &out->crossing[mapping]));
    CAR_TRY(predict_machine(context, partition, config, machines->count, &activations));
    size_t ranks = (size_t)(car_plan_devices(plan) / machines->count);
    size_t states = p.weights_device + p.gradients_device + p.optimizer_device;
    out->rank_bytes[mapping] = p.timed.device_peak;
    out->machine_bytes[mapping] = activations + ranks * states;
done:
    car_plan_destroy(plan);
    return status;
}

car_status car_plan_choose_mapping(car_context *context, const car_partition *partition, const car_plan_config *config,
                                   const car_machines *machines, car_mapping_choice *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, partition);
    CAR_REQUIRE(context, config);
    CAR_REQUIRE(context, machines);
    CAR_REQUIRE(context, out);
    enum { SPREAD = CAR_MAPPING_INTERLEAVED, TOGETHER = CAR_MAPPING_CONTIGUOUS };
    int ranks =
        car_placement_info_of(config->placement)->fewer_ranks && config->ranks ? config->ranks : config->workers;
    car_status status = CAR_OK;
    *out = (car_mapping_choice){.mapping = CAR_MAPPING_INTERLEAVED};
    if (machines->count < 1 || ranks % machines->count != 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "%d ranks cannot be spread evenly over %d machines", ranks,
                                machines->count);
    }
    for (int m = 0; m < 2; m++) {
        car_plan_config one = *config;
        one.mapping = (car_mapping)m;
        CAR_TRY(weigh(context, partition, &one, machines, out));
    }
    bool fits = machines->memory == 0 || (double)out->machine_bytes[TOGETHER] <= usable * (double)machines->memory;
    if (machines->count == 1) {
        out->mapping = out->rank_bytes[TOGETHER] < out->rank_bytes[SPREAD] ? CAR_MAPPING_CONTIGUOUS : out->mapping;
    } else if (out->crossing[TOGETHER] < out->crossing[SPREAD]) {
        out->scarce = !fits && out->machine_bytes[SPREAD] < out->machine_bytes[TOGETHER];
        out->mapping = out->scarce ? CAR_MAPPING_INTERLEAVED : CAR_MAPPING_CONTIGUOUS;
    }
done:
    return status;
}
