/* The recorder: what a run did during some of its steps, task by task and operation by operation.
 *
 * Give it to a trainer or a rank. It then records each task of these steps on the track of the thread that ran it:
 * its operations, what the micro-batch held meanwhile, and how long the thread had waited before. Outside of these
 * steps it costs one comparison per task. report.h makes reports from it after the run. */
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
    int threads;       /* of the trainer or rank */
    bool messages;     /* for a rank: it has one more thread, for messages */
    bool categories;   /* also record every change of the arena's categories */
    size_t most_bytes; /* limit of its memory; 0: 256 MB. Later records are counted, but not stored */
} car_recorder_config;

/* `arena` is the run's and must outlive the recorder. */
car_status car_recorder_create(car_context *context, car_arena *arena, const car_recorder_config *config,
                               car_recorder **out);
void car_recorder_destroy(car_recorder *recorder);

/* Call it before a run: records steps first_step .. end_step - 1 completely; the default is none. Overlapping work
 * of earlier and later steps is recorded too, because the cycle runs them at the same time. */
void car_recorder_set_steps(car_recorder *recorder, int64_t first_step, int64_t end_step);

/* Over ranks, before the run: measures the offset of this rank's clock to rank 0's, using the fastest of several
 * exchanges. */
car_status car_recorder_align(car_recorder *recorder, car_transport *transport);
/* Over ranks, after the run: collects all records on rank 0, converted to its clock. */
car_status car_recorder_gather(car_recorder *recorder, car_transport *transport);

/* After a run that ended early: limits the recorded steps to those that were made. */
void car_recorder_limit_steps(car_recorder *recorder, int64_t steps);

/* After the run: tasks and operations that were not stored for lack of memory. */
int64_t car_recorder_lost(const car_recorder *recorder);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
