/* A graph's parameters as entries of safetensors files. */
#ifndef CAR_CHECKPOINT_PARAMS_H
#define CAR_CHECKPOINT_PARAMS_H

#include "base/sha256.h"
#include "carousel/graph.h"
#include "carousel/safetensors.h"

/* The entry of a parameter: its name, shape and type. Points into the graph. */
car_safetensors_entry car_params_entry(const car_graph *graph, int param);
/* Bytes of a parameter's values in canonical layout (floats, or doubles in user-defined stages), and of the largest
 * one. */
size_t car_params_bytes(const car_graph *graph, int param);
size_t car_params_largest(const car_graph *graph);
/* Reads a tensor of the parameter's shape as values of its type. CAR_ERROR_UNSUPPORTED if one holds doubles and the
 * other does not. */
car_status car_params_copy(const car_safetensors *file, const car_safetensors_tensor *tensor, const car_param *param,
                           void *values);
bool car_params_same_shape(car_shape shape, const car_safetensors_tensor *tensor);

typedef struct car_params_text {
    char text[160];
} car_params_text;
/* A shape as text, e.g. "[64, 3, 7, 7]". */
car_params_text car_params_shape_text(int rank, const int64_t *shape);

/* SHA-256 over names, shapes, and which parameters hold doubles. Models with the same digest can share weights. */
void car_params_digest(const car_graph *graph, char text[CAR_SHA256_TEXT]);

#endif
