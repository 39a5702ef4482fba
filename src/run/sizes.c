/* Takes model sizes that are not given from the data: see carousel/feeder.h. */
#include <string.h>

#include "carousel/tokenizer.h"
#include "run/internal.h"

/* The FILE of tokens:FILE.bin, or NULL for other data. Text files have one token per byte and need no tokenizer. */
static const char *token_file(const char *data) {
    static const char kind[] = "tokens:", ending[] = ".bin";
    size_t length = strlen(data), end = sizeof ending - 1;
    bool tokens = strncmp(data, kind, sizeof kind - 1) == 0;
    return tokens && length > end && strcmp(data + length - end, ending) == 0 ? data + sizeof kind - 1 : NULL;
}

static car_status find_vocabulary(car_context *context, const char *data, car_model_config *shape) {
    const char *file = token_file(data);
    car_tokenizer *tokenizer = NULL;
    car_status status = CAR_OK;
    if (shape->vocabulary || !file) {
        return CAR_OK;
    }
    CAR_TRY(car_tokenizer_find_beside(context, file, &tokenizer));
    shape->vocabulary = tokenizer ? car_tokenizer_size(tokenizer) : 0;
done:
    car_tokenizer_destroy(tokenizer);
    return status;
}

car_status car_feeder_find_sizes(car_context *context, const char *model, const char *data, car_model_config *shape) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, model);
    CAR_REQUIRE(context, data);
    CAR_REQUIRE(context, shape);
    const car_model_info *known = car_model_find(model);
    car_dataset *set = NULL;
    if (known && known->domain == CAR_DOMAIN_TOKENS) {
        return find_vocabulary(context, data, shape);
    }
    if (!known || strcmp(data, "synthetic") == 0 || (shape->classes && shape->image_size)) {
        return CAR_OK;
    }
    car_status status = car_dataset_open(context, data, NULL, &set);
    if (status != CAR_OK) {
        return status;
    }
    const car_dataset_info info = car_dataset_get_info(set);
    bool small = info.width == info.height && info.width > 0 && info.width <= CAR_FEEDER_SMALL_IMAGE;
    if (info.domain == CAR_DOMAIN_IMAGES) {
        shape->classes = shape->classes ? shape->classes : info.classes;
        shape->image_size = shape->image_size || !small ? shape->image_size : info.width;
    }
    car_dataset_close(set);
    return CAR_OK;
}
