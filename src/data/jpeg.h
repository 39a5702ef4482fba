/* Decodes JPEG files to RGB. */
#ifndef CAR_JPEG_H
#define CAR_JPEG_H

#include "data/source.h"

/* Decodes a file in memory into `pixels`, and fills `out` except for the label. Supports grey, RGB, YCbCr, CMYK and
 * YCCK, sequential and progressive. A truncated or corrupt file is decoded as far as possible; libjpeg fills the
 * rest, in the same way in every process. `name` is the sample's, for messages. Fails only if memory runs out. It
 * never allocates much more than an image stored in that many bytes could need. */
car_status car_jpeg_decode(const char *name, const uint8_t *file, size_t bytes, const car_source_wish *wish,
                           car_source_buffer *pixels, car_source_image *out);

#endif
