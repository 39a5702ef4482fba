/* Takes the place of src/base/mapped.c: a file is a block of exactly its size, which AddressSanitizer guards. */
#include "base/mapped.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

car_status car_mapped_open(car_context *context, const char *path, car_mapped *out) {
    struct stat info;
    car_mapped file = {.context = context, .descriptor = open(path, O_RDONLY | O_CLOEXEC)};
    *out = (car_mapped){0};
    if (file.descriptor < 0 || fstat(file.descriptor, &info) != 0) {
        return car_context_fail(context, CAR_ERROR_IO, "%s: cannot open", path);
    }
    file.size = (size_t)info.st_size;
    unsigned char *data = file.size > 0 ? malloc(file.size) : NULL;
    if ((file.size > 0 && (data == NULL || read(file.descriptor, data, file.size) != (ssize_t)file.size)) ||
        car_context_copy_text(context, path, &file.path) != CAR_OK) {
        abort();
    }
    file.data = data;
    *out = file;
    return CAR_OK;
}

void car_mapped_close(car_mapped *file) {
    if (file->path != NULL) {
        free((void *)file->data);
        close(file->descriptor);
        car_context_release_text(file->context, file->path);
        *file = (car_mapped){0};
    }
}

car_status car_mapped_check(const car_mapped *file) {
    (void)file;
    return CAR_OK;
}
