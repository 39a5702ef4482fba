/* How a wild graph grows: a pool holds tensors of one shape. Each step applies a random operation to random members
 * and adds the result. At the end all unread tensors are summed, and a random head makes logits of the sum. Old
 * members are picked less often than new ones, but often enough to have many readers. */
#include "support/wild.h"

#include <stdio.h>

#include "base/base.h"

enum { CAPACITY = 64, NAME = 16, CLASSES = 5, BATCH = 2, TOKENS = 3, WIDTH = 6, CHANNELS = 3, SIDE = 4 };

typedef struct grower {
    car_graph *graph;
    car_wild_family family;
    uint64_t key, draws;
    int named;
    char name[NAME];
    int pool[CAPACITY], count;
    bool read[CAPACITY];
    int square; /* parameter of shape [WIDTH, WIDTH] to tie to, or CAR_NONE */
} grower;

static int draw(grower *g, int below) {
    return (int)(car_random_u64(g->key, g->draws++) % (uint64_t)below);
}

static const char *fresh_name(grower *g) {
    snprintf(g->name, sizeof g->name, "op%d", g->named++);
    return g->name;
}

static int pick(grower *g) {
    int recent = g->count < 3 ? g->count : 3;
    int index = draw(g, 3) > 0 ? g->count - 1 - draw(g, recent) : draw(g, g->count);
    g->read[index] = true;
    return g->pool[index];
}

static void put(grower *g, int tensor) {
    if (tensor != CAR_NONE && g->count < CAPACITY) {
        g->pool[g->count] = tensor;
        g->read[g->count++] = false;
    }
}

/* ---- operations that keep the shape --------------------------------------------------------------------- */

static int grow_addition(grower *g) {
    int a = pick(g), b = pick(g);
    return a == b ? car_graph_relu(g->graph, fresh_name(g), a) : car_graph_add(g->graph, fresh_name(g), a, b);
}

static int grow_elementwise(grower *g) {
    int x = pick(g);
    switch (draw(g, 3)) {
    case 0:
        return car_graph_relu(g->graph, fresh_name(g), x);
    case 1:
        return car_graph_gelu(g->graph, fresh_name(g), x, draw(g, 2) == 0);
    default:
        return car_graph_dropout(g->graph, fresh_name(g), x, 0.25);
    }
}

static int grow_linear(grower *g, int x, int out) {
    car_linear_config config = {.out_features = out, .bias = draw(g, 2) == 0};
    if (out == WIDTH && g->square != CAR_NONE && draw(g, 3) == 0) {
        config.tied = car_graph_param(g->graph, g->square)->name;
        return car_graph_linear(g->graph, fresh_name(g), x, &config);
    }
    config.in_by_out = draw(g, 3) == 0;
    int weight = car_graph_param_count(g->graph), y = car_graph_linear(g->graph, fresh_name(g), x, &config);
    if (out == WIDTH && !config.in_by_out) {
        g->square = weight;
    }
    return y;
}

static int grow_rows(grower *g) {
    switch (draw(g, g->family == CAR_WILD_SEQUENCES ? 7 : 6)) {
    case 0:
    case 1:
        return grow_addition(g);
    case 2:
        return car_graph_layernorm(g->graph, fresh_name(g), pick(g), 1e-3);
    case 3:
        return grow_elementwise(g);
    case 6: {
        int x = grow_linear(g, pick(g), 3 * WIDTH);
        return car_graph_attention(g->graph, fresh_name(g), x, 2, draw(g, 2) == 0);
    }
    default:
        return grow_linear(g, pick(g), WIDTH);
    }
}

static int grow_images(grower *g) {
    const car_pool_config window = {.kernel = 3, .stride = 1, .pad = 1};
    switch (draw(g, 9)) {
    case 0:
    case 1:
        return grow_addition(g);
    case 2:
    case 3: {
        car_batchnorm_config config = {.eps = 1e-3, .momentum = 0.1, .relu = draw(g, 2) == 0};
        int x = pick(g), residual = draw(g, 3) > 0 ? pick(g) : CAR_NONE; /* sometimes x itself */
        return car_graph_batchnorm(g->graph, fresh_name(g), x, residual, &config);
    }
    case 4:
        return grow_elementwise(g);
    case 5:
        return car_graph_maxpool(g->graph, fresh_name(g), pick(g), &window);
    case 6:
        return draw(g, 2) == 0 ? car_graph_avgpool(g->graph, fresh_name(g), pick(g), &window)
                               : car_graph_shortcut(g->graph, fresh_name(g), pick(g), CHANNELS, 1);
    default:
        return car_graph_conv(g->graph, fresh_name(g), pick(g), &(car_conv_config){CHANNELS, 3, 1, 1, draw(g, 2) == 0});
    }
}

/* ---- the end -------------------------------------------------------------------------------------------- */

/* Sums all tensors that nobody has read, which include the newest. */
static int add_up(grower *g) {
    int sum = CAR_NONE;
    for (int i = 0; i < g->count; i++) {
        if (!g->read[i]) {
            sum = sum == CAR_NONE ? g->pool[i] : car_graph_add(g->graph, fresh_name(g), sum, g->pool[i]);
        }
    }
    return sum;
}

static int grow_logits(grower *g, int x) {
    if (g->family == CAR_WILD_IMAGES) {
        switch (draw(g, 3)) {
        case 0:
            x = car_graph_global_avgpool(g->graph, fresh_name(g), x);
            break;
        case 1:
            x = car_graph_flatten(g->graph, fresh_name(g), x);
            break;
        default:
            x = car_graph_patch_tokens(g->graph, "class", "positions", x);
        }
    }
    if (g->family == CAR_WILD_SEQUENCES && draw(g, 3) == 0) {
        x = grow_linear(g, x, 3 * WIDTH);
        return car_graph_attention(g->graph, fresh_name(g), x, 2, true); /* any operation may produce the logits */
    }
    if (car_graph_tensor(g->graph, x)->shape.rank == 3 && draw(g, 2) == 0) {
        x = car_graph_select_token(g->graph, fresh_name(g), x, TOKENS - 1);
    }
    x = grow_linear(g, x, CLASSES);
    switch (draw(g, 5)) {
    case 0:
        return car_graph_relu(g->graph, fresh_name(g), x);
    case 1:
        return car_graph_dropout(g->graph, fresh_name(g), x, 0.25);
    case 2:
        return car_graph_layernorm(g->graph, fresh_name(g), x, 1e-3);
    default:
        return x;
    }
}

static car_shape shape_of(car_wild_family family) {
    switch (family) {
    case CAR_WILD_ROWS:
        return (car_shape){2, {BATCH, WIDTH}};
    case CAR_WILD_SEQUENCES:
        return (car_shape){3, {BATCH, TOKENS, WIDTH}};
    default:
        return (car_shape){4, {BATCH, CHANNELS, SIDE, SIDE}};
    }
}

int car_wild_build(car_graph *graph, const car_wild *wild) {
    grower g = {.graph = graph, .family = wild->family, .square = CAR_NONE};
    g.key = car_random_key(wild->seed, "wild") + (uint64_t)wild->family;
    put(&g, car_graph_input(graph, "x", shape_of(wild->family), CAR_F32));
    if (draw(&g, 3) == 0) {
        put(&g, car_graph_input(graph, "y", shape_of(wild->family), CAR_F32));
    }
    for (int i = 0; i < wild->operations; i++) {
        put(&g, wild->family == CAR_WILD_IMAGES ? grow_images(&g) : grow_rows(&g));
    }
    int logits = grow_logits(&g, add_up(&g));
    if (logits == CAR_NONE) {
        return CAR_NONE;
    }
    car_shape rows = car_graph_tensor(graph, logits)->shape;
    rows.rank--;
    int labels = car_graph_input(graph, "labels", rows, CAR_I32);
    return car_graph_cross_entropy(graph, "loss", logits, labels, draw(&g, 2) == 0 ? 0.1 : 0);
}
