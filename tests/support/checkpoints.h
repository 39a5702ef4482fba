/* A rig with a snapshot of its state, and a directory where that is saved. */
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
    car_scratch_path directory; /* in the other */
    car_snapshot *snapshot;
} car_checkpoints;

/* For the set-up of a cmocka test; *state is a car_checkpoints. The snapshot has a previous version and so many states of the
 * optimizer. */
int car_checkpoints_set_up(void **state, car_kernels kernels, int states, const char *directory);
int car_checkpoints_tear_down(void **state); /* nothing may be left of what the context gave */

/* Saves the snapshot as that of this step. */
car_status car_checkpoints_try(const car_checkpoints *c, int64_t step, int keep, const char *run);
/* A checkpoint of this step, with the step as the key of its values; a failure ends the test. */
void car_checkpoints_write(const car_checkpoints *c, int64_t step, int keep, const char *run);
/* The checkpoint of this step is sound, and has the values of the key. */
void car_checkpoints_expect(const car_checkpoints *c, int64_t step, uint64_t key);
/* Which step is the newest there. */
int64_t car_checkpoints_newest(const car_checkpoints *c);

#endif
