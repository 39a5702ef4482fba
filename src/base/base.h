/* What every module uses: the error convention, memory for bookkeeping, random numbers, time. */
#ifndef CAR_BASE_H
#define CAR_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carousel/context.h"

/* Errors: a function that can fail has a local `car_status status = CAR_OK` and one exit labelled
 * `done` that releases in reverse. CAR_TRY jumps there with the status of the call that failed. */
#define CAR_TRY(call)           \
    do {                        \
        status = (call);        \
        if (status != CAR_OK) { \
            goto done;          \
        }                       \
    } while (0)

/* Records the particulars (the first failure wins) and returns `status`. */
car_status car_context_fail(car_context *context, car_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The failures of one thread, apart from everybody else's: for work whose failure may not be the run's, and for threads
 * that fail at the same time. While it is open, car_context_fail, car_context_error and car_context_clear_error of this
 * thread are about it. A thread has one at a time. The caller owns it; it may be on the stack. */
enum { CAR_ERROR_BYTES = 1024 };
typedef struct car_error_scope {
    pthread_t thread;
    struct car_error_scope *next;
    char error[CAR_ERROR_BYTES];
} car_error_scope;
void car_context_open_scope(car_context *context, car_error_scope *scope);
void car_context_close_scope(car_context *context, car_error_scope *scope);
/* Makes this thread's error the context's, unless that has one. */
void car_context_publish_error(car_context *context);

/* Zeroed memory from the context's allocator; the size must be given back. Fails with a message. */
car_status car_context_allocate(car_context *context, size_t count, size_t size, void *out_pointer);
void car_context_release(car_context *context, void *block, size_t count, size_t size);
/* A copy of `text`, to be released with car_context_release_text. */
car_status car_context_copy_text(car_context *context, const char *text, char **out);
void car_context_release_text(car_context *context, char *text);
/* Makes room for one more element; *capacity grows by doubling. */
car_status car_context_grow(car_context *context, void *array_pointer, int *capacity, int needed, size_t size);

/* Random numbers are functions of a key and a counter, so they do not depend on who draws them. */
static inline uint64_t car_random_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static inline uint64_t car_random_u64(uint64_t key, uint64_t counter) {
    return car_random_mix(key ^ car_random_mix(counter));
}
/* In [0, 1), 24 bits. */
static inline float car_random_uniform(uint64_t key, uint64_t counter) {
    return (float)(car_random_u64(key, counter) >> 40) * 0x1p-24f;
}
double car_random_normal(uint64_t key, uint64_t counter);
uint64_t car_random_key(uint64_t seed, const char *purpose); /* hashes the text into the seed */

double car_clock_seconds(void); /* monotonic */
/* Whose timed waits are by that clock, which nobody sets. */
bool car_clock_create_condition(pthread_cond_t *condition);

static inline size_t car_round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

#endif
