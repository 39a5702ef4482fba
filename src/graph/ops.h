/* Helpers shared by the builders of operations. */
#ifndef CAR_GRAPH_OPS_H
#define CAR_GRAPH_OPS_H

#include "graph/internal.h"

enum { CAR_GRAPH_NAME_CAPACITY = 256 };

#define CAR_NO_AUX ((car_shape){0, {0}})

/* True if x is a tensor of that rank (0: any) and type. Otherwise the graph fails. */
bool car_graph_check_input(car_graph *graph, const char *name, int x, int rank, car_dtype dtype);
bool car_graph_same_shape(car_graph *graph, const char *name, int a, int b);

/* Adds the parameter NAME + SUFFIX. */
int car_graph_named_param(car_graph *graph, const char *name, const char *suffix, car_shape shape, car_param_role role,
                          car_init init);

#endif
