/* Directories: making them, removing them, and cleaning up after interrupted writers.
 *
 * A file gets its name only when it is complete. Until then it is called .NAME.PID.tmp, so that the next process can
 * tell what belongs to a process that no longer exists. */
#ifndef CAR_FOLDER_H
#define CAR_FOLDER_H

#include "base/base.h"

/* Makes a directory and all missing ones above it, and flushes them to disk. */
car_status car_folder_make(car_context *context, const char *path);

/* Flushes the names that were made, changed or removed in a directory. */
car_status car_folder_sync(car_context *context, const char *path);

/* Removes a file, or a directory with everything in it. Returns false if something remains. */
bool car_folder_remove(const char *path);

/* DIRECTORY/.NAME.PID.tmp; release it with car_context_release_text. */
car_status car_folder_temporary(car_context *context, const char *directory, const char *name, char **out);
/* Removes the temporary files in a directory whose names begin with .NAME, unless they belong to another living
 * process. Ignores what cannot be removed. */
void car_folder_clear(car_context *context, const char *directory, const char *name);

/* The directory that contains a path; release it with car_context_release_text. */
car_status car_folder_of(car_context *context, const char *path, char **out);

#endif
