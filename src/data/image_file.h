/* Image files of any type that can be read. */
#ifndef CAR_IMAGE_FILE_H
#define CAR_IMAGE_FILE_H

#include "data/source.h"

/* Decodes a JPEG, PNG or WebP file that is in memory; which of them it is its first bytes say, whatever its name. As
 * car_jpeg_decode otherwise. */
car_status car_image_file_decode(const char *name, const uint8_t *file, size_t bytes, const car_source_wish *wish,
                                 car_source_buffer *pixels, car_source_image *out);

/* Reads a whole file below the folder `root` (AT_FDCWD: any path) into `buffer`. What is wrong with this file alone is
 * not a failure: *bytes is then -1, and errno says why. */
car_status car_image_file_read(car_context *context, int root, const char *path, car_source_buffer *buffer,
                               int64_t *bytes);

#endif
