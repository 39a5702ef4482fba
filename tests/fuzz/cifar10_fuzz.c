/* CIFAR-10's files. Byte 0: bit 0 says that files are filled up to whole records, which the fuzzer would hardly find;
 * bit 1 leaves out the file to evaluate on. Byte 1 is the length of the file of names, which follows. The rest is cut
 * in two. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "images.h"

enum { RECORD = 3073 };

static void write_records(const char *name, const uint8_t *data, size_t size, int fill) {
    size_t whole = fill ? (size / RECORD + 1) * RECORD : size;
    uint8_t *bytes = calloc(1, whole + 1);
    memcpy(bytes, data, size);
    car_fuzz_write(name, bytes, whole);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    size_t names = data[1] < size - 2 ? data[1] : size - 2;
    const uint8_t *rest = data + 2 + names;
    size_t left = size - 2 - names, first = left / 2;
    car_context *context = car_fuzz_context(65536);
    char name[600];
    car_fuzz_write("batches.meta.txt", data + 2, names);
    write_records("data_batch_1.bin", rest, first, data[0] & 1);
    if (!(data[0] & 2)) {
        write_records("test_batch.bin", rest + first, left - first, data[0] & 1);
    }
    snprintf(name, sizeof name, "cifar10:%s", car_fuzz_path(""));
    car_fuzz_read_images(context, name, 32);
    car_fuzz_remove("batches.meta.txt");
    car_fuzz_remove("data_batch_1.bin");
    car_fuzz_remove("test_batch.bin");
    car_fuzz_end(context);
    return 0;
}
