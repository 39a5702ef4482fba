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
        top5;     /* shares of rows whose label is the best, or among the best five; of tokens: next-token accuracy */
    int64_t rows; /* samples, or tokens; those with a negative label do not count */
} car_evaluation;

/* Runs `batches` micro-batches forward on `threads` threads; `feed` is called with step = the batch's number and
 * worker 0. The result does not depend on the number of threads. CAR_ERROR_ARGUMENT for a label that is no class. */
car_status car_evaluate(const car_program *program, car_arena *arena, const car_weights *weights, int threads,
                        int64_t batches, car_feed_function feed, void *feed_user, car_evaluation *out);

/* The same, and how often each label was answered with each class: counts[label * classes + answer], which is added to.
 * The answer is the class with the largest logit, the first of several; rows that have none (not a number) count as
 * class 0. `counts` may be NULL. */
car_status car_evaluate_classes(const car_program *program, car_arena *arena, const car_weights *weights, int threads,
                                int64_t batches, car_feed_function feed, void *feed_user, int64_t *counts,
                                car_evaluation *out);

/* SHA-256 over all parameters in canonical layout, in the graph's order; `text` gets 65 characters. */
car_status car_weights_digest(const car_weights *weights, char *text);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
