/* The multilayer perceptron: nn.Sequential(Flatten, Linear, ReLU, ..., Linear, ReLU, Linear).
 *
 * Parameters are named by their position in the sequence: "1.weight", "3.weight", and so on. */
#include "models/models.h"

static car_status check(car_context *context, const char *name, const car_model_config *config) {
    double features = (double)config->channels * config->image_size * config->image_size;
    double widest = features > config->width ? features : config->width;
    widest = widest > config->classes ? widest : config->classes;
    car_status status = car_model_check_elements(context, name, "an activation", config->batch * widest);
    if (status == CAR_OK) {
        status = car_model_check_elements(context, name, "a weight", config->width * widest);
    }
    return status;
}

static int linear(car_graph *graph, int position, int x, int out_features) {
    car_linear_config config = {.out_features = out_features, .bias = true};
    return car_graph_linear(graph, car_model_label("%d", position).text, x, &config);
}

static int build(car_graph *graph, const car_model_config *config) {
    int position = 0;
    int x = car_graph_flatten(graph, car_model_label("%d", position++).text, car_model_images(graph, config));
    for (int i = 0; i < config->depth; i++) {
        x = linear(graph, position++, x, config->width);
        x = car_graph_relu(graph, car_model_label("%d", position++).text, x);
    }
    return car_model_classify(graph, config, linear(graph, position, x, config->classes));
}

const car_model_entry car_model_mlp = {
    .info = {.name = "mlp",
             .summary = "multilayer perceptron, 4 hidden layers of 512",
             .domain = CAR_DOMAIN_IMAGES,
             .defaults = {.batch = 1, .classes = 10, .image_size = 32, .channels = 3, .width = 512, .depth = 4}},
    .check = check,
    .build = build,
};
