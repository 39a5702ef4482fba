/* Shared by the files of `carousel predict`. */
#ifndef CAR_CLI_PREDICT_H
#define CAR_CLI_PREDICT_H

#include "train.h"
#include "weights.h"

typedef struct car_predict_run {
    const char *place; /* of the weights: a run or a file */
    car_train_options options;
    int top;
    bool json;
    car_context *context;
    car_trained *trained;
    char **files; /* to classify, in order */
    int file_count, file_capacity;
    int others; /* files in folders that are not images */
    int failed;
} car_predict_run;

/* ---- predict_files.c --------------------------------------------------------------------------------------------- */

/* Adds a file, or all images below a folder, sorted by name. Missing files are reported when they are read. */
car_status car_predict_add(car_predict_run *run, const char *path);
void car_predict_release_files(car_predict_run *run);

#endif
