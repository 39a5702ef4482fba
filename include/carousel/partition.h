/* A partition: a graph cut into S stages, with the cost and the memory of each.
 *
 * Operation l belongs to stage floor(S * phi_l), where phi_l is the share of the measure (time, parameters, bytes)
 * before it. Stages may be empty. */
#ifndef CAROUSEL_PARTITION_H
#define CAROUSEL_PARTITION_H

#include "carousel/graph.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CAR_MEASURE_LIST(X)                                                               \
    X(CAR_MEASURE_FLOPS, "flops")   /* forward FLOPs as a measure of time; the default */ \
    X(CAR_MEASURE_TIME, "time")     /* measured time: a profile */                        \
    X(CAR_MEASURE_PARAMS, "params") /* bytes of parameters */                             \
    X(CAR_MEASURE_MEMORY, "memory") /* bytes held for backward */                         \
    X(CAR_MEASURE_CUTS, "cuts")     /* at given operations */

typedef enum car_measure {
#define CAR_MEASURE_ENUM(code, text) code,
    CAR_MEASURE_LIST(CAR_MEASURE_ENUM)
#undef CAR_MEASURE_ENUM
        CAR_MEASURES
} car_measure;

const char *car_measure_text(car_measure measure);

/* Costs of operations in any unit: FLOPs, or measured seconds. */
typedef struct car_costs {
    double *forward, *backward; /* per operation */
    int count;
} car_costs;

/* Costs by FLOPs; release them with car_costs_release. */
car_status car_costs_from_flops(const car_graph *graph, car_costs *out);
void car_costs_release(const car_graph *graph, car_costs *costs);

/* Hash of the operations, shapes and parameters. A profile carries it, to be used only with the same graph. */
uint64_t car_graph_fingerprint(const car_graph *graph);
/* Saves measured costs as a profile. */
car_status car_costs_save(const car_graph *graph, const car_costs *costs, const char *path);
/* Loads a profile. CAR_ERROR_ARGUMENT if it belongs to another model or size. */
car_status car_costs_load(const car_graph *graph, const char *path, car_costs *out);

typedef struct car_stage {
    int first, end; /* operations first .. end - 1; empty if equal */
    /* Costs, as shares of the cost of all forwards and backwards. Recomputation is part of backward. */
    double forward, backward;
    size_t held_bytes;     /* what its forward leaves held for backward */
    size_t again_bytes;    /* recomputation: the most bytes that its backward needs on top of that */
    size_t boundary_bytes; /* of the tensors that cross the cut before it, forward */
    size_t weight_bytes;   /* as floats, of the parameters that belong to it: those used here first */
    size_t copy_bytes;     /* the same for the copies that are computed with: about half in bf16 */
} car_stage;

/* Parameters that live and move together. Bundle j < S holds those that belong to stage j. A parameter used again in
 * a later stage b (a tied weight) has its own bundle there: stage b computes with it, but it follows the rule and
 * the update of its home stage, and its sum is added to the home's. */
typedef struct car_bundle {
    int stage;         /* where it is used */
    int home;          /* the stage whose rule and update it follows; differs from `stage` only for tied parameters */
    int param;         /* the tied parameter, or CAR_NONE */
    size_t bytes;      /* as floats: of the gradients' sum, and of the values that updates work on */
    size_t copy_bytes; /* of one version of the weights as computed with, and as sent */
} car_bundle;

/* Memory of one micro-batch over time, operation by operation: events are the forwards of 0 .. L-1, then the
 * backwards of L-1 .. 0, each after the operations that it recomputes. during[e] is what is alive in event e,
 * including gradient buffers. */
typedef struct car_curve {
    double *begin;  /* share of the micro-batch's cost before event e */
    size_t *during; /* bytes */
    /* [L + 1]: event back[l + 1] is the first of operation l's backward; back[0] == events. */
    int *back;
    int events;     /* 2L, plus recomputed operations */
    int operations; /* L */
    size_t peak;
} car_curve;

/* What backward recomputes instead of keeping it from forward: trades time for memory. The gradients have the same
 * bits. */
typedef enum car_recompute_how {
    CAR_RECOMPUTE_OFF,
    CAR_RECOMPUTE_AUTO,  /* cheap operations only: no convolutions, linear layers or attention */
    CAR_RECOMPUTE_SHARE, /* the cheapest way to hold at most a share of the bytes */
    CAR_RECOMPUTE_FIRST  /* the first tensors of a list that is ordered by benefit */
} car_recompute_how;

typedef struct car_recompute_config {
    double share; /* CAR_RECOMPUTE_SHARE: of the bytes held without recomputation */
    car_recompute_how how;
    int tensors; /* CAR_RECOMPUTE_FIRST: how many; more than exist means all */
} car_recompute_config;

/* What recomputation saves and costs, compared with the same partition without it. */
typedef struct car_recomputation {
    int tensors, most_tensors; /* dropped after forward, and how many could be */
    int operations;            /* that run again */
    double cost;               /* cost of what runs again, over that of all forwards and backwards */
    double flops;              /* recomputed per micro-batch */
    /* Without recomputation: held_bytes of the partition, and the peak of its curve. */
    size_t held_bytes, peak;
    double limit; /* without recomputation */
} car_recomputation;

typedef struct car_partition {
    car_context *context;
    const car_graph *graph; /* NULL for a uniform partition */
    car_measure measure;
    int stage_count, bundle_count;
    car_stage *stages;
    car_bundle *bundles;
    car_curve curve;
    /* Lower bound of any schedule's peak, as a share of N * A: sum of b_l * (1 - phi_l) over sum of b_l. */
    double limit;
    size_t held_bytes;               /* A: what one micro-batch holds for backward */
    double longest_task;             /* cost share of the most expensive forward or backward of a stage */
    struct car_recompute *recompute; /* which operations run again when; NULL: none */
    car_recomputation recomputation;
} car_partition;

typedef struct car_partition_config {
    int stages;
    car_measure measure;
    /* NULL: FLOPs. Time is always counted in these; CAR_MEASURE_TIME also cuts by them. */
    const car_costs *costs;
    /* CAR_MEASURE_CUTS: stages - 1 ascending operations; stage j + 1 begins at cuts[j]. */
    const int *cuts;
    car_recompute_config recompute; /* does not change the cuts */
} car_partition_config;

/* Cuts a graph into stages. The graph must outlive the partition. */
car_status car_partition_create(const car_graph *graph, const car_partition_config *config, car_partition **out);

/* A partition without a model, for drawing: equal stages with backward = `ratio` * forward. */
car_status car_partition_create_uniform(car_context *context, int stages, double ratio, car_partition **out);
void car_partition_destroy(car_partition *partition);

/* The first event of the backward of operation l; for l = -1 the end of the curve. */
int car_curve_backward(const car_curve *curve, int l);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
