/* The numbers that pacing uses to keep workers evenly apart when each has its own thread. The executor
 * (engine/rank_pace.c) and the predictions share them. */
#ifndef CAR_PLAN_PACE_H
#define CAR_PLAN_PACE_H

#include "carousel/partition.h"

/* The share of a micro-batch's cost that runs in one portion of work: that of its longest operation. */
double car_pace_portion(const car_curve *curve);
/* How far a worker may run ahead of its place, as a share of a micro-batch's cost. */
double car_pace_lead(const car_curve *curve);
/* The bytes of activations that all workers together may hold: the peak of evenly spaced workers. Work that would
 * exceed it waits while others run. */
double car_pace_budget(const car_partition *partition, int workers);

#endif
