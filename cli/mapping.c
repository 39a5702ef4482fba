/* Text of `plan` and `train` about the mapping of workers to machines. */
#include "mapping.h"

#include <stdio.h>

#include "plan.h"

void car_cli_explain_mapping(const car_mapping_choice *choice, const car_machines *machines, char *text,
                             size_t capacity) {
    car_mapping other = choice->mapping == CAR_MAPPING_INTERLEAVED ? CAR_MAPPING_CONTIGUOUS : CAR_MAPPING_INTERLEAVED;
    if (choice->scarce) {
        snprintf(text, capacity, "a machine needs %s; with %s it would need %s of its %s",
                 car_size_shown((double)choice->machine_bytes[choice->mapping]).text, car_mapping_text(other),
                 car_size_shown((double)choice->machine_bytes[other]).text,
                 car_size_shown((double)machines->memory).text);
    } else if (choice->crossing[choice->mapping] < choice->crossing[other]) {
        snprintf(text, capacity, "%s per step between machines, not %s",
                 car_size_shown(choice->crossing[choice->mapping]).text, car_size_shown(choice->crossing[other]).text);
    } else if (choice->rank_bytes[choice->mapping] < choice->rank_bytes[other]) {
        snprintf(text, capacity, "needs less memory, %s of activations per rank, not %s",
                 car_size_shown((double)choice->rank_bytes[choice->mapping]).text,
                 car_size_shown((double)choice->rank_bytes[other]).text);
    } else {
        snprintf(text, capacity, "the other mapping is no better");
    }
}
