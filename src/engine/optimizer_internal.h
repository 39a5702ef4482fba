/* The inside of an optimizer: optimizer.c makes it, optimizer_update.c updates with it. */
#ifndef CAR_ENGINE_OPTIMIZER_INTERNAL_H
#define CAR_ENGINE_OPTIMIZER_INTERNAL_H

#include <pthread.h>

#include "carousel/correction.h"
#include "engine/internal.h"

enum { CAR_OPTIMIZER_MAX_STATES = 3 };

struct car_optimizer {
    const car_program *program;
    car_arena *arena;
    car_optimizer_config config;
    int64_t since; /* the first update whose gradient, or orthogonal update, is in the last state */
    void **state[CAR_OPTIMIZER_MAX_STATES]; /* per parameter; NULL where there is none */
    /* Muon's scratch: a room for each thread that may be updating. */
    void **rooms;
    int room_count, rooms_free; /* rooms[0 .. rooms_free - 1] are free */
    pthread_mutex_t lock;       /* of the rooms */
    pthread_cond_t given_back;
    bool has_lock;
};

/* States of a parameter before the one that a correction keeps. */
int car_optimizer_own_states(const car_optimizer_config *config, const car_graph *graph, int param);

#endif
