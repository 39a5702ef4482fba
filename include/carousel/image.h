/* Image files, and how an image is prepared for a model. */
#ifndef CAROUSEL_IMAGE_H
#define CAROUSEL_IMAGE_H

#include <stdbool.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Preparation without augmentation: resize the shorter side, cut out the middle, and normalise levels from 0 to 1. */
typedef struct car_image_recipe {
    int size;   /* pixels per side of the model's input */
    int resize; /* pixels of the shorter side before the middle is cut out; at least `size` */
    float mean[3], deviation[3];
} car_image_recipe;

car_image_recipe car_image_recipe_for(int size); /* what training does for this size */

/* Reads image files one after the other. For one thread at a time. */
typedef struct car_image_opener car_image_opener;

/* The recipe is copied. */
car_status car_image_opener_create(car_context *context, const car_image_recipe *recipe, car_image_opener **out);
void car_image_opener_destroy(car_image_opener *opener);

typedef struct car_image_file {
    bool readable;     /* false: `sample` was not written */
    char problem[256]; /* what is wrong, "" if nothing; a damaged file is decoded as far as possible */
} car_image_file;

/* Reads and prepares an image: writes [3, size, size] floats. An unreadable file is not a failure, see `out`. */
car_status car_image_open(car_image_opener *opener, const char *path, float *sample, car_image_file *out);

/* Whether a file name ends in .jpg, .jpeg, .png or .webp, in any case. */
bool car_image_has_known_ending(const char *name);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
