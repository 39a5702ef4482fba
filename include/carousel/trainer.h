/* The trainer: executes a plan of placement `shared` with threads, in one process. It is a rank that has all workers.
 *
 * P threads serve N workers. A task runs when those before it that use the same things are over, and the pacing allows
 * it; there is no barrier. Weights have at most two versions, gradients are summed in ring order in place, an update
 * is made as soon as its sum is complete. The result is the same to the bit for any number of threads. */
#ifndef CAROUSEL_TRAINER_H
#define CAROUSEL_TRAINER_H

#include "carousel/optimizer.h"
#include "carousel/plan.h"
#include "carousel/recorder.h"
#include "carousel/snapshot.h"
#include "carousel/tape.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_trainer car_trainer;

/* Feeds the inputs of one micro-batch (car_tape_feed for each). Called from any thread, for several
 * micro-batches at the same time; what it feeds must depend on step and micro_batch alone. */
typedef car_status (*car_feed_function)(void *user, int64_t step, int micro_batch, car_tape *tape);

typedef struct car_step_report {
    int64_t step;
    double loss; /* mean over workers */
    double lr;
    double gradient_norm; /* of the averaged gradient, if it was computed, else NaN */
    bool skipped;         /* not finite: weights and optimizer were left as they were */
    double when;          /* it ended, in seconds of a monotonic clock; over ranks reports come later than that */
} car_step_report;

/* Called once for each step, in order, from whichever thread ended it, never twice at once. Must be short. */
typedef void (*car_report_function)(void *user, const car_step_report *report);

/* Called when a snapshot is complete, from any thread of the rank. Training goes on and does not touch the snapshot
 * until car_trainer_return_snapshot, which may be called in here. Must be short: hand the snapshot to another thread
 * to write it. If the next snapshot is due before it is returned, the updates of that step wait. */
typedef void (*car_snapshot_function)(void *user, const car_snapshot *snapshot);

/* A thread to hand snapshots to: it calls `take` for one after the other, which has to give each back. Failures in
 * `take` are its own: the context's error is not touched. */
typedef struct car_snapshot_thread car_snapshot_thread;
car_status car_snapshot_thread_create(car_context *context, car_snapshot_function take, void *user,
                                      car_snapshot_thread **out);
void car_snapshot_thread_hand_over(
    void *thread, const car_snapshot *snapshot); /* a car_snapshot_function; `thread` is a car_snapshot_thread */
void car_snapshot_thread_wait(car_snapshot_thread *thread); /* until what was handed over is taken; NULL: not at all */
void car_snapshot_thread_destroy(car_snapshot_thread *thread); /* waits, too */

enum { CAR_TRAINER_MOST_SKIPPED = 10 }; /* steps in a row */

/* Whether ranks pace what they send to each other; see docs/ranks.md. */
typedef enum car_link_pacing {
    CAR_LINKS_PACED_BETWEEN_MACHINES, /* where there are ranks on several */
    CAR_LINKS_PACED,
    CAR_LINKS_UNPACED
} car_link_pacing;
car_status car_link_pacing_find(car_context *context, const char *name, car_link_pacing *out); /* "auto", "on", "off" */

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
    bool unpaced; /* no pacing: to see what it is worth */
    car_link_pacing link_pacing;
    size_t shared_update_bytes; /* updates of so many bytes of weights are shared with idle threads; 0: 4 MiB */
    double step_seconds;     /* for benches of ranks: minimum seconds a worker-step takes; the rest is slept; 0 = off */
    double step_jitter;      /* the same: a task's share of them varies at random by this part of it, up or down */
    double watchdog_seconds; /* after so long without progress the state of all workers is logged as an error; 0: 30 */
    /* Steps from one snapshot to the next, counted from the first step; 0: none are taken. With all that training goes on
     * from, or (unless both are due) with the weights alone. */
    int64_t snapshot_every, weights_every;
    car_snapshot_function on_snapshot;
    void *snapshot_user;
    car_feed_function feed;
    void *feed_user;
    car_report_function report; /* may be NULL */
    void *report_user;
    car_recorder *recorder; /* may be NULL; must outlive the trainer */
} car_trainer_config;

car_trainer_config car_trainer_config_default(void); /* 1 thread, SGD, lr 0.05 */

/* Bytes of workspace that a trainer or a rank takes for each of its threads: what kernels need, and with `adds` room for the
 * gradients of an operation before they are added to a sum. */
size_t car_trainer_thread_bytes(const car_program *program, bool adds);

/* Plan, program and arena must outlive the trainer; the plan's partition must be of the program's graph. */
car_status car_trainer_create(const car_plan *plan, const car_program *program, car_arena *arena,
                              const car_trainer_config *config, car_trainer **out);
void car_trainer_destroy(car_trainer *trainer);

/* Draws the weights; both versions start equal. */
car_status car_trainer_initialize(car_trainer *trainer, uint64_t seed);

/* Runs until `steps` steps have been made in all, counted from the first, or until car_trainer_stop.
 * Ends with the cycle drained: another call goes on from there as if there had been no pause. */
car_status car_trainer_run(car_trainer *trainer, int64_t steps);

/* The same with pauses: rank.h. */
struct car_rank_loop;
car_status car_trainer_drive(car_trainer *trainer, const struct car_rank_loop *loop);

/* Makes car_trainer_run end soon, now and in every later call. No step begins any more. A step whose updates have not
 * begun is dropped; one that has updated some weights is finished, which takes less than half a step: all its forwards
 * are done. May be called from a signal handler. */
void car_trainer_stop(car_trainer *trainer);

/* Between runs: steps made so far, and the weights after them. */
int64_t car_trainer_steps(const car_trainer *trainer);
car_weights *car_trainer_weights(car_trainer *trainer);
car_weights *car_trainer_previous_weights(car_trainer *trainer); /* one version older; the same if there is only one */
car_optimizer *car_trainer_optimizer(car_trainer *trainer);

/* Gives back the snapshot that on_snapshot was called with. From any thread. */
void car_trainer_return_snapshot(car_trainer *trainer);

/* Between runs. A snapshot with the parts that this trainer has; a copy of its state; and the state put back, after
 * which the trainer goes on as the one did that the snapshot was taken from. Without the previous version those that
 * are stale use the newest in the first step; without a state of the optimizer the trainer's own stays. */
car_status car_trainer_create_snapshot(const car_trainer *trainer, car_snapshot **out);
car_status car_trainer_take_snapshot(car_trainer *trainer, car_snapshot *snapshot);
car_status car_trainer_restore(car_trainer *trainer, car_snapshot *snapshot);

/* Where the threads' time went, over all runs, in seconds summed over threads. */
typedef struct car_trainer_times {
    double wall, tasks, waiting, choosing; /* choosing: everything else in the executor */
    int64_t helped;                        /* chunks of updates made by threads other than the updating one */
} car_trainer_times;
car_trainer_times car_trainer_time(const car_trainer *trainer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
