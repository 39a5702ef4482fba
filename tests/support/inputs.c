/* A graph with inputs of every kind to build on. */
#include "support/inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

void car_inputs_open(car_inputs *inputs) {
    assert_int_equal(car_graph_create(inputs->context, &inputs->graph), CAR_OK);
    inputs->image = car_graph_input(inputs->graph, "image", SHAPE4(2, 3, 9, 7), CAR_F32);
    inputs->rows = car_graph_input(inputs->graph, "rows", SHAPE2(2, 6), CAR_F32);
    inputs->tokens = car_graph_input(inputs->graph, "tokens", SHAPE2(2, 5), CAR_I32);
    inputs->sequence = car_graph_input(inputs->graph, "sequence", SHAPE3(2, 5, 12), CAR_F32);
    inputs->labels = car_graph_input(inputs->graph, "labels", SHAPE1(2), CAR_I32);
}
