/* Helpers that every module uses besides the public conventions (errors, memory for bookkeeping, time): error
 * scopes, registered names, random numbers. */
#ifndef CAR_BASE_H
#define CAR_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "carousel/convention.h"

/* Keeps the failures of one thread separate from all others: for work whose failure may not be the run's, and for
 * threads that fail at the same time. While a scope is open, car_context_fail, car_context_error and
 * car_context_clear_error of this thread refer to it. A thread has one at a time. The caller owns it; it may be on
 * the stack. */
enum { CAR_ERROR_BYTES = 1024 };
typedef struct car_error_scope {
    pthread_t thread;
    struct car_error_scope *next;
    char error[CAR_ERROR_BYTES];
} car_error_scope;
void car_context_open_scope(car_context *context, car_error_scope *scope);
void car_context_close_scope(car_context *context, car_error_scope *scope);
/* Copies this thread's error to the context, unless the context has one already. */
void car_context_publish_error(car_context *context);

/* Registers a thing that a program provides under a name, such as its own optimizer (family "optimizer"). Nothing is
 * copied: name and thing must live as long as the context. CAR_ERROR_ARGUMENT if the name is taken. */
car_status car_context_register(car_context *context, const char *family, const char *name, const void *thing);
const void *car_context_find_registered(car_context *context, const char *family, const char *name); /* or NULL */
/* The index-th name of a family; NULL after the last. */
const char *car_context_registered_name(car_context *context, const char *family, int index);

/* A random number is a function of a key and a counter, so it does not depend on who draws it. */
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

/* Creates a lock, and a condition variable whose timed waits use the clock of car_clock_seconds, which is never set back.
 * With `lock` NULL, only the condition. On failure it creates neither. */
car_status car_clock_create_lock(car_context *context, pthread_mutex_t *lock, pthread_cond_t *condition);
void car_clock_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double seconds); /* at most */
void car_clock_sleep(double seconds);

/* qsort for arrays that may be empty: C forbids sorting NULL, even with a count of zero. */
static inline void car_sort(void *array, size_t count, size_t size, int (*compare)(const void *, const void *)) {
    if (count > 1) {
        qsort(array, count, size, compare);
    }
}

static inline size_t car_round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

#endif
