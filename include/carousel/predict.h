/* Predictions: the memory, time and traffic of a plan, before anything runs. */
#ifndef CAROUSEL_PREDICT_H
#define CAROUSEL_PREDICT_H

#include <stdint.h>

#include "carousel/optimizer.h"
#include "carousel/plan.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_simulation_config {
    int executors; /* threads or devices that compute at the same time; 0: as the plan says */
    bool paced;    /* use pacing: a task starts only if its phase <= the slowest worker's + lead */
    double lead;   /* in shares of a micro-batch's cost; 0: the longest task's */
    int steps;     /* to simulate; 0: enough for a steady state */
    /* Vary the time of each operation at random by up to this share, depending on `seed`. */
    double jitter;
    uint64_t seed;
} car_simulation_config;

/* A discrete-event simulation of self-timed execution. Time is in units of one micro-batch (all its forwards and
 * backwards), so a step of dp on N devices takes M. Messages take no time. */
typedef struct car_simulation {
    double step_time;   /* of a step, in steady state */
    double idle;        /* share of the executors' time */
    size_t peak, mean;  /* activation bytes of all workers together, in steady state */
    size_t device_peak; /* of the device that needs most */
} car_simulation;

/* Simulates a plan. */
car_status car_plan_simulate(const car_plan *plan, const car_simulation_config *config, car_simulation *out);

/* What to expect of a run: a paced simulation with the operations' costs. With fewer threads than workers, the
 * highest peak of several simulations with a jitter of a fifth. `threads`: 0 for the plan's. */
car_status car_plan_predict_timed(const car_plan *plan, int threads, car_simulation *out);

/* Peak of N workers that are spaced evenly over a step and run freely, over N times one worker's peak. Exact, from
 * the partition's curve. */
double car_predict_free_running(const car_partition *partition, int workers);

typedef struct car_prediction {
    int devices;
    size_t dp_peak; /* activation bytes of dp, with all workers at their peak */
    /* With idealised slots: each stage's held bytes, from the start of its forward to the end of its backward. */
    size_t slots_peak, slots_mean, slots_device_peak;
    car_simulation timed;      /* see car_plan_predict_timed */
    double peak_ratio_to_dp;   /* timed.peak / dp_peak */
    double free_running;       /* see car_predict_free_running; 1 for dp */
    double limit, above_limit; /* the partition's limit, and by which share the peak is above it */
    /* State in bytes: on the device with most, and over all devices. */
    size_t weights_device, weights_total, gradients_device, gradients_total, optimizer_device, optimizer_total;
    int versions; /* most versions of one bundle on one device */
    /* Traffic of one step, in steady state. */
    double bytes_sent, bytes_sent_device; /* total, and of the busiest device */
    double messages, collectives;         /* total */
    int max_messages_per_slot;            /* most messages that one device sends in one slot */
    /* Sequential rounds of point-to-point messages between two slots: 1 for the cycle, at least ceil(log2 N) for a
     * collective. */
    int rounds_between_slots;
    double burst;       /* most bytes sent in one slot over the mean, all devices; 0 without traffic */
    int gradient_delay; /* steps */
    double stale_share; /* share of a step's gradients that are late, weighted by the size of their weights */
} car_prediction;

/* Memory of an optimizer on the device that updates. Set `states` or `stage`. */
typedef struct car_optimizer_sizes {
    int states;          /* floats kept for each weight: 1 for SGD with momentum, 2 for AdamW */
    const size_t *stage; /* bytes of state for each stage; NULL: computed from `states` */
    size_t scratch;      /* additional bytes on every device */
} car_optimizer_sizes;

/* Predicts a plan. `optimizer_states` is the number of floats kept for each weight; use the second form if that
 * differs between parameters. */
car_status car_plan_predict(const car_plan *plan, int optimizer_states, car_prediction *out);
/* As car_plan_predict, for any optimizer. */
car_status car_plan_predict_sized(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out);

/* Peak bytes of one rank over a whole run, if no message is late. Messages in flight (arriving or leaving) are
 * extra. */
typedef struct car_device_prediction {
    /* Where weights do not move, memory for a second version is kept once it was needed. */
    size_t weights;
    size_t gradients, optimizer;
    /* With one thread. Includes what another rank sent and backward needs. */
    size_t activations;
} car_device_prediction;

/* CAR_ERROR_UNSUPPORTED for placement shared, whose devices share memory, and for partitions without a graph. */
car_status car_plan_predict_device(const car_plan *plan, int device, int optimizer_states, car_device_prediction *out);
/* As car_plan_predict_device, for any optimizer. */
car_status car_plan_predict_device_sized(const car_plan *plan, int device, const car_optimizer_sizes *optimizer,
                                         car_device_prediction *out);

/* The same for a configured optimizer. */
car_status car_plan_predict_optimizer(const car_plan *plan, const car_optimizer_config *optimizer, car_prediction *out);
car_status car_plan_predict_device_optimizer(const car_plan *plan, int device, const car_optimizer_config *optimizer,
                                             car_device_prediction *out);
/* `zero` without dp: the most bytes of weights that all ranks together hold during a run. Counts what owners keep,
 * copies, and messages at both ends: at the receiver from the slot in which the receive is posted, at the sender
 * until the message has left. Parameters tied to another stage travel separately and are counted separately. */
typedef struct car_weights_ledger {
    size_t parameters, tied;      /* one copy of everything, as it travels */
    size_t left, left_tied;       /* if a copy leaves by the end of the slot in which it is sent */
    size_t lasting, lasting_tied; /* if it takes as long as allowed: until the slot before it is due */
    size_t owned;                 /* by the rank that owns most, of `parameters` and `tied` */
} car_weights_ledger;

/* CAR_ERROR_UNSUPPORTED for other placements, and for dp, which broadcasts weights. */
car_status car_plan_count_weights(const car_plan *plan, car_weights_ledger *out);

/* Peak bytes of everything on the device that needs most. */
size_t car_prediction_memory(const car_prediction *prediction);

/* Cuts a graph so that no device of a run needs more than `limit` bytes by prediction, with as little recomputation
 * as possible. That is stored in cut->recompute, which must be off before. *predicted is the need of the run; after
 * CAR_ERROR_MEMORY, its need with full recomputation. CAR_ERROR_ARGUMENT for custom plans, which cannot be
 * predicted. */
car_status car_plan_cut_within(const car_graph *graph, const car_plan_config *plan,
                               const car_optimizer_config *optimizer, double limit, car_partition_config *cut,
                               car_prediction *predicted, car_partition **out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
