/* Quickstart: trains a small network by cyclic data parallelism through the library, and checks that the
 * loss went down. Build it against an installed Carousel:
 *
 *     cc quickstart.c $(pkg-config --cflags --libs carousel) -o quickstart
 */
#include <stdio.h>
#include <stdlib.h>

#include <carousel/data.h>
#include <carousel/model.h>
#include <carousel/trainer.h>

enum { WORKERS = 4, BATCH = 8, STEPS = 80, SHOWN = 10, SIZE = 16, CLASSES = 4, CHANNELS = 3 };

typedef struct run {
    const car_graph *graph;
    car_synthetic source;
    double first, last; /* mean losses of the first and the last ten steps */
} run;

/* The library reports failures as a status and a message in the context; what to do is up to us. */
static void check(const car_context *context, car_status status) {
    if (status != CAR_OK) {
        fprintf(stderr, "quickstart: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
        exit(1);
    }
}

/* Called by the trainer's threads for the micro-batch of one worker in one step. */
static car_status feed(void *user, int64_t step, int worker, car_tape *tape) {
    const run *r = user;
    float images[BATCH * CHANNELS * SIZE * SIZE];
    int32_t labels[BATCH];
    car_synthetic_batch(&r->source, (uint64_t)(step * WORKERS + worker) * BATCH, images, labels);
    car_status status = car_tape_feed(tape, car_graph_find_tensor(r->graph, "images"), images);
    return status == CAR_OK ? car_tape_feed(tape, car_graph_find_tensor(r->graph, "labels"), labels) : status;
}

static void note(void *user, const car_step_report *report) {
    run *r = user;
    r->first += report->step < SHOWN ? report->loss / SHOWN : 0;
    r->last += report->step >= STEPS - SHOWN ? report->loss / SHOWN : 0;
}

int main(void) {
    car_context *context = NULL;
    car_graph *graph = NULL;
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_program *program = NULL;
    car_arena *arena = NULL;
    car_trainer *trainer = NULL;
    run r = {.source = {.seed = 1, .domain = CAR_DOMAIN_IMAGES}};

    /* The model as a graph, cut into as many stages as there are workers. */
    car_model_config model = car_model_config_default();
    model.batch = BATCH;
    model.image_size = SIZE;
    model.classes = CLASSES;
    model.width = 64;
    check(context, car_context_create(NULL, &context));
    check(context, car_model_build(context, "mlp", &model, &graph));
    check(context, car_model_resolve(context, "mlp", &model, &r.source.config));
    check(context, car_partition_create(graph, &(car_partition_config){.stages = WORKERS}, &partition));

    /* The plan says who does what when; the program makes the graph ready for this machine. */
    car_plan_config config = car_plan_config_default();
    config.workers = WORKERS;
    config.rule = CAR_RULE_CDP_V2;
    check(context, car_plan_create(context, partition, &config, &plan));
    check(context, car_plan_validate(plan, 4, NULL));
    check(context, car_program_create(graph, NULL, &program));
    check(context, car_arena_create(context, 0, &arena));

    /* The trainer executes the plan with two threads. */
    car_trainer_config training = car_trainer_config_default();
    training.threads = 2;
    training.feed = feed;
    training.report = note;
    training.feed_user = training.report_user = &r;
    r.graph = graph;
    check(context, car_trainer_create(plan, program, arena, &training, &trainer));
    check(context, car_trainer_initialize(trainer, 1));
    check(context, car_trainer_run(trainer, STEPS));
    printf("loss %.3f -> %.3f in %d steps; %d workers held at most %.1f kB of activations\n", r.first, r.last, STEPS,
           WORKERS, (double)car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS) / 1e3);

    car_trainer_destroy(trainer);
    car_arena_destroy(arena);
    car_program_destroy(program);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_graph_destroy(graph);
    car_context_destroy(context);
    return r.last < r.first ? 0 : 1;
}
