/* JPEG files: see jpegs.h. */
#include "support/jpegs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jpeglib.h>

enum { MOST_LIGHT = 240 }; /* what black ink leaves of white in CMYK */

int car_jpegs_level(const car_jpegs_config *config, int x, int y, int c) {
    int level = config->tint[c] + config->slope * (c == 1 ? y : x + y);
    return level > 255 ? 255 : level;
}

/* CMYK is inverted, as Adobe's programs store it. */
static void write_pixel(const car_jpegs_config *config, int x, int y, uint8_t *pixel) {
    int rgb[3];
    for (int c = 0; c < 3; c++) {
        rgb[c] = car_jpegs_level(config, x, y, c);
    }
    switch (config->colours) {
    case CAR_JPEGS_RGB:
        for (int c = 0; c < 3; c++) {
            pixel[c] = (uint8_t)rgb[c];
        }
        break;
    case CAR_JPEGS_GREY:
        pixel[0] = (uint8_t)rgb[0];
        break;
    case CAR_JPEGS_CMYK:
    case CAR_JPEGS_YCCK:
        pixel[3] = MOST_LIGHT;
        for (int c = 0; c < 3; c++) {
            pixel[c] = (uint8_t)((rgb[c] < MOST_LIGHT ? rgb[c] : MOST_LIGHT) * 255 / MOST_LIGHT);
        }
        break;
    }
}

car_jpegs_file car_jpegs_encode(const car_jpegs_config *config) {
    static const J_COLOR_SPACE spaces[] = {JCS_RGB, JCS_GRAYSCALE, JCS_CMYK, JCS_CMYK};
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *data = NULL;
    unsigned long bytes = 0;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &data, &bytes);
    jpeg.image_width = (JDIMENSION)config->width;
    jpeg.image_height = (JDIMENSION)config->height;
    jpeg.in_color_space = spaces[config->colours];
    jpeg.input_components = config->colours == CAR_JPEGS_GREY ? 1 : config->colours == CAR_JPEGS_RGB ? 3 : 4;
    jpeg_set_defaults(&jpeg);
    if (config->colours == CAR_JPEGS_YCCK) {
        jpeg_set_colorspace(&jpeg, JCS_YCCK);
    }
    jpeg_set_quality(&jpeg, config->quality ? config->quality : 95, TRUE);
    if (config->progressive) {
        jpeg_simple_progression(&jpeg);
    }
    jpeg_start_compress(&jpeg, TRUE);
    uint8_t *row = calloc((size_t)config->width, 4);
    assert_non_null(row);
    for (int y = 0; y < config->height; y++) {
        JSAMPROW rows[1] = {row};
        for (int x = 0; x < config->width; x++) {
            write_pixel(config, x, y, row + x * jpeg.input_components);
        }
        jpeg_write_scanlines(&jpeg, rows, 1);
    }
    free(row);
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return (car_jpegs_file){data, bytes};
}

void car_jpegs_write(const car_scratch *folder, const char *name, const car_jpegs_config *config) {
    car_jpegs_file file = car_jpegs_encode(config);
    car_scratch_put(folder, name, file.data, file.bytes);
    free(file.data);
}
