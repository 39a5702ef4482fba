/* The recorder: what a run did during some of its steps, task by task and operation by operation.
 *
 * A trainer or a rank that is given one notes every task of these steps on the track of the thread that ran it, with
 * the operations in it, what the micro-batch held meanwhile, and how long the thread had waited before. Outside of
 * these steps it costs a comparison for each task. The reports of report.h are made of it after the run. */
#ifndef CAROUSEL_RECORDER_H
#define CAROUSEL_RECORDER_H

#include <stdint.h>

#include "carousel/arena.h"
#include "carousel/transport.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_recorder car_recorder;

typedef struct car_recorder_config {
    int threads;       /* of the trainer or rank that it is given to */
    bool messages;     /* a rank: it has a thread more, for messages */
    bool categories;   /* every change of the arena's categories too */
    size_t most_bytes; /* of memory for it all; 0: 256 MB. What comes later is not noted, but counted */
} car_recorder_config;

/* The arena (of the run) must outlive it. */
car_status car_recorder_create(car_context *context, car_arena *arena, const car_recorder_config *config,
                               car_recorder **out);
void car_recorder_destroy(car_recorder *recorder);

/* Before a run: records steps first_step .. end_step - 1 whole; without it, none. What is done of the steps before and
 * after is noted as well, because in the cycle it is done at the same time. */
void car_recorder_set_steps(car_recorder *recorder, int64_t first_step, int64_t end_step);

/* Over ranks, before the run: how far this rank's clock is from rank 0's, from the fastest of some exchanges. */
car_status car_recorder_align(car_recorder *recorder, car_transport *transport);
/* Over ranks, after the run: what all have recorded, on rank 0, by its clock. */
car_status car_recorder_gather(car_recorder *recorder, car_transport *transport);

/* After a run that ended before its time: steps that were not made are not recorded either. */
void car_recorder_limit_steps(car_recorder *recorder, int64_t steps);

/* After the run: tasks and operations that were not noted for want of memory. */
int64_t car_recorder_lost(const car_recorder *recorder);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
