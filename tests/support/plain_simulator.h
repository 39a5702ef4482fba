/* A second simulator of self-timed execution, as plain as can be: it keeps the times of all tasks of a run and asks for
 * every condition anew, by its definition. For small plans. */
#ifndef CAR_TESTS_PLAIN_SIMULATOR_H
#define CAR_TESTS_PLAIN_SIMULATOR_H

#include "carousel/predict.h"

/* All of car_simulation but device_peak. config->steps must be given. Ends the test if memory runs out. */
car_simulation car_plain_simulate(const car_plan *plan, const car_simulation_config *config);

#endif
