/* A partition: a graph cut into S stages, with what each costs and holds.
 *
 * Operation l goes to stage floor(S * phi_l), where phi_l is the share of the measure (time, parameters,
 * bytes) that lies before it. Stages may be empty. */
#ifndef CAROUSEL_PARTITION_H
#define CAROUSEL_PARTITION_H

#include "carousel/graph.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CAR_MEASURE_LIST(X)                                                  \
    X(CAR_MEASURE_FLOPS, "flops")   /* forward FLOPs as time; the default */ \
    X(CAR_MEASURE_TIME, "time")     /* measured: a profile */                \
    X(CAR_MEASURE_PARAMS, "params") /* bytes of parameters */                \
    X(CAR_MEASURE_MEMORY, "memory") /* bytes held for backward */            \
    X(CAR_MEASURE_CUTS, "cuts")     /* given as a list */

typedef enum car_measure {
#define CAR_MEASURE_ENUM(code, text) code,
    CAR_MEASURE_LIST(CAR_MEASURE_ENUM)
#undef CAR_MEASURE_ENUM
        CAR_MEASURES
} car_measure;

const char *car_measure_text(car_measure measure);

/* What the operations cost, in any unit: FLOPs, or measured seconds. */
typedef struct car_costs {
    double *forward, *backward; /* per operation */
    int count;
} car_costs;

car_status car_costs_from_flops(const car_graph *graph, car_costs *out);
void car_costs_release(const car_graph *graph, car_costs *costs);

/* A profile: measured costs in a file, with a fingerprint of the graph that they belong to. */
uint64_t car_graph_fingerprint(const car_graph *graph); /* operations, shapes, parameters */
car_status car_costs_save(const car_graph *graph, const car_costs *costs, const char *path);
/* CAR_ERROR_ARGUMENT if it is of another model or size. */
car_status car_costs_load(const car_graph *graph, const char *path, car_costs *out);

typedef struct car_stage {
    int first, end;           /* operations first .. end - 1; empty if equal */
    double forward, backward; /* costs, as shares of all forwards and backwards of the model together; what runs again
                                 is part of backward */
    size_t held_bytes;        /* what its forward leaves held for backward */
    size_t again_bytes;       /* with recomputation: what comes on top of that during its backward, at most */
    size_t boundary_bytes;    /* of the tensors that cross the cut before it, forward */
    size_t weight_bytes;      /* of the parameters that belong to it, those used here first, as floats */
    size_t copy_bytes;        /* the same as forwards and backwards read them: in bf16 about half */
} car_stage;

/* Parameters that live and move together. Bundle j < S holds those that belong to stage j. A parameter
 * used again in a later stage b (a tied weight) has a bundle of its own there: stage b computes with it,
 * but it follows the rule and the update of its home, and its sum is added to the home's. */
typedef struct car_bundle {
    int stage;         /* where it is used */
    int home;          /* whose rule and update it follows; equal to stage but for ties */
    int param;         /* the tied parameter, else CAR_NONE */
    size_t bytes;      /* as floats: of the sum of their gradients, and of what updates work on */
    size_t copy_bytes; /* of the weights that are computed with, in every version, and in messages */
} car_bundle;

/* The life of one micro-batch in bytes, at the grain of operations: forward of 0 .. L-1, then backward
 * of L-1 .. 0, each after the operations that run again for it. `during[e]` is what is alive while event e runs,
 * buffers for gradients included. */
typedef struct car_curve {
    double *begin;  /* share of the step's cost before event e */
    size_t *during; /* bytes */
    int *back;  /* per operation l, and one more: event back[l + 1] is the first of its backward; back[0] == events */
    int events; /* 2L, and what runs again */
    int operations; /* L */
    size_t peak;
} car_curve;

/* What backward makes again instead of finding it held since forward: time for memory. Gradients have the same bits. */
typedef enum car_recompute_how {
    CAR_RECOMPUTE_OFF,
    CAR_RECOMPUTE_AUTO,  /* what is cheap: no convolution, linear layer or attention runs again */
    CAR_RECOMPUTE_SHARE, /* the cheapest that leaves at most a share of the bytes held */
    CAR_RECOMPUTE_FIRST  /* the first so many tensors of the list, those that are most worth it first */
} car_recompute_how;

typedef struct car_recompute_config {
    double share; /* CAR_RECOMPUTE_SHARE: of the bytes that are held without recomputation */
    car_recompute_how how;
    int tensors; /* CAR_RECOMPUTE_FIRST; more than there are: all */
} car_recompute_config;

/* What recomputation saves and costs, compared with the same partition without it. */
typedef struct car_recomputation {
    int tensors, most_tensors; /* dropped after forward, and how many could be */
    int operations;            /* that run again */
    double cost;               /* of what runs again, over the cost of all forwards and backwards */
    double flops;              /* that are computed again, for a micro-batch */
    size_t held_bytes, peak;   /* without recomputation: as car_partition's held_bytes and its curve's peak */
    double limit;              /* without recomputation */
} car_recomputation;

typedef struct car_partition {
    car_context *context;
    const car_graph *graph; /* NULL for a made-up partition */
    car_measure measure;
    int stage_count, bundle_count;
    car_stage *stages;
    car_bundle *bundles;
    car_curve curve;
    double limit;        /* sum of b_l * (1 - phi_l) over sum of b_l: what no schedule goes below, of N * A */
    size_t held_bytes;   /* A: what one micro-batch holds for backward */
    double longest_task; /* cost share of the costliest forward or backward of a stage */
    struct car_recompute *recompute; /* what runs again when; NULL: nothing does */
    car_recomputation recomputation;
} car_partition;

typedef struct car_partition_config {
    int stages;
    car_measure measure;
    const car_costs *costs; /* NULL: FLOPs. Always what time is counted in; CAR_MEASURE_TIME also cuts by it */
    const int *cuts;        /* CAR_MEASURE_CUTS: stages - 1 operations, ascending: stage j + 1 begins at cuts[j] */
    car_recompute_config recompute; /* stages are cut as without it */
} car_partition_config;

car_status car_partition_create(const car_graph *graph, const car_partition_config *config, car_partition **out);

/* Without a model: S equal stages (backward = `ratio` * forward), for drawing the idea. */
car_status car_partition_create_uniform(car_context *context, int stages, double ratio, car_partition **out);
void car_partition_destroy(car_partition *partition);

/* The first event of the backward of operation l; of -1: the end of the curve. */
int car_curve_backward(const car_curve *curve, int l);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
