/* A second simulator of self-timed execution, as simple as possible: it stores the times of all tasks of a run and
 * evaluates each condition by its definition. For small plans. */
#ifndef CAR_TESTS_PLAIN_SIMULATOR_H
#define CAR_TESTS_PLAIN_SIMULATOR_H

#include "carousel/predict.h"

/* Computes all of car_simulation except device_peak. config->steps must be set. Ends the test if memory runs out. */
car_simulation car_plain_simulate(const car_plan *plan, const car_simulation_config *config);

#endif
