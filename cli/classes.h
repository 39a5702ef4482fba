/* Accuracy per class, and the confusion matrix. */
#ifndef CAR_CLI_CLASSES_H
#define CAR_CLI_CLASSES_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "carousel/data.h"

/* counts[label * classes + predicted], as car_evaluate_classes fills them. */
typedef struct car_cli_confusion {
    car_context *context;
    int classes;
    int64_t *counts;
} car_cli_confusion;

car_status car_cli_create_confusion(car_context *context, int classes, car_cli_confusion *out);
void car_cli_destroy_confusion(car_cli_confusion *confusion); /* accepts an all-zero struct */

/* Prints a line for each class and the matrix if there are few classes, else only the worst classes. */
void car_cli_print_confusion(const car_cli_confusion *confusion, const car_dataset *data);
/* Adds "per_class": an array with name, samples, accuracy and confusions. Returns false if memory is short. */
bool car_cli_add_confusion(cJSON *root, const car_cli_confusion *confusion, const car_dataset *data);

#endif
