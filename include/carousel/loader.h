/* The loader: micro-batches, read ahead of training by threads of its own.
 *
 * Order: every epoch is a permutation of the samples that depends on the seed and the epoch alone. Step t of an epoch
 * takes its samples t*MN*B .. (t+1)*MN*B - 1, micro-batch m of the step the m-th slice of B of them. So the global
 * batches are the same under every placement and any number of threads. What is left at the end of an epoch, less than
 * a global batch, is not trained on in that epoch. */
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
    int micro_batches, batch; /* of a step, MN (evaluation: 1), and samples of one, B */
    bool sequential;          /* in the order of the samples, every epoch alike; evaluation always is */
    bool evenly;   /* evaluation: if `steps` are fewer than all, their samples are spread over all there are */
    uint64_t seed; /* of the order */
    int threads;   /* that read ahead; 0: none, whoever takes a batch reads it */
    int depth;     /* micro-batches in memory, unless more are taken at once; 0: micro_batches + threads */
    int64_t first_step, steps; /* of the run: nothing before, or from `steps` on, is read ahead */
    const bool *wanted;        /* [micro_batches]: which of a step are read ahead; NULL: all. Must outlive the loader */
} car_loader_config;

car_loader_config car_loader_config_default(void); /* training, 1 micro-batch of 1 sample, shuffled, 1 thread */

/* CAR_ERROR_ARGUMENT if the split has fewer samples than a global batch, or none to evaluate on. The dataset must
 * outlive the loader. */
car_status car_loader_create(car_dataset *dataset, const car_loader_config *config, car_loader **out);
void car_loader_destroy(car_loader *loader);

/* Steps of one epoch: whole global batches in training; in evaluation the last one may be partial, its missing
 * samples have the label -1. INT64_MAX if the dataset is endless. */
int64_t car_loader_epoch_steps(const car_loader *loader);

/* One micro-batch: [batch, ...] inputs and labels, as car_reader_sample writes them. Waits until it is there. May be
 * called from any thread, for several micro-batches at once and in any order; what was not read ahead is read by the
 * caller. To be given back as soon as it was used. */
car_status car_loader_take(car_loader *loader, int64_t step, int micro_batch, const void **inputs,
                           const int32_t **labels);
void car_loader_give_back(car_loader *loader, int64_t step, int micro_batch);

/* Seconds that callers of car_loader_take waited or read themselves, in all. */
double car_loader_waited(const car_loader *loader);
size_t car_loader_bytes(const car_loader *loader); /* of the micro-batches in memory */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
