/* Resizing, cropping, mirroring and normalising against torchvision and PIL; make_images.py made the numbers and says
 * what is in the file. Where nothing is resized the values must agree to a float's last bits. Resized ones may be off
 * by a level, because PIL rounds between its two passes and we do not, and by less on average. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/safetensors.h"
#include "data/image.h"

enum { SIDE = 512 };

static const double mean_tolerance = 0.3; /* levels */

/* make_images.py's picture. */
static car_image make_picture(uint8_t *pixels, int width, int height) {
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            for (int c = 0; c < 3; c++) {
                int value = 3 * x + 2 * y * (c + 1) + (x / 5 + y / 3) % 2 * 90 + (x * x + 3 * y * y + 17 * c) % 61;
                pixels[3 * (y * width + x) + c] = (uint8_t)(value % 256);
            }
        }
    }
    return (car_image){pixels, width, height, 0};
}

static float stored(const car_safetensors_tensor *tensor, int64_t i) {
    float value;
    memcpy(&value, (const char *)tensor->data + i * (int64_t)sizeof value, sizeof value);
    return value;
}

/* `most` and `mean` in units of a level, of which one is `level` large. */
static void check(const car_safetensors_tensor *tensor, const float *values, double level, double most, double mean) {
    double worst = 0, sum = 0;
    for (int64_t i = 0; i < tensor->elements; i++) {
        double off = fabs((double)values[i] - stored(tensor, i)) / level;
        worst = off > worst ? off : worst;
        sum += off;
    }
    if (worst > most || sum / (double)tensor->elements > mean) {
        fail_msg("%s: off by %g levels at worst and %g on average", tensor->name, worst,
                 sum / (double)tensor->elements);
    }
}

static void check_resize(car_context *context, const car_safetensors_tensor *tensor, uint8_t *pixels) {
    int width, height, to_width, to_height;
    static uint8_t out[3 * SIDE * SIDE];
    static float values[3 * SIDE * SIDE];
    car_source_buffer work = {.context = context};
    assert_int_equal(sscanf(tensor->name, "resize/%dx%d/%dx%d", &width, &height, &to_width, &to_height), 4);
    car_image image = make_picture(pixels, width, height);
    car_image_box box = {0, 0, width, height};
    assert_int_equal(tensor->elements, 3 * to_width * to_height);
    assert_int_equal(car_image_resize(&work, &image, &box, to_width, to_height, out), CAR_OK);
    for (int64_t i = 0; i < tensor->elements; i++) {
        values[i] = out[i];
    }
    check(tensor, values, 1, 1, mean_tolerance);
    car_source_free(&work);
}

static void check_sample(car_context *context, const car_safetensors_tensor *tensor, uint8_t *pixels) {
    int width, height, size, train;
    unsigned long long seed;
    long long epoch, number;
    static float values[3 * SIDE * SIDE];
    assert_int_equal(sscanf(tensor->name, "sample/%dx%d/%d/%d/%llu/%lld/%lld", &width, &height, &size, &train, &seed,
                            &epoch, &number),
                     7);
    car_dataset_config config = {.model = {.image_size = size, .channels = 3}, .seed = seed, .augment = true};
    car_source_image source = {.image = make_picture(pixels, width, height)};
    car_image_pipeline pipeline;
    source.stored_width = width;
    source.stored_height = height;
    car_image_pipeline_begin(&pipeline, context, &config);
    car_image_pipeline_aim(&pipeline, train ? CAR_SPLIT_TRAIN : CAR_SPLIT_EVALUATION, epoch, number);
    assert_int_equal(car_image_pipeline_run(&pipeline, &source, values), CAR_OK);
    int step = size > 64 ? 4 : 1, side = size / step, at = 0;
    assert_int_equal(tensor->elements, 3 * side * side);
    for (int c = 0; c < 3; c++) {
        for (int y = 0; y < side; y++) {
            for (int x = 0; x < side; x++) {
                values[at++] = values[(c * size + y * step) * size + x * step];
            }
        }
    }
    bool resized = size > 64 || width != size;
    double level = 1 / (255 * 0.2);
    check(tensor, values, level, resized ? 1.01 : 1e-4, resized ? mean_tolerance : 1e-4);
    car_image_pipeline_end(&pipeline);
}

static void images_are_those_of_torchvision(void **state) {
    car_context *context = NULL;
    car_safetensors *file = NULL;
    uint8_t *pixels = malloc(3 * SIDE * SIDE);
    int resizes = 0, samples = 0;
    (void)state;
    assert_non_null(pixels);
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_safetensors_open(context, CAR_TEST_DATA_DIR "/golden_images.safetensors", &file), CAR_OK);
    for (int t = 0; t < car_safetensors_count(file); t++) {
        const car_safetensors_tensor *tensor = car_safetensors_at(file, t);
        assert_int_equal(tensor->dtype, CAR_SAFETENSORS_F32);
        if (strncmp(tensor->name, "resize/", 7) == 0) {
            check_resize(context, tensor, pixels);
            resizes++;
        } else {
            check_sample(context, tensor, pixels);
            samples++;
        }
    }
    assert_int_equal(resizes, 4);
    assert_int_equal(samples, 17);
    car_safetensors_close(file);
    car_context_destroy(context);
    free(pixels);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(images_are_those_of_torchvision)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
