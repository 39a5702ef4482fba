/* See image_file.h. */
#include "image_file.h"

#include <stdlib.h>

#include "fuzz.h"

enum { MOST_PIXELS = 1 << 22 };

void car_fuzz_image_file(const uint8_t *data, size_t size, size_t most, car_fuzz_decoder decode) {
    int side = data[0] & 1 ? 8 : 72;
    car_context *context = car_fuzz_context(most);
    car_dataset_config config = {
        .domain = CAR_DOMAIN_IMAGES, .model = {.channels = 3, .image_size = side}, .augment = (data[0] & 2) != 0};
    car_source_buffer pixels = {.context = context};
    car_source_image image = {0};
    car_image_pipeline pipeline;
    car_image_pipeline_begin(&pipeline, context, &config);
    car_source_wish wish = car_image_pipeline_aim(&pipeline, CAR_SPLIT_TRAIN, 0, data[0]);
    if (decode(data + 1, size - 1, &wish, &pixels, &image) != CAR_OK) {
        abort();
    }
    if (image.state != CAR_SOURCE_UNREADABLE) {
        size_t bytes = 3 * (size_t)side * (size_t)side * sizeof(float);
        size_t stored = 3 * (size_t)image.image.width * (size_t)image.image.height;
        float *sample = malloc(bytes);
        car_fuzz_touch(image.image.pixels, stored);
        if (stored <= 3 * MOST_PIXELS) { /* larger ones only take long */
            if (car_image_pipeline_run(&pipeline, &image, sample) != CAR_OK) {
                abort();
            }
            car_fuzz_touch(sample, bytes);
        }
        free(sample);
    }
    car_image_pipeline_end(&pipeline);
    car_source_free(&pixels);
    car_fuzz_end(context);
}
