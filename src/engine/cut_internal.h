/* The inside of a cut, for the trainer, which copies stored layouts. */
#ifndef CAR_ENGINE_CUT_INTERNAL_H
#define CAR_ENGINE_CUT_INTERNAL_H

#include "carousel/cut.h"

/* Room for what an evaluation is of: the weights, and their average if the optimizer keeps one. */
car_status car_cut_create_evaluated(const car_program *program, car_arena *arena, const car_optimizer_config *optimizer,
                                    car_cut **out);
/* Stored layout, car_program_param_bytes long; NULL if the cut has not got this part of the parameter. */
float *car_cut_data(car_cut *cut, car_cut_part part, int param);

#endif
