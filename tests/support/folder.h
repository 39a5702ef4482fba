/* A context and a folder of its own for tests of files. */
#ifndef CAR_TESTS_FOLDER_H
#define CAR_TESTS_FOLDER_H

#include <stddef.h>

#include "carousel/context.h"

typedef struct car_folder {
    car_context *context;
    char name[256];
} car_folder;

/* Set-up and tear-down of a cmocka test; *state is a car_folder. Everything in the folder is removed. */
int car_folder_set_up(void **state);
int car_folder_tear_down(void **state);

/* "FOLDER/NAME", one of some places that are used in turn. */
const char *car_folder_path(const car_folder *folder, const char *name);
/* Folders on the way to NAME are made. */
void car_folder_write(const car_folder *folder, const char *name, const void *bytes, size_t count);
/* What was written, to be freed. */
unsigned char *car_folder_read(const car_folder *folder, const char *name, size_t *count);

/* Asserts that `status` is the expected one and the context's message says this; clears it. */
void car_folder_expect(const car_folder *folder, car_status status, car_status expected, const char *message);

#endif
