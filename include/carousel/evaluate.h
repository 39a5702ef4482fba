/* Evaluation: loss and accuracy of one version of the weights, without training. */
#ifndef CAROUSEL_EVALUATE_H
#define CAROUSEL_EVALUATE_H

#include "carousel/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_evaluation {
    double loss; /* mean over rows */
    double top1,
        /* Shares of rows whose label has the largest logit, or is among the top five. For tokens: next-token
         * accuracy. */
        top5;
    int64_t rows;  /* samples, or tokens; without those that have a negative label */
    double metric; /* result of the user's metric; 0 if there is none */
} car_evaluation;

/* Runs the forwards of `batches` micro-batches on `threads` threads. Calls `feed` with the micro-batch's number as
 * step, and micro_batch 0. The result does not depend on the number of threads. CAR_ERROR_ARGUMENT for a label that
 * is not a class. */
car_status car_evaluate(const car_program *program, car_arena *arena, const car_weights *weights, int threads,
                        int64_t batches, car_feed_function feed, void *feed_user, car_evaluation *out);

/* What a user-defined metric works on: one micro-batch after its forward. The metric adds to *sum and *weight, which
 * start at 0. The result is the total sum over the total weight, added up in the order of micro-batches. */
typedef struct car_metric_io {
    const void *user;
    int64_t batch;         /* number of the micro-batch */
    int64_t rows, classes; /* rows: samples, or tokens */
    const float *logits;   /* [rows, classes] */
    const int32_t *labels; /* [rows]; ignore rows with a negative label */
    double *sum, *weight;
    car_context *context; /* for car_callback_fail */
} car_metric_io;
/* Called from any thread, for several micro-batches at once. */
typedef car_status (*car_metric_function)(const car_metric_io *io);

typedef struct car_evaluate_config {
    int threads;
    int64_t batches;
    car_feed_function feed;
    void *feed_user;
    /* Confusion counts, which are added to: counts[label * classes + answer]. The answer is the class with the
     * largest logit, the first of equals; a row of NaNs counts as class 0. NULL: not counted. */
    int64_t *counts;
    /* NULL: none. CAR_ERROR_UNSUPPORTED for a head that never holds all logits at once. */
    car_metric_function metric;
    const void *metric_user;
} car_evaluate_config;

/* As car_evaluate, with all settings. */
car_status car_evaluate_with(const car_program *program, car_arena *arena, const car_weights *weights,
                             const car_evaluate_config *config, car_evaluation *out);

/* SHA-256 over all parameters in canonical layout, in the graph's order. `text` receives 65 characters. */
car_status car_weights_digest(const car_weights *weights, char *text);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
