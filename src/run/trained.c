/* Opens weights with everything that is needed to use them: see carousel/trained.h. */
#include "run/trained.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_BATCH = 16 };

/* ---- the file of weights --------------------------------------------------------------------- */

/* Looks for DIRECTORY/NAME. */
static bool find_file(car_trained *trained, const char *directory, const char *name) {
    struct stat entry;
    int length = snprintf(trained->path, sizeof trained->path, "%s/%s", directory, name);
    return length < (int)sizeof trained->path && stat(trained->path, &entry) == 0;
}

static car_status find_weights(car_trained *trained, const char *place) {
    struct stat entry;
    if (stat(place, &entry) != 0 || !S_ISDIR(entry.st_mode)) {
        int length = snprintf(trained->path, sizeof trained->path, "%s", place);
        return length < (int)sizeof trained->path
                   ? CAR_OK
                   : car_context_fail(trained->context, CAR_ERROR_IO, "the path %s is too long", place);
    }
    if (find_file(trained, place, "best.safetensors") || find_file(trained, place, "average.safetensors") ||
        find_file(trained, place, "weights.safetensors")) {
        return CAR_OK;
    }
    return car_context_fail(trained->context, CAR_ERROR_IO,
                            "%s: %s; a run that has not ended has no weights yet, but you can use one of its "
                            "checkpoints: RUN/checkpoints/step-T",
                            trained->path, strerror(errno));
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Finds the model by the options, or else by the card. Sizes that the options leave open come from the card. */
static car_status find_model(car_trained *trained, const car_trained_options *options) {
    const char *named = car_card_get(trained->card, "model");
    const char *name = options->model ? options->model : named;
    trained->shape = options->shape;
    trained->shape.batch = trained->shape.batch ? trained->shape.batch : DEFAULT_BATCH;
    if (!name) {
        return car_context_fail(trained->context, CAR_ERROR_UNKNOWN_NAME, "%s does not say which model it is of",
                                trained->path);
    }
    trained->model = car_model_find(name);
    if (!trained->model && options->model) {
        return car_model_resolve(trained->context, name, NULL, &trained->shape); /* which lists the models */
    }
    if (!trained->model) {
        return car_context_fail(trained->context, CAR_ERROR_UNKNOWN_NAME, "%s is of an unknown model, '%s'",
                                trained->path, name);
    }
    if (trained->model->on_paper) {
        return car_context_fail(trained->context, CAR_ERROR_ARGUMENT,
                                "model %s can only be planned (carousel plan), not trained", name);
    }
    if (named && strcmp(name, named) == 0) {
        car_card_model(trained->card, &trained->shape);
    }
    return CAR_OK;
}

static car_status load_model(car_trained *trained, const car_program_config *kernels) {
    const char *name = trained->model->name;
    car_status status = CAR_OK;
    CAR_TRY(car_model_resolve(trained->context, name, &trained->shape, &trained->shape));
    CAR_TRY(car_model_build(trained->context, name, &trained->shape, &trained->graph));
    CAR_TRY(car_program_create(trained->graph, kernels, &trained->program));
    CAR_TRY(car_arena_create(trained->context, 0, &trained->arena));
    CAR_TRY(car_weights_create(trained->program, trained->arena, &trained->weights));
    CAR_TRY(car_weights_load(trained->weights, trained->path, NULL, &trained->report));
    if (trained->model->domain == CAR_DOMAIN_IMAGES) {
        trained->recipe = car_image_recipe_for(trained->shape.image_size);
        CAR_TRY(car_card_recipe(trained->card, &trained->recipe));
    }
done:
    return status;
}

/* ---- the data -------------------------------------------------------------------------------- */

/* Fails if the data has other classes than the card, or the same in another order. */
static car_status compare_classes(const car_trained *trained) {
    char known[256];
    int classes = car_dataset_get_info(trained->data).classes;
    for (int c = 0; c < classes && c < car_card_list_count(trained->card, "class_names"); c++) {
        const char *name = car_dataset_class_name(trained->data, c);
        car_card_list_item(trained->card, "class_names", c, known, sizeof known);
        if (name && known[0] && strcmp(name, known) != 0) {
            return car_context_fail(trained->context, CAR_ERROR_SHAPE,
                                    "class %d is '%s' in the data and '%s' in the weights; use data with the classes "
                                    "that the model was trained on",
                                    c, name, known);
        }
    }
    return CAR_OK;
}

static car_status open_data(car_trained *trained, const car_trained_options *options) {
    const car_dataset_config config = {
        .domain = trained->model->domain, .model = trained->shape, .seed = options->seed};
    const car_feeder_config feeder = {.threads = options->data_threads, .seed = options->seed};
    car_status status = CAR_OK;
    trained->data = options->dataset;
    if (!options->dataset) {
        CAR_TRY(car_dataset_open(trained->context, options->data, &config, &trained->own_data));
        trained->data = trained->own_data;
    }
    CAR_TRY(car_feeder_create(trained->graph, trained->data, &feeder, &trained->feeder));
    if (trained->model->domain == CAR_DOMAIN_IMAGES) {
        CAR_TRY(compare_classes(trained));
    }
done:
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

car_status car_trained_open(car_context *context, const char *place, const car_trained_options *options,
                            car_trained **out) {
    CAR_ENTER(context, context);
    CAR_REQUIRE(context, place);
    CAR_REQUIRE(context, out);
    const car_trained_options none = {0};
    car_trained *trained = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    options = options ? options : &none;
    if (options->data && options->dataset) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "only one of options.data and options.dataset may be set");
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *trained, &trained));
    trained->context = context;
    CAR_TRY(find_weights(trained, place));
    CAR_TRY(car_card_read(context, trained->path, &trained->card));
    CAR_TRY(find_model(trained, options));
    if (options->data) {
        CAR_TRY(car_feeder_find_sizes(context, trained->model->name, options->data, &trained->shape));
    }
    CAR_TRY(load_model(trained, options->kernels));
    if (options->data || options->dataset) {
        CAR_TRY(open_data(trained, options));
    }
    *out = trained;
    trained = NULL;
done:
    car_trained_close(trained);
    return status;
}

void car_trained_close(car_trained *trained) {
    if (!trained) {
        return;
    }
    car_feeder_destroy(trained->feeder);
    car_dataset_close(trained->own_data);
    car_weights_destroy(trained->weights);
    car_arena_destroy(trained->arena);
    car_program_destroy(trained->program);
    car_graph_destroy(trained->graph);
    car_card_destroy(trained->card);
    car_context_release(trained->context, trained, 1, sizeof *trained);
}

/* ---- queries --------------------------------------------------------------------------------- */

const char *car_trained_path(const car_trained *trained) {
    return trained ? trained->path : NULL;
}

const car_model_info *car_trained_model(const car_trained *trained) {
    return trained ? trained->model : NULL;
}

car_model_config car_trained_shape(const car_trained *trained) {
    return trained ? trained->shape : (car_model_config){0};
}

const car_card *car_trained_card(const car_trained *trained) {
    return trained ? trained->card : NULL;
}

car_dataset *car_trained_data(const car_trained *trained) {
    return trained ? trained->data : NULL;
}

const car_weights_load_report *car_trained_report(const car_trained *trained) {
    return trained ? &trained->report : NULL;
}

/* ---- evaluating ------------------------------------------------------------------------------ */

car_status car_trained_evaluate(car_trained *trained, const car_feeder_evaluation *how, car_evaluation *out) {
    CAR_ENTER(trained, trained->context);
    CAR_REQUIRE(trained->context, out);
    const car_feeder_evaluation none = {0};
    if (!trained->feeder) {
        return car_context_fail(trained->context, CAR_ERROR_ARGUMENT,
                                "a model that was opened without data cannot be evaluated: set options.data or "
                                "options.dataset");
    }
    return car_feeder_evaluate(trained->feeder, trained->program, trained->arena, trained->weights, how ? how : &none,
                               out);
}
