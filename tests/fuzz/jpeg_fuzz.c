/* JPEG files, through decoding and the whole way to a sample. The first byte chooses the size of the samples. */
#include <stdlib.h>

#include "data/image.h"
#include "data/jpeg.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    int side = data[0] & 1 ? 8 : 72;
    /* Three bytes for each of 1024 pixels that a byte may stand for, and a small image for nothing. */
    car_context *context = car_fuzz_context(4 * 1024 * size + (1 << 20));
    car_dataset_config config = {
        .domain = CAR_DOMAIN_IMAGES, .model = {.channels = 3, .image_size = side}, .augment = (data[0] & 2) != 0};
    car_source_buffer pixels = {.context = context};
    car_source_image image = {0};
    car_image_pipeline pipeline;
    car_image_pipeline_begin(&pipeline, context, &config);
    car_source_wish wish = car_image_pipeline_aim(&pipeline, CAR_SPLIT_TRAIN, 0, data[0]);
    if (car_jpeg_decode("file", data + 1, size - 1, &wish, &pixels, &image) != CAR_OK) {
        abort();
    }
    if (image.state != CAR_SOURCE_UNREADABLE) {
        size_t bytes = 3 * (size_t)side * (size_t)side * sizeof(float);
        float *sample = malloc(bytes);
        car_fuzz_touch(image.image.pixels, 3 * (size_t)image.image.width * (size_t)image.image.height);
        if (car_image_pipeline_run(&pipeline, &image, sample) != CAR_OK) {
            abort();
        }
        car_fuzz_touch(sample, bytes);
        free(sample);
    }
    car_image_pipeline_end(&pipeline);
    car_source_free(&pixels);
    car_fuzz_end(context);
    return 0;
}
