/* Safetensors files: opens one and uses everything that it offers. */
#include "carousel/safetensors.h"

#include <stdlib.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* The shortest entry of the header has about forty bytes, and a tensor about a hundred and fifty. */
    car_context *context = car_fuzz_context(64 * size + 65536);
    car_safetensors *file = NULL;
    car_fuzz_write("file.safetensors", data, size);
    if (car_safetensors_open(context, car_fuzz_path("file.safetensors"), &file) == CAR_OK) {
        for (int i = 0; i < car_safetensors_count(file); i++) {
            const car_safetensors_tensor *tensor = car_safetensors_at(file, i);
            car_fuzz_touch(tensor->data, tensor->bytes);
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
