/* JPEG files to RGB. */
#ifndef CAR_JPEG_H
#define CAR_JPEG_H

#include "data/source.h"

/* Decodes a file that is in memory into `pixels`, and fills all of `out` but the label. Grey, RGB, YCbCr, CMYK and
 * YCCK, sequential and progressive. What ends early or is corrupt is decoded as far as it goes; what follows is
 * whatever libjpeg makes of it, the same in every process. `name` is the sample's, for messages. Fails only if memory
 * is short, and never asks for much more of it than an image can have that is stored in so many bytes. */
car_status car_jpeg_decode(const char *name, const uint8_t *file, size_t bytes, const car_source_wish *wish,
                           car_source_buffer *pixels, car_source_image *out);

#endif
