/* A token bucket: what is sent on a link keeps to a rate on the average, and little leaves at once.
 *
 *   level   tokens are bytes; they come at the rate, up to `depth`
 *   send    a message may leave while the level is not below 0, and takes all its bytes: then the next one waits until
 *           the debt is paid
 *
 * The level is kept as the time at which it was, or will be, 0. All times are the caller's, so tests bring their own. */
#ifndef CAR_TRANSPORT_BUCKET_H
#define CAR_TRANSPORT_BUCKET_H

typedef struct car_bucket {
    double rate;  /* bytes a second; 0: no limit */
    double depth; /* seconds of the rate that a quiet link saves up, and may send at once */
    double debt;  /* the longest that a message waits, in seconds, however much was sent before it */
    double free;  /* the time from which on a message may leave */
} car_bucket;

/* Changes the rate. A message that waits keeps the time that it was given. */
void car_bucket_set(car_bucket *bucket, double rate, double depth, double debt);
/* The time from which on a message may leave; at most `debt` seconds after the last one that did. */
double car_bucket_ready(const car_bucket *bucket);
/* A message leaves now, whether or not the bucket is ready for it. */
void car_bucket_take(car_bucket *bucket, double bytes, double now);

#endif
