/* Runs of the toy stages (toy_stages.h): ranks as threads of one process, and what they have found. */
#ifndef CAR_TESTS_TOY_RUN_H
#define CAR_TESTS_TOY_RUN_H

#include "engine/thread_ranks.h"
#include "engine/toy_stages.h"

enum { CAR_TOY_MOST = CAR_TOY_SIZE * (CAR_TOY_MOST_STAGES + 1), CAR_TOY_SEED = 3, CAR_TOY_RUN = 3 };

/* One rank of a run. */
typedef struct car_toy_run {
    car_toy_config config;
    car_plan_config plan;
    int threads;
    bool asks;  /* for loss and gradient on the way */
    bool clips; /* and skips what is not finite */
    bool skips; /* the same, without clipping */
    car_hub *hub;
    int rank;
    /* Found. */
    int count;
    int64_t steps; /* after the questions */
    int skipped;
    double start[CAR_TOY_MOST], end[CAR_TOY_MOST], gradient[CAR_TOY_MOST], loss, evaluated, serial_loss,
        serial[CAR_TOY_MOST];
} car_toy_run;

car_trainer_config car_toy_configure(const car_toy *toy, int threads);
/* In one process without messages. */
car_toy_run car_toy_shared(car_rule rule, int workers, int stages, int threads, int segments);
/* All ranks of one process; the first one's findings are `m`'s, and all must have found the same. */
void car_toy_train(car_toy_run *m);

#endif
