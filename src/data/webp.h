/* WebP files to RGB. */
#ifndef CAR_WEBP_H
#define CAR_WEBP_H

#include "data/source.h"

/* As car_jpeg_decode, of WebP: lossy and lossless; alpha is dropped, not blended; of an animation the first frame. Images
 * are given whole, never smaller. */
car_status car_webp_decode(const char *name, const uint8_t *file, size_t bytes, car_source_buffer *pixels,
                           car_source_image *out);

#endif
