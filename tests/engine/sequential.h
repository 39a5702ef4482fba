/* The sequential trainer: the update rules as docs/design.md defines them, and nothing else.
 *
 * It is what the engine is compared with, so it shares no decision with it: it keeps every version of
 * the weights that there ever was, runs one worker after the other, and works out stages, versions,
 * sums and updates from the definition. What it does share are the kernels, because only equal
 * arithmetic can give equal bits. */
#ifndef CAR_TESTS_SEQUENTIAL_H
#define CAR_TESTS_SEQUENTIAL_H

#include "carousel/trainer.h"

typedef struct car_sequential car_sequential;

typedef struct car_sequential_config {
    car_rule rule;       /* dp, cdp-v1 or cdp-v2; accumulate and stagger are dp */
    int workers;         /* N */
    int accumulate;      /* M; 0: 1 */
    bool by_worker;      /* each worker's own are added first */
    int per_worker;      /* k */
    int freshness_slack; /* cdp-v2 */
    int64_t steps;       /* T */
    const double *lr;    /* of each step */
    car_optimizer_config optimizer;
    double clip_norm; /* 0: none */
    uint64_t seed;    /* of dropout */
    car_feed_function feed;
    void *feed_user;
} car_sequential_config;

/* Program and arena must outlive it. The weights are undefined until the caller has filled theta_0. */
car_status car_sequential_create(const car_program *program, car_arena *arena, const car_sequential_config *config,
                                 car_sequential **out);
void car_sequential_destroy(car_sequential *trainer);

/* All steps. */
car_status car_sequential_run(car_sequential *trainer);

/* theta_t, 0 <= t <= T. */
car_weights *car_sequential_weights(const car_sequential *trainer, int64_t t);
/* Of step t: the mean over workers; the norm of the averaged gradient. */
double car_sequential_loss(const car_sequential *trainer, int64_t t);
double car_sequential_norm(const car_sequential *trainer, int64_t t);
/* The stage of an operation: floor(S * phi). */
int car_sequential_stage(const car_sequential *trainer, int op);

#endif
