/* A rank for each of some threads of this process, which meet at a hub: runs of placements.h, and runs in which a rank is
 * lost, after which all must have ended with an error and given back what they had. */
#ifndef CAR_TESTS_THREAD_RANKS_H
#define CAR_TESTS_THREAD_RANKS_H

#include "engine/placements.h"
#include "transport/local/trouble.h"

enum { CAR_THREAD_RANKS_MOST = 16 };

/* One rank of a case. */
typedef struct car_thread_rank {
    car_hub *hub;
    int rank;
    const car_placement_setting *setting;
    const char *model;
    car_rule rule;
    bool guarded;
    int64_t stop_step; /* CAR_NONE: it is not stopped */
    int stopper;
    /* Of those that are lost: */
    bool feed_fails; /* a worker gets no sample, in the second step */
    double patience; /* the watchdog's seconds */
    /* How it ended: */
    bool good;
    car_status status;
    char error[512];
} car_thread_rank;

/* Runs `function` in a thread for each rank, with a copy of `like`, which gets it back if `out` is not NULL. Whether all were
 * good. `trouble` may be NULL; `struck` too, see car_hub_was_struck. */
bool car_thread_ranks_run(int ranks, const car_thread_rank *like, const car_trouble *trouble, void *(*function)(void *),
                          car_thread_rank *out, bool *struck);

/* car_placement_run, or _stop if there is a step to stop at. */
bool car_thread_ranks_train(const car_thread_rank *like, const car_trouble *trouble);

/* A run that loses a rank, or a sample. Whether, if it did, all ranks ended with CAR_ERROR_IO and one of them said why, and if
 * it came to its end before, all ended well; in both cases nothing may be left in an arena. What is wrong otherwise is
 * printed. `ended` gets all ranks, if it is not NULL. */
bool car_thread_ranks_lose(const car_thread_rank *like, const car_trouble *trouble, car_thread_rank *ended);

#endif
