/* The JPEG decoder: every kind of file, and every way in which one can be broken. */
#include "data/jpeg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/jpegs.h"

enum { WIDTH = 83, HEIGHT = 61, LOSS = 12 /* levels that encoding may cost */ };

static const car_jpegs_config plain = {.width = WIDTH, .height = HEIGHT, .tint = {90, 40, 20}, .slope = 1};

typedef struct fixture {
    car_context *context;
    car_source_buffer pixels;
    car_source_image found;
    int saved_stderr;
    FILE *printed;
} fixture;

/* What is written to stderr during a test goes into a file, which must be empty at its end. */
static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(car_context_create(NULL, &f->context), CAR_OK);
    f->pixels.context = f->context;
    f->printed = tmpfile();
    assert_non_null(f->printed);
    fflush(stderr);
    f->saved_stderr = dup(STDERR_FILENO);
    assert_true(f->saved_stderr >= 0 && dup2(fileno(f->printed), STDERR_FILENO) >= 0);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    fflush(stderr);
    long printed = lseek(fileno(f->printed), 0, SEEK_END);
    dup2(f->saved_stderr, STDERR_FILENO);
    close(f->saved_stderr);
    fclose(f->printed);
    car_source_free(&f->pixels);
    car_context_destroy(f->context);
    free(f);
    return printed == 0 ? 0 : -1;
}

static car_source_state decode(fixture *f, const uint8_t *data, size_t bytes) {
    /* A copy of its own size, so that a read beyond the end is seen. */
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    memset(&f->found, 0, sizeof f->found);
    f->found.image.label = 5;
    car_source_wish wish = {NULL, NULL};
    assert_int_equal(car_jpeg_decode("x/y.jpg", copy, bytes, &wish, &f->pixels, &f->found), CAR_OK);
    free(copy);
    assert_int_equal(f->found.image.label, 5);
    if (f->found.state != CAR_SOURCE_WHOLE) {
        assert_int_equal(strncmp(f->found.problem, "x/y.jpg: ", 9), 0);
        assert_true(strlen(f->found.problem) > 9);
    }
    return f->found.state;
}

static void check_levels(const fixture *f, const car_jpegs_config *config, int rows, bool grey) {
    const car_image *image = &f->found.image;
    assert_int_equal(image->width, config->width);
    assert_int_equal(image->height, config->height);
    for (int y = 0; y < rows; y++) {
        for (int x = 0; x < config->width; x++) {
            for (int c = 0; c < 3; c++) {
                int expected = car_jpegs_level(config, x, y, grey ? 0 : c);
                assert_in_range(image->pixels[3 * (y * config->width + x) + c] + LOSS, expected, expected + 2 * LOSS);
            }
        }
    }
}

/* ---- sound files ----------------------------------------------------------------------------- */

static void every_kind_becomes_rgb(void **state) {
    fixture *f = *state;
    for (int colours = CAR_JPEGS_RGB; colours <= CAR_JPEGS_YCCK; colours++) {
        for (int progressive = 0; progressive < 2; progressive++) {
            car_jpegs_config config = plain;
            config.colours = (car_jpegs_colours)colours;
            config.progressive = progressive != 0;
            car_jpegs_file file = car_jpegs_encode(&config);
            assert_int_equal(decode(f, file.data, file.bytes), CAR_SOURCE_WHOLE);
            check_levels(f, &config, HEIGHT, config.colours == CAR_JPEGS_GREY);
            assert_int_equal(f->found.stored_width, WIDTH);
            assert_int_equal(f->found.stored_height, HEIGHT);
            free(file.data);
        }
    }
}

static int shrink(void *user, int width, int height) {
    assert_int_equal(width, WIDTH);
    assert_int_equal(height, HEIGHT);
    return *(int *)user;
}

static void it_shrinks_as_told(void **state) {
    fixture *f = *state;
    car_jpegs_file file = car_jpegs_encode(&plain);
    for (int times = 1; times <= 8; times *= 2) {
        car_source_wish wish = {shrink, &times};
        memset(&f->found, 0, sizeof f->found);
        assert_int_equal(car_jpeg_decode("x", file.data, file.bytes, &wish, &f->pixels, &f->found), CAR_OK);
        assert_int_equal(f->found.image.width, (WIDTH + times - 1) / times);
        assert_int_equal(f->found.image.height, (HEIGHT + times - 1) / times);
        assert_int_equal(f->found.stored_width, WIDTH);
        int x = f->found.image.width / 2, y = f->found.image.height / 2;
        int level = f->found.image.pixels[3 * (y * f->found.image.width + x)];
        int expected = car_jpegs_level(&plain, x * times + times / 2, y * times + times / 2, 0);
        assert_in_range(level + LOSS, expected, expected + 2 * LOSS);
    }
    free(file.data);
}

/* A segment of the application's own behind the first two bytes, in front of everything else. */
static uint8_t *insert_segment(const car_jpegs_file *file, int marker, int claimed, size_t actual, size_t *bytes) {
    *bytes = file->bytes + 4 + actual;
    uint8_t *data = malloc(*bytes);
    assert_non_null(data);
    memcpy(data, file->data, 2);
    data[2] = 0xff;
    data[3] = (uint8_t)marker;
    data[4] = (uint8_t)(claimed >> 8);
    data[5] = (uint8_t)claimed;
    for (size_t i = 0; i < actual; i++) {
        data[6 + i] = i < 6 ? (uint8_t) "Exif\0\0"[i] : (uint8_t)(i * 73 >> 2);
    }
    memcpy(data + 6 + actual, file->data + 2, file->bytes - 2);
    return data;
}

static void broken_exif_does_not_matter(void **state) {
    fixture *f = *state;
    car_jpegs_file file = car_jpegs_encode(&plain);
    size_t bytes;
    uint8_t *data = insert_segment(&file, 0xe1, 302, 300, &bytes);
    assert_int_equal(decode(f, data, bytes), CAR_SOURCE_WHOLE);
    check_levels(f, &plain, HEIGHT, false);
    free(data);
    /* One that claims to be longer swallows the headers: there is no image left, but nothing worse either. */
    data = insert_segment(&file, 0xe1, 65535, 300, &bytes);
    assert_int_equal(decode(f, data, bytes), CAR_SOURCE_UNREADABLE);
    free(data);
    /* One that claims to be shorter leaves rubbish between the segments. */
    data = insert_segment(&file, 0xe1, 40, 300, &bytes);
    assert_int_equal(decode(f, data, bytes), CAR_SOURCE_DAMAGED);
    check_levels(f, &plain, HEIGHT, false);
    free(data);
    free(file.data);
}

/* A transform of colours that nobody knows is guessed, and guessed right. */
static void an_unusual_header_is_no_damage(void **state) {
    fixture *f = *state;
    car_jpegs_config config = plain;
    config.colours = CAR_JPEGS_YCCK;
    car_jpegs_file file = car_jpegs_encode(&config);
    uint8_t *adobe = memmem(file.data, file.bytes, "Adobe", 5);
    assert_non_null(adobe);
    adobe[11] = 77;
    assert_int_equal(decode(f, file.data, file.bytes), CAR_SOURCE_WHOLE);
    check_levels(f, &config, HEIGHT, false);
    free(file.data);
}

/* ---- broken files ---------------------------------------------------------------------------- */

static void cut_files_are_decoded_as_far_as_they_go(void **state) {
    fixture *f = *state;
    for (int progressive = 0; progressive < 2; progressive++) {
        car_jpegs_config config = plain;
        config.progressive = progressive != 0;
        car_jpegs_file file = car_jpegs_encode(&config);
        int counts[3] = {0};
        for (size_t bytes = 0; bytes < file.bytes; bytes++) {
            counts[decode(f, file.data, bytes)]++;
        }
        if (!progressive) { /* the upper rows are unharmed */
            assert_int_equal(decode(f, file.data, file.bytes * 9 / 10), CAR_SOURCE_DAMAGED);
            check_levels(f, &config, HEIGHT / 3, false);
        }
        assert_in_range(counts[CAR_SOURCE_UNREADABLE], 250, file.bytes); /* headers alone are longer */
        assert_in_range(counts[CAR_SOURCE_DAMAGED], file.bytes / 4, file.bytes);
        assert_in_range(counts[CAR_SOURCE_WHOLE], 0, 4); /* only the mark of the end is missing */
        free(file.data);
    }
}

static void corrupt_files_do_no_harm(void **state) {
    fixture *f = *state;
    int counts[3] = {0};
    uint64_t draw = 0;
    for (int kind = 0; kind < 8; kind++) {
        car_jpegs_config config = plain;
        config.colours = (car_jpegs_colours)(kind % 4);
        config.progressive = kind >= 4;
        car_jpegs_file file = car_jpegs_encode(&config);
        for (int round = 0; round < 250; round++) {
            uint8_t *data = malloc(file.bytes);
            assert_non_null(data);
            memcpy(data, file.data, file.bytes);
            for (int change = 0; change <= round % 8; change++) {
                uint64_t number = car_random_u64(99, draw++);
                data[(number >> 8) % file.bytes] = (uint8_t)number;
            }
            car_source_state first = decode(f, data, file.bytes);
            counts[first]++;
            if (first != CAR_SOURCE_UNREADABLE) {
                /* Whatever it is, it is the same another time, over other remains in the buffer. */
                size_t bytes = 3 * (size_t)f->found.image.width * (size_t)f->found.image.height;
                uint8_t *pixels = malloc(bytes);
                assert_non_null(pixels);
                memcpy(pixels, f->found.image.pixels, bytes);
                memset(f->pixels.data, 0x5a, f->pixels.capacity);
                assert_int_equal(decode(f, data, file.bytes), first);
                assert_memory_equal(pixels, f->found.image.pixels, bytes);
                free(pixels);
            }
            free(data);
        }
        free(file.data);
    }
    for (int s = 0; s < 3; s++) {
        assert_true(counts[s] > 100);
    }
}

static void other_files_are_unreadable(void **state) {
    fixture *f = *state;
    static const uint8_t png[] = "\x89PNG\r\n\x1a\n and so on";
    assert_int_equal(decode(f, png, sizeof png), CAR_SOURCE_UNREADABLE);
    assert_int_equal(decode(f, png, 0), CAR_SOURCE_UNREADABLE);
    assert_int_equal(decode(f, (const uint8_t *)"\xff\xd8", 2), CAR_SOURCE_UNREADABLE);
    assert_int_equal(decode(f, (const uint8_t *)"\xff\xd8\xff\xd9", 4), CAR_SOURCE_UNREADABLE);
}

/* Where the header of the frame keeps height and width. */
static uint8_t *find_frame(car_jpegs_file *file) {
    for (size_t i = 0; i + 9 < file->bytes; i++) {
        if (file->data[i] == 0xff && (file->data[i + 1] == 0xc0 || file->data[i + 1] == 0xc2)) {
            return file->data + i + 5;
        }
    }
    fail_msg("no frame in the file");
    return NULL;
}

static void a_small_file_cannot_promise_a_giant(void **state) {
    fixture *f = *state;
    static const int sides[][2] = {{65500, 65500}, {16384, 16385}, {30000, 300}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        for (int progressive = 0; progressive < 2; progressive++) {
            car_jpegs_config config = plain;
            config.progressive = progressive != 0;
            car_jpegs_file file = car_jpegs_encode(&config);
            uint8_t *frame = find_frame(&file);
            for (int side = 0; side < 2; side++) {
                frame[2 * side] = (uint8_t)(sides[i][side] >> 8);
                frame[2 * side + 1] = (uint8_t)sides[i][side];
            }
            assert_int_equal(decode(f, file.data, file.bytes), CAR_SOURCE_UNREADABLE);
            assert_int_equal(f->pixels.capacity, 0);
            free(file.data);
        }
    }
    /* A plain surface may be large all the same. */
    car_jpegs_config flat = {.width = 3000, .height = 2000, .tint = {10, 200, 90}, .quality = 30, .progressive = true};
    car_jpegs_file file = car_jpegs_encode(&flat);
    assert_true(file.bytes < 3 * 2000 * 3000 / 100);
    assert_int_equal(decode(f, file.data, file.bytes), CAR_SOURCE_WHOLE);
    check_levels(f, &flat, 10, false);
    free(file.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_kind_becomes_rgb, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_shrinks_as_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(broken_exif_does_not_matter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_unusual_header_is_no_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cut_files_are_decoded_as_far_as_they_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(corrupt_files_do_no_harm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_files_are_unreadable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_small_file_cannot_promise_a_giant, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
