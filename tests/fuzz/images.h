/* Reading everything that a dataset of images has, for the fuzz targets. */
#ifndef CAR_FUZZ_IMAGES_H
#define CAR_FUZZ_IMAGES_H

#include "carousel/data.h"

enum { CAR_FUZZ_CLASSES = 10 };

/* Opens KIND:PATH for a model of images of `size` pixels, reads all images and samples (or the first ones), and closes
 * it. */
void car_fuzz_read_images(car_context *context, const char *name, int size);

#endif
