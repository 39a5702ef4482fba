/* The option --delay-correction, which `train` and `plan` have. */
#ifndef CAR_CLI_CORRECTION_H
#define CAR_CLI_CORRECTION_H

#include "carousel/correction.h"

/* Sets optimizer->correction from auto, off or C,A. The rest of `optimizer` must be there already: auto depends on it,
 * and not everything goes together. CAR_ERROR_ARGUMENT with a message. */
car_status car_cli_read_correction(car_context *context, const char *text, const car_plan_config *plan,
                                   car_optimizer_config *optimizer);
/* Whether it is left to the rule: --nesterov is a correction of its own. */
bool car_cli_correction_is_auto(const char *text, const car_optimizer_config *optimizer);

#endif
