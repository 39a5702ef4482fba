/* Recomputation: what backward makes again instead of holding it since forward.
 *
 * The choice is a set of dropped tensors. It determines which operations run again, and when: right before the first
 * backward that needs their output, together with everything they need themselves that is not held. An operation
 * runs again at most once, with the same weights and random numbers as in forward, so it makes the same bits.
 * Recomputation never crosses stages: an operation that runs again reads tensors of lower stages, which are held. */
#ifndef CAR_GRAPH_RECOMPUTE_H
#define CAR_GRAPH_RECOMPUTE_H

#include "carousel/graph.h"

typedef struct car_recompute {
    const car_graph *graph;
    bool *dropped; /* by tensor: backward needs it, and it is not held */
    int *again;    /* the operations that run again, in the order of backward */
    /* By operation l: its backward needs again[first_again[l]] .. again[first_again[l] + counts[l] - 1]. */
    int *first_again;
    int *counts;  /* by operation */
    int *made_at; /* by operation: its index in `again`; CAR_NONE: it does not run again */
    /* By buffer: it cannot take over its tensor's memory, because recomputation reads the tensor later. */
    bool *own_grad_buffer;
    int again_count;
} car_recompute;

/* `stage_first` has, for each operation, the first operation of its stage. Tensors that leave their stage must not
 * be dropped. */
car_status car_recompute_create(const car_graph *graph, const bool *dropped, const int *stage_first,
                                car_recompute **out);
void car_recompute_destroy(car_recompute *recompute);

/* True if an operation may run again. The user's own stages may not: they have their own form of recomputation
 * (stage.h) and may add to the loss. What they make is held. */
bool car_recompute_may_run(const car_op *op);
/* True if a tensor may be dropped: backward needs it, an operation makes it, and it stays inside its stage. */
bool car_recompute_may_drop(const car_graph *graph, int tensor, int stage_end);

#endif
