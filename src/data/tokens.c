/* Tokens: not read yet. */
#include "data/source.h"

static car_status open_tokens(car_context *context, const char *path, const car_dataset_config *config,
                              car_dataset_info *info, void **state) {
    (void)path;
    (void)config;
    (void)info;
    *state = NULL;
    return car_context_fail(context, CAR_ERROR_UNSUPPORTED, "data of the kind tokens cannot be read yet");
}

const car_source_methods car_source_tokens = {.open = open_tokens};
