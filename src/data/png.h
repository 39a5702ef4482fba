/* Decodes PNG files to RGB. */
#ifndef CAR_PNG_H
#define CAR_PNG_H

#include "data/source.h"

/* As car_jpeg_decode, for PNG: all depths and colour types, interlaced or not. Pixels equal those of Pillow's
 * convert("RGB"): alpha and transparent colours are dropped, not blended; 16-bit channels keep their upper 8 bits,
 * except 16-bit grey, which is clamped to 255. Images are never shrunk. */
car_status car_png_decode(const char *name, const uint8_t *file, size_t bytes, car_source_buffer *pixels,
                          car_source_image *out);

#endif
