/* The life of a micro-batch in bytes, where some of the graph's operations are run: what a tape holds, to the byte. */
#ifndef CAR_PLAN_LIFE_H
#define CAR_PLAN_LIFE_H

#include "graph/range.h"

typedef struct car_life {
    const car_graph *graph;
    const car_graph_range *range;
    size_t *tensors, *slots; /* bytes of what is alive; 0 where it is not */
    size_t live;
} car_life;

/* The range must outlive it. To be released even after a failure. */
car_status car_life_open(const car_graph *graph, const car_graph_range *range, car_life *out);
void car_life_release(car_life *life);

void car_life_clear(car_life *life); /* for the next micro-batch */
void car_life_feed(car_life *life);  /* inputs of the graph that the range reads */
/* Bytes while operation l runs. */
size_t car_life_forward(car_life *life, int l);
size_t car_life_backward(car_life *life, int l);
/* Bytes while an operation runs again: the one with this index in the choice's again[] (graph/recompute.h). */
size_t car_life_again(car_life *life, int index);
/* The most while the backward of l and what runs again before it run. */
size_t car_life_backward_whole(car_life *life, int l);
/* What comes from another rank, activations from below or gradients from above; and what was handed on to one. */
void car_life_import(car_life *life, bool gradient);
void car_life_export(car_life *life, bool gradient);

#endif
