/* The loader: micro-batches of a dataset, read ahead of training by its own threads.
 *
 * Each epoch is a permutation of the samples that depends on the seed and the epoch alone. Step t of an epoch takes
 * samples t*MN*B .. (t+1)*MN*B - 1 of it, and micro-batch m of the step the m-th slice of B. So the global batches
 * are the same under every placement and for any number of threads. The rest of an epoch, less than a global batch,
 * is not used in that epoch. */
#ifndef CAROUSEL_LOADER_H
#define CAROUSEL_LOADER_H

#include <stdbool.h>

#include "carousel/data.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_loader car_loader;

typedef struct car_loader_config {
    car_split split;
    int micro_batches, batch; /* MN micro-batches in a step (evaluation: 1), of B samples each */
    bool sequential;          /* in the order of the samples, the same in each epoch; evaluation always is */
    /* Evaluation: if `steps` do not cover all samples, take samples spread evenly over the split. */
    bool evenly;
    uint64_t seed; /* of the shuffling */
    int threads;   /* threads that read ahead; 0: whoever takes a micro-batch reads it */
    int depth;     /* micro-batches kept in memory, unless more are taken at once; 0: micro_batches + threads */
    int64_t first_step, steps; /* of the run: steps before first_step, and from `steps` on, are not read ahead */
    /* [micro_batches]: which micro-batches of a step to read ahead; NULL: all. Must outlive the loader. */
    const bool *wanted;
} car_loader_config;

/* Training, 1 micro-batch of 1 sample, shuffled, 1 thread. */
car_loader_config car_loader_config_default(void);

/* The dataset must outlive the loader. CAR_ERROR_ARGUMENT if the split has fewer samples than a global batch, or no
 * samples for evaluation. */
car_status car_loader_create(car_dataset *dataset, const car_loader_config *config, car_loader **out);
void car_loader_destroy(car_loader *loader);

/* Steps per epoch. Training uses whole global batches; in evaluation the last one may be partial, and missing
 * samples have the label -1. INT64_MAX if the dataset is endless. */
int64_t car_loader_epoch_steps(const car_loader *loader);

/* Takes a micro-batch: [batch, ...] inputs and labels, as car_reader_sample writes them. Waits until it has been
 * read; the caller reads it if it was not read ahead. Any thread may call this, for several micro-batches at once
 * and in any order. Give the micro-batch back as soon as it has been used. */
car_status car_loader_take(car_loader *loader, int64_t step, int micro_batch, const void **inputs,
                           const int32_t **labels);
/* Gives back a micro-batch of car_loader_take. */
void car_loader_give_back(car_loader *loader, int64_t step, int micro_batch);

/* Seconds that callers of car_loader_take have waited or read, in all. */
double car_loader_waited(const car_loader *loader);
size_t car_loader_bytes(const car_loader *loader); /* of the micro-batches in memory */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
