/* Inside the loader: which samples a micro-batch is made of and how they are read (batches.c), apart from when and by
 * whom (loader.c). */
#ifndef CAR_LOADER_INTERNAL_H
#define CAR_LOADER_INTERNAL_H

#include <stdatomic.h>

#include "base/base.h"
#include "carousel/loader.h"
#include "data/order.h"

/* What the loader asks of a dataset: car_loader_create fills it in for real ones, tests with their own. */
typedef struct car_loader_source {
    car_context *context;
    int64_t samples;    /* of the split, or CAR_DATASET_ENDLESS */
    size_t input_bytes; /* of a sample */
    int labels;         /* of a sample */
    car_dataset *dataset;
    car_status (*create_reader)(car_dataset *dataset, car_reader **out);
    void (*destroy_reader)(car_reader *reader);
    car_status (*read)(car_reader *reader, car_split split, int64_t epoch, int64_t sample, void *input,
                       int32_t *labels);
} car_loader_source;

car_status car_loader_create_from(const car_loader_source *source, const car_loader_config *config, car_loader **out);

/* ---- micro-batches, numbered step * MN + its number in the step ------------------------------------------------ */

typedef struct car_batches {
    car_loader_source source;
    car_split split;
    int micro_batches, batch;
    car_order *order;    /* NULL: a position is the number of its sample */
    int64_t epoch_steps; /* INT64_MAX if endless */
    int64_t spread;      /* so many samples are spread over all there are; 0: they follow each other */
    int64_t most_steps;  /* beyond which positions have no number */
    atomic_bool stop;    /* no micro-batch is wanted any more */
} car_batches;

/* What one thread reads with. */
typedef struct car_batch_reader {
    car_reader *reader;
    int64_t *samples; /* the numbers of a micro-batch's */
    struct car_batch_reader *next;
} car_batch_reader;

car_status car_batches_begin(car_batches *batches, const car_loader_source *source, const car_loader_config *config);
void car_batches_end(car_batches *batches); /* also of what is all zero */

car_status car_batches_create_reader(const car_batches *batches, car_batch_reader **out);
void car_batches_destroy_reader(const car_batches *batches, car_batch_reader *reader);

/* Reads a whole micro-batch. After `stop` it returns early, with only some of it read. */
car_status car_batches_read(car_batches *batches, car_batch_reader *reader, int64_t number, void *inputs,
                            int32_t *labels);

#endif
