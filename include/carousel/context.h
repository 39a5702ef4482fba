/* The context: allocator, logger and error message, which would otherwise be global state.
 *
 * Every object is created with a context and must be destroyed before it. Any number of threads may use one context.
 * The library never prints, exits or aborts: it reports through the context. */
#ifndef CAROUSEL_CONTEXT_H
#define CAROUSEL_CONTEXT_H

#include <stddef.h>

#include "carousel/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_context car_context;

/* Where memory comes from. `allocate` returns `bytes` bytes aligned to 64, or NULL; `release` is told the same size.
 * Both may be called from any thread. */
typedef struct car_allocator {
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *block, size_t bytes);
    void *user;
} car_allocator;

typedef enum car_log_level { CAR_LOG_ERROR, CAR_LOG_WARNING, CAR_LOG_INFO, CAR_LOG_DEBUG } car_log_level;

/* Receives one line, without a newline. May be called from any thread. */
typedef void (*car_log_function)(void *user, car_log_level level, const char *line);

typedef struct car_context_config {
    car_allocator allocator; /* all NULL: use the C library's */
    car_log_function log;    /* NULL: no logging */
    void *log_user;
    car_log_level log_level; /* less important lines are dropped before they are formatted */
} car_context_config;

/* The C library's allocator, no logging. */
car_context_config car_context_config_default(void);

/* `config` may be NULL for the defaults. On failure *out is NULL. */
car_status car_context_create(const car_context_config *config, car_context **out);
/* Destroy all objects created with the context first. NULL is allowed. */
void car_context_destroy(car_context *context);

/* The message of the first failure since creation or the last clear; "" if there was none, or if `context` is NULL.
 * It stays valid and unchanged until car_context_clear_error or destroy. The functions of run.h clear it when they
 * start, so give each thread its own context if their messages must not mix. */
const char *car_context_error(const car_context *context);
/* Forgets the message, so that the next failure can leave one. */
void car_context_clear_error(car_context *context);

/* For user callbacks (feeds, optimizers, datasets, ...): stores a message and returns CAR_ERROR_CALLBACK. Return
 * that status, and the run ends with your message. */
car_status car_callback_fail(car_context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sends one line to the logger. */
void car_context_log(car_context *context, car_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
