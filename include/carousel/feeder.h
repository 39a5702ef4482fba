/* The feeder: supplies a graph with micro-batches of a dataset, for training and evaluation.
 *
 * It matches samples and labels with the graph's inputs, and lets a loader read ahead. */
#ifndef CAROUSEL_FEEDER_H
#define CAROUSEL_FEEDER_H

#include "carousel/evaluate.h"
#include "carousel/loader.h"
#include "carousel/rank.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_feeder car_feeder;

typedef struct car_feeder_config {
    int workers, accumulate; /* a step has workers * accumulate micro-batches; 0 means 1 */
    int threads;             /* threads that read ahead; 0: whoever needs a micro-batch reads it */
    bool sequential;         /* in the order of the samples instead of shuffled */
    uint64_t seed;           /* of the shuffling */
} car_feeder_config;

/* The graph and the dataset must outlive the feeder. CAR_ERROR_SHAPE, with the sizes, if the graph has no inputs
 * that fit the samples. */
car_status car_feeder_create(const car_graph *graph, car_dataset *dataset, const car_feeder_config *config,
                             car_feeder **out);
void car_feeder_destroy(car_feeder *feeder);

/* Fills in sizes of a model that are zero and follow from its data (KIND:PATH): classes, the size of small images,
 * the vocabulary of the tokenizer beside a token file. Fields that stay zero get the model's own values later. */
car_status car_feeder_find_sizes(car_context *context, const char *model, const char *data, car_model_config *shape);

/* Steps per epoch; 0 if the data is endless, or too small for one step. */
int64_t car_feeder_epoch_steps(const car_feeder *feeder);

/* Starts reading ahead, for steps first_step .. steps - 1. Over ranks, pass `rank` to read only its micro-batches;
 * otherwise NULL. Call it once. */
car_status car_feeder_start(car_feeder *feeder, const car_rank *rank, int64_t first_step, int64_t steps);
/* The car_feed_function; `user` is a started car_feeder. */
car_status car_feeder_feed(void *user, int64_t step, int micro_batch, car_tape *tape);
/* Seconds that callers have waited for data, in all. */
double car_feeder_waited(const car_feeder *feeder);
/* Bytes of the micro-batches in memory. */
size_t car_feeder_bytes(const car_feeder *feeder);

/* Zero or NULL selects the value in brackets. */
typedef struct car_feeder_evaluation {
    int threads;     /* (1) */
    int64_t batches; /* how many, spread over the evaluation split (all; 8 of endless data) */
    int64_t *counts; /* `counts` and `metric` as in car_evaluate_config */
    car_metric_function metric;
    const void *metric_user;
    /* Called before each micro-batch; if it returns true, the evaluation ends with CAR_ERROR_IO. NULL: never. */
    bool (*cancelled)(void *user);
    void *cancelled_user;
} car_feeder_evaluation;

/* Evaluates weights on the evaluation split. One evaluation at a time. */
car_status car_feeder_evaluate(car_feeder *feeder, const car_program *program, car_arena *arena,
                               const car_weights *weights, const car_feeder_evaluation *how, car_evaluation *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
