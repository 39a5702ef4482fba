/* The machine that the simulator runs a plan on: what its rules read and change. */
#ifndef CAR_SIMULATE_INTERNAL_H
#define CAR_SIMULATE_INTERNAL_H

#include "carousel/predict.h"
#include "plan/internal.h"

enum {
    CAR_MACHINE_FILL = 2,  /* steps at the beginning that are not counted; nor is the last */
    CAR_MACHINE_LEAST = 4, /* steps that are simulated at least */
};

/* One of the tasks that every worker has in every step. Stages without operations have none. */
typedef struct car_position {
    int stage;
    bool backward;
    int first, end; /* events of the curve */
    double before;  /* share of the step's cost */
    size_t after;   /* bytes held until the next one starts */
} car_position;

typedef enum car_runner_state { CAR_RUNNER_WAITING, CAR_RUNNER_READY, CAR_RUNNER_COMPUTING } car_runner_state;

/* A worker. */
typedef struct car_runner {
    car_runner_state state;
    int64_t done;     /* tasks; so the next is position done % count of step done / count */
    int queue;        /* that it waits in, or CAR_NONE */
    int next_waiting; /* in that queue */
    int event;        /* of the curve, that runs */
    int64_t bytes;    /* of activations */
} car_runner;

typedef struct car_entry {
    double key;
    int worker;
} car_entry;

/* The smallest key comes first, of equal ones the smallest worker. */
typedef struct car_heap {
    car_entry *entries;
    int count;
} car_heap;

/* Bytes of a device, or of all. Several change in one moment, and their order means nothing: only what is there before,
 * after, and on top in operations that take no time can be a peak. */
typedef struct car_pool {
    int64_t bytes, before, on_top, peak;
    bool changed;
} car_pool;

/* Tasks of a device in the order of the clock. */
typedef struct car_appointment {
    int64_t slot, task; /* task = micro-batch * count + position */
} car_appointment;

typedef struct car_machine {
    const car_plan *plan;
    const car_partition *partition;
    car_context *context;
    int workers, stages, devices, count; /* count: of positions */
    int64_t steps;
    bool cyclic, shared, zero; /* zero: weights move from user to user */
    bool in_order;             /* devices follow their appointments */
    bool paced;
    double window;
    double jitter;
    uint64_t seed;
    car_position *positions;
    int *position_of; /* by stage: of its forward; CAR_NONE if it has no operations */
    car_runner *runners;
    car_heap timers, ready; /* by time, by phase */
    double *slowest;        /* a tree of minima of the workers' phases: [1] is the root, leaves from [leaves] on */
    int leaves;
    int *queues;           /* first in line: by home or stage; of dp's or accumulate's gate; by device that is busy */
    int *needed, *missing; /* backwards for a version, by home; those still missing, by home and parity of the step */
    int64_t *newest;       /* version, by home */
    int64_t turned, finished; /* micro-batches that have done their forwards, and all */
    car_pool *pools;          /* by device, then the total */
    int *changed;             /* pools, in this moment */
    int changed_count;
    bool *busy; /* devices */
    car_appointment *appointments;
    int64_t *next_appointment, *end_appointment; /* by device */
    int executors, free, computing;
    double now, steady_begin, steady_end; /* negative before they are known */
    double area, work;                    /* bytes * time and executors * time, in steady state */
} car_machine;

/* Fills an empty machine; car_machine_release is due even after a failure. */
car_status car_machine_create(const car_plan *plan, const car_simulation_config *config, car_machine *out);
void car_machine_release(car_machine *machine);

#endif
