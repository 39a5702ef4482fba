/* JPEG files, through decoding and the whole way to a sample. The first byte chooses the size of the samples. */
#include "data/jpeg.h"
#include "fuzz.h"
#include "image_file.h"

static car_status decode(const uint8_t *file, size_t bytes, const car_source_wish *wish, car_source_buffer *pixels,
                         car_source_image *out) {
    return car_jpeg_decode("file", file, bytes, wish, pixels, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size >= 1) {
        /* Three bytes for each of 1024 pixels that a byte may stand for, and a small image for nothing. */
        car_fuzz_image_file(data, size, 4 * 1024 * size + (1 << 20), decode);
    }
    return 0;
}
