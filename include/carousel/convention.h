/* The convention that the library is written in, for programs that want to keep to it: errors, memory, time, sizes.
 *
 *     car_status load(car_context *context, const char *path) {
 *         car_status status = CAR_OK;
 *         float *values = NULL;
 *         CAR_TRY(car_context_allocate(context, 1000, sizeof *values, &values));
 *         CAR_TRY(read_values(context, path, values));
 *     done:
 *         car_context_release(context, values, values ? 1000 : 0, sizeof *values);
 *         return status;
 *     } */
#ifndef CAROUSEL_CONVENTION_H
#define CAROUSEL_CONVENTION_H

#include <stddef.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Errors: a function that can fail has a local `car_status status = CAR_OK` and one exit labelled
 * `done` that releases in reverse. CAR_TRY jumps there with the status of the call that failed. */
#define CAR_TRY(call)           \
    do {                        \
        status = (call);        \
        if (status != CAR_OK) { \
            goto done;          \
        }                       \
    } while (0)

/* At the top of a public function: fails with CAR_ERROR_ARGUMENT if an argument is NULL that must not be. The message
 * names it, if there is a context to leave it in: `context` may be NULL. */
#define CAR_REQUIRE(context, argument)                                                                     \
    do {                                                                                                   \
        if (!(argument)) {                                                                                 \
            return car_context_fail((context), CAR_ERROR_ARGUMENT, "%s: %s is NULL", __func__, #argument); \
        }                                                                                                  \
    } while (0)

/* The entry of a public call whose failure has a message of its own: the handle must not be NULL, and what its context says
 * of an earlier call is forgotten. */
#define CAR_ENTER(handle, its_context)        \
    do {                                      \
        CAR_REQUIRE(NULL, handle);            \
        car_context_clear_error(its_context); \
    } while (0)

/* Records the particulars (the first failure wins) and returns `status`. Without a context (NULL) there is nothing to
 * record them in. */
car_status car_context_fail(car_context *context, car_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Zeroed memory from the context's allocator; the size must be given back. Fails with a message. */
car_status car_context_allocate(car_context *context, size_t count, size_t size, void *out_pointer);
void car_context_release(car_context *context, void *block, size_t count, size_t size);
/* A copy of `text`, to be released with car_context_release_text. */
car_status car_context_copy_text(car_context *context, const char *text, char **out);
void car_context_release_text(car_context *context, char *text);
/* Makes room for one more element; *capacity grows by doubling. */
car_status car_context_grow(car_context *context, void *array_pointer, int *capacity, int needed, size_t size);

double car_clock_seconds(void); /* monotonic */

/* A number of bytes for people: "1.23 GB". */
typedef struct car_size_text {
    char text[24];
} car_size_text;
car_size_text car_size_shown(double bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
