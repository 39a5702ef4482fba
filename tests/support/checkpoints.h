/* A rig, a snapshot of its state, and a directory to save it in. */
#ifndef CAR_TESTS_CHECKPOINTS_H
#define CAR_TESTS_CHECKPOINTS_H

#include "carousel/checkpoint.h"
#include "support/allocator.h"
#include "support/sample_snapshots.h"
#include "support/scratch.h"

typedef struct car_checkpoints {
    car_checking checking; /* of the rig's context */
    car_rig rig;
    car_scratch scratch;
    car_scratch_path directory; /* inside `scratch` */
    car_snapshot *snapshot;
} car_checkpoints;

/* Set-up of a cmocka test; *state is a car_checkpoints. The snapshot has a previous version and `states` optimizer
 * states. */
int car_checkpoints_set_up(void **state, car_kernels kernels, int states, const char *directory);
int car_checkpoints_tear_down(void **state); /* fails if the context has unreleased memory */

/* Saves the snapshot as that of this step. */
car_status car_checkpoints_try(const car_checkpoints *c, int64_t step, int keep, const char *run);
/* Writes a checkpoint of this step, whose values have the step as key. A failure ends the test. */
void car_checkpoints_write(const car_checkpoints *c, int64_t step, int keep, const char *run);
/* Expects a valid checkpoint of this step with the values of the key. */
void car_checkpoints_expect(const car_checkpoints *c, int64_t step, uint64_t key);
/* The newest step in the directory. */
int64_t car_checkpoints_newest(const car_checkpoints *c);

#endif
