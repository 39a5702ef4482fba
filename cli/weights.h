/* Weights that the user names: the directory of a run or a checkpoint, or a file. */
#ifndef CAR_CLI_WEIGHTS_H
#define CAR_CLI_WEIGHTS_H

#include "carousel/card.h"
#include "carousel/data.h"
#include "carousel/tape.h"

enum { CAR_CLI_PATH = 4096 };

/* Finds the file of weights for `place`, which may be the file itself. A run has its best weights (--keep-best), else
 * the average (--ema), else the last. Prints to standard error if it is not the last. */
car_status car_cli_find_weights(car_context *context, const char *place, char path[CAR_CLI_PATH]);

/* Loads a file into weights of `model`. Warns about unknown tensors. */
car_status car_cli_load_weights(car_weights *weights, const char *path, const char *model);

/* Fails with CAR_ERROR_SHAPE if the data's classes are not those of the weights in the same order, and names the first
 * difference. Without names on both sides nothing is compared. */
car_status car_cli_compare_classes(car_context *context, const car_card *card, const car_dataset *data);

#endif
