/* A feeder: micro-batches of a dataset for a graph, in training and in evaluations.
 *
 * It knows which inputs of the graph samples and labels are for, and has the loader read them ahead. */
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
    int workers, accumulate; /* a step has workers * accumulate micro-batches; 0: 1 */
    int threads;             /* that read ahead; 0: none, whoever wants a micro-batch reads it */
    bool sequential;         /* in the order of the samples; else shuffled */
    uint64_t seed;           /* of the order */
} car_feeder_config;

/* CAR_ERROR_SHAPE, with the sizes, if the graph has no inputs that the dataset's samples fit. The graph and the
 * dataset must outlive the feeder. */
car_status car_feeder_create(const car_graph *graph, car_dataset *dataset, const car_feeder_config *config,
                             car_feeder **out);
void car_feeder_destroy(car_feeder *feeder);

/* Fills in what the shape of a model leaves open (zero) and its data, KIND:PATH, decides: classes, the size of small images, the
 * vocabulary of the tokenizer beside a file of tokens. What stays zero is the model's own. */
car_status car_feeder_find_sizes(car_context *context, const char *model, const char *data, car_model_config *shape);

/* Steps of an epoch; 0: the data is endless, or less than one step. */
int64_t car_feeder_epoch_steps(const car_feeder *feeder);

/* Begins to read ahead, for steps first_step to steps - 1; over ranks only what `rank` takes (else NULL). Once. */
car_status car_feeder_start(car_feeder *feeder, const car_rank *rank, int64_t first_step, int64_t steps);
/* A car_feed_function; `user` is a car_feeder that was started. */
car_status car_feeder_feed(void *user, int64_t step, int micro_batch, car_tape *tape);
/* Seconds that callers waited for data, and the bytes of what is read ahead. */
double car_feeder_waited(const car_feeder *feeder);
size_t car_feeder_bytes(const car_feeder *feeder);

typedef struct car_feeder_evaluation {
    int threads;
    int64_t batches; /* spread over the samples to evaluate on; 0: all (endless data: 8) */
    int64_t *counts; /* and `metric`: see car_evaluate_config */
    car_metric_function metric;
    const void *metric_user;
    bool (*cancelled)(
        void *user); /* asked before each micro-batch; then it ends early, with CAR_ERROR_IO. NULL: never */
    void *cancelled_user;
} car_feeder_evaluation;

/* Evaluates weights on the samples that are not trained on. One at a time. */
car_status car_feeder_evaluate(car_feeder *feeder, const car_program *program, car_arena *arena,
                               const car_weights *weights, const car_feeder_evaluation *how, car_evaluation *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
