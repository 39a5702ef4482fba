/* Text of `plan` and `train` about the mapping of workers to machines. */
#ifndef CAR_CLI_MAPPING_H
#define CAR_CLI_MAPPING_H

#include "carousel/mapping.h"

/* Says why a mapping was chosen, without a newline. */
void car_cli_explain_mapping(const car_mapping_choice *choice, const car_machines *machines, char *text,
                             size_t capacity);

#endif
