/* A graph with inputs of every kind to build on. */
#ifndef CAR_TESTS_INPUTS_H
#define CAR_TESTS_INPUTS_H

#include "carousel/graph.h"

#define SHAPE1(a) ((car_shape){1, {a}})
#define SHAPE2(a, b) ((car_shape){2, {a, b}})
#define SHAPE3(a, b, c) ((car_shape){3, {a, b, c}})
#define SHAPE4(a, b, c, d) ((car_shape){4, {a, b, c, d}})

typedef struct car_inputs {
    car_context *context;
    car_graph *graph;
    int image, rows, tokens, sequence, labels;
} car_inputs;

/* Creates the graph in the context that is already set. */
void car_inputs_open(car_inputs *inputs);

#endif
