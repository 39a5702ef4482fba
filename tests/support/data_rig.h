/* A directory for a dataset's files, and the dataset and a reader once it is open. */
#ifndef CAR_TESTS_DATA_RIG_H
#define CAR_TESTS_DATA_RIG_H

#include "carousel/data.h"
#include "support/scratch.h"

typedef struct car_data_rig {
    car_scratch scratch;
    car_context *context; /* the directory's */
    car_dataset *dataset;
    car_reader *reader;
    char name[300]; /* KIND:DIRECTORY */
} car_data_rig;

/* Set-up of a cmocka test, for a kind like "cifar10"; *state is a car_data_rig. */
int car_data_rig_set_up(void **state, const char *kind);
int car_data_rig_tear_down(void **state);

/* A failure ends the test. */
void car_data_rig_open(car_data_rig *rig, const char *name, const car_dataset_config *config);
void car_data_rig_close(car_data_rig *rig); /* closes the dataset; another can be opened */
/* Expects opening to fail with the status, and with `part` in the message. */
void car_data_rig_refuse(const car_data_rig *rig, const char *name, const car_dataset_config *config, car_status status,
                         const char *part);

/* Opens the dataset in the directory and reads training sample 1 into `sample`, failing each allocation once. Each
 * failure must be reported and leave nothing allocated. */
void car_data_rig_exhaust(const car_data_rig *rig, const car_dataset_config *config, float *sample);

#endif
