/* carousel train: sets a run up, executes it, and ends it in order. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "train.h"

static car_trainer *volatile running; /* for the signal handler */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
    if (running) {
        car_trainer_stop(running);
    }
}

static void log_line(void *user, car_log_level level, const char *line) {
    (void)user;
    fprintf(stderr, "carousel: %s%s\n", level == CAR_LOG_WARNING ? "warning: " : "", line);
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Evaluation takes samples that training never reaches. */
static const uint64_t first_held_out_sample = (uint64_t)1 << 48;

static car_status feed_samples(car_train_run *run, uint64_t first, car_tape *tape) {
    size_t input_bytes = car_graph_tensor(run->graph, run->input_tensor)->bytes;
    size_t label_bytes = car_graph_tensor(run->graph, run->label_tensor)->bytes;
    void *inputs = NULL, *labels = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(run->context, input_bytes, 1, &inputs));
    CAR_TRY(car_context_allocate(run->context, label_bytes, 1, &labels));
    car_synthetic_batch(&run->source, first, inputs, labels);
    CAR_TRY(car_tape_feed(tape, run->input_tensor, inputs));
    CAR_TRY(car_tape_feed(tape, run->label_tensor, labels));
done:
    car_context_release(run->context, labels, label_bytes, 1);
    car_context_release(run->context, inputs, input_bytes, 1);
    return status;
}

car_status car_train_feed(void *user, int64_t step, int worker, car_tape *tape) {
    car_train_run *run = user;
    uint64_t micro_batch = (uint64_t)step * (uint64_t)run->options.workers + (uint64_t)worker;
    return feed_samples(run, micro_batch * (uint64_t)run->options.batch, tape);
}

car_status car_train_feed_evaluation(void *user, int64_t batch, int worker, car_tape *tape) {
    car_train_run *run = user;
    (void)worker;
    return feed_samples(run, first_held_out_sample + (uint64_t)batch * (uint64_t)run->options.batch, tape);
}

/* ---- setting up ------------------------------------------------------------------------------ */

static const int64_t provable = 4096; /* workers times stages: beyond, proving the plan would delay the start */

static car_status set_up_data(car_train_run *run, const car_model_config *config) {
    const car_model_info *info = car_model_find(run->options.model);
    run->input_tensor = car_graph_find_tensor(run->graph, info->domain == CAR_DOMAIN_IMAGES ? "images" : "tokens");
    run->label_tensor = car_graph_find_tensor(run->graph, "labels");
    run->source.seed = run->options.seed;
    run->source.domain = info->domain;
    return car_model_resolve(run->context, run->options.model, config, &run->source.config);
}

car_status car_train_set_up(car_train_run *run) {
    const car_train_options *o = &run->options;
    car_context_config context = car_context_config_default();
    car_model_config model = car_model_config_default();
    car_partition_config partition = {.stages = o->stages ? o->stages : o->workers};
    car_plan_config plan;
    car_trainer_config trainer;
    car_status status = CAR_OK;
    context.log = log_line;
    model.batch = o->batch;
    model.classes = o->classes;
    model.image_size = o->image_size;
    model.seq_len = o->seq_len;
    CAR_TRY(car_context_create(&context, &run->context));
    CAR_TRY(car_train_configure(run->context, o, &plan, &trainer));
    CAR_TRY(car_model_build(run->context, o->model, &model, &run->graph));
    CAR_TRY(car_partition_create(run->graph, &partition, &run->partition));
    CAR_TRY(car_plan_create(run->context, run->partition, &plan, &run->plan));
    if ((int64_t)plan.workers * partition.stages <= provable) {
        CAR_TRY(car_plan_validate(run->plan, 4, NULL));
    }
    CAR_TRY(car_program_create(run->graph, NULL, &run->program));
    CAR_TRY(car_arena_create(run->context, 0, &run->arena));
    CAR_TRY(set_up_data(run, &model));
    trainer.feed = car_train_feed;
    trainer.report = run->report ? run->report : car_train_on_step;
    trainer.feed_user = trainer.report_user = run;
    CAR_TRY(car_trainer_create(run->plan, run->program, run->arena, &trainer, &run->trainer));
    CAR_TRY(car_trainer_initialize(run->trainer, o->seed));
    CAR_TRY(car_train_open_output(run));
done:
    return status;
}

void car_train_tear_down(car_train_run *run) {
    if (!run->context) {
        return;
    }
    car_train_close_output(run);
    car_trainer_destroy(run->trainer);
    car_arena_destroy(run->arena);
    car_program_destroy(run->program);
    car_plan_destroy(run->plan);
    car_partition_destroy(run->partition);
    car_graph_destroy(run->graph);
    car_context_destroy(run->context);
}

/* ---- running --------------------------------------------------------------------------------- */

static car_status evaluate(car_train_run *run) {
    car_status status = car_evaluate(run->program, run->arena, car_trainer_weights(run->trainer), run->options.threads,
                                     run->options.eval_batches, car_train_feed_evaluation, run, &run->evaluation);
    if (status == CAR_OK) {
        run->evaluated = true;
        car_train_show_evaluation(run);
    }
    return status;
}

static car_status train(car_train_run *run) {
    int64_t steps = run->options.steps, every = run->options.eval_every;
    car_status status = CAR_OK;
    while (car_trainer_steps(run->trainer) < steps && !interrupted) {
        int64_t next = every ? car_trainer_steps(run->trainer) + every : steps;
        CAR_TRY(car_trainer_run(run->trainer, next < steps ? next : steps));
        if (every && !interrupted) {
            CAR_TRY(evaluate(run));
        }
    }
    CAR_TRY(car_train_summarize(run, interrupted != 0));
done:
    return status;
}

int car_cli_train(int argc, char **argv) {
    car_train_run run = {0};
    int code = car_train_read_options(argc, argv, &run.options);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    if (!run.options.model) {
        return car_cli_fail(CAR_CLI_USAGE, "train: --model NAME is missing; 'carousel train --help' lists the models");
    }
    car_status status = car_train_set_up(&run);
    if (status == CAR_OK) {
        struct sigaction action = {.sa_handler = on_interrupt};
        action.sa_flags = SA_RESTART | (int)SA_RESETHAND; /* the second one kills */
        running = run.trainer;
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        car_train_show_model(&run);
        status = train(&run);
        running = NULL;
    }
    code = status == CAR_OK ? CAR_CLI_OK : car_cli_report(run.context, status);
    car_train_tear_down(&run);
    return code;
}
