/* Shared by the files of `carousel predict`. */
#ifndef CAR_CLI_PREDICT_H
#define CAR_CLI_PREDICT_H

#include "carousel/image.h"
#include "train.h"
#include "weights.h"

typedef struct car_predict_answer {
    int index; /* of the class */
    double probability;
} car_predict_answer;

/* The result of one image. `answers` has the K best classes, best first. */
typedef struct car_predict_result {
    car_image_file file;
    car_predict_answer *answers;
} car_predict_result;

typedef struct car_predict_run {
    const char *place; /* of the weights: a run or a file */
    car_train_options options;
    int top;
    bool json;
    car_context *context;
    car_card *card;
    car_model_config model; /* with defaults filled in */
    car_image_recipe recipe;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    char **files; /* to classify, in order */
    int file_count, file_capacity;
    int others; /* files in folders that are not images */
    int failed;
} car_predict_run;

/* ---- predict_files.c --------------------------------------------------------------------------------------------- */

/* Adds a file, or all images below a folder, sorted by name. Missing files are reported when they are read. */
car_status car_predict_add(car_predict_run *run, const char *path);
void car_predict_release_files(car_predict_run *run);

/* ---- predict_model.c --------------------------------------------------------------------------------------------- */

/* Builds the model from the weights' card, the run's configuration and the options, and loads its weights. */
car_status car_predict_open(car_predict_run *run);
void car_predict_close(car_predict_run *run);
/* Classifies files `first` .. end - 1, with several threads. A result depends on its image only. */
car_status car_predict_files(car_predict_run *run, int first, int end, car_predict_result *results);

#endif
