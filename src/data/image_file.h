/* Reads and decodes image files of all supported types. */
#ifndef CAR_IMAGE_FILE_H
#define CAR_IMAGE_FILE_H

#include "data/source.h"

/* Decodes a JPEG, PNG or WebP file in memory. The first bytes decide which it is, not the name. Otherwise as
 * car_jpeg_decode. */
car_status car_image_file_decode(const char *name, const uint8_t *file, size_t bytes, const car_source_wish *wish,
                                 car_source_buffer *pixels, car_source_image *out);

/* Reads a whole file below the folder `root` (AT_FDCWD: any path) into `buffer`. A problem with this file alone is
 * not a failure: *bytes is then -1, and errno says why. */
car_status car_image_file_read(car_context *context, int root, const char *path, car_source_buffer *buffer,
                               int64_t *bytes);

#endif
