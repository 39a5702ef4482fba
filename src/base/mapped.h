/* A file mapped for reading.
 *
 * Touching a page that the file no longer has kills the process (SIGBUS). So callers use car_mapped_check before
 * they read a region, and get an error instead. Only a file that is truncated during such a read remains; the
 * program then says so before it ends. */
#ifndef CAR_MAPPED_H
#define CAR_MAPPED_H

#include "base/base.h"

/* All zero: nothing is mapped. */
typedef struct car_mapped {
    car_context *context;
    char *path;                /* NULL: nothing is mapped */
    const unsigned char *data; /* NULL if the file is empty */
    size_t size;
    int descriptor; /* stays open for checking the size again */
} car_mapped;

/* CAR_ERROR_IO if the file cannot be opened or is not a regular file. `out` is all zero after a failure. */
car_status car_mapped_open(car_context *context, const char *path, car_mapped *out);
void car_mapped_close(car_mapped *file); /* may be all zero; leaves it all zero */

/* CAR_ERROR_IO if the file became shorter since it was mapped. May be called from any thread. */
car_status car_mapped_check(const car_mapped *file);

#endif
