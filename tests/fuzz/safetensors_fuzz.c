/* Safetensors files: opens one and uses everything that it offers. */
#include "carousel/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

/* Into blocks of exactly the size that is promised to suffice. */
static void copy(const car_safetensors *file, const car_safetensors_tensor *tensor) {
    size_t floats = (size_t)tensor->elements * sizeof(float);
    void *bytes = malloc(tensor->bytes + (tensor->bytes == 0));
    float *values = malloc(floats + (floats == 0));
    if (car_safetensors_copy(file, tensor, bytes) != CAR_OK ||
        (tensor->bytes > 0 && memcmp(bytes, tensor->data, tensor->bytes) != 0)) {
        abort();
    }
    if (car_safetensors_copy_floats(file, tensor, values) == CAR_OK) {
        car_fuzz_touch(values, floats);
    }
    free(values);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* The shortest entry of the header has about forty bytes, and a tensor about a hundred and fifty. */
    car_context *context = car_fuzz_context(64 * size + 65536);
    car_safetensors *file = NULL;
    car_fuzz_write("file.safetensors", data, size);
    if (car_safetensors_open(context, car_fuzz_path("file.safetensors"), &file) == CAR_OK) {
        for (int i = 0; i < car_safetensors_count(file); i++) {
            const car_safetensors_tensor *tensor = car_safetensors_at(file, i);
            car_fuzz_touch(tensor->data, tensor->bytes);
            copy(file, tensor);
            if (car_safetensors_find(file, tensor->name) != tensor ||
                car_safetensors_dtype_text(tensor->dtype) == NULL) {
                abort();
            }
        }
        car_safetensors_metadata(file, "format");
    }
    car_safetensors_close(file);
    car_fuzz_remove("file.safetensors");
    car_fuzz_end(context);
    return 0;
}
