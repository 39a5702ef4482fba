/* The option --delay-correction of `train` and `plan`. */
#ifndef CAR_CLI_CORRECTION_H
#define CAR_CLI_CORRECTION_H

#include "carousel/correction.h"

/* Sets optimizer->correction from auto, off or C,A. The rest of `optimizer` must be set before: auto depends on it, and
 * some combinations are errors (CAR_ERROR_ARGUMENT with a message). */
car_status car_cli_read_correction(car_context *context, const char *text, const car_plan_config *plan,
                                   car_optimizer_config *optimizer);
/* True if the rule decides. With --nesterov it does not, because that is a correction too. */
bool car_cli_correction_is_auto(const char *text, const car_optimizer_config *optimizer);

#endif
