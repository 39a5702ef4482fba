/* How workers with a thread each are kept evenly apart: what the executor does (engine/rank_pace.c) and predictions
 * count with. */
#ifndef CAR_PLAN_PACE_H
#define CAR_PLAN_PACE_H

#include "carousel/partition.h"

/* Share of a micro-batch's cost that runs in one portion: the longest operation's. */
double car_pace_portion(const car_curve *curve);
/* By how much of a micro-batch's cost a worker may be ahead of its distance. */
double car_pace_lead(const car_curve *curve);
/* Bytes of activations that all workers together may have: the peak of evenly spaced ones. What would
 * exceed it waits while others run. */
double car_pace_budget(const car_partition *partition, int workers);

#endif
