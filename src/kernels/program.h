/* Internals of a program, for the tape. */
#ifndef CAR_KERNELS_PROGRAM_H
#define CAR_KERNELS_PROGRAM_H

#include "carousel/program.h"
#include "kernels/kernel.h"

struct car_lane {
    const car_program *program;
    car_arena *arena;
    void *scratch;
    void *stream;
};

car_context *car_program_context(const car_program *program);
int car_program_threads(const car_program *program);
const car_kernel *car_program_kernel(const car_program *program, int op);

/* Whether a parameter, its gradients and sums are doubles; they are then row-major. */
bool car_program_is_double(const car_program *program, int param);

/* Whether a parameter is not stored row-major. */
bool car_program_has_own_layout(const car_program *program, int param);

/* Converts a row-major tensor of floats to the program's layout. */
void car_program_import_tensor(const car_program *program, int tensor, const void *canonical, void *stored);

/* Run one operation, with scratch and stream of the lane. In backward, contributions of mode ADD are added here for
 * kernels that can only overwrite. */
car_status car_program_forward(const car_program *program, car_lane *lane, int op, car_kernel_io *io);
car_status car_program_backward(const car_program *program, car_lane *lane, int op, car_kernel_io *io);

#endif
