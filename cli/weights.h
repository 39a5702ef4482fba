/* Weights that somebody names: a run's directory, a checkpoint's, or a file. */
#ifndef CAR_CLI_WEIGHTS_H
#define CAR_CLI_WEIGHTS_H

#include "carousel/card.h"
#include "carousel/data.h"
#include "carousel/tape.h"

enum { CAR_CLI_PATH = 4096 };

/* The file of weights that `place` stands for, itself if it is no directory: of a run the best ones (--keep-best), else
 * the average (--ema), else the last. Says on standard error if it is not the last. */
car_status car_cli_find_weights(car_context *context, const char *place, char path[CAR_CLI_PATH]);

/* Loads a file into weights of `model`; warns of tensors that it does not know. */
car_status car_cli_load_weights(car_weights *weights, const char *path, const char *model);

/* Whether data has the classes that the weights were trained with, in their order; CAR_ERROR_SHAPE with the first that
 * differs. Without names on either side there is nothing to compare. */
car_status car_cli_compare_classes(car_context *context, const car_card *card, const car_dataset *data);

#endif
