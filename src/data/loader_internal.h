/* The two halves of the loader: batches.c knows which samples a micro-batch has and how to read them; loader.c
 * decides when, and on which thread. */
#ifndef CAR_LOADER_INTERNAL_H
#define CAR_LOADER_INTERNAL_H

#include <stdatomic.h>

#include "base/base.h"
#include "carousel/loader.h"
#include "data/order.h"

/* What the loader needs to know about a dataset. car_loader_create fills it in; tests use their own. */
typedef struct car_loader_source {
    car_context *context;
    int64_t samples;    /* in the split, or CAR_DATASET_ENDLESS */
    size_t input_bytes; /* per sample */
    int labels;         /* per sample */
    car_dataset *dataset;
    car_status (*create_reader)(car_dataset *dataset, car_reader **out);
    void (*destroy_reader)(car_reader *reader);
    car_status (*read)(car_reader *reader, car_split split, int64_t epoch, int64_t sample, void *input,
                       int32_t *labels);
} car_loader_source;

car_status car_loader_create_from(const car_loader_source *source, const car_loader_config *config, car_loader **out);

/* ---- micro-batches, numbered step * MN + number in the step
 * ------------------------------------------------------- */

typedef struct car_batches {
    car_loader_source source;
    car_split split;
    int micro_batches, batch;
    car_order *order;    /* NULL: samples in their own order */
    int64_t epoch_steps; /* INT64_MAX if endless */
    int64_t spread;      /* spread this many samples evenly over the split; 0: take consecutive ones */
    int64_t most_steps;  /* later steps would overflow sample positions */
    atomic_bool stop;    /* no more micro-batches are wanted */
} car_batches;

/* What one thread needs to read. */
typedef struct car_batch_reader {
    car_reader *reader;
    int64_t *samples; /* sample numbers of a micro-batch */
    struct car_batch_reader *next;
} car_batch_reader;

car_status car_batches_begin(car_batches *batches, const car_loader_source *source, const car_loader_config *config);
void car_batches_end(car_batches *batches); /* a zeroed struct is allowed */

car_status car_batches_create_reader(const car_batches *batches, car_batch_reader **out);
void car_batches_destroy_reader(const car_batches *batches, car_batch_reader *reader);

/* Reads a whole micro-batch. Once `stop` is set it returns early, with an incomplete result. */
car_status car_batches_read(car_batches *batches, car_batch_reader *reader, int64_t number, void *inputs,
                            int32_t *labels);

#endif
