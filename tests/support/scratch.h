/* A directory of a test's own, and a context to read and write with what is in it. */
#ifndef CAR_TESTS_SCRATCH_H
#define CAR_TESTS_SCRATCH_H

#include <stddef.h>

#include "carousel/context.h"

typedef struct car_scratch {
    car_context *context;
    char directory[256];
} car_scratch;

typedef struct car_scratch_path {
    char text[512];
} car_scratch_path;

void car_scratch_open(car_scratch *scratch);
void car_scratch_close(car_scratch *scratch); /* with all that is in it */

/* Set-up and tear-down of a cmocka test; *state is a car_scratch. */
int car_scratch_set_up(void **state);
int car_scratch_tear_down(void **state);

/* A path in it, formatted. */
car_scratch_path car_scratch_in(const car_scratch *scratch, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Entries of a directory whose names begin like this, "." and ".." not counted. */
int car_scratch_count(const char *directory, const char *prefix);

/* A whole file, to be freed; ends the test if it cannot be read or written. */
void *car_scratch_read(const char *path, size_t *bytes);
void car_scratch_write(const char *path, const void *data, size_t bytes);
/* Writes "DIRECTORY/NAME"; directories on the way to it are made. */
void car_scratch_put(const car_scratch *scratch, const char *name, const void *data, size_t bytes);

#endif
