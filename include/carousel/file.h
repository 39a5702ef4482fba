/* Files that appear complete or not at all, and small files read in one call.
 *
 * A file is written as .NAME.PID.tmp in the same folder, flushed to disk and renamed. So readers see either the old
 * file or the complete new one, even after a crash. */
#ifndef CAROUSEL_FILE_H
#define CAROUSEL_FILE_H

#include <stddef.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A file being written. For one thread at a time. */
typedef struct car_file car_file;

/* Starts a file. Removes leftovers of interrupted writers of the same path. A symbolic link is followed: its target
 * is written. CAR_ERROR_IO if the folder is not writable, or `path` exists and is not a regular file. */
car_status car_file_create(car_context *context, const char *path, car_file **out);
/* Appends. */
car_status car_file_write(car_file *file, const void *data, size_t bytes);
/* Flushes the file to disk and renames it to `path`. Nothing can be written after that. */
car_status car_file_finish(car_file *file);
/* Releases the handle. An unfinished file is removed. NULL is allowed. */
void car_file_close(car_file *file);

/* Writes a whole file with this text. */
car_status car_file_write_text(car_context *context, const char *path, const char *text);
/* Reads a whole file and adds a terminating zero. Release *out with car_context_release_text. CAR_ERROR_FORMAT if
 * the file has more than `most` bytes, or contains a zero and so is not text. */
car_status car_file_read_text(car_context *context, const char *path, size_t most, char **out);

enum { CAR_FILE_DIGEST = 65 }; /* 64 hexadecimal digits and the terminating zero */
/* SHA-256 of a file's contents. */
car_status car_file_digest(car_context *context, const char *path, char text[CAR_FILE_DIGEST]);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
