/* A cut: all that the training after step t depends on, at one point of its life.
 *
 * The weights after t steps with the running statistics, those one version older where the rule uses
 * them, the state of the optimizer, and a few numbers. A trainer copies each stage as it gets there, so
 * taking a cut does not stop the cycle (car_trainer_config.cut); a checkpoint is a cut in files. */
#ifndef CAROUSEL_CUT_H
#define CAROUSEL_CUT_H

#include "carousel/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_cut car_cut;

typedef enum car_cut_part {
    CAR_CUT_WEIGHTS,  /* and running statistics */
    CAR_CUT_PREVIOUS, /* the same, one version older */
    CAR_CUT_STATE_0,  /* of the optimizer, as car_optimizer_state counts them */
    CAR_CUT_STATE_1,
    CAR_CUT_STATE_2,
    CAR_CUT_AVERAGE, /* of the weights: CAR_OPTIMIZER_AVERAGE */
    CAR_CUT_PARTS
} car_cut_part;

/* The numbers of a cut. */
typedef struct car_cut_numbers {
    int64_t step;    /* steps made */
    int64_t updates; /* of the optimizer: skipped steps are not among them */
    double norm;     /* of the last step's gradient, if there is clipping under cdp-v2; else NaN */
    int64_t since;   /* of the updates, the first whose gradient a corrected optimizer has seen; not in files: a
                      * checkpoint with that gradient has 0, one without it `updates` */
} car_cut_numbers;

/* Room for the parts in the arena, with undefined contents; no step made and no norm. `previous`: with the older version; `states`: 0 to 3 of the optimizer. */
car_status car_cut_create(const car_program *program, car_arena *arena, bool previous, int states, car_cut **out);
/* The same with the states that an optimizer keeps of each parameter. */
car_status car_cut_create_for(const car_program *program, car_arena *arena, bool previous,
                              const car_optimizer_config *optimizer, car_cut **out);
void car_cut_destroy(car_cut *cut);

const car_program *car_cut_program(const car_cut *cut);
car_cut_numbers car_cut_get_numbers(const car_cut *cut);
void car_cut_set_numbers(car_cut *cut, const car_cut_numbers *numbers);

/* Whether the cut has this part of a parameter. Running statistics have no state of the optimizer. */
bool car_cut_has(const car_cut *cut, car_cut_part part, int param);
/* In canonical layout, car_shape_elements floats. */
car_status car_cut_get(const car_cut *cut, car_cut_part part, int param, float *canonical);
car_status car_cut_set(car_cut *cut, car_cut_part part, int param, const float *canonical);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
