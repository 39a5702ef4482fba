/* Your own stages: logistic regression whose stages are blocks of features. Stage j adds X_j w_j to the scores of
 * the stage before; the last one computes the loss. Over ranks, each rank has its own features and weights:
 *
 *     cc own-stage.c $(pkg-config --cflags --libs carousel) -lm -o own-stage
 *     ./own-stage
 *     mpirun -n 4 ./own-stage */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <carousel/stage.h>

enum { WORKERS = 4, BATCH = 32, FEATURES = 8, STEPS = 40 }; /* FEATURES: per block */

/* data[0] is the block's features; in the last stage data[1] is the labels. */
static car_status forward(const car_stage_io *io) {
    const double *x = io->data[0], *w = io->params, *before = io->input, *label = io->data[1];
    double *score = label ? io->held : io->output; /* NULL in the last stage if there is no backward */
    for (int r = 0; r < BATCH; r++) {
        double s = before ? before[r] : 0;
        for (int f = 0; f < FEATURES; f++) {
            s += x[r * FEATURES + f] * w[f];
        }
        if (score) {
            score[r] = s;
        }
        *io->loss += label ? log1p(exp(-label[r] * s)) / BATCH : 0;
    }
    return CAR_OK;
}

static car_status backward(const car_stage_io *io) {
    const double *x = io->data[0], *above = io->output_gradient, *label = io->data[1], *score = io->held;
    double *g = io->param_gradients, *below = io->input_gradient;
    for (int r = 0; r < BATCH; r++) {
        double d = label ? -label[r] / (1 + exp(label[r] * score[r])) / BATCH : above[r];
        for (int f = 0; f < FEATURES; f++) {
            g[f] += d * x[r * FEATURES + f];
        }
        if (below) {
            below[r] = d;
        }
    }
    return CAR_OK;
}

/* Samples whose labels follow from their features. A rank is fed only the blocks of its stages. */
static car_status feed(void *user, int64_t step, int worker, car_tape *tape) {
    const int *inputs = user;
    static const double scale = 1.0 / 2147483648.0;
    double x[WORKERS][BATCH * FEATURES], labels[BATCH] = {0};
    uint32_t state = (uint32_t)(step * WORKERS + worker) * 2654435761u + 1;
    for (int j = 0; j < WORKERS; j++) {
        for (int i = 0; i < BATCH * FEATURES; i++) {
            state = state * 1664525u + 1013904223u;
            x[j][i] = (double)state * scale - 1;
            labels[i / FEATURES] += x[j][i] * ((i % FEATURES + j) % 3 - 1);
        }
    }
    for (int r = 0; r < BATCH; r++) {
        labels[r] = labels[r] > 0 ? 1 : -1;
    }
    car_status status = car_tape_feed(tape, inputs[WORKERS], labels);
    for (int j = 0; status == CAR_OK && j < WORKERS; j++) {
        status = car_tape_feed(tape, inputs[j], x[j]);
    }
    return status;
}

static void check(const car_context *context, car_status status) {
    if (status != CAR_OK) {
        fprintf(stderr, "own-stage: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
        exit(1); /* mpirun ends the others */
    }
}

int main(void) {
    bool launched = car_transport_is_launched();
    int inputs[WORKERS + 1], state = CAR_NONE;
    double before = 0, after = 0;
    car_context *context = NULL;
    car_graph *graph = NULL;
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_program *program = NULL;
    car_arena *arena = NULL;
    car_hub *hub = NULL;
    car_transport *transport = NULL;
    car_rank *rank = NULL;

    /* The class says what a stage computes and how large its buffers are. The last one keeps its scores and hands
     * nothing on. */
    const size_t scores = BATCH * sizeof(double);
    const car_stage_class block = {.forward = forward, .backward = backward, .param_count = FEATURES, .dtype = CAR_F64};
    car_stage_class classes[WORKERS];
    check(context, car_context_create(NULL, &context));
    check(context, car_graph_create(context, &graph));
    inputs[WORKERS] = car_graph_input(graph, "labels", (car_shape){1, {BATCH}}, CAR_F64);
    for (int j = 0; j < WORKERS; j++) {
        char name[16];
        bool last = j == WORKERS - 1;
        snprintf(name, sizeof name, "features.%d", j);
        inputs[j] = car_graph_input(graph, name, (car_shape){2, {BATCH, FEATURES}}, CAR_F64);
        classes[j] = block;
        classes[j].input_bytes = j > 0 ? scores : 0;
        *(last ? &classes[j].held_bytes : &classes[j].output_bytes) = scores;
        car_stage_config config = {.input = state, .data_count = 1 + last, .data = {inputs[j], inputs[WORKERS]}};
        snprintf(name, sizeof name, "block.%d", j);
        state = car_graph_stage(graph, name, &classes[j], &config);
    }
    check(context, car_graph_finish(graph, state));

    /* From here on it is a model like any other. */
    car_plan_config config = car_plan_config_default();
    config.workers = WORKERS;
    config.rule = CAR_RULE_CDP_V2;
    config.placement = launched ? CAR_PLACEMENT_PIPELINE : CAR_PLACEMENT_SHARED;
    check(context, car_partition_create(graph, &(car_partition_config){.stages = WORKERS}, &partition));
    check(context, car_plan_create(context, partition, &config, &plan));
    check(context, car_plan_validate(plan, 4));
    check(context, car_program_create(graph, NULL, &program));
    check(context, car_arena_create(context, 0, &arena));
    check(context, launched ? car_transport_open(context, &transport) : car_hub_create(context, 1, &hub));
    check(context, launched ? CAR_OK : car_hub_join(hub, context, 0, &transport));
    car_trainer_config training = car_trainer_config_default();
    training.schedule.lr = 0.5;
    training.feed = feed;
    training.feed_user = inputs;
    check(context, car_rank_create(plan, program, arena, transport, &training, &rank));
    check(context, car_rank_initialize(rank, 1));
    check(context, car_rank_evaluate(rank, &before));
    check(context, car_rank_run(rank, STEPS));
    check(context, car_rank_evaluate(rank, &after));
    if (car_transport_rank(transport) == 0) {
        printf("loss %.4f -> %.4f in %d steps on %d rank%s\n", before, after, STEPS, car_transport_size(transport),
               launched ? "s" : "");
    }
    car_rank_destroy(rank);
    car_transport_close(transport);
    car_hub_destroy(hub);
    car_arena_destroy(arena);
    car_program_destroy(program);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_graph_destroy(graph);
    car_context_destroy(context);
    return after < before / 2 ? 0 : 1;
}
