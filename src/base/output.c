/* Files written whole or not at all: see output.h. */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

static car_status fail(const car_output *output, const char *what) {
    return car_context_fail(output->context, CAR_ERROR_IO, "%s: cannot %s: %s", output->path, what, strerror(errno));
}

car_status car_output_create(car_context *context, const char *path, car_output *out) {
    car_text name = {.context = context};
    car_output output = {.context = context, .descriptor = -1};
    car_status status = CAR_OK;
    *out = (car_output){0};
    CAR_TRY(car_context_copy_text(context, path, &output.path));
    car_text_add(&name, "%s.part-%ld", path, (long)getpid());
    CAR_TRY(car_text_finish(&name, &output.temporary));
    unlink(output.temporary); /* of a process long gone that had the same number */
    output.descriptor = open(output.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (output.descriptor < 0) {
        status = fail(&output, "write");
        goto done;
    }
    *out = output;
    output = (car_output){0};
done:
    car_context_release_text(context, output.temporary);
    car_context_release_text(context, output.path);
    return status;
}

car_status car_output_write_at(car_output *output, uint64_t offset, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = pwrite(output->descriptor, from, bytes, (off_t)offset);
        if (written < 0 && errno != EINTR) {
            return fail(output, "write");
        }
        if (written > 0) {
            from += written;
            offset += (uint64_t)written;
            bytes -= (size_t)written;
        }
    }
    return CAR_OK;
}

car_status car_output_write(car_output *output, const void *data, size_t bytes) {
    car_status status = car_output_write_at(output, output->size, data, bytes);
    output->size += status == CAR_OK ? bytes : 0;
    return status;
}

/* So that the new name, too, outlives a loss of power. Some file systems refuse it, and do without. */
static void flush_folder(char *path) {
    char *slash = strrchr(path, '/'), kept = 0;
    if (slash != NULL) {
        kept = slash[1];
        slash[1] = '\0';
    }
    int folder = open(slash != NULL ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (slash != NULL) {
        slash[1] = kept;
    }
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
}

car_status car_output_finish(car_output *output) {
    if (fsync(output->descriptor) != 0) {
        return fail(output, "flush");
    }
    int descriptor = output->descriptor;
    output->descriptor = -1;
    if (close(descriptor) != 0) {
        return fail(output, "close");
    }
    if (rename(output->temporary, output->path) != 0) {
        return fail(output, "rename");
    }
    flush_folder(output->path);
    car_context_release_text(output->context, output->temporary);
    output->temporary = NULL;
    return CAR_OK;
}

void car_output_discard(car_output *output) {
    if (output->path == NULL) {
        return;
    }
    if (output->temporary != NULL) {
        if (output->descriptor >= 0) {
            close(output->descriptor);
        }
        unlink(output->temporary);
    }
    car_context_release_text(output->context, output->temporary);
    car_context_release_text(output->context, output->path);
    *output = (car_output){0};
}
