/* A file, mapped for reading.
 *
 * Touching a page that the file no longer has ends the process (SIGBUS), so whoever is about to use a region calls
 * car_mapped_check first and gets an error instead. What remains is a file that is cut within one such use; the
 * program says so in plain words before it ends. */
#ifndef CAR_MAPPED_H
#define CAR_MAPPED_H

#include "base/base.h"

/* All zero: nothing is mapped. */
typedef struct car_mapped {
    car_context *context;
    char *path;                /* NULL: nothing is mapped */
    const unsigned char *data; /* NULL if the file is empty */
    size_t size;
    int descriptor; /* stays open, to look at the size again */
} car_mapped;

/* CAR_ERROR_IO if the file cannot be opened, or is none: directories and pipes are refused. `out` is all zero after a
 * failure. */
car_status car_mapped_open(car_context *context, const char *path, car_mapped *out);
void car_mapped_close(car_mapped *file); /* all zero is allowed, and what it leaves */

/* CAR_ERROR_IO if the file has become shorter since it was mapped. From any thread. */
car_status car_mapped_check(const car_mapped *file);

#endif
