/* Samples that are made up, and loaders of them: see made_up.h. */
#include "support/made_up.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/expect.h"

typedef struct made_up_reader {
    car_made_up *samples;
    atomic_bool busy;
} made_up_reader;

static car_status create_reader(car_dataset *dataset, car_reader **out) {
    car_made_up *m = (car_made_up *)(void *)dataset;
    made_up_reader *reader = NULL;
    car_status status = car_context_allocate(m->context, 1, sizeof *reader, &reader);
    if (status == CAR_OK) {
        reader->samples = m;
        *out = (car_reader *)(void *)reader;
    }
    return status;
}

static void destroy_reader(car_reader *reader) {
    made_up_reader *r = (made_up_reader *)(void *)reader;
    car_context_release(r->samples->context, r, 1, sizeof *r);
}

static void stand_at_gate(car_made_up *m, int64_t sample) {
    atomic_fetch_add(&m->stuck_in, 1);
    while (atomic_load(&m->stuck_at) == sample) {
        usleep(200);
    }
    atomic_fetch_sub(&m->stuck_in, 1);
}

static car_status read_sample(car_reader *reader, car_split split, int64_t epoch, int64_t sample, void *input,
                              int32_t *labels) {
    made_up_reader *r = (made_up_reader *)(void *)reader;
    car_made_up *m = r->samples;
    if (atomic_exchange(&r->busy, true)) {
        atomic_store(&m->misused, true);
    }
    atomic_fetch_add(&m->reads, 1);
    for (long long seen = atomic_load(&m->lowest);
         sample < seen && !atomic_compare_exchange_weak(&m->lowest, &seen, sample);) {
    }
    for (long long seen = atomic_load(&m->highest);
         sample > seen && !atomic_compare_exchange_weak(&m->highest, &seen, sample);) {
    }
    if (atomic_load(&m->stuck_at) == sample) {
        stand_at_gate(m, sample);
    }
    if (m->delay_us > 0) {
        usleep((useconds_t)m->delay_us);
    }
    float *values = input;
    values[0] = (float)sample;
    values[1] = (float)epoch;
    values[2] = (float)split;
    labels[0] = (int32_t)sample;
    labels[1] = (int32_t)-sample;
    car_status status = CAR_OK;
    if (atomic_load(&m->broken_at) == sample) {
        status = car_context_fail(m->context, CAR_ERROR_IO, "sample %lld is broken", (long long)sample);
        atomic_fetch_add(&m->failures, 1);
    }
    atomic_store(&r->busy, false);
    return status;
}

/* ---- a loader of them -------------------------------------------------------------------------- */

void car_made_up_reset(car_made_up *m, car_context *context) {
    memset(m, 0, sizeof *m);
    m->context = context;
    atomic_store(&m->lowest, INT64_MAX);
    atomic_store(&m->highest, -1);
    atomic_store(&m->stuck_at, CAR_MADE_UP_NOBODY);
    atomic_store(&m->broken_at, CAR_MADE_UP_NOBODY);
}

int car_made_up_begin(car_made_up *m) {
    car_context *context = NULL;
    car_status status = car_context_create(NULL, &context);
    car_made_up_reset(m, context);
    return status == CAR_OK ? 0 : -1;
}

int car_made_up_end(car_made_up *m) {
    car_context_destroy(m->context);
    return atomic_load(&m->misused) ? -1 : 0;
}

car_loader_config car_made_up_config(int workers, int batch, int threads, int depth) {
    car_loader_config config = car_loader_config_default();
    config.micro_batches = workers;
    config.batch = batch;
    config.threads = threads;
    config.depth = depth;
    config.seed = 5;
    return config;
}

car_status car_made_up_try_open(car_made_up *m, int64_t samples, const car_loader_config *config, car_loader **out) {
    car_loader_source source = {.context = m->context,
                                .samples = samples,
                                .input_bytes = CAR_MADE_UP_INPUTS * sizeof(float),
                                .labels = CAR_MADE_UP_LABELS,
                                .dataset = (car_dataset *)(void *)m,
                                .create_reader = create_reader,
                                .destroy_reader = destroy_reader,
                                .read = read_sample};
    return car_loader_create_from(&source, config, out);
}

car_loader *car_made_up_open(car_made_up *m, int64_t samples, const car_loader_config *config) {
    car_loader *loader = NULL;
    car_expect_ok(m->context, car_made_up_try_open(m, samples, config, &loader));
    return loader;
}

size_t car_made_up_bytes(int batches, int batch) {
    return (size_t)batches * (size_t)batch *
           (CAR_MADE_UP_INPUTS * sizeof(float) + CAR_MADE_UP_LABELS * sizeof(int32_t));
}

void car_made_up_wait(car_made_up *m, long count) {
    for (int ms = 0; ms < CAR_MADE_UP_PATIENCE && atomic_load(&m->reads) < count; ms++) {
        usleep(1000);
    }
    usleep(20000);
    assert_int_equal(atomic_load(&m->reads), count);
}

/* ---- what must be in a micro-batch -------------------------------------------------------------- */

car_made_up_expectation car_made_up_expect(const car_made_up *m, int64_t samples, const car_loader_config *config) {
    car_made_up_expectation e = {.samples = samples, .config = *config};
    if (samples > 0 && !config->sequential && config->split == CAR_SPLIT_TRAIN) {
        assert_int_equal(car_order_create(m->context, config->seed, samples, &e.order), CAR_OK);
    }
    return e;
}

bool car_made_up_is_expected(const car_made_up_expectation *e, int64_t step, int worker, const float *inputs,
                             const int32_t *labels) {
    int64_t global = (int64_t)e->config.micro_batches * e->config.batch, batch = e->config.batch;
    int64_t steps = e->config.split == CAR_SPLIT_TRAIN ? e->samples / global : (e->samples + global - 1) / global;
    int64_t epoch = e->samples > 0 ? step / steps : 0, in_epoch = e->samples > 0 ? step % steps : step;
    for (int64_t b = 0; b < batch; b++, inputs += CAR_MADE_UP_INPUTS, labels += CAR_MADE_UP_LABELS) {
        int64_t sample = in_epoch * global + worker * batch + b;
        bool missing = e->samples > 0 && sample >= e->samples;
        if (!missing && e->order && car_order_get(e->order, epoch, sample, 1, &sample) != CAR_OK) {
            return false;
        }
        float values[CAR_MADE_UP_INPUTS] = {(float)sample, (float)epoch, (float)e->config.split},
              zeros[CAR_MADE_UP_INPUTS] = {0};
        int32_t first = missing ? -1 : (int32_t)sample, second = missing ? -1 : (int32_t)-sample;
        if (memcmp(inputs, missing ? zeros : values, sizeof values) != 0 || labels[0] != first || labels[1] != second) {
            return false;
        }
    }
    return true;
}

void car_made_up_take(car_loader *loader, const car_made_up_expectation *e, int64_t step, int worker) {
    const void *inputs = NULL;
    const int32_t *labels = NULL;
    assert_int_equal(car_loader_take(loader, step, worker, &inputs, &labels), CAR_OK);
    if (!car_made_up_is_expected(e, step, worker, inputs, labels)) {
        fail_msg("step %lld, worker %d: not what it should be", (long long)step, worker);
    }
}

void car_made_up_take_and_give_back(car_loader *loader, const car_made_up_expectation *e, int64_t step, int number) {
    car_made_up_take(loader, e, step, number);
    car_loader_give_back(loader, step, number);
}
