/* Predictions: what a plan will need and cost, before anything runs. */
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
    int executors; /* threads or devices that compute at the same time; 0: the plan's */
    bool paced;    /* pacing: a task starts only if its phase <= the slowest worker's + lead */
    double lead;   /* in cost shares; 0: the longest task's */
    int steps;     /* simulated; 0: enough for a steady state */
    /* Operations take up to this share more or less than they cost, each its own, differently for every `seed`. */
    double jitter;
    uint64_t seed;
} car_simulation_config;

/* Self-timed execution of the compute tasks and their dependencies, as events. Time is in units of one
 * micro-batch (all its forwards and backwards), so dp on N devices takes 1 a step, or M.  Messages take no time. */
typedef struct car_simulation {
    double step_time;   /* in steady state */
    double idle;        /* share of the executors' time */
    size_t peak, mean;  /* activation bytes of all workers together, in steady state */
    size_t device_peak; /* of the device that needs most */
} car_simulation;

car_status car_plan_simulate(const car_plan *plan, const car_simulation_config *config, car_simulation *out);

/* What to expect of a run: paced, by the operations' costs; with fewer threads than workers, the highest peak of
 * several timings whose operations take up to a fifth more or less than they cost. `threads`: 0 for the plan's. */
car_status car_plan_predict_timed(const car_plan *plan, int threads, car_simulation *out);

/* N workers spaced evenly over a step and running freely: the peak of their sum over N times one's
 * peak. Exact, from the curve. */
double car_predict_free_running(const car_partition *partition, int workers);

typedef struct car_prediction {
    int devices;
    size_t dp_peak; /* activation bytes of dp: all workers at their own peak */
    /* Idealised slots: a stage's held bytes from the start of its forward to the end of its backward. */
    size_t slots_peak, slots_mean, slots_device_peak;
    car_simulation timed;      /* see car_plan_predict_timed */
    double peak_ratio_to_dp;   /* timed.peak / dp_peak */
    double free_running;       /* see car_predict_free_running; 1 for dp */
    double limit, above_limit; /* the partition's limit; peak over what the limit allows, minus 1 */
    /* States, in bytes: of the device with most, and over all devices. */
    size_t weights_device, weights_total, gradients_device, gradients_total, optimizer_device, optimizer_total;
    int versions; /* of one bundle on one device, at most */
    /* Traffic of one step in steady state. */
    double bytes_sent, bytes_sent_device; /* total; of the busiest device */
    double messages, collectives;         /* total */
    int max_messages_per_slot;            /* sent by one device in one slot */
    int rounds_between_slots; /* of point-to-point messages in a row: 1 for the cycle, ceil(log2 N) at least for a collective */
    double burst;             /* most bytes sent in one slot over the mean, all devices; 0 without traffic */
    int gradient_delay; /* steps */
    double stale_share; /* of the gradients that a step adds up, weighted by the size of their weights: late ones */
} car_prediction;

/* What an optimizer keeps on the device that updates, in bytes. */
typedef struct car_optimizer_sizes {
    int states;          /* floats for each weight, 1 for SGD with momentum, 2 for AdamW; or */
    const size_t *stage; /* bytes for each stage; NULL: by `states` */
    size_t scratch;      /* on every device besides */
} car_optimizer_sizes;

/* `optimizer_states`: floats kept for each weight; or of an optimizer whose parameters differ. */
car_status car_plan_predict(const car_plan *plan, int optimizer_states, car_prediction *out);
car_status car_plan_predict_sized(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out);

/* What one rank holds at most from the beginning of a run to its end, in bytes, if no message is late. What is in
 * flight (arriving, or on its way out) comes on top. */
typedef struct car_device_prediction {
    size_t weights; /* where they do not move, room for a second version is kept for good once it was needed */
    size_t gradients, optimizer;
    size_t activations; /* with one thread; what comes from another rank and is held for backward counts here */
} car_device_prediction;

/* CAR_ERROR_UNSUPPORTED for placement shared, where devices share their memory, and for partitions without a graph. */
car_status car_plan_predict_device(const car_plan *plan, int device, int optimizer_states, car_device_prediction *out);
car_status car_plan_predict_device_sized(const car_plan *plan, int device, const car_optimizer_sizes *optimizer,
                                         car_device_prediction *out);

/* The same with what a configured optimizer keeps. */
car_status car_plan_predict_optimizer(const car_plan *plan, const car_optimizer_config *optimizer, car_prediction *out);
car_status car_plan_predict_device_optimizer(const car_plan *plan, int device, const car_optimizer_config *optimizer,
                                             car_device_prediction *out);
/* zero, but for dp: weights that all ranks have at once, at most, from the first slot of a run to its last. Counted
 * are what owners keep, copies, and messages at both ends: at the receiver from the slot in which it is posted, at the
 * sender until it has left. Parameters that are tied to another stage travel by themselves and are counted separately.
 */
typedef struct car_weights_ledger {
    size_t parameters, tied;      /* all of them once, as they travel */
    size_t left, left_tied;       /* where a copy has left by the end of the slot in which it is sent */
    size_t lasting, lasting_tied; /* where it takes as long as it may: until the slot before it is due */
    size_t owned;                 /* by the rank that owns most, of `parameters` and `tied` */
} car_weights_ledger;

/* CAR_ERROR_UNSUPPORTED for other placements, and for dp, whose weights are broadcast. */
car_status car_plan_count_weights(const car_plan *plan, car_weights_ledger *out);

/* What the device that needs most holds of everything, at most. */
size_t car_prediction_memory(const car_prediction *prediction);

/* Cuts a graph so that no device of a run by `plan` with `optimizer` is predicted to need more than `limit` bytes: with the
 * least recomputation that does it, which is left in cut->recompute (off before). *predicted is what the run needs then; of
 * CAR_ERROR_MEMORY, what it needs with all made again that can be. CAR_ERROR_ARGUMENT for custom plans, which have no
 * predictions. */
car_status car_plan_cut_within(const car_graph *graph, const car_plan_config *plan,
                               const car_optimizer_config *optimizer, double limit, car_partition_config *cut,
                               car_prediction *predicted, car_partition **out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
