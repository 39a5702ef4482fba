/* A rank: one participant of a run, a process of MPI or a group of threads.
 *
 * All ranks have the same plan, and each executes the tasks of its own device (device r is rank r). Its threads run
 * any task whose inputs are there; the plan's order decides between tasks that use the same resource. Under the
 * cyclic rules the weights equal those of a trainer with placement `shared`, to the bit. */
#ifndef CAROUSEL_RANK_H
#define CAROUSEL_RANK_H

#include "carousel/snapshot.h"
#include "carousel/trainer.h"
#include "carousel/transport.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_rank car_rank;

/* CAR_ERROR_ARGUMENT unless the transport has as many ranks as the plan needs. */
car_status car_rank_check_size(const car_plan *plan, const car_transport *transport);
/* As car_trainer_create; `threads` is the number of this rank. `report` and `on_snapshot` are called on rank 0 only.
 * snapshot_every and weights_every must be the same on all ranks. */
car_status car_rank_create(const car_plan *plan, const car_program *program, car_arena *arena, car_transport *transport,
                           const car_trainer_config *config, car_rank **out);
void car_rank_destroy(car_rank *rank);

/* Whether this rank needs inputs or labels of that micro-batch of a step. */
bool car_rank_feeds(const car_rank *rank, int micro_batch);

/* Draws the weights. Use the same seed on all ranks. */
car_status car_rank_initialize(car_rank *rank, uint64_t seed);

/* Runs until `steps` steps have been made in all, or until car_rank_stop. All ranks call it with the same number. If
 * one rank fails, end all of them (car_transport_abort), because the others wait for it. */
car_status car_rank_run(car_rank *rank, int64_t steps);
/* A training run with pauses: run, drain the cycle, call back, continue. */
typedef struct car_rank_loop {
    int64_t steps; /* to make in all */
    /* Steps from one pause to the next, counted from the first step; 0: no pauses. There is none at the end. */
    int64_t every;
    bool pause_first; /* also pause before the first step of this call */
    /* Called in a pause on all ranks, e.g. for an evaluation. Setting *ends, to the same value on all ranks, ends
     * the loop. May be NULL. */
    car_status (*pause)(void *user, bool *ends);
    void (*begin)(void *user);     /* before each part of the run; may be NULL */
    car_status (*end)(void *user); /* after each part; may be NULL */
    void *user;
} car_rank_loop;
/* Runs a loop. All ranks call it with the same numbers. */
car_status car_rank_drive(car_rank *rank, const car_rank_loop *loop);

/* Makes all ranks end soon, after the same step, as car_trainer_stop does. Where a rank keeps two versions in one
 * place (zero, grid), one more step is made. May be called on any rank, and from a signal handler. */
void car_rank_stop(car_rank *rank);
int64_t car_rank_steps(const car_rank *rank); /* made so far */

/* Describes where this rank is, what it waits for and what it knows about the others, for a message: several lines,
 * without a final newline. Any thread may call it during a run. Returns the length. */
size_t car_rank_explain(car_rank *rank, char *text, size_t capacity);

/* Between runs, called by all ranks: gathers the training state on rank 0. `snapshot` may be NULL on other ranks.
 * The snapshot's parts decide what is gathered. */
car_status car_rank_gather(car_rank *rank, car_snapshot *snapshot);
/* Between runs, called by all ranks: distributes the snapshot of rank 0 to all. */
car_status car_rank_spread(car_rank *rank, car_snapshot *snapshot);

typedef car_status (*car_rank_work)(void *user);
/* Between runs, called by all ranks: rank 0 runs `work` (evaluating, writing files), while heartbeats tell the
 * others that it is alive. */
car_status car_rank_attend(car_rank *rank, car_rank_work work, void *user);

/* Checks that a setting is the same on all ranks, which all call it with the same `what`. `text` is this rank's
 * value; or "" on rank 0, and elsewhere a description of what differs. CAR_ERROR_ARGUMENT names a rank that differs
 * from rank 0 in `what`. */
car_status car_rank_agree(car_context *context, car_transport *transport, const char *what, const char *text);

/* Between runs, for a rank that has all workers: the current weights, and those one version older (the same if there
 * is only one). Owned by the rank. */
car_weights *car_rank_weights(car_rank *rank);
car_weights *car_rank_previous_weights(car_rank *rank);
car_optimizer *car_rank_optimizer(car_rank *rank);

/* Creates a snapshot with the parts that the training state needs. */
car_status car_rank_create_snapshot(const car_rank *rank, car_snapshot **out);
/* Gives back the snapshot that on_snapshot received. Any thread may call it. */
void car_rank_return_snapshot(car_rank *rank);

/* What this rank has sent, and how long it waited, since it was created. */
typedef struct car_rank_traffic {
    uint64_t bytes_sent, messages, collectives; /* messages of the plan, and rings for its sums */
    uint64_t statuses;                          /* additional small messages: progress, watchdog and beats */
    uint64_t held;                              /* messages delayed to pace their links */
    uint64_t snapshot_bytes;                    /* additional: snapshots sent to rank 0 */
    int max_messages_per_slot;                  /* sent by this rank */
    double exposed_s; /* seconds that a thread was idle because a message had not arrived; mean over threads */
} car_rank_traffic;
car_rank_traffic car_rank_get_traffic(const car_rank *rank);
car_trainer_times car_rank_time(const car_rank *rank);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
