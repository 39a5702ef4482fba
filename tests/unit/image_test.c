/* Resizing, augmentation and normalisation: properties. Numbers are compared in golden/images_golden_test.c. */
#include "data/image.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int set_up(void **state) {
    car_context *context = NULL;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    *state = context;
    return 0;
}

static int tear_down(void **state) {
    car_context_destroy(*state);
    return 0;
}

static uint8_t *make_noise(int width, int height) {
    size_t bytes = 3 * (size_t)width * (size_t)height;
    uint8_t *pixels = malloc(bytes);
    assert_non_null(pixels);
    for (size_t i = 0; i < bytes; i++) {
        pixels[i] = (uint8_t)car_random_u64(5, i);
    }
    return pixels;
}

/* ---- resizing -------------------------------------------------------------------------------- */

static void the_same_size_is_the_same_image(void **state) {
    enum { WIDTH = 37, HEIGHT = 23 };
    car_source_buffer work = {.context = *state};
    uint8_t *pixels = make_noise(WIDTH, HEIGHT), out[3 * WIDTH * HEIGHT];
    car_image image = {pixels, WIDTH, HEIGHT, 0};
    assert_int_equal(car_image_resize(&work, &image, &(car_image_box){0, 0, WIDTH, HEIGHT}, WIDTH, HEIGHT, out),
                     CAR_OK);
    assert_memory_equal(out, pixels, sizeof out);
    /* A box of whole pixels is a crop. */
    assert_int_equal(car_image_resize(&work, &image, &(car_image_box){5, 3, 16, 12}, 11, 9, out), CAR_OK);
    for (int y = 0; y < 9; y++) {
        assert_memory_equal(out + 3 * 11 * y, pixels + 3 * ((y + 3) * WIDTH + 5), 3 * 11);
    }
    car_source_free(&work);
    free(pixels);
}

static void one_colour_stays_one_colour(void **state) {
    static const int sizes[] = {1, 2, 3, 31, 64, 500};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    car_source_buffer work = {.context = *state};
    uint8_t *pixels = malloc(3 * 500 * 500), *out = malloc(3 * 500 * 500);
    assert_true(pixels && out);
    for (int level = 0; level < 256; level += 51) {
        memset(pixels, level, 3 * 500 * 500);
        for (int i = 0; i < COUNT * COUNT * COUNT; i++) {
            int width = sizes[i % COUNT], height = sizes[i / COUNT % COUNT], to = sizes[i / COUNT / COUNT];
            car_image image = {pixels, width, height, 0};
            memset(out, 77, 3 * 500 * 500);
            assert_int_equal(car_image_resize(&work, &image, &(car_image_box){0, 0, width, height}, to, 3, out),
                             CAR_OK);
            for (int p = 0; p < 3 * 3 * to; p++) {
                assert_int_equal(out[p], level);
            }
        }
    }
    car_source_free(&work);
    free(out);
    free(pixels);
}

static void all_pixels_count_when_it_shrinks(void **state) {
    enum { SIDE = 96, TO = 4 };
    car_source_buffer work = {.context = *state};
    uint8_t *pixels = calloc(3 * SIDE, SIDE), out[3 * TO * TO];
    assert_non_null(pixels);
    for (int y = 0; y < SIDE; y++) { /* lines one pixel wide are half of it */
        memset(pixels + 3 * SIDE * y, y % 2 ? 255 : 0, 3 * SIDE);
    }
    car_image image = {pixels, SIDE, SIDE, 0};
    assert_int_equal(car_image_resize(&work, &image, &(car_image_box){0, 0, SIDE, SIDE}, TO, TO, out), CAR_OK);
    for (size_t i = 0; i < sizeof out; i++) {
        assert_in_range(out[i], 122, 133);
    }
    car_source_free(&work);
    free(pixels);
}

static void limits_keep_what_is_outside_out(void **state) {
    enum { SIDE = 40 };
    car_source_buffer work = {.context = *state};
    uint8_t *pixels = calloc(3 * SIDE, SIDE), out[3 * 5 * 5];
    assert_non_null(pixels);
    for (int y = 10; y < 30; y++) {
        memset(pixels + 3 * (y * SIDE + 10), 200, 3 * 20);
    }
    car_image image = {pixels, SIDE, SIDE, 0};
    car_image_box box = {10, 10, 30, 30};
    assert_int_equal(car_image_resize(&work, &image, &box, 5, 5, out), CAR_OK);
    assert_in_range(out[0], 50, 190); /* the dark around it comes in */
    car_image_limits limits = {10, 10, 30, 30};
    assert_int_equal(car_image_resize_within(&work, &image, &box, &limits, 5, 5, out), CAR_OK);
    for (size_t i = 0; i < sizeof out; i++) {
        assert_int_equal(out[i], 200);
    }
    car_source_free(&work);
    free(pixels);
}

/* ---- samples --------------------------------------------------------------------------------- */

static void sample_of(car_context *context, const uint8_t *pixels, int width, int height, int size, bool augment,
                      uint64_t seed, int64_t epoch, int64_t number, float *out) {
    car_dataset_config config = {.model = {.image_size = size, .channels = 3}, .seed = seed, .augment = augment};
    car_source_image source = {.image = {pixels, width, height, 0}};
    car_image_pipeline pipeline;
    source.stored_width = width;
    source.stored_height = height;
    car_image_pipeline_begin(&pipeline, context, &config);
    car_source_wish wish = car_image_pipeline_aim(&pipeline, CAR_SPLIT_TRAIN, epoch, number);
    assert_in_range(wish.shrink(wish.user, width, height), 1, 8);
    assert_int_equal(car_image_pipeline_run(&pipeline, &source, out), CAR_OK);
    car_image_pipeline_end(&pipeline);
}

static void augmentation_depends_on_seed_epoch_and_number(void **state) {
    static const int sizes[] = {32, 80};
    enum { MOST = 3 * 80 * 80 };
    float *a = malloc(2 * MOST * sizeof *a), *b = a + MOST;
    assert_non_null(a);
    for (int i = 0; i < 2; i++) {
        int size = sizes[i], changes[3] = {0};
        size_t bytes = 3 * (size_t)size * (size_t)size * sizeof *a;
        uint8_t *pixels = make_noise(size, size);
        for (int64_t n = 0; n < 20; n++) {
            sample_of(*state, pixels, size, size, size, true, 1, 2, n, a);
            sample_of(*state, pixels, size, size, size, true, 1, 2, n, b);
            assert_memory_equal(a, b, bytes);
            sample_of(*state, pixels, size, size, size, true, 2, 2, n, b);
            changes[0] += memcmp(a, b, bytes) != 0;
            sample_of(*state, pixels, size, size, size, true, 1, 3, n, b);
            changes[1] += memcmp(a, b, bytes) != 0;
            sample_of(*state, pixels, size, size, size, true, 1, 2, n + 1, b);
            changes[2] += memcmp(a, b, bytes) != 0;
            /* Without augmentation none of it matters. */
            sample_of(*state, pixels, size, size, size, false, 1, 2, n, a);
            sample_of(*state, pixels, size, size, size, false, 4, 5, n + 1, b);
            assert_memory_equal(a, b, bytes);
        }
        for (int c = 0; c < 3; c++) {
            assert_true(changes[c] >= 18);
        }
        free(pixels);
    }
    free(a);
}

/* All crops occur, and either direction, about as often as they should. The position is read from the picture: its red
 * says which column it was, its green which row. */
static void crops_and_mirrors_are_spread_evenly(void **state) {
    enum { SIDE = 32, PAD = 4, ROUNDS = 8100, PLANE = SIDE * SIDE };
    uint8_t pixels[3 * PLANE];
    static float values[3 * PLANE];
    int counts[2 * PAD + 1][2 * PAD + 1] = {{0}}, mirrored = 0;
    for (int p = 0; p < PLANE; p++) {
        pixels[3 * p] = (uint8_t)(100 + p % SIDE);
        pixels[3 * p + 1] = (uint8_t)(100 + p / SIDE);
        pixels[3 * p + 2] = 0;
    }
    for (int64_t n = 0; n < ROUNDS; n++) {
        int middle = SIDE / 2 * SIDE + SIDE / 2;
        sample_of(*state, pixels, SIDE, SIDE, SIDE, true, 3, 0, n, values);
        int column = (int)lrint((values[middle] * 0.2023 + 0.4914) * 255) - 100;
        int next = (int)lrint((values[middle + 1] * 0.2023 + 0.4914) * 255) - 100;
        int row = (int)lrint((values[PLANE + middle] * 0.1994 + 0.4822) * 255) - 100;
        bool flipped = next < column;
        int left = flipped ? column - (SIDE / 2 - 1) : column - SIDE / 2, top = row - SIDE / 2;
        assert_in_range(left + PAD, 0, 2 * PAD);
        assert_in_range(top + PAD, 0, 2 * PAD);
        counts[top + PAD][left + PAD]++;
        mirrored += flipped;
        /* Rows from outside are black. */
        int edge = top < 0 ? 0 : SIDE - 1;
        float black = (0 - 0.4914f) / 0.2023f;
        assert_true(top == 0 || values[edge * SIDE + SIDE / 2] == black);
    }
    assert_in_range(mirrored, ROUNDS * 47 / 100, ROUNDS * 53 / 100);
    for (int i = 0; i < (2 * PAD + 1) * (2 * PAD + 1); i++) {
        assert_in_range(counts[i / (2 * PAD + 1)][i % (2 * PAD + 1)], 60, 145); /* 100 each; a deviation is 10 */
    }
}

static void every_shape_of_image_becomes_a_sample(void **state) {
    static const int shapes[][2] = {{1, 1}, {1, 3000}, {3000, 1}, {2, 7}, {223, 225}, {640, 480}, {33, 32}};
    static const int sizes[] = {1, 7, 32, 64, 65, 100};
    float *values = malloc(3 * 100 * 100 * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        uint8_t *pixels = make_noise(shapes[i][0], shapes[i][1]);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (int64_t n = 0; n < 12; n++) {
                int size = sizes[s];
                memset(values, 0xff, 3 * 100 * 100 * sizeof *values); /* not numbers */
                sample_of(*state, pixels, shapes[i][0], shapes[i][1], size, n % 3 != 0, 1, 0, n, values);
                for (int p = 0; p < 3 * size * size; p++) {
                    assert_true(fabsf(values[p]) < 3);
                }
            }
        }
        free(pixels);
    }
    free(values);
}

/* A decoder that made the image smaller changes a sample but little. */
static void shrunk_images_give_the_same_samples(void **state) {
    enum { SIDE = 80, WIDTH = 1297, HEIGHT = 1101 };
    car_dataset_config config = {.model = {.image_size = SIDE, .channels = 3}, .seed = 8, .augment = true};
    uint8_t *pixels = malloc(3 * WIDTH * HEIGHT), *smaller = malloc(3 * WIDTH * HEIGHT);
    float *a = malloc(2 * 3 * SIDE * SIDE * sizeof *a), *b = a + 3 * SIDE * SIDE;
    int shrunk = 0;
    assert_true(pixels && smaller && a);
    for (int p = 0; p < WIDTH * HEIGHT; p++) {
        int x = p % WIDTH, y = p / WIDTH;
        for (int c = 0; c < 3; c++) {
            pixels[3 * p + c] = (uint8_t)(128 + 100 * sin(x * 0.02 * (c + 1)) * cos(y * 0.03));
        }
    }
    car_source_buffer work = {.context = *state};
    car_image_pipeline pipeline;
    car_image_pipeline_begin(&pipeline, *state, &config);
    for (int64_t n = 0; n < 20; n++) {
        car_split split = n < 15 ? CAR_SPLIT_TRAIN : CAR_SPLIT_EVALUATION;
        car_source_image source = {.image = {pixels, WIDTH, HEIGHT, 0}, WIDTH, HEIGHT, CAR_SOURCE_WHOLE, ""};
        car_source_wish wish = car_image_pipeline_aim(&pipeline, split, 0, n);
        int times = wish.shrink(wish.user, WIDTH, HEIGHT);
        shrunk += times > 1;
        assert_int_equal(car_image_pipeline_run(&pipeline, &source, a), CAR_OK);
        source.image.width = (WIDTH + times - 1) / times;
        source.image.height = (HEIGHT + times - 1) / times;
        car_image whole = {pixels, WIDTH, HEIGHT, 0};
        assert_int_equal(
            car_image_resize(&work, &whole,
                             &(car_image_box){0, 0, source.image.width * times, source.image.height * times},
                             source.image.width, source.image.height, smaller),
            CAR_OK);
        source.image.pixels = smaller;
        assert_int_equal(car_image_pipeline_run(&pipeline, &source, b), CAR_OK);
        for (int i = 0; i < 3 * SIDE * SIDE; i++) {
            assert_true(fabsf(a[i] - b[i]) < 0.1f);
        }
    }
    assert_in_range(shrunk, 10, 20);
    car_image_pipeline_end(&pipeline);
    car_source_free(&work);
    free(a);
    free(smaller);
    free(pixels);
}

/* The ways to augment at one size: each changes something, in its own way, and none is the other. */
static void augmentation_can_be_chosen(void **state) {
    enum { SMALL_SIDE = 16, COUNT = 3 * SMALL_SIDE * SMALL_SIDE, NUMBERS = 8 };
    car_context *context = *state;
    uint8_t *pixels = make_noise(SMALL_SIDE, SMALL_SIDE);
    float samples[CAR_AUGMENTATION_FLIP + 1][NUMBERS][COUNT];
    for (int a = 0; a <= CAR_AUGMENTATION_FLIP; a++) {
        car_dataset_config config = {
            .model = {.image_size = SMALL_SIDE, .channels = 3}, .augment = true, .augmentation = (car_augmentation)a};
        car_source_image source = {.image = {pixels, SMALL_SIDE, SMALL_SIDE, 0}};
        source.stored_width = source.stored_height = SMALL_SIDE;
        car_image_pipeline pipeline;
        car_image_pipeline_begin(&pipeline, context, &config);
        for (int n = 0; n < NUMBERS; n++) {
            car_image_pipeline_aim(&pipeline, CAR_SPLIT_TRAIN, 1, n);
            assert_int_equal(car_image_pipeline_run(&pipeline, &source, samples[a][n]), CAR_OK);
        }
        car_image_pipeline_end(&pipeline);
    }
    assert_memory_equal(samples[CAR_AUGMENTATION_AUTO], samples[CAR_AUGMENTATION_PADDED_CROP], sizeof samples[0]);
    int mirrored = 0;
    for (int n = 0; n < NUMBERS; n++) {
        assert_memory_not_equal(samples[CAR_AUGMENTATION_RESIZED_CROP][n], samples[CAR_AUGMENTATION_FLIP][n],
                                sizeof samples[0][0]);
        mirrored +=
            memcmp(samples[CAR_AUGMENTATION_FLIP][n], samples[CAR_AUGMENTATION_FLIP][0], sizeof samples[0][0]) != 0;
    }
    assert_in_range(mirrored, 1, NUMBERS - 1);
    free(pixels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_same_size_is_the_same_image, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_colour_stays_one_colour, set_up, tear_down),
        cmocka_unit_test_setup_teardown(all_pixels_count_when_it_shrinks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(limits_keep_what_is_outside_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(augmentation_depends_on_seed_epoch_and_number, set_up, tear_down),
        cmocka_unit_test_setup_teardown(crops_and_mirrors_are_spread_evenly, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_shape_of_image_becomes_a_sample, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shrunk_images_give_the_same_samples, set_up, tear_down),
        cmocka_unit_test_setup_teardown(augmentation_can_be_chosen, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
