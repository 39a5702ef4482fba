/* Samples of a run: opened, read ahead, fed to the trainer and to evaluations. */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "language.h"
#include "train.h"

enum { SYNTHETIC_BATCHES = 8, SMALL_IMAGE = 64 };

/* ---- opening --------------------------------------------------------------------------------- */

car_status car_train_find_sizes(car_context *context, car_train_options *o) {
    const car_model_info *model = car_model_find(o->model);
    car_dataset *set = NULL;
    if (model && model->on_paper) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                                "model %s can only be planned (carousel plan); --help lists those that can be trained",
                                o->model);
    }
    if (model && model->domain == CAR_DOMAIN_TOKENS) {
        return o->shape.vocabulary ? CAR_OK : car_language_find_vocabulary(context, o->data, &o->shape.vocabulary);
    }
    if (!model || strcmp(o->data, "synthetic") == 0 || (o->shape.classes && o->shape.image_size)) {
        return CAR_OK;
    }
    car_status status = car_dataset_open(context, o->data, NULL, &set);
    if (status != CAR_OK) {
        return status;
    }
    const car_dataset_info info = car_dataset_get_info(set);
    if (info.domain == CAR_DOMAIN_IMAGES) {
        o->shape.classes = o->shape.classes ? o->shape.classes : info.classes;
        bool small = info.width == info.height && info.width > 0 && info.width <= SMALL_IMAGE;
        o->shape.image_size = o->shape.image_size || !small ? o->shape.image_size : info.width;
    }
    car_dataset_close(set);
    return status;
}

car_status car_train_open_data(car_train_data *data, car_context *context, const car_train_options *o,
                               car_graph *graph) {
    const car_model_info *info = car_model_find(o->model);
    car_status status = CAR_OK;
    *data = (car_train_data){.context = context, .domain = info->domain, .graph = graph};
    CAR_TRY(car_model_resolve(context, o->model, &o->shape, &data->model));
    data->input_tensor = car_graph_find_tensor(graph, info->domain == CAR_DOMAIN_IMAGES ? "images" : "tokens");
    data->label_tensor = car_graph_find_tensor(graph, "labels");
    car_dataset_config config = {.domain = info->domain, .model = data->model, .seed = o->seed};
    CAR_TRY(car_train_read_augmentation(context, o, &config));
    CAR_TRY(car_dataset_open(context, o->data, &config, &data->set));
done:
    return status;
}

void car_train_close_data(car_train_data *data) {
    car_loader_destroy(data->evaluation);
    car_loader_destroy(data->loader);
    car_context_release(data->context, data->wanted, data->wanted ? (size_t)data->batches : 0, sizeof *data->wanted);
    car_dataset_close(data->set);
}

/* ---- training -------------------------------------------------------------------------------- */

int64_t car_train_epoch_steps(const car_train_data *data, const car_train_options *o) {
    int64_t samples = car_dataset_get_info(data->set).samples[CAR_SPLIT_TRAIN];
    return samples == CAR_DATASET_ENDLESS ? 0 : samples / ((int64_t)car_train_batches(o) * o->shape.batch);
}

/* No rank reads ahead what others will use. Returns how many micro-batches of a step it reads. */
static car_status find_wanted(car_train_data *data, const car_train_options *o, const car_rank *rank, int *count) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(data->context, (size_t)car_train_batches(o), sizeof *data->wanted, &data->wanted));
    data->batches = car_train_batches(o);
    *count = 0;
    for (int i = 0; i < data->batches; i++) {
        data->wanted[i] = car_rank_feeds(rank, i);
        *count += data->wanted[i];
    }
done:
    return status;
}

car_status car_train_start_loader(car_train_data *data, const car_train_options *o, const car_rank *rank,
                                  int64_t first_step) {
    car_loader_config config = car_loader_config_default();
    int wanted = 0;
    car_status status = CAR_OK;
    config.workers = car_train_batches(o); /* of a step: it need not know whose they are */
    config.batch = o->shape.batch;
    config.depth = o->workers + o->data_threads;
    config.sequential = strcmp(o->order, "sequential") == 0;
    config.seed = o->seed;
    config.threads = o->data_threads;
    config.first_step = first_step;
    config.steps = o->steps;
    if (rank) {
        CAR_TRY(find_wanted(data, o, rank, &wanted));
        config.wanted = data->wanted;
        config.threads = wanted > 0 ? o->data_threads : 0;
        config.depth = (wanted + o->accumulate - 1) / o->accumulate + config.threads;
        config.depth = config.depth > 0 ? config.depth : 1;
    }
    CAR_TRY(car_loader_create(data->set, &config, &data->loader));
done:
    return status;
}

static car_status feed_from(car_train_data *data, car_loader *loader, int64_t step, int worker, car_tape *tape) {
    const void *inputs = NULL;
    const int32_t *labels = NULL;
    car_status status = car_loader_take(loader, step, worker, &inputs, &labels);
    if (status != CAR_OK) {
        return status;
    }
    CAR_TRY(car_tape_feed(tape, data->input_tensor, inputs));
    CAR_TRY(car_tape_feed(tape, data->label_tensor, labels));
done:
    car_loader_give_back(loader, step, worker);
    return status;
}

car_status car_train_feed(void *user, int64_t step, int worker, car_tape *tape) {
    car_train_data *data = user;
    return feed_from(data, data->loader, step, worker, tape);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static car_status feed_evaluation(void *user, int64_t batch, int worker, car_tape *tape) {
    car_train_data *data = user;
    if (car_train_is_interrupted()) {
        return CAR_ERROR_IO; /* nobody waits for the rest of it: see car_train_evaluate_now */
    }
    return feed_from(data, data->evaluation, batch, worker, tape);
}

car_status car_train_evaluate(car_train_data *data, const car_train_options *o, const car_program *program,
                              car_arena *arena, const car_weights *weights, int64_t *counts, car_evaluation *out) {
    int64_t samples = car_dataset_get_info(data->set).samples[CAR_SPLIT_EVALUATION];
    int64_t all = samples == CAR_DATASET_ENDLESS ? SYNTHETIC_BATCHES : (samples + o->shape.batch - 1) / o->shape.batch;
    int64_t batches =
        o->eval_batches && (o->eval_batches < all || samples == CAR_DATASET_ENDLESS) ? o->eval_batches : all;
    car_loader_config config = car_loader_config_default();
    car_status status = CAR_OK;
    if (batches == 0) {
        return car_context_fail(data->context, CAR_ERROR_ARGUMENT, "data %s has no samples to evaluate on", o->data);
    }
    config.split = CAR_SPLIT_EVALUATION;
    config.batch = o->shape.batch;
    config.sequential = true;
    config.threads = o->data_threads;
    config.steps = batches;
    config.evenly = true; /* a few of them must not be all of one class */
    CAR_TRY(car_loader_create(data->set, &config, &data->evaluation));
    /* No more micro-batches at once than there are in training. */
    int threads = o->threads < o->workers ? o->threads : o->workers;
    CAR_TRY(car_evaluate_classes(program, arena, weights, threads, batches, feed_evaluation, data, counts, out));
done:
    car_loader_destroy(data->evaluation);
    data->evaluation = NULL;
    return status;
}
