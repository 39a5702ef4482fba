/* The loop that runs all steps, with pauses between them. */
#include "engine/rank_internal.h"

/* The step of the next pause: a multiple of `every`, or the end. */
static int64_t next_stop(int64_t now, int64_t every, int64_t steps) {
    int64_t next = every > 0 ? (now / every + 1) * every : steps;
    return next < steps ? next : steps;
}

car_status car_rank_drive(car_rank *rank, const car_rank_loop *loop) {
    CAR_REQUIRE(NULL, rank);
    CAR_REQUIRE(rank->context, loop);
    bool ends = false;
    car_status status = CAR_OK;
    if (loop->pause_first && loop->pause) {
        CAR_TRY(loop->pause(loop->user, &ends));
    }
    while (car_rank_steps(rank) < loop->steps && !ends) {
        int64_t stop = next_stop(car_rank_steps(rank), loop->every, loop->steps);
        if (loop->begin) {
            loop->begin(loop->user);
        }
        CAR_TRY(car_rank_run(rank, stop));
        if (loop->end) {
            CAR_TRY(loop->end(loop->user));
        }
        ends = car_rank_steps(rank) < stop || stop == loop->steps; /* it was stopped, or all steps are made */
        if (!ends && loop->pause) {
            CAR_TRY(loop->pause(loop->user, &ends));
        }
    }
done:
    return status;
}

bool car_rank_feeds(const car_rank *rank, int worker) {
    for (int64_t step = 0; rank && rank->feeds && step <= rank->workers;
         step++) { /* in a grid, a worker's micro-batches change ranks from step to step */
        if (car_rank_has(rank, step, worker, rank->first_stage)) {
            return true;
        }
    }
    return false;
}
