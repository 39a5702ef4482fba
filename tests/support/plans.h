/* Creates partitions and plans in the common context. A failure ends the test. */
#ifndef CAR_TESTS_PLANS_H
#define CAR_TESTS_PLANS_H

#include "carousel/plan.h"
#include "support/nets.h"

car_partition *car_plans_uniform(int stages, double ratio);
car_plan *car_plans_make(const car_partition *partition, car_plan_config config);

/* A model or a test network, and its partition by FLOPs. */
typedef struct car_plans_model {
    car_graph *graph;
    car_partition *partition;
} car_plans_model;

car_plans_model car_plans_open_model(const char *name, int stages);
car_plans_model car_plans_open_net(car_net_function net, int stages);
void car_plans_close_model(car_plans_model *model);

#endif
