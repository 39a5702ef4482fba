/* Whether a run in one process fits into memory: predicts its need before anything is allocated. */
#ifndef CAROUSEL_FIT_H
#define CAROUSEL_FIT_H

#include "carousel/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Peak bytes of a training run, by category. */
typedef struct car_need {
    double activations, weights, gradients, optimizer, workspace;
    double snapshot; /* the copy that checkpoints during training are written from */
    double tasks;    /* the plan itself: the task lists of the workers */
    double planned;  /* activations of training alone, without a snapshot at the end */
    bool simulated;  /* true: `planned` is a prediction. false: that would take too long, and it is a lower bound */
} car_need;

/* Predicts the need of a car_trainer with this configuration and a plan of placement `shared`. All but the
 * activations are exact. `program` may be NULL; the result then lacks the kernels' scratch space. `saves`: a
 * snapshot is taken, during training if config->snapshot_every is set, else at its end. */
car_status car_need_predict(const car_plan *plan, const car_program *program, const car_trainer_config *config,
                            bool saves, car_need *out);
/* The sum of all categories. */
double car_need_total(const car_need *need);
/* The `tasks` part alone, before there is a plan: for `workers` lists over `stages` stages. */
double car_need_task_bytes(double workers, double stages);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
