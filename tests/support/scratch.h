/* A temporary directory for a test, and a context for working with its files. */
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
void car_scratch_close(car_scratch *scratch); /* removes the directory with its contents */

/* Set-up and tear-down of a cmocka test; *state is a car_scratch. */
int car_scratch_set_up(void **state);
int car_scratch_tear_down(void **state);

/* A formatted path in the directory. */
car_scratch_path car_scratch_in(const car_scratch *scratch, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Number of entries whose name starts with `prefix`, without "." and "..". */
int car_scratch_count(const char *directory, const char *prefix);

/* Reads a whole file; the caller frees it. A failure ends the test. */
void *car_scratch_read(const char *path, size_t *bytes);
/* Writes a whole file. A failure ends the test. */
void car_scratch_write(const char *path, const void *data, size_t bytes);
/* Writes DIRECTORY/NAME and creates the directories in NAME. */
void car_scratch_put(const car_scratch *scratch, const char *name, const void *data, size_t bytes);

#endif
