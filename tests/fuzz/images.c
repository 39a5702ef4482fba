/* Reading everything that a dataset of images has: see images.h. */
#include "images.h"

#include <stdlib.h>

#include "fuzz.h"

enum { MOST_SAMPLES = 8, MOST_PIXELS = 1 << 20 };

static void read_sample(car_reader *reader, car_split split, int64_t sample, int size) {
    size_t floats = 3 * (size_t)size * (size_t)size;
    float *input = malloc(floats * sizeof *input);
    int32_t label = -7;
    if (car_reader_sample(reader, split, 1, sample, input, &label) == CAR_OK) {
        car_fuzz_touch(input, floats * sizeof *input);
        if (label < -1 || label >= CAR_FUZZ_CLASSES) {
            abort();
        }
    }
    free(input);
}

void car_fuzz_read_images(car_context *context, const char *name, int size) {
    car_dataset_config config = {.domain = CAR_DOMAIN_IMAGES,
                                 .model = {.batch = 1, .channels = 3, .image_size = size, .classes = CAR_FUZZ_CLASSES},
                                 .augment = true};
    car_dataset *dataset = NULL;
    car_reader *reader = NULL;
    char digest[65];
    if (car_dataset_open(context, name, &config, &dataset) != CAR_OK) {
        return;
    }
    car_dataset_info info = car_dataset_get_info(dataset);
    for (int c = 0; c < info.classes; c++) {
        car_dataset_class_name(dataset, c);
    }
    car_dataset_digest(dataset, digest);
    if (car_reader_create(dataset, &reader) != CAR_OK) {
        abort();
    }
    for (int s = 0; s < CAR_SPLITS; s++) {
        for (int64_t n = 0; n < info.samples[s] && n < MOST_SAMPLES; n++) {
            car_image image;
            if (car_reader_image(reader, (car_split)s, n, &image) == CAR_OK && image.pixels != NULL) {
                car_fuzz_touch(image.pixels, 3 * (size_t)image.width * (size_t)image.height);
                if ((int64_t)image.width * image.height <= MOST_PIXELS) { /* larger ones only take long */
                    read_sample(reader, (car_split)s, n, size);
                }
            }
        }
    }
    car_reader_destroy(reader);
    car_dataset_close(dataset);
}
