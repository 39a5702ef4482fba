/* The tape: one micro-batch on its way through a program, forward and backward.
 *
 * It holds the tensors of that micro-batch and nothing else. Operations can run in ranges (a stage is a range), on
 * different threads in turn, and with different versions of the weights. A tensor's memory is allocated from the
 * arena when it is produced, and freed as soon as its last reader is done. */
#ifndef CAROUSEL_TAPE_H
#define CAROUSEL_TAPE_H

#include "carousel/program.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- weights: one version of all parameters -------------------------------------------------- */

typedef struct car_weights car_weights;

/* Allocates one version of all parameters, with undefined contents. In a bf16 graph the floats of rounded parameters
 * are kept beside the rounded copies. */
car_status car_weights_create(const car_program *program, car_arena *arena, car_weights **out);
void car_weights_destroy(car_weights *weights);

/* Draws each parameter from its initial distribution. The values depend only on the seed and the parameter's name. */
car_status car_weights_initialize(car_weights *weights, uint64_t seed);

/* Sets a parameter from its canonical layout: car_shape_elements values of its type, floats or (in user-defined
 * stages) doubles. */
car_status car_weights_set(car_weights *weights, int param, const void *canonical);
/* Reads a parameter in the same form. */
car_status car_weights_get(const car_weights *weights, int param, void *canonical);

/* Rebuilds the forms derived from the weights of operations begin..end-1. Call it after changing weights through
 * car_weights_data; the functions above do so themselves. */
car_status car_weights_refresh(car_weights *weights, car_lane *lane, int begin, int end);

/* The stored floats, car_program_param_bytes long, for optimizers. Owned by the weights. */
float *car_weights_data(car_weights *weights, int param);

/* ---- gradients of parameters: one buffer for each use ---------------------------------------- */

typedef struct car_gradients car_gradients;

/* One buffer for each use of a parameter, in the arena, with undefined contents. */
car_status car_gradients_create(const car_program *program, car_arena *arena, car_gradients **out);
void car_gradients_destroy(car_gradients *gradients);
float *car_gradients_data(car_gradients *gradients, int use); /* stored layout of its parameter */
/* The gradient of a parameter in canonical layout and of its type: its uses, added in ascending order. */
car_status car_gradients_get(const car_gradients *gradients, int param, void *canonical);

/* ---- the tape -------------------------------------------------------------------------------- */

typedef struct car_tape car_tape;

/* A tape has its own tensors, so each micro-batch in flight needs one. For one thread at a time. */
car_status car_tape_create(const car_program *program, car_arena *arena, car_tape **out);
void car_tape_destroy(car_tape *tape);

/* Starts a micro-batch and drops what is left of the last one. `key` seeds dropout. `training` selects batch
 * statistics and dropout, and holds tensors for backward. */
void car_tape_begin(car_tape *tape, uint64_t key, bool training);

/* Copies an input of the graph to the tape: car_tensor.bytes, row-major. For any other tensor CAR_ERROR_ARGUMENT,
 * with a list of the inputs. */
car_status car_tape_feed(car_tape *tape, int tensor, const void *data);

/* Runs the forwards of operations begin .. end-1. */
car_status car_tape_forward(car_tape *tape, car_lane *lane, const car_weights *weights, int begin, int end);

/* Runs the backwards of operations end-1 down to begin. Overwrites the gradients of the parameters that they use.
 * Over all calls, operations must come in descending order without gaps. */
car_status car_tape_backward(car_tape *tape, car_lane *lane, const car_weights *weights, car_gradients *gradients,
                             int begin, int end);

float car_tape_loss(const car_tape *tape); /* NaN until forward is done */

/* The stored data of a tensor; NULL if it is not alive, or not in the graph. The loss and, in evaluation, the logits
 * stay until the next car_tape_begin. */
const void *car_tape_tensor(const car_tape *tape, int tensor);
/* After the forward of an evaluation: the logits of `rows` rows from `first` on, car_graph_classes floats each. */
car_status car_tape_logits(const car_tape *tape, const car_weights *weights, int64_t first, int64_t rows, float *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
