/* The validator: replays everything that tasks do to weights, in the table's order. This file checks that every
 * forward and backward uses the rule's version, and a backward that of its forward. Whether that version is there is
 * checked by a car_weights_holding: validate_versions.c, or validate_chains.c for zero's two copies. */
#include "plan/validate_internal.h"

/* ---- which version ------------------------------------------------------------------------------ */

static int first_tied(const car_validation *v, int stage) {
    for (int b = v->stages; b < v->bundles; b++) {
        if (v->partition->bundles[b].stage == stage) {
            return b;
        }
    }
    return CAR_NONE;
}

/* A custom plan: the weights must be of the task's own step or at most max_delay steps older, and a backward must
 * use those of its forward. */
static car_status check_age(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    const car_task *forward =
        &v->tasks[v->computes[car_validate_compute(v, task->step, task->micro_batch, task->stage, false)]];
    bool tied = task->tied_version != CAR_NONE;
    int64_t oldest = tied && task->tied_version < task->version ? task->tied_version : task->version;
    int64_t newest = tied && task->tied_version > task->version ? task->tied_version : task->version;
    if (newest > task->step) {
        return car_validate_fail(v, index, "it uses weights of version %lld in step %lld, which are too new",
                                 (long long)newest, (long long)task->step);
    }
    if (task->step - oldest > v->max_delay) {
        return car_validate_fail(v, index, "its weights are %lld steps old, but max-delay is %lld",
                                 (long long)(task->step - oldest), (long long)v->max_delay);
    }
    if (task->version != forward->version || task->tied_version != forward->tied_version) {
        return car_validate_fail(v, index, "its forward used version %lld", (long long)forward->version);
    }
    return tied == (first_tied(v, task->stage) != CAR_NONE)
               ? CAR_OK
               : car_validate_fail(v, index, tied ? "its stage has no tied parameter" : "~VERSION is missing");
}

car_status car_validate_rule(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    if (v->custom) {
        return check_age(v, index);
    }
    int64_t version = car_validate_version(v, task->step, task->micro_batch, task->stage);
    int tied = first_tied(v, task->stage);
    int64_t tied_version = CAR_NONE;
    if (tied != CAR_NONE) {
        tied_version = car_validate_version(v, task->step, task->micro_batch, v->partition->bundles[tied].home);
    }
    if (task->version != version || task->tied_version != tied_version) {
        bool own = task->version != version;
        return car_validate_fail(v, index, "the rule needs version %lld%s", (long long)(own ? version : tied_version),
                                 own ? "" : " of the tied parameter");
    }
    return CAR_OK;
}

/* ---- the replay --------------------------------------------------------------------------------- */

/* The version of a bundle that a forward or backward computes with. */
static int64_t version_of(const car_validation *v, const car_task *task, int bundle) {
    if (v->custom) {
        return bundle < v->stages ? task->version : task->tied_version;
    }
    return car_validate_version(v, task->step, task->micro_batch, v->partition->bundles[bundle].home);
}

static car_status use_all(const car_validation *v, const car_weights_holding *holding, void *held, int index) {
    const car_task *task = &v->tasks[index];
    car_status status = CAR_OK;
    CAR_TRY(car_validate_rule(v, index));
    for (int b = car_bundle_of_stage(v->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(v->partition, task->stage, b)) {
        CAR_TRY(holding->use(held, index, b, version_of(v, task, b)));
    }
done:
    return status;
}

static car_status replay_task(const car_validation *v, const car_weights_holding *holding, void *held, int index) {
    const car_task *task = &v->tasks[index];
    bool weights = car_cargo_is_weights(task->cargo);
    switch (task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        return use_all(v, holding, held, index);
    case CAR_TASK_UPDATE:
        return holding->update(held, index);
    case CAR_TASK_BROADCAST:
        return holding->broadcast ? holding->broadcast(held, index)
                                  : car_validate_fail(v, index, "this rule and placement have no such broadcast");
    case CAR_TASK_SEND:
        return weights ? holding->send(held, index) : CAR_OK;
    case CAR_TASK_RECEIVE:
        return weights ? holding->receive(held, index) : CAR_OK;
    default:
        return CAR_OK;
    }
}

car_status car_validate_replay_weights(const car_validation *v, const car_weights_holding *holding, void *held) {
    car_status status = CAR_OK;
    for (int n = 0; n < v->count && status == CAR_OK; n++) {
        status = replay_task(v, holding, held, v->order[n]);
    }
    return status;
}
