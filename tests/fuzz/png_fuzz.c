/* PNG files, through decoding and the whole way to a sample. The first byte chooses the size of the samples. */
#include "data/png.h"
#include "fuzz.h"
#include "image_file.h"

/* Black and white can be stored at 8256 pixels a byte: longer inputs would only test the machine's memory. */
enum { LONGEST = 2000, BYTES_PER_BYTE = 1032 * 8 * 4 };

static car_status decode(const uint8_t *file, size_t bytes, const car_source_wish *wish, car_source_buffer *pixels,
                         car_source_image *out) {
    (void)wish;
    return car_png_decode("file", file, bytes, pixels, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size >= 1 && size <= LONGEST) {
        car_fuzz_image_file(data, size, BYTES_PER_BYTE * size + (1 << 24), decode);
    }
    return 0;
}
