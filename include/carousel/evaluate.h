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
        top5;      /* shares of rows whose label is the best, or among the best five; of tokens: next-token accuracy */
    int64_t rows;  /* samples, or tokens; those with a negative label do not count */
    double metric; /* of one's own; 0 without */
} car_evaluation;

/* Runs `batches` micro-batches forward on `threads` threads; `feed` is called with step = the batch's number and
 * worker 0. The result does not depend on the number of threads. CAR_ERROR_ARGUMENT for a label that is no class. */
car_status car_evaluate(const car_program *program, car_arena *arena, const car_weights *weights, int threads,
                        int64_t batches, car_feed_function feed, void *feed_user, car_evaluation *out);

/* A metric of one's own, of one micro-batch whose forward is done. Called from any thread, for several at once. It
 * adds to *sum and *weight, which begin at 0; the evaluation's metric is the sum over the weight, of all micro-batches
 * in order. */
typedef struct car_metric_io {
    const void *user;
    int64_t batch;         /* which micro-batch */
    int64_t rows, classes; /* samples, or tokens */
    const float *logits;   /* [rows, classes] */
    const int32_t *labels; /* [rows]; negative: the row does not count */
    double *sum, *weight;
    car_context *context; /* for car_callback_fail */
} car_metric_io;
typedef car_status (*car_metric_function)(const car_metric_io *io);

typedef struct car_evaluate_config {
    int threads;
    int64_t batches;
    car_feed_function feed;
    void *feed_user;
    /* How often each label was answered with each class: counts[label * classes + answer], which is added to. The answer is
     * the class with the largest logit, the first of several; rows that have none (not a number) count as class 0. NULL:
     * nobody wants to know. */
    int64_t *counts;
    car_metric_function metric; /* NULL: none. CAR_ERROR_UNSUPPORTED where the head never has all logits at once */
    const void *metric_user;
} car_evaluate_config;

car_status car_evaluate_with(const car_program *program, car_arena *arena, const car_weights *weights,
                             const car_evaluate_config *config, car_evaluation *out);

/* SHA-256 over all parameters in canonical layout, in the graph's order; `text` gets 65 characters. */
car_status car_weights_digest(const car_weights *weights, char *text);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
