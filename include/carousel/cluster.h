/* A described cluster, and how long a step of a plan would take on it. For planning runs on machines you do not
 * have.
 *
 * A cluster has nodes of equal devices. Each device has a link to its node, and each node has a link to the network.
 * A link carries `bandwidth` bytes per second in each direction, shared by the messages on it. */
#ifndef CAROUSEL_CLUSTER_H
#define CAROUSEL_CLUSTER_H

#include "carousel/optimizer.h"
#include "carousel/plan.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_link {
    double bandwidth; /* bytes per second, in each direction */
    double latency;   /* seconds from device to device, for any size */
} car_link;

typedef struct car_cluster {
    char name[64];
    int64_t devices; /* number of devices; 0: as many as a plan needs */
    int devices_per_node;
    double flops;      /* per second, sustained by one device */
    double bf16_flops; /* the same with --precision bf16; 0: unknown */
    double memory;     /* bytes of one device; 0: unknown */
    car_link inside;   /* from a device to the others of its node; all zero if a node has one device */
    car_link between;  /* from a node to the others; messages between nodes pass the devices' links as well */
} car_cluster;

/* Reads a JSON object with the fields above ("inside" and "between" are objects); docs/plan.md has an example.
 * CAR_ERROR_FORMAT names the field and what is expected. `origin` names the text in messages, e.g. its path. */
car_status car_cluster_parse(car_context *context, const char *origin, const char *text, size_t length,
                             car_cluster *out);
/* The same from a file. */
car_status car_cluster_load(car_context *context, const char *path, car_cluster *out);

/* FLOP/s of a device in a precision. Without a figure for bf16, it counts as fast as fp32. */
double car_cluster_flops(const car_cluster *cluster, car_precision precision);

/* The predicted time of a step, if each device runs its part of the table as a rank of the engine does, with one
 * thread.
 *
 * - A task runs when those that it waits for have finished. Receives are posted as early as the engine posts them.
 * - A message starts once it is both sent and posted. It takes its latency, then its bytes over the smallest of its
 *   shares of the links on its way.
 * - Collectives are rings. For b bytes over g ranks, an all-reduce takes 2(g-1) rounds, one to or from a single rank
 *   g-1; each round takes the latency and b/g bytes. A group runs one at a time, in parallel with computing.
 * - All-reduces are grouped into buckets of 25 MB, or more if a round would otherwise take less than four latencies.
 * - dp over zero fetches the next stage's weights while it computes.
 * - Updates take no time. In the cycle, devices start one after another, by the clock. */
typedef struct car_timing {
    double compute;   /* seconds of one worker's forwards and backwards in a step */
    double step;      /* seconds per step, in steady state */
    double free_step; /* the same if messages took no time */
    double exposed;   /* step - free_step: what the network adds */
    double bytes;     /* sent in a step by all devices */
    double mean_rate; /* bytes per second by all devices together, averaged over a step */
    double peak_rate; /* the highest such rate */
    double busiest;   /* busiest link: bytes of a step over what it could carry in that time */
    double bucket;    /* dp: bytes of an all-reduce bucket */
    int steps;        /* how many were simulated */
} car_timing;

/* A good size of pieces (car_plan_config.piece_bytes) for a cluster. One hop then takes a fraction of the time
 * between two workers' backwards, so that the ring keeps up, but at least a few latencies. `compute` as below. */
int64_t car_cluster_piece_bytes(const car_cluster *cluster, int workers, double compute);

/* Predicts the time of a step. `compute` is the seconds of one worker's forwards and backwards. CAR_ERROR_ARGUMENT
 * for placement `shared`, which has no network. */
car_status car_plan_time(const car_plan *plan, const car_cluster *cluster, double compute, car_timing *out);

/* Chooses car_plan_config.zero_ahead for `zero` with two copies: how many slots before their use weights are passed
 * on. It times k, 2k, 3k, 4k, 6k and 8k, then keeps doubling up to 2S while that gains more than 1 %. Of those that
 * fit and are within 1 % of the fastest it takes the smallest, which needs the least memory. */
enum { CAR_AHEAD_TRIALS = 24 };
typedef struct car_ahead_trial {
    int ahead;
    double step;   /* seconds */
    double memory; /* bytes of the device that needs most; 0: not computed */
} car_ahead_trial;

typedef struct car_ahead_choice {
    int ahead;
    int count; /* 0 if the plan is too large for trials; `ahead` is then 2k */
    car_ahead_trial trials[CAR_AHEAD_TRIALS];
} car_ahead_choice;

/* `memory` is the limit of a device in bytes, 0 for none. If no trial fits, the one that needs least is chosen. */
car_status car_plan_choose_ahead(car_context *context, const car_partition *partition, const car_plan_config *config,
                                 const car_cluster *cluster, double compute, const car_optimizer_config *optimizer,
                                 double memory, car_ahead_choice *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
