/* Reads samples ahead, and feeds them to the trainer and to evaluations. */
#include "carousel/feeder.h"

#include "base/base.h"

enum { ENDLESS_BATCHES = 8 }; /* micro-batches of an evaluation on endless data, by default */

struct car_feeder {
    car_context *context;
    const car_graph *graph;
    car_dataset *dataset;
    car_feeder_config config;
    int input, labels;               /* tensors; labels: CAR_NONE if there are none */
    int batch;                       /* samples per micro-batch */
    car_loader *loader, *evaluation; /* for training; for an evaluation, while one runs */
    const car_feeder_evaluation *how;
    bool *wanted; /* over ranks: which micro-batches of a step this rank reads */
    int batches;  /* micro-batches per step */
};

/* ---- creating -------------------------------------------------------------------------------- */

static car_status find_input(const car_feeder *feeder, const char *name, int *tensor) {
    *tensor = name ? car_graph_find_tensor(feeder->graph, name) : CAR_NONE;
    if (name && (*tensor == CAR_NONE || car_graph_tensor(feeder->graph, *tensor)->producer != CAR_NONE)) {
        return car_context_fail(
            feeder->context, CAR_ERROR_SHAPE,
            "the data needs an input '%s', but the graph has none: add it with car_graph_input(graph, \"%s\", ...)",
            name, name);
    }
    return CAR_OK;
}

static car_status check_bytes(const car_feeder *feeder, int tensor, size_t sample) {
    const car_tensor *t = car_graph_tensor(feeder->graph, tensor);
    size_t wanted = car_dtype_size(t->dtype, car_shape_elements(t->shape));
    if (sample * (size_t)feeder->batch != wanted) {
        return car_context_fail(
            feeder->context, CAR_ERROR_SHAPE,
            "input '%s' of the graph has %zu bytes for %d samples, but the data has %zu bytes for each sample", t->name,
            wanted, feeder->batch, sample);
    }
    return CAR_OK;
}

static car_status check_sizes(car_feeder *feeder) {
    const car_dataset *set = feeder->dataset;
    car_status status = CAR_OK;
    CAR_TRY(find_input(feeder, car_dataset_input_name(set), &feeder->input));
    CAR_TRY(find_input(feeder, car_dataset_labels_name(set), &feeder->labels));
    feeder->batch = (int)car_graph_tensor(feeder->graph, feeder->input)->shape.dim[0];
    CAR_TRY(check_bytes(feeder, feeder->input, car_dataset_input_bytes(set)));
    int unfed = feeder->labels == CAR_NONE ? car_graph_find_tensor(feeder->graph, "labels") : CAR_NONE;
    if (unfed != CAR_NONE && car_graph_tensor(feeder->graph, unfed)->producer == CAR_NONE) {
        return car_context_fail(feeder->context, CAR_ERROR_SHAPE,
                                "the graph has an input 'labels', but the data has no labels: set its label_count");
    }
    if (feeder->labels != CAR_NONE) {
        CAR_TRY(check_bytes(feeder, feeder->labels, (size_t)car_dataset_label_count(set) * sizeof(int32_t)));
    }
done:
    return status;
}

car_status car_feeder_create(const car_graph *graph, car_dataset *dataset, const car_feeder_config *config,
                             car_feeder **out) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(car_graph_context(graph), dataset);
    CAR_REQUIRE(car_graph_context(graph), config);
    CAR_REQUIRE(car_graph_context(graph), out);
    car_context *context = car_graph_context(graph);
    car_feeder *feeder = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *feeder, &feeder));
    feeder->context = context;
    feeder->graph = graph;
    feeder->dataset = dataset;
    feeder->config = *config;
    feeder->config.workers = config->workers > 0 ? config->workers : 1;
    feeder->config.accumulate = config->accumulate > 0 ? config->accumulate : 1;
    feeder->batches = feeder->config.workers * feeder->config.accumulate;
    CAR_TRY(check_sizes(feeder));
    *out = feeder;
    feeder = NULL;
done:
    car_feeder_destroy(feeder);
    return status;
}

void car_feeder_destroy(car_feeder *feeder) {
    if (feeder) {
        car_loader_destroy(feeder->evaluation);
        car_loader_destroy(feeder->loader);
        car_context_release(feeder->context, feeder->wanted, feeder->wanted ? (size_t)feeder->batches : 0,
                            sizeof *feeder->wanted);
        car_context_release(feeder->context, feeder, 1, sizeof *feeder);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

int64_t car_feeder_epoch_steps(const car_feeder *feeder) {
    int64_t samples = car_dataset_get_info(feeder->dataset).samples[CAR_SPLIT_TRAIN];
    return samples == CAR_DATASET_ENDLESS ? 0 : samples / ((int64_t)feeder->batches * feeder->batch);
}

/* Each rank reads ahead only the micro-batches that it uses. Returns how many these are in a step. */
static car_status find_wanted(car_feeder *feeder, const car_rank *rank, int *count) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(feeder->context, (size_t)feeder->batches, sizeof *feeder->wanted, &feeder->wanted));
    *count = 0;
    for (int i = 0; i < feeder->batches; i++) {
        feeder->wanted[i] = car_rank_feeds(rank, i);
        *count += feeder->wanted[i];
    }
done:
    return status;
}

car_status car_feeder_start(car_feeder *feeder, const car_rank *rank, int64_t first_step, int64_t steps) {
    CAR_REQUIRE(NULL, feeder);
    const car_feeder_config *c = &feeder->config;
    car_loader_config config = car_loader_config_default();
    int wanted = 0;
    car_status status = CAR_OK;
    config.micro_batches = feeder->batches;
    config.batch = feeder->batch;
    config.depth = c->workers + c->threads;
    config.sequential = c->sequential;
    config.seed = c->seed;
    config.threads = c->threads;
    config.first_step = first_step;
    config.steps = steps;
    if (rank) {
        CAR_TRY(find_wanted(feeder, rank, &wanted));
        config.wanted = feeder->wanted;
        config.threads = wanted > 0 ? c->threads : 0;
        config.depth = (wanted + c->accumulate - 1) / c->accumulate + config.threads;
        config.depth = config.depth > 0 ? config.depth : 1;
    }
    CAR_TRY(car_loader_create(feeder->dataset, &config, &feeder->loader));
done:
    return status;
}

static car_status feed_from(const car_feeder *feeder, car_loader *loader, int64_t step, int micro_batch,
                            car_tape *tape) {
    const void *inputs = NULL;
    const int32_t *labels = NULL;
    car_status status = car_loader_take(loader, step, micro_batch, &inputs, &labels);
    if (status != CAR_OK) {
        return status;
    }
    CAR_TRY(car_tape_feed(tape, feeder->input, inputs));
    if (feeder->labels != CAR_NONE) {
        CAR_TRY(car_tape_feed(tape, feeder->labels, labels));
    }
done:
    car_loader_give_back(loader, step, micro_batch);
    return status;
}

car_status car_feeder_feed(void *user, int64_t step, int micro_batch, car_tape *tape) {
    CAR_REQUIRE(NULL, user);
    CAR_REQUIRE(NULL, tape);
    const car_feeder *feeder = user;
    return feed_from(feeder, feeder->loader, step, micro_batch, tape);
}

double car_feeder_waited(const car_feeder *feeder) {
    return car_loader_waited(feeder->loader);
}

size_t car_feeder_bytes(const car_feeder *feeder) {
    return car_loader_bytes(feeder->loader);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static car_status feed_evaluation(void *user, int64_t batch, int micro_batch, car_tape *tape) {
    const car_feeder *feeder = user;
    const car_feeder_evaluation *how = feeder->how;
    if (how->cancelled && how->cancelled(how->cancelled_user)) {
        return car_context_fail(feeder->context, CAR_ERROR_IO, "the evaluation was cancelled");
    }
    return feed_from(feeder, feeder->evaluation, batch, micro_batch, tape);
}

car_status car_feeder_evaluate(car_feeder *feeder, const car_program *program, car_arena *arena,
                               const car_weights *weights, const car_feeder_evaluation *how, car_evaluation *out) {
    CAR_REQUIRE(NULL, feeder);
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(NULL, arena);
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(NULL, how);
    CAR_REQUIRE(NULL, out);
    int64_t samples = car_dataset_get_info(feeder->dataset).samples[CAR_SPLIT_EVALUATION];
    bool endless = samples == CAR_DATASET_ENDLESS;
    int64_t all = endless ? ENDLESS_BATCHES : (samples + feeder->batch - 1) / feeder->batch;
    int64_t batches = how->batches && (how->batches < all || endless) ? how->batches : all;
    car_loader_config config = car_loader_config_default();
    car_status status = CAR_OK;
    *out = (car_evaluation){0};
    if (batches == 0) {
        return car_context_fail(feeder->context, CAR_ERROR_ARGUMENT, "data %s has no samples to evaluate on",
                                car_dataset_name(feeder->dataset));
    }
    config.split = CAR_SPLIT_EVALUATION;
    config.batch = feeder->batch;
    config.sequential = true;
    config.threads = feeder->config.threads;
    config.steps = batches;
    config.evenly = true; /* spread over the data, so that a few batches are not all of one class */
    feeder->how = how;
    CAR_TRY(car_loader_create(feeder->dataset, &config, &feeder->evaluation));
    const car_evaluate_config evaluation = {.threads = how->threads ? how->threads : 1,
                                            .batches = batches,
                                            .feed = feed_evaluation,
                                            .feed_user = feeder,
                                            .counts = how->counts,
                                            .metric = how->metric,
                                            .metric_user = how->metric_user};
    CAR_TRY(car_evaluate_with(program, arena, weights, &evaluation, out));
done:
    car_loader_destroy(feeder->evaluation);
    feeder->evaluation = NULL;
    feeder->how = NULL;
    return status;
}
