/* The trainer: executes a plan of placement `shared` with threads, in one process. It is a rank that has all
 * workers.
 *
 * P threads serve N workers. A task runs when the earlier tasks that use the same resources are done, and pacing
 * allows it; there is no barrier. Weights have at most two versions, gradients are summed in place in ring order,
 * and an update runs as soon as its sum is complete. The result is the same to the bit for any number of threads. */
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
    double gradient_norm; /* of the averaged gradient, if computed; else NaN */
    bool skipped;         /* not finite: weights and optimizer are unchanged */
    double when;          /* when it ended, in seconds of a monotonic clock; over ranks the report comes later */
} car_step_report;

/* Called once for each step, in order and never concurrently, from the thread that ended it. Be quick. */
typedef void (*car_report_function)(void *user, const car_step_report *report);

/* Called when a snapshot is complete, from any thread of the rank. Training continues and does not touch the
 * snapshot until car_trainer_return_snapshot, which may be called in here. Be quick: let another thread write it. If
 * the next snapshot is due before this one is returned, the updates of that step wait. */
typedef void (*car_snapshot_function)(void *user, const car_snapshot *snapshot);

/* A thread that processes snapshots: it calls `take` for one after the other, and `take` must return each. Failures
 * in `take` do not touch the context's error. */
typedef struct car_snapshot_thread car_snapshot_thread;
car_status car_snapshot_thread_create(car_context *context, car_snapshot_function take, void *user,
                                      car_snapshot_thread **out);
/* A car_snapshot_function; `thread` is a car_snapshot_thread. */
void car_snapshot_thread_hand_over(void *thread, const car_snapshot *snapshot);
/* Waits until all snapshots have been taken. NULL is allowed. */
void car_snapshot_thread_wait(car_snapshot_thread *thread);
void car_snapshot_thread_destroy(car_snapshot_thread *thread); /* waits, too */

enum { CAR_TRAINER_MOST_SKIPPED = 10 }; /* steps in a row */

/* Whether ranks pace the messages that they send to each other; see docs/ranks.md. */
typedef enum car_link_pacing {
    CAR_LINKS_PACED_BETWEEN_MACHINES, /* only if ranks are on several machines */
    CAR_LINKS_PACED,
    CAR_LINKS_UNPACED
} car_link_pacing;
car_status car_link_pacing_find(car_context *context, const char *name, car_link_pacing *out); /* "auto", "on", "off" */

typedef struct car_trainer_config {
    int threads;   /* P */
    uint64_t seed; /* of dropout */
    car_optimizer_config optimizer;
    car_schedule schedule;
    /* Clips the global norm of the averaged gradient; 0: no clipping. Exact under dp, accumulate and cdp-v1. Under
     * cdp-v2 the previous step's norm is used, because updates are due before all gradients exist. */
    double clip_norm;
    /* Skips a step whose loss or gradient is not finite. Under cdp-v2 it does so only if that shows in the highest
     * stage, because other stages are updated before the gradients of lower ones are known. After
     * CAR_TRAINER_MOST_SKIPPED in a row the run ends with CAR_ERROR_NOT_FINITE, as unchanged weights will not do
     * better. If false, a loss that is not finite ends the run. */
    bool skip_nonfinite;
    bool unpaced; /* no pacing, to measure its effect */
    car_link_pacing link_pacing;
    /* Idle threads help with updates of at least this many bytes of weights; 0: 4 MiB. */
    size_t shared_update_bytes;
    double step_seconds;     /* for benches of ranks: minimum seconds a worker-step takes; the rest is slept; 0 = off */
    double step_jitter;      /* for benches: varies that time of each task at random by up to this share */
    double watchdog_seconds; /* after this long without progress, log the state of all workers as an error; 0: 30 */
    /* Steps between snapshots, counted from the first step; 0: none. snapshot_every takes the whole training state,
     * weights_every the weights alone (if the other is not due as well). */
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

/* Bytes of workspace for each thread of a trainer or rank: what kernels need and, with `adds`, the gradients of an
 * operation before they are added to a sum. */
size_t car_trainer_thread_bytes(const car_program *program, bool adds);

/* Plan, program and arena must outlive the trainer. The plan's partition must belong to the program's graph. */
car_status car_trainer_create(const car_plan *plan, const car_program *program, car_arena *arena,
                              const car_trainer_config *config, car_trainer **out);
void car_trainer_destroy(car_trainer *trainer);

/* Draws the weights; both versions start equal. */
car_status car_trainer_initialize(car_trainer *trainer, uint64_t seed);

/* Runs until `steps` steps have been made in all, counted from the first, or until car_trainer_stop. Ends with the
 * cycle drained; another call continues as if there had been no pause. */
car_status car_trainer_run(car_trainer *trainer, int64_t steps);

/* The same with pauses, see rank.h. */
struct car_rank_loop;
car_status car_trainer_drive(car_trainer *trainer, const struct car_rank_loop *loop);

/* Makes car_trainer_run end soon, now and in every later call. No new step begins. A step whose updates have not
 * begun is dropped. A step that has updated some weights is finished, which takes less than half a step, since all
 * its forwards are done. May be called from a signal handler. */
void car_trainer_stop(car_trainer *trainer);

/* Between runs: the number of steps made so far, and the weights after them, owned by the trainer. */
int64_t car_trainer_steps(const car_trainer *trainer);
car_weights *car_trainer_weights(car_trainer *trainer);
/* The weights one version older; the same if there is only one. */
car_weights *car_trainer_previous_weights(car_trainer *trainer);
/* The optimizer with its state, owned by the trainer. */
car_optimizer *car_trainer_optimizer(car_trainer *trainer);

/* Gives back the snapshot that on_snapshot received. Any thread may call it. */
void car_trainer_return_snapshot(car_trainer *trainer);

/* Between runs: creates a snapshot with the parts that this trainer has. */
car_status car_trainer_create_snapshot(const car_trainer *trainer, car_snapshot **out);
/* Between runs: copies the training state to a snapshot. */
car_status car_trainer_take_snapshot(car_trainer *trainer, car_snapshot *snapshot);
/* Between runs: restores the state; training then continues like the run that the snapshot came from. Without the
 * previous version, stale micro-batches of the first step use the newest one. Without optimizer state the trainer's
 * own stays. */
car_status car_trainer_restore(car_trainer *trainer, car_snapshot *snapshot);

/* Where the threads' time went, over all runs: seconds, summed over threads. */
typedef struct car_trainer_times {
    double wall, tasks, waiting, choosing; /* choosing: everything else in the executor */
    int64_t helped;                        /* chunks of updates made by helping threads */
} car_trainer_times;
car_trainer_times car_trainer_time(const car_trainer *trainer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
