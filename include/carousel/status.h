/* The status that every function that can fail returns.
 *
 * The code is the kind of failure. The details (which tensor, which sizes, what to do) are in the message of the
 * car_context, see context.h. */
#ifndef CAROUSEL_STATUS_H
#define CAROUSEL_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* One list for codes and texts, so that they stay in step. */
#define CAR_STATUS_LIST(X)                                             \
    X(CAR_OK, "ok")                                                    \
    X(CAR_ERROR_ARGUMENT, "invalid argument")                          \
    X(CAR_ERROR_SHAPE, "shapes do not fit")                            \
    X(CAR_ERROR_UNKNOWN_NAME, "unknown name")                          \
    X(CAR_ERROR_MEMORY, "out of memory")                               \
    X(CAR_ERROR_UNSUPPORTED, "not supported")                          \
    X(CAR_ERROR_FORMAT, "malformed data")                              \
    X(CAR_ERROR_IO, "input/output error")                              \
    X(CAR_ERROR_NOT_FINITE, "a loss or gradient is not finite")        \
    X(CAR_ERROR_KERNEL, "a numerical library reported an error")       \
    X(CAR_ERROR_INTERNAL, "internal error: this is a bug in Carousel") \
    X(CAR_ERROR_STAGE, "a stage reported a failure")                   \
    X(CAR_ERROR_CALLBACK, "a callback reported a failure")

typedef enum car_status {
#define CAR_STATUS_ENUM(code, text) code,
    CAR_STATUS_LIST(CAR_STATUS_ENUM)
#undef CAR_STATUS_ENUM
} car_status;

/* The code in words; never NULL, even for an invalid code. */
const char *car_status_text(car_status status);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
