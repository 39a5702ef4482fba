/* The dataset's structure, shared by dataset.c and reader.c. */
#ifndef CAR_DATASET_H
#define CAR_DATASET_H

#include <pthread.h>

#include "data/source.h"

struct car_dataset {
    car_context *context;
    char *name; /* as given when it was opened */
    const car_source_methods *methods;
    void *state;
    car_dataset_info info;
    car_dataset_config config;
    size_t input_bytes;                   /* of a sample; 0 without a config */
    int label_count;                      /* of a sample */
    const char *input_name, *labels_name; /* names of the graph's inputs */
    bool readable;                        /* opened with a config */
    pthread_mutex_t lock;                 /* guards the fields below */
    car_dataset_problems problems;
    uint8_t *noted[CAR_SPLITS]; /* one bit for each sample counted in `problems`; NULL until there is one */
};

/* Counts an unreadable or damaged sample, once for each sample. */
car_status car_dataset_note(car_dataset *dataset, car_split split, int64_t sample, const car_source_image *image);

#endif
