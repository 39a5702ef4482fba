/* The inside of a cut, for the trainer, which copies stored layouts. */
#ifndef CAR_ENGINE_CUT_INTERNAL_H
#define CAR_ENGINE_CUT_INTERNAL_H

#include "carousel/cut.h"

/* Stored layout, car_program_param_bytes long; NULL if the cut has not got this part of the parameter. */
float *car_cut_data(car_cut *cut, car_cut_part part, int param);

#endif
