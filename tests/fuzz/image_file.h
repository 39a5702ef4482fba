/* One image file through its decoder and the whole way to a sample, for the fuzz targets of the types. */
#ifndef CAR_FUZZ_IMAGE_FILE_H
#define CAR_FUZZ_IMAGE_FILE_H

#include "data/image.h"

typedef car_status (*car_fuzz_decoder)(const uint8_t *file, size_t bytes, const car_source_wish *wish,
                                       car_source_buffer *pixels, car_source_image *out);

/* The first byte of `data` chooses the size of the samples; `most` is what decoding may ask for at once. */
void car_fuzz_image_file(const uint8_t *data, size_t size, size_t most, car_fuzz_decoder decode);

#endif
