/* A profile: what the operations of a model cost on this machine, measured. */
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

/* Seconds of every forward and backward: each operation alone, several rounds, the median of them; by one thread, with weights
 * and inputs of its own. `program` may be NULL for the defaults, and so may `progress`. *out is to be released with
 * car_costs_release, and saved with car_costs_save. */
car_status car_costs_measure(const car_graph *graph, const car_program_config *program, car_profile_function progress,
                             void *user, car_costs *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
