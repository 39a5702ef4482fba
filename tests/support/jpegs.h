/* JPEG files of every kind that the reader has to understand. */
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
    int quality;     /* 0: 95 */
    uint8_t tint[3]; /* RGB in the top left corner */
    int slope;       /* levels by which it changes for each pixel across and down; 0: one colour all over */
} car_jpegs_config;

typedef struct car_jpegs_file {
    uint8_t *data;
    size_t bytes;
} car_jpegs_file;

/* The file's bytes, to be freed; a failure ends the test. */
car_jpegs_file car_jpegs_encode(const car_jpegs_config *config);
/* The level that was encoded, for files in RGB. */
int car_jpegs_level(const car_jpegs_config *config, int x, int y, int c);
/* Encodes into a file. */
void car_jpegs_write(const car_scratch *folder, const char *name, const car_jpegs_config *config);

#endif
