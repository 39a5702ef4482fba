/* Predictions of plans with what an optimizer keeps, for all optimizers alike. */
#include "base/base.h"
#include "carousel/muon.h"
#include "carousel/predict.h"
#include "engine/optimizer_internal.h"

/* The whole plan, or (`one` not NULL) one rank of it. */
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
