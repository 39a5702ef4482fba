/* A trained model: weights from a run, a checkpoint or a file, ready to be evaluated and to classify images.
 *
 *     car_trained_open(context, "runs/cifar10", &options, &trained)
 *     car_trained_evaluate(trained, &how, &result), car_trained_classify(trained, paths, count, &how, results)
 *
 * The weights' card (card.h) says which model they are of. For language models see language.h as well. One thread at
 * a time may use a trained model. */
#ifndef CAROUSEL_TRAINED_H
#define CAROUSEL_TRAINED_H

#include "carousel/card.h"
#include "carousel/checkpoint.h"
#include "carousel/data.h"
#include "carousel/feeder.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_trained car_trained;

/* Zero or NULL selects the value in brackets. Texts must outlive the trained model. */
typedef struct car_trained_options {
    const char *model; /* its name (the card's) */
    /* Its sizes (the card's, then those that follow from the data, then the model's own; batch 16). Images are classified
     * one batch at a time. */
    car_model_config shape;
    const char *data;                  /* KIND:PATH of car_dataset_open, to evaluate on (none) */
    car_dataset *dataset;              /* instead of it, a dataset, e.g. your own */
    int data_threads;                  /* threads that read it ahead (none) */
    uint64_t seed;                     /* of synthetic data */
    const car_program_config *kernels; /* (the defaults) */
} car_trained_options;

/* Opens the weights in `place`: a safetensors file, or a directory. A directory's best.safetensors comes first, then
 * average.safetensors, then weights.safetensors. CAR_ERROR_IO if there is no such file; CAR_ERROR_UNKNOWN_NAME if
 * neither the card nor the options name a model of model.h (weights of a graph of your own are for car_run_load); CAR_ERROR_SHAPE if the data does not fit it, or has other classes.
 * `options` may be NULL. On failure *out is NULL. */
car_status car_trained_open(car_context *context, const char *place, const car_trained_options *options,
                            car_trained **out);
void car_trained_close(car_trained *trained); /* NULL is allowed */

const char *car_trained_path(const car_trained *trained); /* of the file of weights */
const car_model_info *car_trained_model(const car_trained *trained);
car_model_config car_trained_shape(const car_trained *trained); /* with all sizes filled in */
const car_card *car_trained_card(const car_trained *trained);
car_dataset *car_trained_data(const car_trained *trained); /* NULL without data */
/* What was loaded, and which tensors of the file the model does not have. */
const car_weights_load_report *car_trained_report(const car_trained *trained);

/* Loss and accuracy on the evaluation split of the data. `how` may be NULL. CAR_ERROR_ARGUMENT without data. Synthetic
 * data depends on shape.batch and seed: set them to those of the run to get its numbers. */
car_status car_trained_evaluate(car_trained *trained, const car_feeder_evaluation *how, car_evaluation *out);

typedef struct car_class_answer {
    int index; /* of the class */
    double probability;
} car_class_answer;

typedef struct car_classification {
    car_image_file file;       /* if it is not readable, there are no answers */
    car_class_answer *answers; /* the caller's memory for `top` answers; the best comes first */
} car_classification;

typedef struct car_classify_config {
    int threads; /* each works on its own batch (1) */
    int top;     /* answers for each image, at most the number of classes (1) */
} car_classify_config;

/* Says which classes `count` image files are of. The result of an image does not depend on the others.
 * `config` may be NULL. CAR_ERROR_UNSUPPORTED if the model is not one of images. */
car_status car_trained_classify(car_trained *trained, const char *const *paths, int count,
                                const car_classify_config *config, car_classification *results);
/* The name of a class as the card has it; "class N" if it has none. */
void car_trained_class_name(const car_trained *trained, int index, char *text, size_t capacity);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
