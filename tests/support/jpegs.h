/* JPEG files of every kind that the reader supports. */
#ifndef CAR_TESTS_JPEGS_H
#define CAR_TESTS_JPEGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/scratch.h"

typedef enum car_jpegs_colours { CAR_JPEGS_RGB, CAR_JPEGS_GREY, CAR_JPEGS_CMYK, CAR_JPEGS_YCCK } car_jpegs_colours;

typedef struct car_jpegs_config {
    int width, height;
    car_jpegs_colours colours;
    bool progressive;
    int quality;     /* 0 means 95 */
    uint8_t tint[3]; /* RGB of the top left pixel */
    int slope;       /* change of level per pixel across and down; 0: one colour */
} car_jpegs_config;

typedef struct car_jpegs_file {
    uint8_t *data;
    size_t bytes;
} car_jpegs_file;

/* The file's bytes, to be freed. A failure ends the test. */
car_jpegs_file car_jpegs_encode(const car_jpegs_config *config);
/* The encoded level, for RGB files. */
int car_jpegs_level(const car_jpegs_config *config, int x, int y, int c);
/* Encodes to a file. */
void car_jpegs_write(const car_scratch *folder, const char *name, const car_jpegs_config *config);

#endif
