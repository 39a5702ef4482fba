/* Muon's update, for the optimizer. */
#ifndef CAR_ENGINE_MUON_INTERNAL_H
#define CAR_ENGINE_MUON_INTERNAL_H

#include "carousel/muon.h"

/* Scratch for any of the wanted parameters (NULL: all) in the program's layouts. */
size_t car_muon_room_bytes(const car_program *program, const bool *wanted);

typedef struct car_muon_step {
    int param;
    double lr, scale, momentum, decay;
    double c;              /* of the update's change; 0 while there is none */
    float *momentum_state; /* stored layout */
    float *last_state;     /* the last update, made orthogonal; NULL if it is not kept */
    float *scratch;        /* car_muon_room_bytes */
} car_muon_step;

/* Between car_kernels_enter and leave. `to` may be `from`. */
car_status car_muon_update(const car_program *program, const car_muon_step *step, const float *from, float *to,
                           const float *sum);

#endif
