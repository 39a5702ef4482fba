/* Recommends a plan: searches rules, placements and sizes for what trains a model fastest on a cluster or this machine.
 *
 * All plans that are compared make steps of the same number of samples, so the shortest step has the least time a
 * sample. The search is exact to 1 % as far as its effort goes: closed bounds (what devices compute, what links carry,
 * what a device holds) leave out what cannot win, and what is left is timed as car_plan_time does, the most promising
 * first. */
#ifndef CAROUSEL_RECOMMEND_H
#define CAROUSEL_RECOMMEND_H

#include "carousel/cluster.h"
#include "carousel/model.h"
#include "carousel/optimizer.h"
#include "carousel/plan.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* What is chosen: workers * plan.accumulate * batch is the global batch. */
typedef struct car_choice {
    car_plan_config plan;
    int stages;
    int batch; /* samples in a micro-batch */
    car_precision precision;
    car_recompute_config recompute;
} car_choice;

/* What the caller has decided already. */
typedef struct car_choice_fixed {
    bool rule, placement, workers, accumulate, sum_order, stages, batch, ranks, mapping, slack, recompute;
    bool precision; /* the shape's */
    bool zero_copies, zero_ahead;
} car_choice_fixed;

typedef struct car_recommend_config {
    const char *model;
    car_model_config shape;     /* its batch is not looked at */
    int64_t global_batch;       /* samples of a step */
    const car_cluster *cluster; /* its `devices` must be known; NULL: one process with */
    int threads;                /* this many cores and */
    double memory;              /* this many bytes; 0: enough */
    car_optimizer_config optimizer;
    bool correction_by_rule; /* its correction is what car_correction_choose says, else what it is */
    bool exact;              /* only rules without a delay */
    bool thorough;           /* time everything that may fit: for small cases */
    car_choice_fixed fixed;
    car_choice given;       /* values of what is fixed */
    const car_costs *costs; /* measured seconds, of a model whose micro-batches are given.batch, which is fixed then;
                             * NULL: FLOPs */
    /* While plans are listed: how many there are so far, with `listing`. Then before each that is timed: how many have been,
     * out of how many that may have to be, and the shortest step so far, 0 if there is none. May be NULL. */
    void (*progress)(void *user, bool listing, int timed, int candidates, double best);
    void *user;
} car_recommend_config;

car_recommend_config car_recommend_config_default(void);

/* Why a rule under a placement is, or is not, the one to take. */
typedef enum car_reason {
    CAR_REASON_BEST,
    CAR_REASON_LATE,  /* as fast, to 1 %, but with gradients that are late, or more of them */
    CAR_REASON_EQUAL, /* as fast, to 1 %, but in smaller micro-batches, or with more memory or devices */
    CAR_REASON_COMPUTES, /* its busiest device computes longer: it has fewer devices, a larger share or waits for a flush */
    CAR_REASON_LINKS,  /* a link would have to carry more than it can in the best one's step */
    CAR_REASON_WAITS,  /* it waits for messages */
    CAR_REASON_IDLES,  /* it waits for its turn, with links that are not busy */
    CAR_REASON_MEMORY, /* a device has too little memory for any of its plans */
    CAR_REASON_SKIPPED /* it was not timed: the effort was spent on more promising ones */
} car_reason;

/* The best plan of a rule under a placement. */
typedef struct car_recommended {
    car_choice choice;
    int64_t devices;
    car_reason reason;
    bool timed;         /* else `step` is a bound, and of CAR_REASON_MEMORY `memory` may be one */
    bool whole;         /* `memory` is predicted, not a bound */
    double step;        /* seconds of a step; without a cluster and measured costs in units of all FLOPs of a step on
                            * one core */
    double computes;    /* seconds of it that the busiest device computes at least */
    double links;       /* seconds that the busiest link needs at least for what it carries */
    double memory;      /* bytes of the device that needs most; of a process in all */
    double bytes_sent;  /* in a step by the busiest device; 0 if not timed */
    double busiest;     /* share of the busiest link that is used; 0 if not timed */
    int gradient_delay; /* steps, at most */
    int64_t candidates; /* plans of this rule and placement that were looked at */
} car_recommended;

typedef struct car_recommendation {
    car_context *context;
    car_recommended
        *rows; /* the best of each rule and placement, the recommended one first, then by step; what does not
                            * fit comes last */
    int count, capacity;
    bool fits;        /* rows[0] does; else it is the one that misses least */
    double available; /* bytes of a device; 0: not known, so enough */
    int64_t candidates, over_memory, timed, skipped;
    bool cut_short;      /* there were more plans than a search lists */
    bool bf16_not_timed; /* only fp32 was searched: nothing says how fast the cluster's devices are in bf16 */
    bool
        bf16_guessed; /* nothing says it, but in fp32 no plan fits without recomputation: bf16 was taken to be as fast */
} car_recommendation;

/* CAR_ERROR_ARGUMENT if nothing goes with what is fixed. Not fitting is no error: see `fits`. */
car_status car_recommend(car_context *context, const car_recommend_config *config, car_recommendation *out);
void car_recommendation_release(car_recommendation *recommendation);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
