<<<<<<< HEAD
/* A temporary folder to put files into. */
=======
/* A context and a folder of its own for tests of files. */
>>>>>>> tokens
#ifndef CAR_TESTS_FOLDER_H
#define CAR_TESTS_FOLDER_H

#include <stddef.h>

<<<<<<< HEAD
typedef struct car_folder {
    char path[256];
} car_folder;

/* A failure of any of these ends the test. */
void car_folder_create(car_folder *folder);
void car_folder_remove(car_folder *folder); /* and all that is in it */
/* A file below it; folders on the way are made. */
void car_folder_write(const car_folder *folder, const char *name, const void *bytes, size_t count);
/* Whole path of a name; good until the fourth call from now. */
const char *car_folder_path(const car_folder *folder, const char *name);
=======
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
void car_folder_write(const car_folder *folder, const char *name, const void *bytes, size_t count);
/* What was written, to be freed. */
unsigned char *car_folder_read(const car_folder *folder, const char *name, size_t *count);

/* Asserts that `status` is the expected one and the context's message says this; clears it. */
void car_folder_expect(const car_folder *folder, car_status status, car_status expected, const char *message);
>>>>>>> tokens

#endif
