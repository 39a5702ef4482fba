/* What the files of the partition share. */
#ifndef CAR_PARTITION_INTERNAL_H
#define CAR_PARTITION_INTERNAL_H

#include "carousel/partition.h"
#include "graph/range.h"

/* What a partition needs to know of an operation. Gathered once for the whole graph, so that any number of
 * stages is cut in one pass. */
typedef struct car_op_facts {
    double forward, backward; /* costs, as shares of all forwards and backwards together */
    size_t held_bytes;        /* what its forward leaves held for backward; inputs count where first read */
    size_t weight_bytes;      /* of the parameters that nobody uses before it, as floats */
    size_t copy_bytes;        /* the same as they are read */
    size_t crossing_bytes;    /* of the tensors that cross a cut in front of it */
} car_op_facts;

/* Fails with `code` and a message that starts with `origin` unless the costs are those of as many operations
 * as the graph has, finite, not negative, and not all zero. */
car_status car_costs_check(const car_graph *graph, const car_costs *costs, car_status code, const char *origin);

/* `facts` has an element for each operation, and one more for the cut behind the last. `all` is the whole graph, with
 * its recomputation. */
car_status car_curve_gather(const car_graph *graph, const car_graph_range *all, const car_costs *costs,
                            car_op_facts *facts);

/* The life of a micro-batch in bytes. A curve that was begun must be released, even after a failure. */
car_status car_curve_trace(const car_graph *graph, const car_graph_range *all, const car_costs *costs,
                           car_curve *curve);
car_status car_curve_allocate(car_context *context, int operations, int again, car_curve *curve);
/* Its peak alone. */
car_status car_curve_find_peak(const car_graph *graph, const car_graph_range *all, size_t *peak);
void car_curve_release(car_context *context, car_curve *curve);

/* The sum of held bytes * (1 - share of the forwards before) over the sum of held bytes. */
double car_curve_limit(const car_op_facts *facts, int count);

/* Chooses what a cut partition makes again, and fills recompute and recomputation. `facts` are those without it. */
car_status car_partition_choose_recompute(car_partition *partition, const car_op_facts *facts,
                                          const car_recompute_config *config);

#endif
