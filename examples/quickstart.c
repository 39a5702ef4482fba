/* Quickstart: trains a small network on synthetic images through the library, and checks that the
 * loss went down. Build it against an installed Carousel:
 *
 *     cc quickstart.c $(pkg-config --cflags --libs carousel) -o quickstart
 */
#include <stdio.h>
#include <stdlib.h>

#include <carousel/data.h>
#include <carousel/model.h>
#include <carousel/optimizer.h>
#include <carousel/tape.h>

/* The library reports failures as a status and a message in the context; what to do is up to us. */
static void check(const car_context *context, car_status status) {
    if (status != CAR_OK) {
        fprintf(stderr, "quickstart: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
        exit(1);
    }
}

int main(void) {
    enum { STEPS = 40, BATCH = 16, SIZE = 16, CLASSES = 4, CHANNELS = 3 };
    static float images[BATCH * CHANNELS * SIZE * SIZE];
    static int32_t labels[BATCH];
    car_context *context = NULL;
    car_graph *graph = NULL;
    car_program *program = NULL;
    car_arena *arena = NULL;
    car_weights *weights = NULL;
    car_gradients *gradients = NULL;
    car_optimizer *optimizer = NULL;
    car_lane *lane = NULL;
    car_tape *tape = NULL;

    /* The model as a graph, and the graph made ready for this machine. */
    car_model_config config = car_model_config_default();
    config.batch = BATCH;
    config.image_size = SIZE;
    config.classes = CLASSES;
    config.width = 64;
    check(context, car_context_create(NULL, &context));
    check(context, car_model_build(context, "mlp", &config, &graph));
    check(context, car_program_create(graph, NULL, &program));

    /* What a run owns: memory, weights, gradients, and a tape for the micro-batch. */
    check(context, car_arena_create(context, 0, &arena));
    check(context, car_weights_create(program, arena, &weights));
    check(context, car_weights_initialize(weights, 1));
    check(context, car_gradients_create(program, arena, &gradients));
    check(context, car_optimizer_create(program, arena, NULL, &optimizer));
    check(context, car_lane_create(program, arena, &lane));
    check(context, car_tape_create(program, arena, &tape));

    car_synthetic source = {.seed = 1, .task = CAR_TASK_IMAGES};
    check(context, car_model_resolve(context, "mlp", &config, &source.config));
    int all = car_graph_op_count(graph);
    float first = 0, last = 0;
    for (int step = 0; step < STEPS; step++) {
        car_synthetic_batch(&source, (uint64_t)step * BATCH, images, labels);
        car_tape_begin(tape, (uint64_t)step, true);
        check(context, car_tape_feed(tape, car_graph_find_tensor(graph, "images"), images));
        check(context, car_tape_feed(tape, car_graph_find_tensor(graph, "labels"), labels));
        check(context, car_tape_forward(tape, lane, weights, 0, all));
        check(context, car_tape_backward(tape, lane, weights, gradients, 0, all));
        check(context, car_optimizer_step(optimizer, lane, weights, gradients, 0.05));
        last = car_tape_loss(tape);
        first = step == 0 ? last : first;
    }
    printf("loss %.3f -> %.3f in %d steps, %.1f kB of activations at peak\n", (double)first, (double)last, STEPS,
           (double)car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS) / 1e3);

    car_tape_destroy(tape);
    car_lane_destroy(lane);
    car_optimizer_destroy(optimizer);
    car_gradients_destroy(gradients);
    car_weights_destroy(weights);
    car_arena_destroy(arena);
    car_program_destroy(program);
    car_graph_destroy(graph);
    car_context_destroy(context);
    return last < first ? 0 : 1;
}
