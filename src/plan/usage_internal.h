/* The private definition of car_usage. usage_holdings.c creates it; usage.c and uses.c use it to tell what tasks
 * use. */
#ifndef CAR_PLAN_USAGE_INTERNAL_H
#define CAR_PLAN_USAGE_INTERNAL_H

#include "plan/bundles.h"
#include "plan/rules.h"
#include "plan/usage.h"

struct car_usage {
    const car_plan *plan;
    int rank, bundles, tapes;
    bool moves;            /* zero: weights go from user to user */
    bool shared;           /* the rank is the whole process */
    bool apart;            /* see car_usage_keeps_apart */
    bool by_worker;        /* each worker first adds up its own micro-batches */
    bool scripted;         /* a custom plan over ranks: its facts (script.h) replace what follows from the clock */
    car_holding *holdings; /* by bundle */
    bool borrowed;         /* the holdings belong to another car_usage */
    int64_t steps;         /* of the run */
};

/* True for the last micro-batch of its worker in the step. */
static inline bool car_usage_is_workers_last(const car_usage *usage, const car_task *task) {
    return task->micro_batch >= usage->plan->batches - usage->plan->config.workers;
}

/* The worker whose gradients a task is about. A task without a micro-batch is about the last worker's: the finished
 * sum. */
static inline int car_usage_worker_of(const car_usage *usage, const car_task *task) {
    int workers = usage->plan->config.workers;
    return task->micro_batch >= 0 ? task->micro_batch % workers : workers - 1;
}

#endif
