/* What backward makes again instead of finding it held since forward.
 *
 * The choice is a set of dropped tensors. From it follows which operations run again, and when: right before the first
 * backward that needs what they make, with everything that they need themselves and nobody holds. An operation runs
 * again at most once, with the weights, random numbers and thus the bits of its forward. Stages are closed: an operation
 * that runs again reads tensors of lower stages as they are held. */
#ifndef CAR_GRAPH_RECOMPUTE_H
#define CAR_GRAPH_RECOMPUTE_H

#include "carousel/graph.h"

typedef struct car_recompute {
    const car_graph *graph;
    bool *dropped; /* per tensor: backward needs it, and it is not held */
    int *again;    /* the operations that run again, in the order of backward */
    int *
        first_again; /* per operation l: before its backward, again[first_again[l]] .. again[first_again[l] + counts[l] - 1] */
    int *counts;  /* per operation */
    int *made_at; /* per operation: its index in `again`; CAR_NONE: it runs once */
    bool *
        own_grad_buffer; /* per buffer: it does not take over its tensor, which is needed later than without recomputation */
    int again_count;
} car_recompute;

/* `stage_first` has the first operation of each operation's stage. Tensors that leave their stage must not be dropped. */
car_status car_recompute_create(const car_graph *graph, const bool *dropped, const int *stage_first,
                                car_recompute **out);
void car_recompute_destroy(car_recompute *recompute);

/* Whether an operation may run again. Stages of one's own do not: they bring a recomputation of theirs (stage.h), and may
 * add to the loss. What they make is held. */
bool car_recompute_may_run(const car_op *op);
/* Whether a choice may have it: backward needs it, an operation makes it, and it stays inside of its stage. */
bool car_recompute_may_drop(const car_graph *graph, int tensor, int stage_end);

#endif
