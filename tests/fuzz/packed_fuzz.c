/* Packed images. The checksum is made to fit first, so that what stands behind it is reached. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "data/packed.h"
#include "fuzz.h"
#include "images.h"

static void seal(uint8_t *bytes, size_t size) {
    char checksum[CAR_SHA256_TEXT];
    uint64_t tables = size >= CAR_PACKED_HEADER ? car_bytes_get_u64(bytes + 48) : UINT64_MAX;
    if (tables <= size) {
        car_packed_checksum(bytes, bytes + tables, size - (size_t)tables, checksum);
        memcpy(bytes + CAR_PACKED_CHECKSUM, checksum, CAR_SHA256_TEXT - 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *bytes = malloc(size + 1);
    char name[600];
    /* Sizes of images are believed only as far as they lie in the file; resizing needs some rows beside them. */
    car_context *context = car_fuzz_context(1 << 20);
    memcpy(bytes, data, size);
    seal(bytes, size);
    car_fuzz_write("file", bytes, size);
    snprintf(name, sizeof name, "packed:%s", car_fuzz_path("file"));
    car_fuzz_read_images(context, name, 8);
    car_fuzz_read_images(context, name, 72); /* beyond the size up to which images are taken for CIFAR's */
    car_fuzz_remove("file");
    free(bytes);
    car_fuzz_end(context);
    return 0;
}
