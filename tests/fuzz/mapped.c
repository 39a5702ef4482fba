/* Takes the place of src/base/mapped.c: a file is a block of exactly its size, which AddressSanitizer guards. */
#include "base/mapped.h"

#include <stdio.h>
#include <stdlib.h>

car_status car_mapped_open(car_context *context, const char *path, car_mapped *out) {
    FILE *file = fopen(path, "rb");
    *out = (car_mapped){0};
    if (file == NULL) {
        return car_context_fail(context, CAR_ERROR_IO, "%s: cannot open", path);
    }
    car_mapped mapped = {.context = context};
    fseek(file, 0, SEEK_END);
    mapped.size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = mapped.size > 0 ? malloc(mapped.size) : NULL;
    if (mapped.size > 0 && (data == NULL || fread(data, 1, mapped.size, file) != mapped.size)) {
        abort();
    }
    fclose(file);
    mapped.data = data;
    car_status status = car_context_copy_text(context, path, &mapped.path);
    if (status != CAR_OK) {
        abort();
    }
    *out = mapped;
    return CAR_OK;
}

void car_mapped_close(car_mapped *file) {
    if (file->path != NULL) {
        free((void *)file->data);
        car_context_release_text(file->context, file->path);
        *file = (car_mapped){0};
    }
}

car_status car_mapped_check(const car_mapped *file) {
    (void)file;
    return CAR_OK;
}
