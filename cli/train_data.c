/* The data of a run: opened, and evaluated on. */
#include <string.h>

#include "carousel/convention.h"
#include "train.h"

/* ---- opening --------------------------------------------------------------------------------- */

car_status car_train_find_sizes(car_context *context, car_train_options *o) {
    const car_model_info *model = car_model_find(o->model);
    if (model && model->on_paper) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                                "model %s can only be planned (carousel plan); --help lists those that can be trained",
                                o->model);
    }
    return car_feeder_find_sizes(context, o->model, o->data, &o->shape);
}

car_status car_train_open_data(car_train_data *data, car_context *context, const car_train_options *o,
                               const car_graph *graph) {
    const car_model_info *info = car_model_find(o->model);
    const car_feeder_config feeder = {.workers = o->workers,
                                      .accumulate = o->accumulate,
                                      .threads = o->data_threads,
                                      .sequential = strcmp(o->order, "sequential") == 0,
                                      .seed = o->seed};
    car_status status = CAR_OK;
    *data = (car_train_data){.domain = info->domain};
    CAR_TRY(car_model_resolve(context, o->model, &o->shape, &data->model));
    car_dataset_config config = {.domain = info->domain, .model = data->model, .seed = o->seed};
    CAR_TRY(car_train_read_augmentation(context, o, &config));
    CAR_TRY(car_dataset_open(context, o->data, &config, &data->set));
    CAR_TRY(car_feeder_create(graph, data->set, &feeder, &data->feeder));
done:
    return status;
}

void car_train_close_data(car_train_data *data) {
    car_feeder_destroy(data->feeder);
    car_dataset_close(data->set);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* Nobody waits for the rest of it: see car_train_evaluate_now. */
static bool is_cancelled(void *user) {
    (void)user;
    return car_train_is_interrupted();
}

car_status car_train_evaluate(const car_train_data *data, const car_train_options *o, const car_program *program,
                              car_arena *arena, const car_weights *weights, int64_t *counts, car_evaluation *out) {
    const car_feeder_evaluation how = {
        /* No more micro-batches at once than there are in training. */
        .threads = o->threads < o->workers ? o->threads : o->workers,
        .batches = o->eval_batches,
        .counts = counts,
        .cancelled = is_cancelled,
    };
    return car_feeder_evaluate(data->feeder, program, arena, weights, &how, out);
}
