/* Made-up samples, whose reading can be slow, stuck or broken on demand, and loaders of them. */
#ifndef CAR_TESTS_MADE_UP_H
#define CAR_TESTS_MADE_UP_H

#include "data/loader_internal.h"

enum { CAR_MADE_UP_INPUTS = 3, CAR_MADE_UP_LABELS = 2 }; /* per sample; the values identify it */
enum { CAR_MADE_UP_NOBODY = -1, CAR_MADE_UP_PATIENCE = 20000 /* ms */ };

typedef struct car_made_up {
    car_context *context;
    atomic_long reads, failures;
    atomic_llong lowest, highest; /* lowest and highest sample read */
    atomic_bool misused;          /* two threads used a reader at once */
    atomic_int stuck_in;          /* readers waiting at the gate */
    atomic_llong stuck_at;        /* reading this sample waits while the gate is shut */
    atomic_llong broken_at;       /* this sample cannot be read */
    int delay_us;                 /* per sample */
} car_made_up;

void car_made_up_reset(car_made_up *m, car_context *context);

/* Call before and after a test, which gets its own context. -1 on failure, or if readers were misused. */
int car_made_up_begin(car_made_up *m);
int car_made_up_end(car_made_up *m);
car_loader_config car_made_up_config(int workers, int batch, int threads, int depth);
car_status car_made_up_try_open(car_made_up *m, int64_t samples, const car_loader_config *config, car_loader **out);
/* A failure ends the test. */
car_loader *car_made_up_open(car_made_up *m, int64_t samples, const car_loader_config *config);
/* Bytes of `batches` micro-batches of `batch` samples. */
size_t car_made_up_bytes(int batches, int batch);
/* Waits until `count` samples have been read, and a little longer, to notice additional ones. */
void car_made_up_wait(car_made_up *m, long count);

/* What the micro-batches of a loader must contain. */
typedef struct car_made_up_expectation {
    int64_t samples;
    car_loader_config config;
    car_order *order; /* NULL: sequential */
} car_made_up_expectation;

car_made_up_expectation car_made_up_expect(const car_made_up *m, int64_t samples, const car_loader_config *config);
/* Not a cmocka assertion, since only the main thread may use those. */
bool car_made_up_is_expected(const car_made_up_expectation *e, int64_t step, int worker, const float *inputs,
                             const int32_t *labels);
/* Takes a micro-batch and checks it. */
void car_made_up_take(car_loader *loader, const car_made_up_expectation *e, int64_t step, int worker);

/* Takes a micro-batch, checks it and gives it back. */
void car_made_up_take_and_give_back(car_loader *loader, const car_made_up_expectation *e, int64_t step, int number);

#endif
