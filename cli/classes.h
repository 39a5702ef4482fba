/* Accuracy of each class, and which classes are taken for which. */
#ifndef CAR_CLI_CLASSES_H
#define CAR_CLI_CLASSES_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "carousel/data.h"

/* counts[label * classes + predicted], as car_evaluate_classes gives them. */
typedef struct car_cli_confusion {
    car_context *context;
    int classes;
    int64_t *counts;
} car_cli_confusion;

car_status car_cli_create_confusion(car_context *context, int classes, car_cli_confusion *out);
void car_cli_destroy_confusion(car_cli_confusion *confusion); /* all zero is allowed */

/* A line for each class and, of few classes, the matrix; of many the worst ones only. */
void car_cli_print_confusion(const car_cli_confusion *confusion, const car_dataset *data);
/* "per_class": an array of name, samples, accuracy and what its samples were taken for. False without memory. */
bool car_cli_add_confusion(cJSON *root, const car_cli_confusion *confusion, const car_dataset *data);

#endif
