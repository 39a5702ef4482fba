/* Lifetimes of tensors within the operations first .. end - 1: the part of the graph that one rank runs. */
#ifndef CAR_GRAPH_RANGE_H
#define CAR_GRAPH_RANGE_H

#include "graph/recompute.h"

typedef struct car_graph_range {
    int first, end;
    const car_recompute *recompute;    /* what backward recomputes; NULL: nothing */
    int *last_forward, *last_backward; /* by tensor, as in car_tensor; CAR_NONE: no operation of the range */
    int *last_again;    /* by tensor: it is dropped after again[last_again[v]] has run; CAR_NONE: not there */
    bool *held;         /* by tensor: held from forward to backward */
    bool *crosses;      /* by tensor: also read at or above `end` */
    int *below, *above; /* tensors that cross the cuts before `first` and before `end` */
    int below_count, above_count;
} car_graph_range;

/* `recompute` may be NULL; else it must outlive the range. */
car_status car_graph_range_create(const car_graph *graph, int first, int end, const car_recompute *recompute,
                                  car_graph_range **out);
void car_graph_range_destroy(const car_graph *graph, car_graph_range *range);
/* Bytes that carry the loss added so far by the user's own stages: they cross a cut after the tensors. */
size_t car_graph_crossing_loss(const car_graph *graph, int cut);
/* Bytes that the backward of an operation rebuilds and frees when done. */
size_t car_op_rebuilt_bytes(const car_op *op);
/* True if an operation of the range reads an input of the graph. */
bool car_graph_range_reads_inputs(const car_graph *graph, const car_graph_range *range);
/* The number of operations that run again before the backward of operation l; *first is the index of the first in
 * again[]. */
int car_graph_range_again(const car_graph_range *range, int l, int *first);
/* True if a gradient buffer takes over the memory of a tensor. */
bool car_graph_range_takes_over(const car_graph_range *range, const car_graph *graph, int buffer);

#endif
