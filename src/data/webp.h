/* Decodes WebP files to RGB. */
#ifndef CAR_WEBP_H
#define CAR_WEBP_H

#include "data/source.h"

/* As car_jpeg_decode, for WebP: lossy and lossless. Alpha is dropped, not blended; of an animation, the first frame
 * is used. Images are never shrunk. */
car_status car_webp_decode(const char *name, const uint8_t *file, size_t bytes, car_source_buffer *pixels,
                           car_source_image *out);

#endif
