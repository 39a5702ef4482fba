/* Follows the memory of one micro-batch, to the byte, while some of the graph's operations run: exactly what a tape
 * would hold. */
#ifndef CAR_PLAN_LIFE_H
#define CAR_PLAN_LIFE_H

#include "graph/range.h"

typedef struct car_life {
    const car_graph *graph;
    const car_graph_range *range;
    size_t *tensors, *buffers; /* bytes of each live tensor and gradient buffer; 0 if not alive */
    size_t live;
} car_life;

/* The range must outlive it. Call car_life_release even after a failure. */
car_status car_life_open(const car_graph *graph, const car_graph_range *range, car_life *out);
void car_life_release(car_life *life);

void car_life_clear(car_life *life); /* resets it for the next micro-batch */
void car_life_feed(car_life *life);  /* adds the graph inputs that the range reads */
/* Bytes alive while operation l runs. */
size_t car_life_forward(car_life *life, int l);
size_t car_life_backward(car_life *life, int l);
/* Bytes alive while an operation is recomputed: the one at this index in the choice's again[] (graph/recompute.h). */
size_t car_life_again(car_life *life, int index);
/* The peak over the backward of l and the recomputation right before it. */
size_t car_life_backward_whole(car_life *life, int l);
/* Adds what arrives from another rank (activations from below, gradients from above); removes what was handed on to
 * one. */
void car_life_import(car_life *life, bool gradient);
void car_life_export(car_life *life, bool gradient);

#endif
