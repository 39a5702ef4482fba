/* A graph's parameters as entries of safetensors files: see params.h. */
#include "checkpoint/params.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "checkpoint/safetensors_internal.h"

car_safetensors_entry car_params_entry(const car_graph *graph, int param) {
    const car_param *p = car_graph_param(graph, param);
    return (car_safetensors_entry){
        .name = p->name, .rank = p->shape.rank, .shape = p->shape.dim, .f64 = p->dtype == CAR_F64};
}

size_t car_params_bytes(const car_graph *graph, int param) {
    const car_param *p = car_graph_param(graph, param);
    return (size_t)car_shape_elements(p->shape) * car_dtype_bytes(p->dtype);
}

size_t car_params_largest(const car_graph *graph) {
    size_t largest = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        size_t bytes = car_params_bytes(graph, p);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

car_status car_params_copy(const car_safetensors *file, const car_safetensors_tensor *tensor, const car_param *param,
                           void *values) {
    if (param->dtype != CAR_F64) {
        return car_safetensors_copy_floats(file, tensor, values);
    }
    if (tensor->dtype != CAR_SAFETENSORS_F64) {
        return car_context_fail(car_safetensors_context(file), CAR_ERROR_UNSUPPORTED,
                                "%s: tensor '%.100s' has elements of type %s; the model's parameter has doubles, which "
                                "can only be read from F64",
                                car_safetensors_path(file), tensor->name, car_safetensors_dtype_text(tensor->dtype));
    }
    return car_safetensors_copy(file, tensor, values);
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
        if (param->dtype == CAR_F64) {
            car_sha256_add(&sha, "F64", 3);
        }
        /* Including the zero, which separates it from the next. */
        car_sha256_add(&sha, shape.text, strlen(shape.text) + 1);
    }
    car_sha256_end(&sha, text);
}
