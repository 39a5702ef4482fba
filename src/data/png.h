/* PNG files to RGB. */
#ifndef CAR_PNG_H
#define CAR_PNG_H

#include "data/source.h"

/* As car_jpeg_decode, of PNG: every depth and kind of colour, interlaced or not. Pixels are those of Pillow's
 * convert("RGB"): alpha and transparent colours are dropped, not blended; of 16 bits a channel the upper 8 are taken, but
 * grey of 16 bits is cut off at 255. Images are given whole, never smaller. */
car_status car_png_decode(const char *name, const uint8_t *file, size_t bytes, car_source_buffer *pixels,
                          car_source_image *out);

#endif
