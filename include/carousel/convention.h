/* The conventions of the library for errors, memory, time and sizes, for programs that want to follow them:
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

/* A function that can fail has a local `car_status status = CAR_OK` and one exit, labelled `done`, that releases
 * everything in reverse order. CAR_TRY jumps there if the call fails. */
#define CAR_TRY(call)           \
    do {                        \
        status = (call);        \
        if (status != CAR_OK) { \
            goto done;          \
        }                       \
    } while (0)

/* For the top of a public function: returns CAR_ERROR_ARGUMENT if an argument is NULL. The message names the
 * argument; `context` may be NULL, then there is no message. */
#define CAR_REQUIRE(context, argument)                                                                     \
    do {                                                                                                   \
        if (!(argument)) {                                                                                 \
            return car_context_fail((context), CAR_ERROR_ARGUMENT, "%s: %s is NULL", __func__, #argument); \
        }                                                                                                  \
    } while (0)

/* The entry of a public call whose failure has its own message: checks that the handle is not NULL, and clears what the
 * context says of an earlier call. */
#define CAR_ENTER(handle, its_context)        \
    do {                                      \
        CAR_REQUIRE(NULL, handle);            \
        car_context_clear_error(its_context); \
    } while (0)

/* Stores a message, unless an earlier failure has left one, and returns `status`. `context` may be NULL. */
car_status car_context_fail(car_context *context, car_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Allocates count * size zeroed bytes into *out_pointer; release them with the same numbers. CAR_ERROR_MEMORY, with
 * a message, on failure. */
car_status car_context_allocate(car_context *context, size_t count, size_t size, void *out_pointer);
/* Releases memory of car_context_allocate. `count` and `size` must be those it was allocated with. NULL is allowed. */
void car_context_release(car_context *context, void *block, size_t count, size_t size);
/* Copies `text`. Release the copy with car_context_release_text. */
car_status car_context_copy_text(car_context *context, const char *text, char **out);
/* NULL is allowed. */
void car_context_release_text(car_context *context, char *text);
/* Grows an array until it holds at least `needed` elements; *capacity doubles. */
car_status car_context_grow(car_context *context, void *array_pointer, int *capacity, int needed, size_t size);

double car_clock_seconds(void); /* seconds of a monotonic clock */

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
