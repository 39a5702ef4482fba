/* Predictions of plans that include what an optimizer keeps. */
#include "base/base.h"
#include "carousel/muon.h"
#include "carousel/predict.h"
#include "engine/optimizer_internal.h"

void car_optimizer_stage_bytes(const car_optimizer_config *config, const car_partition *partition, size_t *stage) {
    const car_graph *graph = partition->graph;
    for (int j = 0; j < partition->stage_count; j++) {
        stage[j] = 0;
        for (int l = partition->stages[j].first; l < partition->stages[j].end; l++) {
            const car_op *op = car_graph_op(graph, l);
            for (int p = 0; p < op->param_count; p++) {
                int states = car_optimizer_param_states(config, graph, op->params[p]);
                size_t bytes = car_param_bytes(car_graph_param(graph, op->params[p]));
                stage[j] += car_optimizer_user_of(graph, op->params[p]) == op ? (size_t)states * bytes : 0;
            }
        }
    }
}

/* Predicts the whole plan or, if `one` is not NULL, one rank of it. */
static car_status predict(const car_plan *plan, int device, const car_optimizer_config *optimizer,
                          car_prediction *whole, car_device_prediction *one) {
    const car_plan_config *c = car_plan_config_of(plan);
    const car_partition *partition = car_plan_partition(plan);
    car_context *context = car_plan_context(plan);
    size_t updaters = car_placement_info_of(c->placement)->one_process ? (size_t)c->threads : 1;
    car_optimizer_sizes sizes = {.states = car_optimizer_config_states(optimizer),
                                 .scratch = updaters * car_optimizer_scratch_bytes(optimizer, partition->graph)};
    size_t stages = (size_t)partition->stage_count, *stage = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, stages, sizeof *stage, &stage));
    if (car_optimizer_method_of(optimizer)->info.uneven) {
        car_optimizer_stage_bytes(optimizer, partition, stage);
        sizes.stage = stage;
    }
    CAR_TRY(one ? car_plan_predict_device_sized(plan, device, &sizes, one)
                : car_plan_predict_sized(plan, &sizes, whole));
done:
    car_context_release(context, stage, stage ? stages : 0, sizeof *stage);
    return status;
}

car_status car_plan_predict_optimizer(const car_plan *plan, const car_optimizer_config *optimizer,
                                      car_prediction *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), optimizer);
    CAR_REQUIRE(car_plan_context(plan), out);
    return predict(plan, CAR_NONE, optimizer, out, NULL);
}

car_status car_plan_predict_device_optimizer(const car_plan *plan, int device, const car_optimizer_config *optimizer,
                                             car_device_prediction *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), optimizer);
    CAR_REQUIRE(car_plan_context(plan), out);
    return predict(plan, device, optimizer, NULL, out);
}

size_t car_prediction_memory(const car_prediction *p) {
    return p->timed.device_peak + p->weights_device + p->gradients_device + p->optimizer_device;
}
