/* A described cluster, and how long a plan's step takes on it: for machines that nobody here owns.
 *
 * A cluster is nodes of equal devices. Each device has a link into its node, each node one into the network; a link
 * carries `bandwidth` bytes a second in each direction, shared by what is under way on it. */
#ifndef CAROUSEL_CLUSTER_H
#define CAROUSEL_CLUSTER_H

#include "carousel/optimizer.h"
#include "carousel/plan.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_link {
    double bandwidth; /* bytes a second, in each direction */
    double latency;   /* seconds from device to device, whatever is sent */
} car_link;

typedef struct car_cluster {
    char name[64];
    int64_t devices; /* that there are; 0: as many as a plan needs */
    int devices_per_node;
    double flops;      /* a second, that one device sustains */
    double bf16_flops; /* the same with --precision bf16; 0: not said */
    double memory;     /* bytes of one device; 0: not said */
    car_link inside;   /* a device's, to the others of its node; all zero if a node has one device */
    car_link between;  /* a node's, to the others; messages between nodes take the devices' links too */
} car_cluster;

/* A JSON object with the fields above under their names ("inside" and "between" are objects); docs/plan.md has an
 * example. CAR_ERROR_FORMAT names the field and what it should be; `origin` is what the message calls the text. */
car_status car_cluster_parse(car_context *context, const char *origin, const char *text, size_t length,
                             car_cluster *out);
car_status car_cluster_load(car_context *context, const char *path, car_cluster *out);

/* What a device sustains in a precision. What is not said about bf16 is taken to be as fast as fp32. */
double car_cluster_flops(const car_cluster *cluster, car_precision precision);

/* What a step takes if every device runs its part of the table as a rank of the engine does, with one thread: each
 * task when those that it waits for are over, receives posted as far ahead as there. A message goes when it is sent
 * and posted: it takes its latency, then bytes over the smallest of its shares of the links on its way. Collectives
 * are rings: of b bytes over g ranks 2(g-1) rounds to all, g-1 to or from one, each the latency and b/g bytes; one
 * after another in a group, beside what is computed. All-reduces go together in buckets of 25 MB, or more where a
 * round's part would take less than four latencies. dp over zero fetches the next stage's weights while it computes.
 * Updates take no time. In the cycle devices begin one after another, as the clock has it. */
typedef struct car_timing {
    double compute;   /* seconds: one worker's forwards and backwards */
    double step;      /* seconds from step to step, in steady state */
    double free_step; /* the same if messages took no time */
    double exposed;   /* step - free_step: what the network adds */
    double bytes;     /* sent in a step, by all devices */
    double mean_rate; /* bytes a second, all devices together, over a step */
    double peak_rate; /* at most */
    double busiest;   /* bytes of a step through the busiest link over what it could carry */
    double bucket;    /* dp: bytes that go together in an all-reduce */
    int steps;        /* simulated */
} car_timing;

/* The size of pieces (car_plan_config) that suits a cluster: a hop of one takes a fraction of the time from one
 * worker's backward to the next one's, so that the ring keeps up with them, but no less than some latencies. `compute`
 * as below. */
int64_t car_cluster_piece_bytes(const car_cluster *cluster, int workers, double compute);

/* `compute`: seconds of one worker's forwards and backwards. Not for `shared`: CAR_ERROR_ARGUMENT. */
car_status car_plan_time(const car_plan *plan, const car_cluster *cluster, double compute, car_timing *out);

/* zero with two copies: how many slots before their use they are best passed on (car_plan_config.zero_ahead). Several
 * are timed: k, 2k, 3k, 4k, 6k and 8k, and then twice as many each time, up to 2S, while that gains more than 1 %.
 * Taken is the smallest, which needs least memory, of those that are as fast as the fastest to 1 % and fit. */
enum { CAR_AHEAD_TRIALS = 24 };
typedef struct car_ahead_trial {
    int ahead;
    double step;   /* seconds */
    double memory; /* bytes of the device that needs most; 0: not looked at */
} car_ahead_trial;

typedef struct car_ahead_choice {
    int ahead;
    int count; /* 0: the plan is too large to time several; `ahead` is 2k */
    car_ahead_trial trials[CAR_AHEAD_TRIALS];
} car_ahead_choice;

/* `memory`: bytes that a device may need, 0 for any. If none fits, it is the one that needs least. */
car_status car_plan_choose_ahead(car_context *context, const car_partition *partition, const car_plan_config *config,
                                 const car_cluster *cluster, double compute, const car_optimizer_config *optimizer,
                                 double memory, car_ahead_choice *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
