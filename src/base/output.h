/* A file that appears whole or not at all, with its checksum. */
#ifndef CAR_OUTPUT_H
#define CAR_OUTPUT_H

#include "base/base.h"
#include "base/sha256.h"

/* All zero: none. */
typedef struct car_output {
    car_context *context;
    char *path, *directory, *temporary;
    int descriptor; /* of the temporary file; not one if `temporary` is NULL */
    uint64_t bytes;
    car_sha256 sha;
} car_output;

/* Begins a file beside `path`; removes what interrupted writers of the same path left. */
car_status car_output_open(car_context *context, const char *path, car_output *out);
car_status car_output_write(car_output *output, const void *data, size_t bytes);
/* Over what is there already; the checksum does not know of it. */
car_status car_output_write_at(car_output *output, uint64_t offset, const void *data, size_t bytes);
/* Flushes it to the disk and gives it its name. `digest` (may be NULL) gets the SHA-256 of all of it. */
car_status car_output_finish(car_output *output, char *digest);
/* Removes what was not finished. */
void car_output_close(car_output *output);

/* All of it at once: a file with this text. */
car_status car_output_write_text(car_context *context, const char *path, const char *text);

#endif
