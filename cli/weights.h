/* Weights that the user names: the directory of a run or a checkpoint, or a file. */
#ifndef CAR_CLI_WEIGHTS_H
#define CAR_CLI_WEIGHTS_H

#include "carousel/trained.h"

/* Says on standard error which weights of the directory `place` are used, if they are not the last. */
void car_cli_say_weights(const char *place, const char *path);
/* Opens a trained model. Says on standard error which weights of a run are used, if they are not the last, and which
 * tensors of the file the model does not know. */
car_status car_cli_open_weights(car_context *context, const char *place, const car_trained_options *options,
                                car_trained **out);

#endif
