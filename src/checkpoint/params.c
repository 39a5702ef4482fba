/* A graph's parameters as entries of safetensors files: see params.h. */
#include "checkpoint/params.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

car_safetensors_entry car_params_entry(const car_graph *graph, int param) {
    const car_param *p = car_graph_param(graph, param);
    return (car_safetensors_entry){.name = p->name, .rank = p->shape.rank, .shape = p->shape.dim};
}

size_t car_params_largest(const car_graph *graph) {
    int64_t largest = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        int64_t elements = car_shape_elements(car_graph_param(graph, p)->shape);
        largest = elements > largest ? elements : largest;
    }
    return (size_t)largest;
}

car_status car_params_check_floats(const car_graph *graph) {
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        if (car_graph_param(graph, p)->dtype != CAR_F32) {
            return car_context_fail(car_graph_context(graph), CAR_ERROR_UNSUPPORTED,
                                    "%s holds doubles, and files of weights and checkpoints hold floats: write what "
                                    "car_trainer_read gives",
                                    car_graph_param(graph, p)->name);
        }
    }
    return CAR_OK;
}

bool car_params_same_shape(car_shape shape, const car_safetensors_tensor *tensor) {
    return shape.rank == tensor->rank && memcmp(shape.dim, tensor->shape, (size_t)shape.rank * sizeof *shape.dim) == 0;
}

car_params_text car_params_shape_text(int rank, const int64_t *shape) {
    car_params_text out = {"["};
    for (int d = 0; d < rank; d++) {
        size_t length = strlen(out.text);
        snprintf(out.text + length, sizeof out.text - length, "%s%lld", d > 0 ? ", " : "", (long long)shape[d]);
    }
    size_t length = strlen(out.text);
    snprintf(out.text + length, sizeof out.text - length, "]");
    return out;
}

void car_params_digest(const car_graph *graph, char text[CAR_SHA256_TEXT]) {
    car_sha256 sha = car_sha256_begin();
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        const car_param *param = car_graph_param(graph, p);
        car_params_text shape = car_params_shape_text(param->shape.rank, param->shape.dim);
        car_sha256_add(&sha, param->name, strlen(param->name));
        car_sha256_add(&sha, shape.text, strlen(shape.text) + 1); /* with its end, which tells one from the next */
    }
    car_sha256_end(&sha, text);
}
