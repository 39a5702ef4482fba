/* Partitions and plans in the common context: see plans.h. */
#include "support/plans.h"

#include "carousel/model.h"
#include "support/common.h"

car_partition *car_plans_uniform(int stages, double ratio) {
    car_partition *partition = NULL;
    car_common_expect_ok(car_partition_create_uniform(car_common_context, stages, ratio, &partition));
    return partition;
}

car_plan *car_plans_make(const car_partition *partition, car_plan_config config) {
    car_plan *plan = NULL;
    car_common_expect_ok(car_plan_create(car_common_context, partition, &config, &plan));
    return plan;
}

static car_plans_model partitioned(car_graph *graph, int stages) {
    car_plans_model model = {.graph = graph};
    car_common_expect_ok(car_partition_create(graph, &(car_partition_config){.stages = stages}, &model.partition));
    return model;
}

car_plans_model car_plans_open_model(const char *name, int stages) {
    car_graph *graph = NULL;
    car_common_expect_ok(car_model_build(car_common_context, name, NULL, &graph));
    return partitioned(graph, stages);
}

car_plans_model car_plans_open_net(car_net_function net, int stages) {
    car_graph *graph = NULL;
    car_common_expect_ok(car_graph_create(car_common_context, &graph));
    car_common_expect_ok(car_graph_finish(graph, net(graph)));
    return partitioned(graph, stages);
}

void car_plans_close_model(car_plans_model *model) {
    car_partition_destroy(model->partition);
    car_graph_destroy(model->graph);
}
