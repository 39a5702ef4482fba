/* Snapshots with values derived from a key, for tests of storing them. */
#ifndef CAR_TESTS_CUTS_H
#define CAR_TESTS_CUTS_H

#include "carousel/snapshot.h"
#include "support/rig.h"

/* Any bit pattern of a float, including denormals, NaNs and minus zero. The caller frees them. */
float *car_sample_snapshot_values(const car_rig *rig, car_snapshot_part part, int param, uint64_t key, size_t *bytes);
/* Creates a snapshot with those values. */
car_snapshot *car_sample_snapshot_make(const car_rig *rig, bool previous, int states, uint64_t key);
void car_sample_snapshot_fill(const car_rig *rig, car_snapshot *snapshot, uint64_t key);
/* Whether this part of all parameters that have it equals the values of the key, to the bit. */
bool car_sample_snapshot_part_is(const car_rig *rig, const car_snapshot *snapshot, car_snapshot_part part,
                                 uint64_t key);
bool car_sample_snapshot_is(const car_rig *rig, const car_snapshot *snapshot, uint64_t key); /* all parts */

#endif
