/* The inside of a snapshot, for the trainer, which copies stored layouts. */
#ifndef CAR_ENGINE_SNAPSHOT_INTERNAL_H
#define CAR_ENGINE_SNAPSHOT_INTERNAL_H

#include "carousel/snapshot.h"

/* Room for what an evaluation is of: the weights, and their average if the optimizer keeps one. */
car_status car_snapshot_create_evaluated(const car_program *program, car_arena *arena,
                                         const car_optimizer_config *optimizer, car_snapshot **out);
/* Stored layout, car_program_param_bytes long; NULL if the snapshot has not got this part of the parameter. */
float *car_snapshot_data(car_snapshot *snapshot, car_snapshot_part part, int param);

#endif
