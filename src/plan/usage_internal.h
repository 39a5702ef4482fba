/* The inside of a car_usage: usage_holdings.c makes it, usage.c and uses.c answer by it what tasks use. */
#ifndef CAR_PLAN_USAGE_INTERNAL_H
#define CAR_PLAN_USAGE_INTERNAL_H

#include "plan/bundles.h"
#include "plan/rules.h"
#include "plan/usage.h"

struct car_usage {
    const car_plan *plan;
    int rank, bundles, tapes;
    bool moves;            /* zero: weights go from user to user */
    bool shared;           /* the group is the whole process */
    bool apart;            /* see car_usage_keeps_apart */
    bool by_worker;        /* each worker adds its own micro-batches first */
    bool scripted;         /* over ranks, a custom plan: what the clock would say is in its facts (script.h) */
    car_holding *holdings; /* per bundle */
    bool borrowed;         /* another's */
    int64_t steps;         /* of the run */
};

/* The last micro-batch of its worker in the step. */
static inline bool car_usage_is_workers_last(const car_usage *usage, const car_task *task) {
    return task->micro_batch >= usage->plan->batches - usage->plan->config.workers;
}

/* Whose gradients a task is about; where a device renews weights of its own accord, it is about the last worker's. */
static inline int car_usage_worker_of(const car_usage *usage, const car_task *task) {
    int workers = usage->plan->config.workers;
    return task->micro_batch >= 0 ? task->micro_batch % workers : workers - 1;
}

#endif
