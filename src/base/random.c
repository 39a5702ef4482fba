/* Random numbers as functions of (key, counter). */
#include <math.h>

#include "base/base.h"

static const double two_pi = 6.283185307179586;

double car_random_normal(uint64_t key, uint64_t counter) {
    /* Box-Muller. The first draw is shifted off zero, so that its logarithm is finite. */
    double u = ((double)(car_random_u64(key, 2 * counter) >> 11) + 1.0) * 0x1p-53;
    double v = (double)(car_random_u64(key, 2 * counter + 1) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(two_pi * v);
}

uint64_t car_random_key(uint64_t seed, const char *purpose) {
    uint64_t key = car_random_mix(seed);
    for (const unsigned char *c = (const unsigned char *)purpose; *c; c++) {
        key = car_random_mix(key ^ *c);
    }
    return key;
}
