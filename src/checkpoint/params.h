/* A graph's parameters as entries of safetensors files. */
#ifndef CAR_CHECKPOINT_PARAMS_H
#define CAR_CHECKPOINT_PARAMS_H

#include "base/sha256.h"
#include "carousel/graph.h"
#include "carousel/safetensors.h"

/* With the parameter's name and shape; points into the graph. */
car_safetensors_entry car_params_entry(const car_graph *graph, int param);
/* Elements of the largest parameter. */
size_t car_params_largest(const car_graph *graph);
/* Files hold floats: CAR_ERROR_UNSUPPORTED if a parameter holds doubles. */
car_status car_params_check_floats(const car_graph *graph);
bool car_params_same_shape(car_shape shape, const car_safetensors_tensor *tensor);

typedef struct car_params_text {
    char text[160];
} car_params_text;
/* "[64, 3, 7, 7]" */
car_params_text car_params_shape_text(int rank, const int64_t *shape);

/* SHA-256 over names and shapes: models with the same digest can hold the same weights. */
void car_params_digest(const car_graph *graph, char text[CAR_SHA256_TEXT]);

#endif
