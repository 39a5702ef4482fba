/* Lifetimes of tensors within operations first .. end - 1. */
#ifndef CAR_GRAPH_RANGE_H
#define CAR_GRAPH_RANGE_H

#include "graph/recompute.h"

typedef struct car_graph_range {
    int first, end;
    const car_recompute *recompute;    /* what backward makes again; NULL: nothing */
    int *last_forward, *last_backward; /* per tensor, as in car_tensor; CAR_NONE: no operation of the range */
    int *last_again;    /* per tensor: it goes after again[last_again[v]] has run; CAR_NONE: it does not */
    bool *held;         /* per tensor: from forward to backward */
    bool *crosses;      /* per tensor: read at or above `end` too */
    int *below, *above; /* the tensors that cross the cuts before `first` and before `end` */
    int below_count, above_count;
} car_graph_range;

/* Without recomputation if that is NULL; else it must outlive the range. */
car_status car_graph_range_create(const car_graph *graph, int first, int end, const car_recompute *recompute,
                                  car_graph_range **out);
void car_graph_range_destroy(const car_graph *graph, car_graph_range *range);
/* Bytes of the loss that stages of one's own have added so far: it crosses a cut behind the tensors. */
size_t car_graph_crossing_loss(const car_graph *graph, int cut);
/* Bytes that the backward of an operation rebuilds, and frees when it is done. */
size_t car_op_rebuilt_bytes(const car_op *op);
/* Whether an operation of the range reads an input of the graph. */
bool car_graph_range_reads_inputs(const car_graph *graph, const car_graph_range *range);
/* How many operations run again before the backward of operation l; `first` gets the index of the first in again[]. */
int car_graph_range_again(const car_graph_range *range, int l, int *first);
/* Whether a buffer of gradients takes over the memory of a tensor. */
bool car_graph_range_takes_over(const car_graph_range *range, const car_graph *graph, int buffer);

#endif
