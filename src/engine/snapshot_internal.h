/* Functions of snapshots that only the engine calls, because they use the stored layout. */
#ifndef CAR_ENGINE_SNAPSHOT_INTERNAL_H
#define CAR_ENGINE_SNAPSHOT_INTERNAL_H

#include "carousel/snapshot.h"

/* Creates a snapshot for evaluations: the weights, and their average if the optimizer keeps one. */
car_status car_snapshot_create_evaluated(const car_program *program, car_arena *arena,
                                         const car_optimizer_config *optimizer, car_snapshot **out);
/* A part of a parameter in stored layout, car_program_param_bytes long; NULL if the snapshot does not have it. */
float *car_snapshot_data(const car_snapshot *snapshot, car_snapshot_part part, int param);

#endif
