/* Lifetimes of tensors within operations first .. end - 1. */
#ifndef CAR_GRAPH_RANGE_H
#define CAR_GRAPH_RANGE_H

#include "carousel/graph.h"

typedef struct car_graph_range {
    int first, end;
    int *last_forward, *last_backward; /* per tensor, as in car_tensor; CAR_NONE: no operation of the range */
    bool *crosses;                     /* per tensor: read at or above `end` too */
    int *below, *above;                /* the tensors that cross the cuts before `first` and before `end` */
    int below_count, above_count;
} car_graph_range;

car_status car_graph_range_create(const car_graph *graph, int first, int end, car_graph_range **out);
void car_graph_range_destroy(const car_graph *graph, car_graph_range *range);
/* Bytes of the loss that stages of one's own have added so far: it crosses a cut behind the tensors. */
size_t car_graph_crossing_loss(const car_graph *graph, int cut);
/* Bytes that the backward of an operation rebuilds, and frees when it is done. */
size_t car_op_rebuilt_bytes(const car_op *op);
/* Whether an operation of the range reads an input of the graph. */
bool car_graph_range_reads_inputs(const car_graph *graph, const car_graph_range *range);

#endif
