/* Token files. The first byte chooses: bit 0 text or 16 bits, bit 1 a file of its own to evaluate on, bit 2
 * augmentation, bit 3 only looking; the second is the length of samples. What is left is the file, or the two. */
#include <stdio.h>
#include <stdlib.h>

#include "carousel/data.h"
#include "fuzz.h"

enum { VOCABULARY = 50257, MOST_LENGTH = 256 };

static void read_samples(car_dataset *dataset, int length) {
    car_dataset_info info = car_dataset_get_info(dataset);
    car_reader *reader = NULL;
    /* Of exactly the right size, so that a token too many is found. */
    int32_t *inputs = malloc((size_t)length * sizeof *inputs), *labels = malloc((size_t)length * sizeof *labels);
    if (car_reader_create(dataset, &reader) != CAR_OK) {
        abort();
    }
    for (int s = 0; s < CAR_SPLITS; s++) {
        for (int64_t n = 0; n < info.samples[s]; n++) {
            if (car_reader_sample(reader, (car_split)s, n % 3, n, inputs, labels) != CAR_OK) {
                abort();
            }
            for (int i = 0; i < length; i++) {
                if (inputs[i] < 0 || inputs[i] >= info.classes || labels[i] < 0 || labels[i] >= info.classes) {
                    abort();
                }
            }
        }
    }
    free(labels);
    free(inputs);
    car_reader_destroy(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    uint8_t choice = data[0];
    int length = data[1] % MOST_LENGTH + 1;
    const uint8_t *rest = data + 2;
    size_t left = size - 2, first = choice & 2 ? left / 2 : left;
    const char *train = choice & 1 ? "train.bin" : "train.txt", *evaluation = choice & 1 ? "val.bin" : "val.txt";
    car_context *context = car_fuzz_context(65536);
    car_dataset_config config = {.domain = CAR_DOMAIN_TOKENS,
                                 .model = {.batch = 1, .seq_len = length, .vocabulary = VOCABULARY},
                                 .augment = (choice & 4) != 0};
    car_dataset *dataset = NULL;
    char name[600];
    car_fuzz_write(train, rest, first);
    if (choice & 2) {
        car_fuzz_write(evaluation, rest + first, left - first);
    }
    snprintf(name, sizeof name, "tokens:%s", car_fuzz_path(train));
    if (car_dataset_open(context, name, choice & 8 ? NULL : &config, &dataset) == CAR_OK) {
        char digest[65];
        car_dataset_digest(dataset, digest);
        if (!(choice & 8)) {
            read_samples(dataset, length);
        }
    }
    car_dataset_close(dataset);
    car_fuzz_remove(train);
    car_fuzz_remove(evaluation);
    car_fuzz_end(context);
    return 0;
}
