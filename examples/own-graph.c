/* Your own network, fed by hand: it learns which quadrant of the plane a point is in.
 *
 *     cc own-graph.c $(pkg-config --cflags --libs carousel) -o own-graph */
#include <stdio.h>

#include <carousel/carousel.h>

enum { WORKERS = 4, BATCH = 16, WIDTH = 32, LAYERS = 4, EVALUATION = 1000000 };

/* points [BATCH, 2] -> LAYERS of WIDTH -> 4 classes */
static car_status build(car_context *context, car_graph **graph) {
    car_status status = car_graph_create(context, graph);
    if (status != CAR_OK) {
        return status;
    }
    int x = car_graph_input(*graph, "points", (car_shape){2, {BATCH, 2}}, CAR_F32);
    int labels = car_graph_input(*graph, "labels", (car_shape){1, {BATCH}}, CAR_I32);
    for (int l = 0; l < LAYERS; l++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d", l);
        x = car_graph_linear(*graph, name, x, &(car_linear_config){.out_features = WIDTH, .bias = true});
        snprintf(name, sizeof name, "relu.%d", l);
        x = car_graph_relu(*graph, name, x);
    }
    x = car_graph_linear(*graph, "head", x, &(car_linear_config){.out_features = 4, .bias = true});
    /* Any mistake above is reported here, with its message. */
    return car_graph_finish(*graph, car_graph_cross_entropy(*graph, "loss", x, labels, 0));
}

/* Feeds one micro-batch. Its contents depend on its number alone, never on who asks, or when. */
static car_status feed(void *user, int64_t step, int worker, car_tape *tape) {
    const car_graph *graph = user;
    float points[BATCH][2];
    int32_t labels[BATCH];
    uint32_t state = (uint32_t)(step * WORKERS + worker) * 2654435761u + 1;
    for (int i = 0; i < BATCH; i++) {
        for (int d = 0; d < 2; d++) {
            state = state * 1664525u + 1013904223u;
            points[i][d] = (float)(state >> 8) / 8388608.0f - 1;
        }
        labels[i] = (points[i][0] > 0) + 2 * (points[i][1] > 0);
    }
    car_status status = car_tape_feed(tape, car_graph_find_tensor(graph, "points"), points);
    return status == CAR_OK ? car_tape_feed(tape, car_graph_find_tensor(graph, "labels"), labels) : status;
}

static car_status feed_evaluation(void *user, int64_t batch, int worker, car_tape *tape) {
    return feed(user, EVALUATION + batch, worker, tape);
}

int main(void) {
    static const float corners[BATCH][2] = {{-0.5f, -0.5f}, {0.5f, -0.5f}, {-0.5f, 0.5f}, {0.5f, 0.5f}};
    float logits[BATCH][4];
    int right = 0;
    car_context *context = NULL;
    car_graph *graph = NULL;
    car_run *run = NULL;
    car_evaluation result = {0};
    car_status status = car_context_create(NULL, &context);
    status = status == CAR_OK ? build(context, &graph) : status;
    const car_run_options options = {.graph = graph,
                                     .feed = feed,
                                     .evaluation_feed = feed_evaluation,
                                     .feed_user = graph,
                                     .workers = WORKERS,
                                     .steps = 150,
                                     .eval_batches = 8};
    status = status == CAR_OK ? car_run_create(context, &options, &run) : status;
    status = status == CAR_OK ? car_run_train(run) : status;
    status = status == CAR_OK ? car_run_evaluate(run, &result) : status;
    status = status == CAR_OK ? car_run_predict(run, corners, &logits[0][0]) : status;
    for (int c = 0; status == CAR_OK && c < 4; c++) {
        int best = 0;
        for (int k = 1; k < 4; k++) {
            best = logits[c][k] > logits[c][best] ? k : best;
        }
        right += best == c;
    }
    if (status != CAR_OK) {
        fprintf(stderr, "own-graph: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
    } else {
        printf("%.1f %% right of %lld points; %d of the 4 corners\n", 100 * result.top1, (long long)result.rows, right);
    }
    car_run_destroy(run);
    car_graph_destroy(graph);
    car_context_destroy(context);
    return status == CAR_OK && result.top1 > 0.8 && right == 4 ? 0 : 1;
}
