/* One setting trained by the engine and by the sequential trainer, and compared to the bit. */
#ifndef CAR_TESTS_EQUALITY_H
#define CAR_TESTS_EQUALITY_H

#include "engine/sequential.h"
#include "engine/world.h"

enum { CAR_EQUALITY_STEPS = 6 };

/* Sanitizers make a step many times slower: they see every kind of case, but not all of them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAR_EQUALITY_REDUCED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CAR_EQUALITY_REDUCED 1
#endif
#endif
#ifdef CAR_EQUALITY_REDUCED
#define CAR_EQUALITY_WORKERS \
    { 1, 3 }
#define CAR_EQUALITY_THREADS \
    { 2 }
#else
#define CAR_EQUALITY_WORKERS \
    { 1, 2, 3, 4 }
#define CAR_EQUALITY_THREADS \
    { 1, 2, 4 }
#endif
#define CAR_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

typedef struct car_equality_setting {
    car_rule rule;
    int workers, per_worker, slack;
    int accumulate; /* 0: 1 */
    bool by_worker;
    car_optimizer_config optimizer;
    car_schedule schedule;
    double lr[CAR_EQUALITY_STEPS]; /* what the schedule comes to */
    double clip_norm;
    int pause; /* steps after which the engine is drained, and goes on; 0: not at all */
    size_t shared_update_bytes;
    car_recompute_config recompute;
    int64_t *helped; /* counts chunks that idle threads made; or NULL */
} car_equality_setting;

/* With a rate that stays as it is. */
car_equality_setting car_equality_sgd(car_rule rule, int workers, int per_worker);
car_equality_setting car_equality_adamw(car_rule rule, int workers, int per_worker);

car_sequential *car_equality_sequential(car_world *w, const car_equality_setting *s);
/* The first parameter in which two versions differ, or CAR_NONE. */
int car_equality_difference(const car_world *w, const car_weights *a, const car_weights *b);
/* Trains by the engine; losses and weights must be `expected`'s. */
void car_equality_expect(car_world *w, const car_equality_setting *s, int threads, const car_sequential *expected);
/* The same for several numbers of threads, against one run of the sequential trainer. */
void car_equality_check(car_world *w, const car_equality_setting *s);
/* The same for several micro-batches of a worker in a step, in both orders of addition. */
void car_equality_check_several(car_world *w, car_equality_setting s);

#endif
