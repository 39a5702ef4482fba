/* What the files of `carousel predict` share. */
#ifndef CAR_CLI_PREDICT_H
#define CAR_CLI_PREDICT_H

#include "carousel/image.h"
#include "train.h"
#include "weights.h"

typedef struct car_predict_answer {
    int index; /* of the class */
    double probability;
} car_predict_answer;

/* Of one image; `answers` has room for the K that were asked for, best first. */
typedef struct car_predict_result {
    car_image_file file;
    car_predict_answer *answers;
} car_predict_result;

typedef struct car_predict_run {
    const char *place; /* of the weights: a run, or a file */
    car_train_options options;
    int top;
    bool json;
    car_context *context;
    car_card *card;
    car_model_config model; /* as resolved */
    car_image_recipe recipe;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    char **files; /* to look at, in order */
    int file_count, file_capacity;
    int others; /* files in folders that are no images */
    int failed;
} car_predict_run;

/* ---- predict_files.c ---------------------------------------------------------------------------------------------- */

/* Adds a file, or all images below a folder in the order of their names. What is not there is found out when it is
 * read. */
car_status car_predict_add(car_predict_run *run, const char *path);
void car_predict_release_files(car_predict_run *run);

/* ---- predict_model.c ---------------------------------------------------------------------------------------------- */

/* The model as the weights' card, the run's configuration and the options say, with its weights. */
car_status car_predict_open(car_predict_run *run);
void car_predict_close(car_predict_run *run);
/* Files `first` .. end - 1 into `results`, by several threads. An image's answer depends on nothing but the image. */
car_status car_predict_files(car_predict_run *run, int first, int end, car_predict_result *results);

#endif
