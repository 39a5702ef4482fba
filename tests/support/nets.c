/* The small networks. */
#include "support/nets.h"

#include <stdio.h>

int car_net_conv(car_graph *graph, const char *name, int x, int channels, int kernel, int stride) {
    return car_graph_conv(graph, name, x, &(car_conv_config){channels, kernel, stride, kernel / 2, false});
}

int car_net_norm(car_graph *graph, const char *name, int x, int residual, bool relu) {
    return car_graph_batchnorm(graph, name, x, residual, &(car_batchnorm_config){relu, 1e-5, 0.1});
}

int car_net_linear(car_graph *graph, const char *name, int x, int out) {
    return car_graph_linear(graph, name, x, &(car_linear_config){out, true, false, NULL});
}

int car_net_residual(car_graph *graph) {
    enum { BATCH = 3 };
    int images = car_graph_input(graph, "images", (car_shape){4, {BATCH, 3, 11, 9}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {BATCH}}, CAR_I32);
    int x = car_net_norm(graph, "bn0", car_net_conv(graph, "conv0", images, 20, 3, 1), CAR_NONE, true);
    x = car_graph_maxpool(graph, "max", x, &(car_pool_config){3, 2, 1});
    int y = car_net_norm(graph, "bn1", car_net_conv(graph, "conv1", x, 20, 3, 1), CAR_NONE, true);
    x = car_net_norm(graph, "bn2", car_net_conv(graph, "conv2", y, 20, 3, 1), x, true);
    y = car_net_norm(graph, "bn3", car_net_conv(graph, "conv3", x, 33, 3, 2), CAR_NONE, false);
    x = car_graph_relu(graph, "relu", car_graph_add(graph, "add", y, car_graph_shortcut(graph, "cut", x, 33, 2)));
    y = car_graph_flatten(graph, "flat", car_graph_avgpool(graph, "avg", x, &(car_pool_config){2, 1, 0}));
    x = car_graph_global_avgpool(graph, "pool", x);
    x = car_graph_add(graph, "sum", car_net_linear(graph, "head0", x, CAR_NET_CLASSES),
                      car_net_linear(graph, "head1", y, CAR_NET_CLASSES));
    return car_graph_cross_entropy(graph, "loss", x, labels, 0.1);
}

/* One transformer block. Names of its parameters start with `prefix`. */
static int add_block(car_graph *graph, const char *prefix, int x, int width, bool causal) {
    enum { HEADS = 3, CAPACITY = 64 };
    char name[CAPACITY];
    snprintf(name, sizeof name, "%s.ln1", prefix);
    int y = car_graph_layernorm(graph, name, x, 1e-5);
    snprintf(name, sizeof name, "%s.qkv", prefix);
    y = car_graph_linear(graph, name, y, &(car_linear_config){3 * width, true, true, NULL});
    snprintf(name, sizeof name, "%s.attention", prefix);
    y = car_graph_attention(graph, name, y, HEADS, causal);
    snprintf(name, sizeof name, "%s.proj", prefix);
    y = car_net_linear(graph, name, y, width);
    snprintf(name, sizeof name, "%s.drop", prefix);
    x = car_graph_add(graph, "add1", x, car_graph_dropout(graph, name, y, 0.1));
    snprintf(name, sizeof name, "%s.ln2", prefix);
    y = car_graph_layernorm(graph, name, x, 1e-5);
    snprintf(name, sizeof name, "%s.up", prefix);
    y = car_net_linear(graph, name, y, 4 * width);
    snprintf(name, sizeof name, "%s.down", prefix);
    y = car_net_linear(graph, name, car_graph_gelu(graph, "gelu", y, causal), width);
    return car_graph_add(graph, "add2", x, y);
}

int car_net_language(car_graph *graph) {
    enum { BATCH = 2, TOKENS = 7, VOCABULARY = 23, WIDTH = 12 };
    int tokens = car_graph_input(graph, "tokens", (car_shape){2, {BATCH, TOKENS}}, CAR_I32);
    int labels = car_graph_input(graph, "labels", (car_shape){2, {BATCH, TOKENS}}, CAR_I32);
    int x = car_graph_embedding(graph, "wte", "wpe", tokens, VOCABULARY, TOKENS + 2, WIDTH);
    x = add_block(graph, "h.1", add_block(graph, "h.0", x, WIDTH, true), WIDTH, true);
    x = car_graph_layernorm(graph, "ln", x, 1e-5);
    x = car_graph_linear(graph, "head", x, &(car_linear_config){VOCABULARY, false, false, "wte.weight"});
    return car_graph_cross_entropy(graph, "loss", x, labels, 0);
}

int car_net_patches(car_graph *graph) {
    enum { BATCH = 2, WIDTH = 24 };
    int images = car_graph_input(graph, "images", (car_shape){4, {BATCH, 3, 12, 8}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {BATCH}}, CAR_I32);
    int x = car_graph_conv(graph, "patches", images, &(car_conv_config){WIDTH, 4, 4, 0, true});
    x = add_block(graph, "block", car_graph_patch_tokens(graph, "class", "positions", x), WIDTH, false);
    x = car_net_linear(graph, "head", car_graph_select_token(graph, "first", x, 0), CAR_NET_CLASSES);
    return car_graph_cross_entropy(graph, "loss", x, labels, 0);
}

int car_net_pool_first(car_graph *graph) {
    int images = car_graph_input(graph, "images", (car_shape){4, {2, 3, 9, 7}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    int x = car_graph_maxpool(graph, "max", images, &(car_pool_config){2, 2, 0});
    x = car_graph_relu(graph, "relu", x);
    x = car_net_linear(graph, "head", car_graph_flatten(graph, "flat", x), CAR_NET_CLASSES);
    return car_graph_cross_entropy(graph, "loss", x, labels, 0);
}
