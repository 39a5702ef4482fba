/* Writes files that appear complete or not at all: see output.h. */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"

/* Small enough to be still in the cache for the write after the checksum was computed. */
enum { PIECE = 1 << 18 };

static car_status fail(car_output *output, const char *what) {
    int reason = errno;
    bool full = reason == ENOSPC || reason == EDQUOT;
    return car_context_fail(output->context, CAR_ERROR_IO, "%s: cannot %s: %s%s", output->path, what, strerror(reason),
                            full ? "; free some space, or write elsewhere" : "");
}

car_status car_output_open(car_context *context, const char *path, car_output *out) {
    car_output output = {.context = context, .descriptor = -1, .sha = car_sha256_begin()};
    car_status status = CAR_OK;
    *out = (car_output){0};
    struct stat there;
    char *real = realpath(path, NULL); /* writes to the target of a link, not over the link */
    if (real && stat(real, &there) == 0 && !S_ISREG(there.st_mode)) {
        free(real);
        return car_context_fail(context, CAR_ERROR_IO, "%s: not a regular file, so it is not overwritten", path);
    }
    status = car_context_copy_text(context, real ? real : path, &output.path);
    free(real);
    CAR_TRY(status);
    path = output.path;
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    CAR_TRY(car_folder_of(context, path, &output.directory));
    car_folder_clear(context, output.directory, name);
    CAR_TRY(car_folder_temporary(context, output.directory, name, &output.temporary));
    output.descriptor = open(output.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (output.descriptor < 0) {
        status = fail(&output, "create a temporary file next to it");
        goto done;
    }
    *out = output;
    output = (car_output){.context = context, .descriptor = -1};
done:
    car_output_close(&output);
    return status;
}

car_status car_output_write(car_output *output, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        size_t piece = bytes < PIECE ? bytes : PIECE;
        car_sha256_add(&output->sha, from, piece);
        for (size_t written = 0; written < piece;) {
            ssize_t count = write(output->descriptor, from + written, piece - written);
            if (count < 0 && errno != EINTR) {
                return fail(output, "write");
            }
            written += count > 0 ? (size_t)count : 0;
        }
        output->bytes += piece;
        from += piece;
        bytes -= piece;
    }
    return CAR_OK;
}

car_status car_output_write_at(car_output *output, uint64_t offset, const void *data, size_t bytes) {
    const char *from = data;
    for (size_t written = 0; written < bytes;) {
        ssize_t count = pwrite(output->descriptor, from + written, bytes - written, (off_t)(offset + written));
        if (count < 0 && errno != EINTR) {
            return fail(output, "write");
        }
        written += count > 0 ? (size_t)count : 0;
    }
    return CAR_OK;
}

static bool flush(int descriptor) {
    int result = 0;
    do {
        result = fsync(descriptor);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

car_status car_output_finish(car_output *output, char *digest) {
    car_status status = CAR_OK;
    if (!flush(output->descriptor)) {
        return fail(output, "flush");
    }
    /* Some file systems report errors only now. */
    int closed = close(output->descriptor);
    output->descriptor = -1;
    if (closed != 0 && errno != EINTR) {
        return fail(output, "close");
    }
    if (rename(output->temporary, output->path) != 0) {
        return fail(output, "rename the temporary file to this name");
    }
    car_context_release_text(output->context, output->temporary);
    output->temporary = NULL;
    CAR_TRY(car_folder_sync(output->context, output->directory));
    if (digest != NULL) {
        car_sha256_end(&output->sha, digest);
    }
done:
    return status;
}

void car_output_close(car_output *output) {
    if (output->context == NULL) {
        return;
    }
    if (output->temporary != NULL) {
        if (output->descriptor >= 0) {
            close(output->descriptor);
        }
        unlink(output->temporary);
    }
    car_context_release_text(output->context, output->temporary);
    car_context_release_text(output->context, output->directory);
    car_context_release_text(output->context, output->path);
    *output = (car_output){0};
}

car_status car_output_write_text(car_context *context, const char *path, const char *text) {
    car_output output = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_output_open(context, path, &output));
    CAR_TRY(car_output_write(&output, text, strlen(text)));
    CAR_TRY(car_output_finish(&output, NULL));
done:
    car_output_close(&output);
    return status;
}
