/* A temporary folder to put files into. */
#ifndef CAR_TESTS_FOLDER_H
#define CAR_TESTS_FOLDER_H

#include <stddef.h>

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

#endif
