/* The trainer: executes a plan of placement `shared` with threads, in one process. It is a rank that has all workers.
 *
 * P threads serve N workers. A task runs when those before it that use the same things are over, and the pacing allows it;
 * there is no barrier. Weights have at most two versions, gradients are summed in ring order in place, an update is made as
 * soon as its sum is complete. The result is the same to the bit for any number of threads. */
#ifndef CAROUSEL_TRAINER_H
#define CAROUSEL_TRAINER_H

#include "carousel/cut.h"
#include "carousel/optimizer.h"
#include "carousel/plan.h"
#include "carousel/recorder.h"
#include "carousel/tape.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_trainer car_trainer;

/* Feeds the inputs of one micro-batch (car_tape_feed for each). Called from any thread, for several
 * workers at the same time; what it feeds must depend on step and worker alone. */
typedef car_status (*car_feed_function)(void *user, int64_t step, int worker, car_tape *tape);

typedef struct car_step_report {
    int64_t step;
    double loss; /* mean over workers */
    double lr;
    double gradient_norm; /* of the averaged gradient, if it was computed, else NaN */
    bool skipped;         /* not finite: weights and optimizer stayed as they were */
    double when;          /* it ended, in seconds of a monotonic clock; over ranks reports come later than that */
} car_step_report;

/* Called once for each step, in order, from whichever thread ended it, never twice at once. Must be short. */
typedef void (*car_report_function)(void *user, const car_step_report *report);

/* Called when a cut is complete, from any thread of the rank. Training goes on and does not touch the cut until
 * car_trainer_return_cut, which may be called in here. Must be short: hand the cut to another thread to write it. If the next
 * cut is due before it is returned, the updates of that step wait. */
typedef void (*car_cut_function)(void *user, const car_cut *cut);

enum { CAR_TRAINER_MOST_SKIPPED = 10 }; /* steps in a row */

typedef struct car_trainer_config {
    int threads;   /* P */
    uint64_t seed; /* of dropout */
    car_optimizer_config optimizer;
    car_schedule schedule;
    /* Global norm of the averaged gradient; 0: no clipping. Exact under dp, accumulate and cdp-v1; under
     * cdp-v2 the previous step's norm decides, because updates are due before all gradients are there. */
    double clip_norm;
    /* Skips a step whose loss is not finite, or whose gradient is not; under cdp-v2 only if that shows in the highest
     * stage, since others are updated before the lower ones are known. After
     * CAR_TRAINER_MOST_SKIPPED in a row the run ends with CAR_ERROR_NOT_FINITE: weights that stay as they are will not
     * do better. Without it a loss that is not finite ends the run. */
    bool skip_nonfinite;
    bool unpaced;               /* for tests: no pacing */
    size_t shared_update_bytes; /* updates of so many bytes of weights are shared with idle threads; 0: 4 MiB */
    double step_seconds;     /* for benches of ranks: minimum seconds a worker-step takes; the rest is slept; 0 = off */
    double watchdog_seconds; /* without progress for so long, the state of all workers is logged as an error; 0: 30 */
    /* Steps from one cut to the next, counted from the first step; 0: none are taken. With all that training goes on
     * from, or (unless both are due) with the weights alone. */
    int64_t cut_every, weights_every;
    car_cut_function on_cut;
    void *cut_user;
    car_feed_function feed;
    void *feed_user;
    car_report_function report; /* may be NULL */
    void *report_user;
    car_recorder *recorder; /* may be NULL; must outlive the trainer */
} car_trainer_config;

car_trainer_config car_trainer_config_default(void); /* 1 thread, SGD, lr 0.05 */

/* Plan, program and arena must outlive the trainer; the plan's partition must be of the program's graph. */
car_status car_trainer_create(const car_plan *plan, const car_program *program, car_arena *arena,
                              const car_trainer_config *config, car_trainer **out);
void car_trainer_destroy(car_trainer *trainer);

/* Draws the weights; both versions start equal. */
car_status car_trainer_initialize(car_trainer *trainer, uint64_t seed);

/* Runs until `steps` steps have been made in all, counted from the first, or until car_trainer_stop.
 * Ends with the cycle drained: a clean cut, from which another call goes on as if nothing had been. */
car_status car_trainer_run(car_trainer *trainer, int64_t steps);

/* Makes car_trainer_run end soon, now and in every later call. No step begins any more. A step whose updates have not
 * begun is dropped; one that has updated some weights is finished, which takes less than half a step: all its forwards are
 * done. May be called from a signal handler. */
void car_trainer_stop(car_trainer *trainer);

/* Between runs: steps made so far, and the weights after them. */
int64_t car_trainer_steps(const car_trainer *trainer);
car_weights *car_trainer_weights(car_trainer *trainer);
car_weights *car_trainer_previous_weights(car_trainer *trainer); /* one version older; the same if there is only one */
car_optimizer *car_trainer_optimizer(car_trainer *trainer);

/* Gives back the cut that on_cut was called with. From any thread. */
void car_trainer_return_cut(car_trainer *trainer);

/* Between runs. A cut with the parts that this trainer has; a copy of its state; and the state put back, after which
 * the trainer goes on as the one did that the cut was taken from. Without the previous version those that are stale use the
 * newest in the first step; without a state of the optimizer the trainer's own stays. */
car_status car_trainer_create_cut(const car_trainer *trainer, car_cut **out);
car_status car_trainer_take_cut(car_trainer *trainer, car_cut *cut);
car_status car_trainer_restore(car_trainer *trainer, car_cut *cut);

/* Where the threads' time went, over all runs, in seconds summed over threads. */
typedef struct car_trainer_times {
    double wall, tasks, waiting, choosing; /* choosing: everything else in the executor */
    int64_t helped;                        /* chunks of updates that were made by threads besides the updating one */
} car_trainer_times;
car_trainer_times car_trainer_time(const car_trainer *trainer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
