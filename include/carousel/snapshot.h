/* A snapshot: all that the training after step t depends on, at one point of its life.
 *
 * The weights after t steps with the running statistics, those one version older where the rule uses
 * them, the state of the optimizer, and a few numbers. A trainer copies each stage as it gets there, so
 * taking a snapshot does not stop the cycle (car_trainer_config.snapshot_every); a checkpoint is a snapshot in files.
 */
#ifndef CAROUSEL_SNAPSHOT_H
#define CAROUSEL_SNAPSHOT_H

#include "carousel/optimizer.h"
#include "carousel/tape.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_snapshot car_snapshot;

typedef enum car_snapshot_part {
    CAR_SNAPSHOT_WEIGHTS,  /* and running statistics */
    CAR_SNAPSHOT_PREVIOUS, /* the same, one version older */
    CAR_SNAPSHOT_STATE_0,  /* of the optimizer, as car_optimizer_state counts them */
    CAR_SNAPSHOT_STATE_1,
    CAR_SNAPSHOT_STATE_2,
    CAR_SNAPSHOT_AVERAGE, /* of the weights: CAR_OPTIMIZER_AVERAGE */
    CAR_SNAPSHOT_PARTS
} car_snapshot_part;

/* The numbers of a snapshot. */
typedef struct car_snapshot_numbers {
    int64_t step;    /* steps made */
    int64_t updates; /* of the optimizer: skipped steps are not among them */
    double norm;     /* of the last step's gradient, if there is clipping under cdp-v2; else NaN */
    int64_t since;   /* of the updates, the first whose gradient a corrected optimizer has seen; not in files: a
                      * checkpoint with that gradient has 0, one without it `updates` */
} car_snapshot_numbers;

/* Room for the parts in the arena, with undefined contents; no step made and no norm. `previous`: with the older
 * version; `states`: 0 to 3 of the optimizer. */
car_status car_snapshot_create(const car_program *program, car_arena *arena, bool previous, int states,
                               car_snapshot **out);
/* The same with the states that an optimizer keeps of each parameter. */
car_status car_snapshot_create_for(const car_program *program, car_arena *arena, bool previous,
                                   const car_optimizer_config *optimizer, car_snapshot **out);
void car_snapshot_destroy(car_snapshot *snapshot);

const car_program *car_snapshot_program(const car_snapshot *snapshot);
car_snapshot_numbers car_snapshot_get_numbers(const car_snapshot *snapshot);
void car_snapshot_set_numbers(car_snapshot *snapshot, const car_snapshot_numbers *numbers);

/* What an optimizer of one's own calls a state; NULL: it is another part, or another optimizer's. */
const char *car_snapshot_state_name(const car_snapshot *snapshot, car_snapshot_part part);

/* Whether the snapshot has this part of a parameter. Running statistics have no state of the optimizer. */
bool car_snapshot_has(const car_snapshot *snapshot, car_snapshot_part part, int param);
/* In canonical layout, car_shape_elements values of the parameter's type: floats, or doubles of stages of one's own. */
car_status car_snapshot_get(const car_snapshot *snapshot, car_snapshot_part part, int param, void *canonical);
car_status car_snapshot_set(car_snapshot *snapshot, car_snapshot_part part, int param, const void *canonical);
/* Copies the weights of all parameters out of the snapshot, or into it. */
car_status car_snapshot_get_weights(const car_snapshot *snapshot, car_weights *weights);
car_status car_snapshot_set_weights(car_snapshot *snapshot, const car_weights *weights);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
