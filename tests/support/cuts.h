/* Cuts with values that a key decides, for tests of what stores them. */
#ifndef CAR_TESTS_CUTS_H
#define CAR_TESTS_CUTS_H

#include "carousel/cut.h"
#include "support/rig.h"

/* Any bit pattern that a float can have, the odd ones among them: denormals, NaNs, minus zero. To be freed. */
float *car_cuts_values(const car_rig *rig, car_cut_part part, int param, uint64_t key, size_t *bytes);
/* Creates a cut with those values. */
car_cut *car_cuts_make(const car_rig *rig, bool previous, int states, uint64_t key);
void car_cuts_fill(const car_rig *rig, car_cut *cut, uint64_t key);
/* Whether this part of all parameters, where there is one, has the values of the key, to the bit. */
bool car_cuts_part_is(const car_rig *rig, const car_cut *cut, car_cut_part part, uint64_t key);
bool car_cuts_is(const car_rig *rig, const car_cut *cut, uint64_t key); /* all parts */

#endif
