/* Maps files for reading: see mapped.h. */
#include "base/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

car_status car_mapped_open(car_context *context, const char *path, car_mapped *out) {
    car_status status = CAR_OK;
    struct stat info;
    /* Non-blocking, so that a named pipe is refused below instead of waited for. */
    car_mapped file = {.context = context, .descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    *out = (car_mapped){0};
    if (file.descriptor < 0 || fstat(file.descriptor, &info) != 0) {
        status = car_context_fail(context, CAR_ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        status = car_context_fail(context, CAR_ERROR_IO, "%s: not a regular file", path);
        goto done;
    }
    CAR_TRY(car_context_copy_text(context, path, &file.path));
    file.size = (size_t)info.st_size;
    if (file.size > 0) {
        void *data = mmap(NULL, file.size, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
        if (data == MAP_FAILED) {
            status = car_context_fail(context, CAR_ERROR_IO, "%s: cannot map: %s", path, strerror(errno));
            goto done;
        }
        file.data = data;
    }
    *out = file;
    file = (car_mapped){.descriptor = -1};
done:
    if (file.descriptor >= 0) {
        close(file.descriptor);
    }
    car_context_release_text(context, file.path);
    return status;
}

void car_mapped_close(car_mapped *file) {
    if (file->path == NULL) {
        return;
    }
    if (file->data != NULL) {
        munmap((void *)file->data, file->size);
    }
    close(file->descriptor);
    car_context_release_text(file->context, file->path);
    *file = (car_mapped){0};
}

car_status car_mapped_check(const car_mapped *file) {
    struct stat info;
    if (fstat(file->descriptor, &info) != 0) {
        return car_context_fail(file->context, CAR_ERROR_IO, "%s: cannot get its size: %s", file->path,
                                strerror(errno));
    }
    if ((uint64_t)info.st_size < file->size) {
        return car_context_fail(
            file->context, CAR_ERROR_IO,
            "%s became shorter while it was in use, %lld bytes instead of %zu; start again with the "
            "whole file",
            file->path, (long long)info.st_size, file->size);
    }
    return CAR_OK;
}
