/* Declarations shared by the files that make partitions: costs.c, curve.c, partition.c and recompute.c. */
#ifndef CAR_PARTITION_INTERNAL_H
#define CAR_PARTITION_INTERNAL_H

#include "carousel/partition.h"
#include "graph/range.h"

/* What a partition needs to know about an operation. Gathered once for the whole graph, so that any number of stages
 * can be cut in one pass. */
typedef struct car_op_facts {
    double forward, backward; /* costs, as shares of all forwards and backwards together */
    size_t held_bytes;        /* what its forward saves for backward; an input counts where it is read first */
    size_t weight_bytes;      /* fp32 bytes of the parameters that it is the first to use */
    size_t copy_bytes;        /* the same, in the precision used for computing */
    size_t crossing_bytes;    /* bytes of the tensors that cross a cut before it */
} car_op_facts;

/* Fails with `code` and a message that starts with `origin` unless there is one cost per operation of the graph, all
 * costs are finite and not negative, and not all are zero. */
car_status car_costs_check(const car_graph *graph, const car_costs *costs, car_status code, const char *origin);

/* `facts` has one element per operation, plus one for the cut after the last. `all` is the whole graph with its
 * recomputation. */
car_status car_curve_gather(const car_graph *graph, const car_graph_range *all, const car_costs *costs,
                            car_op_facts *facts);

/* Traces the memory of a micro-batch. Release the curve even after a failure. */
car_status car_curve_trace(const car_graph *graph, const car_graph_range *all, const car_costs *costs,
                           car_curve *curve);
car_status car_curve_allocate(car_context *context, int operations, int again, car_curve *curve);
/* Only its peak. */
car_status car_curve_find_peak(const car_graph *graph, const car_graph_range *all, size_t *peak);
void car_curve_release(car_context *context, car_curve *curve);

/* The sum of held bytes * (1 - share of the forwards before) over the sum of held bytes. */
double car_curve_limit(const car_op_facts *facts, int count);

/* Chooses what the stages of a partition recompute, and fills recompute and recomputation. `facts` must be those
 * without recomputation. */
car_status car_partition_choose_recompute(car_partition *partition, const car_op_facts *facts,
                                          const car_recompute_config *config);

#endif
