/* A rank: one process's share of a run over MPI.
 *
 * Every rank has the same plan, and executes the tasks of its own device (device r is rank r). Its threads run any
 * task whose inputs are there; the order of the plan decides between tasks that touch the same thing. Under the
 * cyclic rules the weights come out the same to the bit as a trainer's of placement `shared`. */
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

/* As for a trainer; `threads` is of this rank. `report` and `on_snapshot` are called on rank 0 only. snapshot_every
 * and weights_every must be the same on all ranks. */
car_status car_rank_create(const car_plan *plan, const car_program *program, car_arena *arena, car_transport *transport,
                           const car_trainer_config *config, car_rank **out);
void car_rank_destroy(car_rank *rank);

/* Whether this rank takes inputs or labels of that micro-batch of a step. */
bool car_rank_feeds(const car_rank *rank, int micro_batch);

/* Draws the weights. The same seed on all ranks. */
car_status car_rank_initialize(car_rank *rank, uint64_t seed);

/* Runs until `steps` steps have been made in all, or until car_rank_stop. All ranks call it with the same number. A
 * failure of one rank must end them all (car_transport_abort): the others wait for it. */
car_status car_rank_run(car_rank *rank, int64_t steps);
/* A training with pauses: runs, drains the cycle, calls back, goes on. */
typedef struct car_rank_loop {
    int64_t steps;    /* to be made in all */
    int64_t every;    /* steps from one pause to the next, counted from the first; 0: none. At the end there is none */
    bool pause_first; /* also before the first step of this call */
    /* What happens in a pause, on all ranks, such as an evaluation. *ends, which must be the same on all ranks, ends the
     * loop. NULL: nothing. */
    car_status (*pause)(void *user, bool *ends);
    void (*begin)(void *user);     /* before each part of the run; NULL: nothing */
    car_status (*end)(void *user); /* after it; the same */
    void *user;
} car_rank_loop;
car_status car_rank_drive(car_rank *rank, const car_rank_loop *loop);

/* Makes all ranks end soon, after the same step, as car_trainer_stop does; where a rank has one place for two versions
 * (zero, and a grid's) with one step more. May be called on any rank, from a signal handler. */
void car_rank_stop(car_rank *rank);
int64_t car_rank_steps(const car_rank *rank); /* made so far */

/* Where this rank is, what it waits for and what it knows of the others, for a message; several lines, the last without
 * its end. From any thread while it runs. Returns the length. */
size_t car_rank_explain(car_rank *rank, char *text, size_t capacity);

/* Between runs, called by all ranks: gathers what training goes on from, on rank 0 (elsewhere `snapshot` may be NULL),
 * or spreads it from there to all. The snapshot's parts decide what is gathered. */
car_status car_rank_gather(car_rank *rank, car_snapshot *snapshot);
car_status car_rank_spread(car_rank *rank, car_snapshot *snapshot);

/* Between runs, called by all ranks: rank 0 does what only it can (evaluate, write files), while heartbeats keep the
 * others from taking it for dead. */
typedef car_status (*car_rank_work)(void *user);
car_status car_rank_attend(car_rank *rank, car_rank_work work, void *user);

/* Compares what must be the same on all ranks; `text` are their values, or "" on rank 0 and elsewhere what is different
 * there. CAR_ERROR_ARGUMENT with a message that says
 * which rank differs from rank 0 in `what`. Called by all ranks with the same `what`. */
car_status car_rank_agree(car_context *context, car_transport *transport, const char *what, const char *text);

/* Between runs, of a rank that has all workers: the weights as they are, and one version older (the same if there is
 * only one). They stay the rank's. */
car_weights *car_rank_weights(car_rank *rank);
car_weights *car_rank_previous_weights(car_rank *rank);
car_optimizer *car_rank_optimizer(car_rank *rank);

/* A snapshot with the parts that training goes on from; and the one that on_snapshot was called with is given back,
 * from any thread. */
car_status car_rank_create_snapshot(const car_rank *rank, car_snapshot **out);
void car_rank_return_snapshot(car_rank *rank);

/* What a run sent, and how long it waited, since the rank was created. */
typedef struct car_rank_traffic {
    uint64_t bytes_sent, messages, collectives; /* what the plan says, and rings for its sums */
    uint64_t statuses;                          /* besides: small ones, for progress, the watchdog and beats */
    uint64_t held;                              /* of the messages: held back to pace their links */
    uint64_t snapshot_bytes;                    /* besides: snapshots on the way, to rank 0 */
    int max_messages_per_slot;                  /* sent by this rank */
    double exposed_s; /* a thread had nothing to do because something had not arrived; mean over threads */
} car_rank_traffic;
car_rank_traffic car_rank_get_traffic(const car_rank *rank);
car_trainer_times car_rank_time(const car_rank *rank);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
