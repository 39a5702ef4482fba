/* The private definition of a graph, and the helpers that the builders in this folder use. */
#ifndef CAR_GRAPH_INTERNAL_H
#define CAR_GRAPH_INTERNAL_H

#include "base/base.h"
#include "carousel/graph.h"

struct car_graph {
    car_context *context;
    car_status status; /* the first failure while building: sticky */
    car_precision precision;
    bool finished;
    int loss;
    car_op *ops;
    car_tensor *tensors;
    car_param *params;
    int *uses; /* by use: its parameter */
    car_grad_buffer *grad_buffers;
    int op_count, tensor_count, param_count, use_count, grad_buffer_count;
    int op_capacity, tensor_capacity, param_capacity, use_capacity, grad_buffer_capacity;
};

/* Records the first failure and returns CAR_NONE, so that a builder can `return` it. The graph may be NULL. */
int car_graph_fail(car_graph *graph, car_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Use at the top of a builder for arguments that must not be NULL, including the graph. */
#define CAR_GRAPH_REQUIRE(graph, argument)                                                             \
    do {                                                                                               \
        if (!(argument)) {                                                                             \
            return car_graph_fail((graph), CAR_ERROR_ARGUMENT, "%s: %s is NULL", __func__, #argument); \
        }                                                                                              \
    } while (0)

/* Appends and returns the id, CAR_NONE after a failure. */
int car_graph_add_tensor(car_graph *graph, const char *name, car_shape shape, car_dtype dtype);
int car_graph_add_param(car_graph *graph, const char *name, car_shape shape, car_param_role role, car_init init);
/* Copies *op, creates its output (and aux if aux_shape.rank > 0), numbers its uses; returns the output. */
int car_graph_add_op(car_graph *graph, const car_op *op, car_shape out, car_shape aux_shape, car_dtype aux_dtype);

/* Gives outputs and parameters the element types of the graph's precision; called by car_graph_finish. */
void car_graph_settle_types(car_graph *graph);
/* Derives needs_grad, grad_mode, buffers of gradients and lifetimes; called once by car_graph_finish. */
car_status car_graph_derive(car_graph *graph);

#endif
