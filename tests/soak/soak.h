/* What the parts of the soak share. */
#ifndef CAR_TESTS_SOAK_H
#define CAR_TESTS_SOAK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

typedef struct dice {
    uint64_t key, rolls;
} dice;

static inline int roll(dice *d, int from, int to) {
    return from + (int)(car_random_u64(d->key, d->rolls++) % (uint64_t)(to - from + 1));
}

static inline bool one_in(dice *d, int chances) {
    return roll(d, 1, chances) == 1;
}

/* ranks.c: a run over ranks that are threads, with trouble. Prints a line before and one after; whether all was well. Whatever
 * goes wrong within a run that should come to its end ends the program. */
bool soak_ranks(uint64_t seed);

#endif
