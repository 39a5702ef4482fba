/* The simulation as a chain of stages, each a run of time steps, with the velocity carried through all of them. */
#ifndef STAGES_H
#define STAGES_H

#include <carousel/stage.h>

#include "wave.h"

/* A run of time steps. */
typedef struct stage_user {
    const wave *w;
    int first, steps; /* first time step, and how many */
    /* 0: fields are held from forward to backward. Otherwise the number of checkpoints, between which fields are
     * rebuilt. */
    int pieces;
} stage_user;

typedef struct chain {
    const wave *w;
    int stages;
    stage_user *users;
    car_stage_class *classes;
    int source, *observed; /* inputs of the graph: one for the shot, one for each stage */
    car_graph *graph;
} chain;

/* Builds the chain. `checkpoints` is per stage, 0 for none. The number of stages must divide the time steps, and the
 * number of checkpoints a stage's time steps. */
car_status chain_open(chain *c, car_context *context, const wave *w, int stages, int checkpoints);
void chain_close(chain *c);

/* Feeds a shot to a micro-batch. */
car_status chain_feed(const chain *c, int shot, car_tape *tape);

#endif
