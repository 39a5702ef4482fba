/* The end of a run: what was trained is saved first, in the order of its worth.
 *
 *   weights.safetensors   the result; the least room
 *   the last checkpoint   to go on from; twice as much or more
 *   the evaluation        can be made again
 *   summary.json          last: whoever finds it finds the weights
 *
 * What cannot be saved does not keep the rest from being tried. The run ends with its failure all the same. */
#include "carousel/convention.h"
#include "train.h"

bool car_train_remember(car_train_run *run, car_status status) {
    if (status == CAR_OK) {
        return true;
    }
    if (run->failure == CAR_OK) {
        run->failure = status;
        snprintf(run->failure_text, sizeof run->failure_text, "%s", car_context_error(run->context));
    } else {
        car_context_log(run->context, CAR_LOG_WARNING, "%s", car_context_error(run->context));
    }
    car_context_clear_error(run->context);
    return false;
}

car_status car_train_conclude(car_train_run *run, car_status status) {
    if (run->failure == CAR_OK) {
        return status;
    }
    if (status != CAR_OK) { /* the caller says why */
        car_context_log(run->context, CAR_LOG_WARNING, "%s", run->failure_text);
        return status;
    }
    return car_context_fail(run->context, run->failure, "%s", run->failure_text);
}
