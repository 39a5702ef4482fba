/* Recommends a plan: searches rules, placements and sizes for what trains a model fastest on a cluster or this
 * machine.
 *
 * All compared plans use the same number of samples per step, so the shortest step wins. Lower bounds (computing
 * time, link traffic, memory) discard plans that cannot win. The rest are timed with car_plan_time, most promising
 * first, until the effort is used up. If it is not, the result is within 1 % of the best. */
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

/* A choice. The global batch is workers * plan.accumulate * batch. */
typedef struct car_choice {
    car_plan_config plan;
    int stages;
    int batch; /* samples per micro-batch */
    car_precision precision;
    car_recompute_config recompute;
} car_choice;

/* What the caller has already decided; the values are in `given`. */
typedef struct car_choice_fixed {
    bool rule, placement, workers, accumulate, sum_order, stages, batch, ranks, mapping, slack, recompute;
    bool precision; /* as in `shape` */
    bool zero_copies, zero_ahead;
} car_choice_fixed;

typedef struct car_recommend_config {
    const char *model;
    car_model_config shape;     /* its batch is ignored */
    int64_t global_batch;       /* samples per step */
    const car_cluster *cluster; /* its `devices` must be set; NULL: one process, with the next two */
    int threads;                /* cores of this machine */
    double memory;              /* bytes of memory; 0: enough */
    car_optimizer_config optimizer;
    bool correction_by_rule; /* use the correction of car_correction_choose instead of the optimizer's */
    bool exact;              /* only rules without a delay */
    bool thorough;           /* time everything that may fit; for small cases */
    car_choice_fixed fixed;
    car_choice given; /* values of what is fixed */
    /* Measured seconds of a model with micro-batches of given.batch, which must be fixed; NULL: FLOPs. */
    const car_costs *costs;
    /* Progress, may be NULL. With `listing`: how many candidates have been listed so far. Otherwise, before each
     * timing: how many have been timed, how many may have to be, and the shortest step so far (0: none). */
    void (*progress)(void *user, bool listing, int timed, int candidates, double best);
    void *user;
} car_recommend_config;

/* A global batch of 32 on one thread, with the default optimizer and the correction for the rule. */
car_recommend_config car_recommend_config_default(void);

/* Why a rule under a placement is, or is not, recommended. */
typedef enum car_reason {
    CAR_REASON_BEST,
    CAR_REASON_LATE,  /* as fast within 1 %, but with more late gradients */
    CAR_REASON_EQUAL, /* as fast within 1 %, but with smaller micro-batches, more memory or more devices */
    /* Its busiest device computes longer: it has fewer devices, a larger share, or waits for a flush. */
    CAR_REASON_COMPUTES,
    CAR_REASON_LINKS,  /* a link would have to carry more than it can in the best plan's step */
    CAR_REASON_WAITS,  /* it waits for messages */
    CAR_REASON_IDLES,  /* it waits for its turn, while links are not busy */
    CAR_REASON_MEMORY, /* none of its plans fits into a device's memory */
    CAR_REASON_SKIPPED /* not timed: the effort went to more promising plans */
} car_reason;

/* The best plan of a rule under a placement. */
typedef struct car_recommended {
    car_choice choice;
    int64_t devices;
    car_reason reason;
    bool timed; /* if false, `step` is a lower bound, and for CAR_REASON_MEMORY `memory` may be one */
    bool whole; /* `memory` is predicted, not a bound */
    /* Seconds of a step. Without a cluster and measured costs, in units of a step's FLOPs on one core. */
    double step;
    double computes;    /* seconds that the busiest device computes, at least */
    double links;       /* seconds that the busiest link needs for its traffic, at least */
    double memory;      /* bytes of the device that needs most, or of the whole process */
    double bytes_sent;  /* per step by the busiest device; 0 if not timed */
    double busiest;     /* utilisation of the busiest link; 0 if not timed */
    int gradient_delay; /* most steps that a gradient is late */
    int64_t candidates; /* plans of this rule and placement that were considered */
} car_recommended;

typedef struct car_recommendation {
    car_context *context;
    /* The best plan of each rule and placement: the recommended one first, then by step time; those that do not fit
     * last. */
    car_recommended *rows;
    int count, capacity;
    bool fits;        /* whether rows[0] fits; if not, it is the one that misses least */
    double available; /* bytes of a device; 0: unknown, assumed to be enough */
    int64_t candidates, over_memory, timed, skipped;
    bool cut_short;      /* there were more plans than a search lists */
    bool bf16_not_timed; /* only fp32 was searched, as the cluster's speed in bf16 is unknown */
    /* That speed is unknown, but no fp32 plan fits without recomputation: bf16 was assumed to be as fast as fp32. */
    bool bf16_guessed;
} car_recommendation;

/* CAR_ERROR_ARGUMENT if no plan matches what is fixed. Not fitting is no error, see `fits`. Release *out with
 * car_recommendation_release. */
car_status car_recommend(car_context *context, const car_recommend_config *config, car_recommendation *out);
void car_recommendation_release(car_recommendation *recommendation);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
