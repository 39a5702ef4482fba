/* What dataset.c and reader.c share. */
#ifndef CAR_DATASET_H
#define CAR_DATASET_H

#include <pthread.h>

#include "data/source.h"

struct car_dataset {
    car_context *context;
    char *name; /* as it was opened */
    const car_source_methods *methods;
    void *state;
    car_dataset_info info;
    car_dataset_config config;
    size_t input_bytes;                   /* of a sample, once it is readable */
    int label_count;                      /* the same */
    const char *input_name, *labels_name; /* of the graph's inputs */
    bool readable;                        /* a config was given */
    pthread_mutex_t lock;                 /* guards what follows */
    car_dataset_problems problems;
    uint8_t *noted[CAR_SPLITS]; /* a bit for each sample that is among the problems; NULL as long as there is none */
};

/* Counts a sample that is not whole, if it was not counted before. */
car_status car_dataset_note(car_dataset *dataset, car_split split, int64_t sample, const car_source_image *image);

#endif
