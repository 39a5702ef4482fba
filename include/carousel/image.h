/* Image files, and how one is prepared for a model. */
#ifndef CAROUSEL_IMAGE_H
#define CAROUSEL_IMAGE_H

#include <stdbool.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* What is done to an image without augmentation: the shorter side is resized, the middle is cut out, and levels from
 * 0 to 1 are normalised. */
typedef struct car_image_recipe {
    int size;   /* pixels on a side of what the model gets */
    int resize; /* of the shorter side before the middle is taken; at least `size` */
    float mean[3], deviation[3];
} car_image_recipe;

car_image_recipe car_image_recipe_for(int size); /* what training does for images of this size */

/* Reads image files one after the other; for one thread at a time. */
typedef struct car_image_opener car_image_opener;

car_status car_image_opener_create(car_context *context, const car_image_recipe *recipe, car_image_opener **out);
void car_image_opener_destroy(car_image_opener *opener);

typedef struct car_image_file {
    bool readable;     /* false: `sample` was not written */
    char problem[256]; /* "" if nothing is wrong; of a damaged file, what, though it was decoded as far as it goes */
} car_image_file;

/* Writes [3, size, size] floats. A file that cannot be read is not a failure: see `out`. */
car_status car_image_open(car_image_opener *opener, const char *path, float *sample, car_image_file *out);

/* Whether a file's name ends as those of images do that can be read: .jpg, .jpeg, .png or .webp, in any case. */
bool car_image_has_known_ending(const char *name);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
