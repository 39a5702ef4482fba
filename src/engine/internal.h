/* The inside of weights and gradients, for the files of this folder. */
#ifndef CAR_ENGINE_INTERNAL_H
#define CAR_ENGINE_INTERNAL_H

#include "carousel/tape.h"
#include "kernels/program.h"

struct car_weights {
    const car_program *program;
    car_arena *arena;
    void **param;   /* per parameter, stored layout */
    void **derived; /* per operation, NULL where the kernel has no derived form */
};

struct car_gradients {
    const car_program *program;
    car_arena *arena;
    void **use; /* per use, stored layout of its parameter */
};

/* Fills param[] with the parameters of an operation. */
void car_engine_bind_params(const car_weights *weights, const car_op *op, const float **param);

#endif
