/* The tape: one micro-batch on its way through a program, forward and backward.
 *
 * It holds the tensors of that micro-batch and nothing else. Operations may be run in pieces (a
 * stage is a range of operations), by different threads in turn, with different versions of the
 * weights for different ranges; a tensor's memory comes from the arena when it is produced and goes
 * back the moment that its last reader is done, as the graph's lifetimes say. */
#ifndef CAROUSEL_TAPE_H
#define CAROUSEL_TAPE_H

#include "carousel/program.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- weights: one version of all parameters -------------------------------------------------- */

typedef struct car_weights car_weights;

/* Of a graph in bf16, the floats of rounded parameters are kept beside their copies. Contents are undefined until
 * initialised, loaded or copied. */
car_status car_weights_create(const car_program *program, car_arena *arena, car_weights **out);
void car_weights_destroy(car_weights *weights);

/* Draws every parameter from its initial distribution. What a parameter gets depends on the seed and
 * its name alone. */
car_status car_weights_initialize(car_weights *weights, uint64_t seed);

/* Canonical layout in and out, car_shape_elements values of the parameter's type: floats, or doubles of stages of one's
 * own. */
car_status car_weights_set(car_weights *weights, int param, const void *canonical);
car_status car_weights_get(const car_weights *weights, int param, void *canonical);

/* Remakes the forms derived from the weights of operations begin..end-1. To be called after weights
 * were changed through car_weights_data; the functions above do not need it. */
car_status car_weights_refresh(car_weights *weights, car_lane *lane, int begin, int end);

/* The stored floats, car_program_param_bytes long, for optimizers. */
float *car_weights_data(car_weights *weights, int param);

/* ---- gradients of parameters: one buffer for each use ---------------------------------------- */

typedef struct car_gradients car_gradients;

car_status car_gradients_create(const car_program *program, car_arena *arena, car_gradients **out);
void car_gradients_destroy(car_gradients *gradients);
float *car_gradients_data(car_gradients *gradients, int use); /* stored layout of its parameter */
/* The gradient of a parameter in canonical layout and of its type, its uses added in ascending order. */
car_status car_gradients_get(const car_gradients *gradients, int param, void *canonical);

/* ---- the tape -------------------------------------------------------------------------------- */

typedef struct car_tape car_tape;

car_status car_tape_create(const car_program *program, car_arena *arena, car_tape **out);
void car_tape_destroy(car_tape *tape);

/* Forgets what is left of the last micro-batch. `key` decides what dropout drops; `training` whether
 * batch statistics and dropout are used and tensors are held for backward. */
void car_tape_begin(car_tape *tape, uint64_t key, bool training);

/* Copies an input of the graph (car_tensor.bytes, row-major) to the tape. CAR_ERROR_ARGUMENT, with the inputs that there
 * are, for any other tensor. */
car_status car_tape_feed(car_tape *tape, int tensor, const void *data);

car_status car_tape_forward(car_tape *tape, car_lane *lane, const car_weights *weights, int begin, int end);

/* Runs backward from operation end-1 down to begin. Overwrites the gradients of the parameters that
 * these operations use. Operations must come in exactly descending order over all calls. */
car_status car_tape_backward(car_tape *tape, car_lane *lane, const car_weights *weights, car_gradients *gradients,
                             int begin, int end);

float car_tape_loss(const car_tape *tape); /* NaN before forward is done */

/* The stored data of a tensor, or NULL if it is not alive, or none of the graph's. The loss and, in evaluation, the
 * logits stay until the next car_tape_begin. */
const void *car_tape_tensor(const car_tape *tape, int tensor);
/* After the forward of an evaluation: the logits of some rows, car_graph_classes floats each. */
car_status car_tape_logits(const car_tape *tape, const car_weights *weights, int64_t first, int64_t rows, float *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
