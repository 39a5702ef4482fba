/* Whether a run in one process fits: the memory that it is predicted to need, before any of it is taken. */
#ifndef CAROUSEL_FIT_H
#define CAROUSEL_FIT_H

#include "carousel/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Bytes at the peak of a training. */
typedef struct car_need {
    double activations, weights, gradients, optimizer, workspace;
    double snapshot; /* the copy that checkpoints on the way are written from */
    double tasks;    /* the plan itself: what each worker has to do in a step */
    double planned;  /* of the activations: those of training, without a snapshot at the end */
    bool simulated;  /* `planned` is a prediction; where that would take too long, a bound from below */
} car_need;

/* As car_trainer_create takes it, for a plan of placement shared. Everything but the activations is known to the byte; those
 * are predicted. `program` may be NULL before there is one: without what kernels want it is a little less. `saves`: a snapshot is
 * taken, beside training if config->snapshot_every says so, else at its end. */
car_status car_need_predict(const car_plan *plan, const car_program *program, const car_trainer_config *config,
                            bool saves, car_need *out);
double car_need_total(const car_need *need);
/* Of the tasks alone, before there is a plan: of `workers` lists of micro-batches over `stages` stages. */
double car_need_task_bytes(double workers, double stages);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
