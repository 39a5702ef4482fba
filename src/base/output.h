/* A file that is there whole or not at all.
 *
 * It is written under another name beside its own, and gets its own once everything is on the disk. */
#ifndef CAR_OUTPUT_H
#define CAR_OUTPUT_H

#include "base/base.h"

/* All zero: nothing is open. */
typedef struct car_output {
    car_context *context;
    char *path, *temporary; /* NULL: nothing is open */
    int descriptor;
    uint64_t size; /* written by car_output_write */
} car_output;

/* All fail with CAR_ERROR_IO and name the file. */
car_status car_output_create(car_context *context, const char *path, car_output *out);
car_status car_output_write(car_output *output, const void *data, size_t bytes);
/* Overwrites what is there already. */
car_status car_output_write_at(car_output *output, uint64_t offset, const void *data, size_t bytes);
/* Flushes, closes and renames. After a failure discard is still to be called. */
car_status car_output_finish(car_output *output);
/* Removes what was written, unless it was finished. All zero is allowed. */
void car_output_discard(car_output *output);

#endif
