/* A profile: the measured cost of a model's operations on this machine. */
#ifndef CAROUSEL_PROFILE_H
#define CAROUSEL_PROFILE_H

#include "carousel/partition.h"
#include "carousel/program.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Called by the measuring thread before each round. */
typedef void (*car_profile_function)(void *user, int round, int rounds);

/* Measures the seconds of each forward and backward: each operation alone, on one thread, the median of several
 * rounds. It uses weights and inputs of its own. `program` and `progress` may be NULL. Release *out with
 * car_costs_release; save it with car_costs_save. */
car_status car_costs_measure(const car_graph *graph, const car_program_config *program, car_profile_function progress,
                             void *user, car_costs *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
