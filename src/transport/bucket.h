/* A token bucket: limits the mean rate of a link, and how much leaves at once.
 *
 *   level   tokens are bytes; they come at the rate, up to `depth`
 *   send    a message may leave while the level is not below 0, and takes all its bytes. If that makes the level
 *           negative, the next message waits until the debt is paid
 *
 * The level is stored as the time at which it was, or will be, 0. The caller provides all times, so tests can use their
 * own. */
#ifndef CAR_TRANSPORT_BUCKET_H
#define CAR_TRANSPORT_BUCKET_H

typedef struct car_bucket {
    double rate;  /* bytes per second; 0 = no limit */
    double depth; /* how many seconds of the rate a quiet link saves up and may send at once */
    double debt;  /* the most seconds that a message waits, however much was sent before it */
    double free;  /* from this time on a message may leave */
} car_bucket;

/* Changes the rate. It does not change the time from which on the next message may leave. */
void car_bucket_set(car_bucket *bucket, double rate, double depth, double debt);
/* From this time on a message may leave. It is at most `debt` seconds after the last message left. */
double car_bucket_ready(const car_bucket *bucket);
/* A message leaves now, whether or not the bucket is ready for it. */
void car_bucket_take(car_bucket *bucket, double bytes, double now);

#endif
