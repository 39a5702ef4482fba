/* Workers on machines: what `plan` and `train` ask and say about it. */
#ifndef CAR_CLI_MAPPING_H
#define CAR_CLI_MAPPING_H

#include "carousel/mapping.h"

/* Why a mapping was chosen, without the end of the line. */
void car_cli_explain_mapping(const car_mapping_choice *choice, const car_machines *machines, char *text,
                             size_t capacity);

#endif
