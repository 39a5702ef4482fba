/* Samples that are made up, so that reading them can be slow, stuck or broken on demand, and loaders of them. */
#ifndef CAR_TESTS_MADE_UP_H
#define CAR_TESTS_MADE_UP_H

#include "data/loader_internal.h"

enum { CAR_MADE_UP_INPUTS = 3, CAR_MADE_UP_LABELS = 2 }; /* of a sample; they tell which it is */
enum { CAR_MADE_UP_NOBODY = -1, CAR_MADE_UP_PATIENCE = 20000 /* ms */ };

typedef struct car_made_up {
    car_context *context;
    atomic_long reads, failures;
    atomic_llong lowest, highest; /* samples that were read */
    atomic_bool misused;          /* a reader was used by two threads at once */
    atomic_int stuck_in;          /* readers that wait at the gate */
    atomic_llong stuck_at;        /* reading this sample waits while the gate is shut */
    atomic_llong broken_at;       /* this one cannot be read */
    int delay_us;                 /* of a sample */
} car_made_up;

void car_made_up_reset(car_made_up *m, car_context *context);

/* Before and after a test, with a context of its own; -1 if that cannot be, or if readers were misused. */
int car_made_up_begin(car_made_up *m);
int car_made_up_end(car_made_up *m);
car_loader_config car_made_up_config(int workers, int batch, int threads, int depth);
car_status car_made_up_try_open(car_made_up *m, int64_t samples, const car_loader_config *config, car_loader **out);
/* A failure ends the test. */
car_loader *car_made_up_open(car_made_up *m, int64_t samples, const car_loader_config *config);
/* What micro-batches of so many samples take. */
size_t car_made_up_bytes(int batches, int batch);
/* Waits until `count` samples were read, and a little longer for those that should not be. */
void car_made_up_wait(car_made_up *m, long count);

/* What must be in the micro-batches of a loader. */
typedef struct car_made_up_expectation {
    int64_t samples;
    car_loader_config config;
    car_order *order; /* NULL: sequential */
} car_made_up_expectation;

car_made_up_expectation car_made_up_expect(const car_made_up *m, int64_t samples, const car_loader_config *config);
/* Not an assertion of cmocka's, which only the main thread may use. */
bool car_made_up_is_expected(const car_made_up_expectation *e, int64_t step, int worker, const float *inputs,
                             const int32_t *labels);
/* Takes a micro-batch, which must be what is expected. */
void car_made_up_take(car_loader *loader, const car_made_up_expectation *e, int64_t step, int worker);

/* Takes a micro-batch, checks it and gives it back. */
void car_made_up_take_and_give_back(car_loader *loader, const car_made_up_expectation *e, int64_t step, int number);

#endif
