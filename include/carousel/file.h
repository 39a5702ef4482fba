/* Files that appear whole or not at all, and small ones read at once.
 *
 * What is written lies beside its name, as .NAME.PID.tmp, until it is finished and on the disk. Whoever looks finds the
 * file from before, or the whole new one, also after a crash. */
#ifndef CAROUSEL_FILE_H
#define CAROUSEL_FILE_H

#include <stddef.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A file that is being written. One thread at a time may use it. */
typedef struct car_file car_file;

/* Begins a file; CAR_ERROR_IO if that is not possible there, or if `path` is there and no regular file. Removes what
 * interrupted writers of the same path left. A link is followed: what it leads to is written. */
car_status car_file_create(car_context *context, const char *path, car_file **out);
/* Appends. */
car_status car_file_write(car_file *file, const void *data, size_t bytes);
/* Flushes it to the disk and gives it its name. Nothing can be written afterwards. */
car_status car_file_finish(car_file *file);
/* Releases the handle, and removes what was not finished. NULL is allowed. */
void car_file_close(car_file *file);

/* All of it at once: a file with this text. */
car_status car_file_write_text(car_context *context, const char *path, const char *text);
/* The whole of a file with a zero behind it, to be released with car_context_release_text. CAR_ERROR_FORMAT if it has more
 * than `most` bytes, or is no text because there is a zero in it. */
car_status car_file_read_text(car_context *context, const char *path, size_t most, char **out);

enum { CAR_FILE_DIGEST = 65 }; /* 64 hexadecimal digits and the end */
/* SHA-256 of what a file holds. */
car_status car_file_digest(car_context *context, const char *path, char text[CAR_FILE_DIGEST]);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
