/* See bucket.h. */
#include "transport/bucket.h"

#include <math.h>

void car_bucket_set(car_bucket *bucket, double rate, double depth, double debt) {
    bucket->rate = rate;
    bucket->depth = depth;
    bucket->debt = debt;
}

double car_bucket_ready(const car_bucket *bucket) {
    return bucket->rate > 0 ? bucket->free : -INFINITY;
}

void car_bucket_take(car_bucket *bucket, double bytes, double now) {
    if (bucket->rate > 0) {
        double level = fmax(bucket->free, now - bucket->depth);
        bucket->free = fmin(level + bytes / bucket->rate, now + bucket->debt);
    }
}
