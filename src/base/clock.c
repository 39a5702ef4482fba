/* The clock, and waiting by it: for a while, or for a condition. */
#include <math.h>
#include <time.h>

#include "base/base.h"

static struct timespec time_of(double seconds) {
    double whole = floor(seconds);
    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)((seconds - whole) * 1e9)};
}

double car_clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void car_clock_sleep(double seconds) {
    if (seconds > 0) {
        const struct timespec time = time_of(seconds);
        nanosleep(&time, NULL);
    }
}

void car_clock_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double seconds) {
    const struct timespec wait = time_of(seconds > 0 ? seconds : 0);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait.tv_sec + (until.tv_nsec + wait.tv_nsec) / 1000000000L;
    until.tv_nsec = (until.tv_nsec + wait.tv_nsec) % 1000000000L;
    pthread_cond_timedwait(condition, lock, &until);
}

static bool create_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) {
        return false;
    }
    bool created =
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 && pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return created;
}

car_status car_clock_create_lock(car_context *context, pthread_mutex_t *lock, pthread_cond_t *condition) {
    if (lock && pthread_mutex_init(lock, NULL) != 0) {
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a mutex");
    }
    if (!create_condition(condition)) {
        if (lock) {
            pthread_mutex_destroy(lock);
        }
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a condition");
    }
    return CAR_OK;
}
