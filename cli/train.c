/* carousel train: trains a model on one worker, with a progress line. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "carousel/data.h"
#include "carousel/model.h"
#include "carousel/optimizer.h"
#include "carousel/tape.h"
#include "cli.h"

typedef struct train_options {
    const char *model, *data;
    int steps, batch, classes, image_size, seq_len;
    double lr, momentum, weight_decay;
    bool nesterov;
    uint64_t seed;
} train_options;

/* Everything a run owns, in the order of creation. */
typedef struct run {
    car_context *context;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    car_gradients *gradients;
    car_optimizer *optimizer;
    car_lane *lane;
    car_tape *tape;
    void *inputs;
    int32_t *labels;
    size_t input_bytes, label_bytes;
    int input_tensor, label_tensor;
    car_synthetic source;
} run;

typedef struct progress {
    bool terminal;
    int steps, batch;
    double started, shown;
    float first_loss, loss;
} progress;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static car_cli_parsed read_options(int argc, char **argv, train_options *o) {
    const car_cli_option options[] = {
        {"model", "NAME", "which model to train (required)", CAR_CLI_TEXT, &o->model, 0, 0},
        {"data", "SOURCE", "where samples come from: synthetic", CAR_CLI_TEXT, &o->data, 0, 0},
        {"steps", "N", "updates to make", CAR_CLI_INT, &o->steps, 1, 1e9},
        {"batch", "N", "samples in a micro-batch", CAR_CLI_INT, &o->batch, 1, 1 << 20},
        {"lr", "X", "learning rate", CAR_CLI_REAL, &o->lr, 0, 1e6},
        {"momentum", "X", "momentum of SGD", CAR_CLI_REAL, &o->momentum, 0, 1},
        {"weight-decay", "X", "weight decay", CAR_CLI_REAL, &o->weight_decay, 0, 1e6},
        {"nesterov", NULL, "Nesterov's form of the momentum", CAR_CLI_FLAG, &o->nesterov, 0, 0},
        {"classes", "N", "classes of an image model (its own)", CAR_CLI_INT, &o->classes, 1, 1 << 24},
        {"image-size", "N", "pixels on a side (the model's own)", CAR_CLI_INT, &o->image_size, 1, 1 << 14},
        {"seq-len", "N", "tokens in a sample (the model's own)", CAR_CLI_INT, &o->seq_len, 1, 1 << 24},
        {"seed", "N", "of weights, data and dropout", CAR_CLI_SEED, &o->seed, 0, 0},
    };
    char models[512] = "models:";
    for (int m = 0; m < car_model_count(); m++) {
        size_t used = strlen(models);
        snprintf(models + used, sizeof models - used, "\n  %-12s %s", car_model_info_at(m)->name,
                 car_model_info_at(m)->summary);
    }
    const car_cli_command command = {"train", "Trains a model.", "carousel train --model NAME [OPTIONS]", models};
    return car_cli_parse(&command, options, (int)(sizeof options / sizeof options[0]), argc, argv);
}

static car_status set_up_data(run *r, const train_options *o, const car_model_config *config) {
    const car_model_info *info = car_model_find(o->model);
    bool images = info->task == CAR_TASK_IMAGES;
    r->input_tensor = car_graph_find_tensor(r->graph, images ? "images" : "tokens");
    r->label_tensor = car_graph_find_tensor(r->graph, "labels");
    r->input_bytes = car_graph_tensor(r->graph, r->input_tensor)->bytes;
    r->label_bytes = car_graph_tensor(r->graph, r->label_tensor)->bytes;
    car_status status = car_model_resolve(r->context, o->model, config, &r->source.config);
    r->source.seed = o->seed;
    r->source.task = info->task;
    if (status == CAR_OK) {
        status = car_context_allocate(r->context, r->input_bytes, 1, &r->inputs);
    }
    return status == CAR_OK ? car_context_allocate(r->context, r->label_bytes, 1, &r->labels) : status;
}

static car_status set_up(run *r, const train_options *o) {
    car_model_config config = car_model_config_default();
    config.batch = o->batch;
    config.classes = o->classes;
    config.image_size = o->image_size;
    config.seq_len = o->seq_len;
    car_optimizer_config sgd = {.momentum = o->momentum, .weight_decay = o->weight_decay, .nesterov = o->nesterov};
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &r->context));
    CAR_TRY(car_model_build(r->context, o->model, &config, &r->graph));
    CAR_TRY(car_program_create(r->graph, NULL, &r->program));
    CAR_TRY(car_arena_create(r->context, 0, &r->arena));
    CAR_TRY(car_weights_create(r->program, r->arena, &r->weights));
    CAR_TRY(car_gradients_create(r->program, r->arena, &r->gradients));
    CAR_TRY(car_optimizer_create(r->program, r->arena, &sgd, &r->optimizer));
    CAR_TRY(car_lane_create(r->program, r->arena, &r->lane));
    CAR_TRY(car_tape_create(r->program, r->arena, &r->tape));
    CAR_TRY(set_up_data(r, o, &config));
    CAR_TRY(car_weights_initialize(r->weights, o->seed));
done:
    return status;
}

static void tear_down(run *r) {
    if (!r->context) {
        return;
    }
    car_context_release(r->context, r->labels, r->label_bytes, 1);
    car_context_release(r->context, r->inputs, r->input_bytes, 1);
    car_tape_destroy(r->tape);
    car_lane_destroy(r->lane);
    car_optimizer_destroy(r->optimizer);
    car_gradients_destroy(r->gradients);
    car_weights_destroy(r->weights);
    car_arena_destroy(r->arena);
    car_program_destroy(r->program);
    car_graph_destroy(r->graph);
    car_context_destroy(r->context);
}

/* ---- progress -------------------------------------------------------------------------------- */

static void show_step(progress *p, const run *r, int step) {
    double now = car_clock_seconds(), elapsed = now - p->started;
    bool last = step == p->steps;
    /* A terminal's line is renewed often; a log gets a line now and then. */
    if (!last && step != 1 && now - p->shown < (p->terminal ? 0.1 : 2.0)) {
        return;
    }
    p->shown = now;
    printf("%sstep %d/%d  loss %.4f  %.0f samples/s  activations %.1f MB at peak  %.0f s left%s",
           p->terminal ? "\r\033[K" : "", step, p->steps, (double)p->loss, step * (double)p->batch / elapsed,
           (double)car_arena_peak(r->arena, CAR_MEMORY_ACTIVATIONS) / 1e6, elapsed / step * (p->steps - step),
           p->terminal && !last ? "" : "\n");
    fflush(stdout);
}

static void show_model(const run *r, const train_options *o) {
    printf("%s: %.2f million parameters, %.2f GFLOP a sample forward and backward, %d operations\n", o->model,
           (double)car_graph_param_bytes(r->graph) / 4e6,
           (car_graph_flops(r->graph, false) + car_graph_flops(r->graph, true)) / o->batch / 1e9,
           car_graph_op_count(r->graph));
}

/* ---- training -------------------------------------------------------------------------------- */

static car_status train_step(run *r, const train_options *o, int step) {
    int ops = car_graph_op_count(r->graph);
    car_status status = CAR_OK;
    car_synthetic_batch(&r->source, (uint64_t)step * (uint64_t)o->batch, r->inputs, r->labels);
    car_tape_begin(r->tape, car_random_u64(car_random_key(o->seed, "dropout"), (uint64_t)step), true);
    CAR_TRY(car_tape_feed(r->tape, r->input_tensor, r->inputs));
    CAR_TRY(car_tape_feed(r->tape, r->label_tensor, r->labels));
    CAR_TRY(car_tape_forward(r->tape, r->lane, r->weights, 0, ops));
    if (!isfinite(car_tape_loss(r->tape))) {
        return car_context_fail(r->context, CAR_ERROR_ARGUMENT,
                                "the loss of step %d is not finite; try a smaller --lr than %g", step + 1, o->lr);
    }
    CAR_TRY(car_tape_backward(r->tape, r->lane, r->weights, r->gradients, 0, ops));
    CAR_TRY(car_optimizer_step(r->optimizer, r->lane, r->weights, r->gradients, o->lr));
done:
    return status;
}

static car_status train(run *r, const train_options *o) {
    progress p = {.terminal = isatty(STDOUT_FILENO) == 1, .steps = o->steps, .batch = o->batch};
    car_status status = CAR_OK;
    int step = 0;
    p.started = car_clock_seconds();
    while (step < o->steps && !interrupted) {
        CAR_TRY(train_step(r, o, step));
        p.loss = car_tape_loss(r->tape);
        p.first_loss = step == 0 ? p.loss : p.first_loss;
        show_step(&p, r, ++step);
    }
    printf("%s%s after %d steps: loss %.4f -> %.4f in %.1f s\n", p.terminal && interrupted ? "\n" : "",
           interrupted ? "interrupted" : "done", step, (double)p.first_loss, (double)p.loss,
           car_clock_seconds() - p.started);
done:
    return status;
}

int car_cli_train(int argc, char **argv) {
    train_options o = {.data = "synthetic", .steps = 100, .batch = 32, .lr = 0.05, .momentum = 0.9, .seed = 1};
    switch (read_options(argc, argv, &o)) {
    case CAR_CLI_HELPED:
        return CAR_CLI_OK;
    case CAR_CLI_REFUSED:
        return CAR_CLI_USAGE;
    case CAR_CLI_PARSED:
        break;
    }
    if (!o.model) {
        return car_cli_fail(CAR_CLI_USAGE, "train: --model NAME is missing; 'carousel train --help' lists the models");
    }
    if (strcmp(o.data, "synthetic") != 0) {
        return car_cli_fail(CAR_CLI_USAGE, "train: --data %s: this version knows only 'synthetic'", o.data);
    }
    run r = {0};
    car_status status = set_up(&r, &o);
    if (status == CAR_OK) {
        struct sigaction action = {.sa_handler = on_interrupt};
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        show_model(&r, &o);
        status = train(&r, &o);
    }
    int code = status == CAR_OK ? CAR_CLI_OK : car_cli_report(r.context, status);
    tear_down(&r);
    return code;
}
