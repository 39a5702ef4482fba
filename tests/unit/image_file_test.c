/* PNG and WebP files: told apart by what is in them, read as far as they go, and never believed. */
#include "data/image_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <png.h>
#include <webp/encode.h>

enum { WIDTH = 61, HEIGHT = 47, CAPACITY = 1 << 16 };

typedef struct fixture {
    car_context *context;
    car_source_buffer pixels;
    car_source_image found;
} fixture;

typedef struct memory {
    uint8_t data[CAPACITY];
    size_t bytes;
} memory;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(car_context_create(NULL, &f->context), CAR_OK);
    f->pixels.context = f->context;
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    car_source_free(&f->pixels);
    car_context_destroy(f->context);
    free(f);
    return 0;
}

static uint8_t level(int x, int y, int c) {
    return (uint8_t)(3 * x + 2 * y + 50 * c + (x * y) % 7);
}

static void fill(uint8_t *rgb) {
    for (int i = 0; i < WIDTH * HEIGHT; i++) {
        for (int c = 0; c < 3; c++) {
            rgb[3 * i + c] = level(i % WIDTH, i / WIDTH, c);
        }
    }
}

static void append(png_structp png, png_bytep data, size_t bytes) {
    memory *to = png_get_io_ptr(png);
    assert_true(bytes <= CAPACITY - to->bytes);
    memcpy(to->data + to->bytes, data, bytes);
    to->bytes += bytes;
}

static void encode_png(memory *to, bool interlaced) {
    uint8_t rgb[3 * WIDTH * HEIGHT];
    png_bytep rows[HEIGHT];
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    assert_non_null(info);
    to->bytes = 0;
    fill(rgb);
    for (int y = 0; y < HEIGHT; y++) {
        rows[y] = rgb + 3 * (size_t)y * WIDTH;
    }
    png_set_write_fn(png, to, append, NULL);
    png_set_IHDR(png, info, WIDTH, HEIGHT, 8, PNG_COLOR_TYPE_RGB, interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_buffer_size(png, 256); /* several chunks of data */
    png_write_info(png, info);
    png_write_image(png, rows);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
}

static void encode_webp(memory *to, bool lossless) {
    uint8_t rgb[3 * WIDTH * HEIGHT], *data = NULL;
    fill(rgb);
    to->bytes = lossless ? WebPEncodeLosslessRGB(rgb, WIDTH, HEIGHT, 3 * WIDTH, &data)
                         : WebPEncodeRGB(rgb, WIDTH, HEIGHT, 3 * WIDTH, 80, &data);
    assert_true(to->bytes > 0 && to->bytes <= CAPACITY);
    memcpy(to->data, data, to->bytes);
    WebPFree(data);
}

static car_source_state decode(fixture *f, const char *name, const uint8_t *data, size_t bytes) {
    car_source_wish wish = {NULL, NULL};
    uint8_t *copy = malloc(bytes ? bytes : 1); /* of its own size, so that a read beyond the end is seen */
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    memset(&f->found, 0, sizeof f->found);
    f->found.image.label = 5;
    assert_int_equal(car_image_file_decode(name, copy, bytes, &wish, &f->pixels, &f->found), CAR_OK);
    free(copy);
    assert_int_equal(f->found.image.label, 5);
    assert_int_equal(f->found.state != CAR_SOURCE_WHOLE, f->found.problem[0] != '\0');
    return f->found.state;
}

/* How many rows from the top are right. */
static int right_rows(const fixture *f) {
    assert_int_equal(f->found.image.width, WIDTH);
    assert_int_equal(f->found.image.height, HEIGHT);
    for (int i = 0; i < WIDTH * HEIGHT; i++) {
        for (int c = 0; c < 3; c++) {
            if (f->found.image.pixels[3 * i + c] != level(i % WIDTH, i / WIDTH, c)) {
                return i / WIDTH;
            }
        }
    }
    return HEIGHT;
}

static void types_are_told_by_content(void **state) {
    fixture *f = *state;
    memory *m = calloc(1, sizeof *m);
    for (int interlaced = 0; interlaced < 2; interlaced++) {
        encode_png(m, interlaced);
        assert_int_equal(decode(f, "a.jpg", m->data, m->bytes), CAR_SOURCE_WHOLE);
        assert_int_equal(right_rows(f), HEIGHT);
    }
    encode_webp(m, true);
    assert_int_equal(decode(f, "a.png", m->data, m->bytes), CAR_SOURCE_WHOLE);
    assert_int_equal(right_rows(f), HEIGHT);
    assert_int_equal(decode(f, "a.png", (const uint8_t *)"hello, world", 12), CAR_SOURCE_UNREADABLE);
    assert_non_null(strstr(f->found.problem, "a.png: Not a PNG file"));
    assert_int_equal(decode(f, "a.webp", (const uint8_t *)"hello, world", 12), CAR_SOURCE_UNREADABLE);
    assert_non_null(strstr(f->found.problem, "a.webp: Not a WebP file"));
    free(m);
}

/* Every length; rows that are there are right, and nothing that is cut counts as whole but for a lost trailer. */
static void check_cuts(fixture *f, const memory *m, size_t trailer, bool exact) {
    int damaged = 0;
    for (size_t bytes = 0; bytes < m->bytes; bytes++) {
        car_source_state found = decode(f, "a.png", m->data, bytes);
        assert_true(found != CAR_SOURCE_WHOLE || bytes + trailer >= m->bytes);
        if (found == CAR_SOURCE_DAMAGED && exact) {
            assert_true(right_rows(f) > 0);
        }
        damaged += found == CAR_SOURCE_DAMAGED;
    }
    assert_true(damaged > 0);
}

static void cut_files_are_read_as_far_as_they_go(void **state) {
    fixture *f = *state;
    enum { PNG_TRAILER = 48 }; /* the end's chunk, and one with the end of the data and its checksum */
    memory *m = calloc(1, sizeof *m);
    encode_png(m, false);
    check_cuts(f, m, PNG_TRAILER, true);
    encode_png(m, true);
    check_cuts(f, m, PNG_TRAILER, false);
    encode_webp(m, false);
    check_cuts(f, m, 4, false); /* padding at its end */
    free(m);
}

/* Any state will do, as long as there is one. */
static void wrong_bytes_do_no_harm(void **state) {
    fixture *f = *state;
    memory *m = calloc(1, sizeof *m), *changed = calloc(1, sizeof *m);
    for (int kind = 0; kind < 4; kind++) {
        if (kind < 2) {
            encode_png(m, kind == 1);
        } else {
            encode_webp(m, kind == 3);
        }
        for (size_t i = 0; i < m->bytes; i += kind < 2 ? 1 : 3) {
            *changed = *m;
            changed->data[i] ^= (uint8_t)(1 + i % 255);
            decode(f, "a.png", changed->data, m->bytes);
        }
    }
    free(changed);
    free(m);
}

static void bombs_are_refused(void **state) {
    fixture *f = *state;
    memory *m = calloc(1, sizeof *m);
    encode_png(m, false);
    const uint8_t side[4] = {0, 1, 0x86, 0xa0}; /* 100000 */
    memcpy(m->data + 16, side, 4);
    memcpy(m->data + 20, side, 4);
    png_save_uint_32(m->data + 29, 0);
    /* The checksum is of the chunk's name and its 13 bytes. */
    uint32_t sum = ~0u;
    for (int i = 12; i < 29; i++) {
        sum ^= m->data[i];
        for (int bit = 0; bit < 8; bit++) {
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
        }
    }
    png_save_uint_32(m->data + 29, ~sum);
    assert_int_equal(decode(f, "a.png", m->data, m->bytes), CAR_SOURCE_UNREADABLE);
    assert_non_null(strstr(f->found.problem, "100000 x 100000 pixels are too many"));
    encode_webp(m, true);
    assert_memory_equal(m->data + 12, "VP8L", 4);
    memset(m->data + 21, 0xff, 3); /* 14 bits of width, 14 of height */
    m->data[24] |= 0x0f;
    assert_int_equal(decode(f, "a.webp", m->data, m->bytes), CAR_SOURCE_UNREADABLE);
    assert_non_null(strstr(f->found.problem, "16384 x 16384 pixels are too many"));
    assert_true(f->pixels.capacity < 1 << 20);
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(types_are_told_by_content, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cut_files_are_read_as_far_as_they_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_bytes_do_no_harm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bombs_are_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
