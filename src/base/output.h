/* Writes a file that appears complete or not at all, and computes its checksum. */
#ifndef CAR_OUTPUT_H
#define CAR_OUTPUT_H

#include "base/base.h"
#include "base/sha256.h"

/* All zero: no file. */
typedef struct car_output {
    car_context *context;
    char *path, *directory, *temporary;
    int descriptor; /* of the temporary file; unused if `temporary` is NULL */
    uint64_t bytes;
    car_sha256 sha;
} car_output;

/* Begins a temporary file beside `path`. Removes what interrupted writers of the same path left. */
car_status car_output_open(car_context *context, const char *path, car_output *out);
car_status car_output_write(car_output *output, const void *data, size_t bytes);
/* Overwrites bytes that were written before. The checksum does not include this. */
car_status car_output_write_at(car_output *output, uint64_t offset, const void *data, size_t bytes);
/* Flushes the file to disk and gives it its name. `digest` (may be NULL) gets the SHA-256 of its content. */
car_status car_output_finish(car_output *output, char *digest);
/* Removes the temporary file if it was not finished. */
void car_output_close(car_output *output);

/* Writes a whole text file at once. */
car_status car_output_write_text(car_context *context, const char *path, const char *text);

#endif
