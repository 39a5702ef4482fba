/* Images on their way from RGB bytes to what a model is fed: resizing, cropping, flipping, normalising. */
#ifndef CAR_IMAGE_H
#define CAR_IMAGE_H

#include "data/source.h"

/* A region of an image, in pixels from its top left corner; edges may lie between pixels. */
typedef struct car_image_box {
    double left, top, right, bottom;
} car_image_box;

/* Resizes `box` of an RGB image to out_width x out_height pixels, RGB again. The filter is a triangle, as wide as the
 * output's pixels are in the input when it shrinks (so nothing is skipped), else as wide as the input's: what PIL
 * calls bilinear. `work` is scratch space, kept from one call to the next. */
car_status car_image_resize(car_source_buffer *work, const car_image *image, const car_image_box *box, int out_width,
                            int out_height, uint8_t *out);

#endif
