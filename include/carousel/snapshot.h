/* A snapshot: the state of a training run after step t.
 *
 * It contains the weights with running statistics, the previous version where the rule uses it, the optimizer's
 * state, and a few numbers. A trainer copies each stage as the cycle reaches it, so taking a snapshot does not stop
 * training (car_trainer_config.snapshot_every). A checkpoint is a snapshot in files. */
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
    CAR_SNAPSHOT_WEIGHTS,  /* with running statistics */
    CAR_SNAPSHOT_PREVIOUS, /* the same, one version older */
    CAR_SNAPSHOT_STATE_0,  /* of the optimizer, numbered as in car_optimizer_state */
    CAR_SNAPSHOT_STATE_1,
    CAR_SNAPSHOT_STATE_2,
    CAR_SNAPSHOT_AVERAGE, /* moving average of the weights: CAR_OPTIMIZER_AVERAGE */
    CAR_SNAPSHOT_PARTS
} car_snapshot_part;

/* The scalar part of the state. */
typedef struct car_snapshot_numbers {
    int64_t step;    /* steps made */
    int64_t updates; /* optimizer updates; skipped steps do not count */
    double norm;     /* gradient norm of the last step if cdp-v2 clips; else NaN */
    /* The first update whose gradient a corrected optimizer has seen. Not in files: a checkpoint that has that
     * gradient gives 0, one without it `updates`. */
    int64_t since;
    bool averaged; /* the moving average has begun, whatever `updates` says; not in files */
} car_snapshot_numbers;

/* Allocates a snapshot in the arena, with undefined contents, step 0 and no norm. `previous`: with the older
 * version; `states`: number of optimizer states, 0 to 3. */
car_status car_snapshot_create(const car_program *program, car_arena *arena, bool previous, int states,
                               car_snapshot **out);
/* The same with the states that an optimizer keeps for each parameter. */
car_status car_snapshot_create_for(const car_program *program, car_arena *arena, bool previous,
                                   const car_optimizer_config *optimizer, car_snapshot **out);
void car_snapshot_destroy(car_snapshot *snapshot);

const car_program *car_snapshot_program(const car_snapshot *snapshot);
car_snapshot_numbers car_snapshot_get_numbers(const car_snapshot *snapshot);
void car_snapshot_set_numbers(car_snapshot *snapshot, const car_snapshot_numbers *numbers);

/* The name that a user-defined optimizer gave to a state; NULL for other parts and other optimizers. */
const char *car_snapshot_state_name(const car_snapshot *snapshot, car_snapshot_part part);

/* Whether the snapshot has this part of a parameter. Running statistics have no optimizer state. */
bool car_snapshot_has(const car_snapshot *snapshot, car_snapshot_part part, int param);
/* Reads a part of a parameter in canonical layout: car_shape_elements values of its type, floats or (in user-defined
 * stages) doubles. */
car_status car_snapshot_get(const car_snapshot *snapshot, car_snapshot_part part, int param, void *canonical);
/* Writes a part of a parameter in the same form. */
car_status car_snapshot_set(car_snapshot *snapshot, car_snapshot_part part, int param, const void *canonical);
/* Copies all weights out of the snapshot. */
car_status car_snapshot_get_weights(const car_snapshot *snapshot, car_weights *weights);
/* Copies all weights into the snapshot. */
car_status car_snapshot_set_weights(car_snapshot *snapshot, const car_weights *weights);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
