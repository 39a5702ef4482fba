/* Directories: making them, emptying them, and what interrupted writers left in them.
 *
 * Whatever is written appears under its name only when it is whole. Until then it is called .NAME.PID.tmp, so that
 * whoever comes next can tell what belongs to a process that is no more. */
#ifndef CAR_FOLDER_H
#define CAR_FOLDER_H

#include "base/base.h"

/* The directory with all that are missing above it, flushed to the disk. */
car_status car_folder_make(car_context *context, const char *path);

/* Flushes names that were made, changed or removed in it. */
car_status car_folder_sync(car_context *context, const char *path);

/* Removes a file, or a directory with all that is in it; false if something stays. */
bool car_folder_remove(const char *path);

/* DIRECTORY/.NAME.PID.tmp, to be released with car_context_release_text. */
car_status car_folder_temporary(car_context *context, const char *directory, const char *name, char **out);
/* Removes what has a temporary name that begins with .NAME in the directory, and belongs to no other living process.
 * What cannot be removed stays. */
void car_folder_clear(car_context *context, const char *directory, const char *name);

/* The directory that a path lies in, to be released with car_context_release_text. */
car_status car_folder_of(car_context *context, const char *path, char **out);

#endif
