/* What the files of `carousel train` share. */
#ifndef CAR_CLI_TRAIN_H
#define CAR_CLI_TRAIN_H

#include <stdint.h>
#include <stdio.h>

#include "carousel/data.h"
#include "carousel/evaluate.h"
#include "carousel/model.h"
#include "carousel/partition.h"
#include "carousel/plan.h"
#include "carousel/trainer.h"
#include "cli.h"

typedef struct car_train_options {
    const char *model, *data, *rule, *placement, *optimizer, *schedule, *betas, *out;
    int workers, stages, threads, batch, steps, eval_every, eval_batches, warmup;
    int classes, image_size, seq_len, freshness_slack;
    double lr, momentum, weight_decay, clip_norm;
    bool nesterov, decay_weights_only, skip_nonfinite, unpaced;
    uint64_t seed;
} car_train_options;

void car_train_default_options(car_train_options *options);
/* The options as typed, with their defaults; then turned into the configurations of the library. */
int car_train_read_options(int argc, char **argv, car_train_options *options);
car_status car_train_configure(car_context *context, const car_train_options *options, car_plan_config *plan,
                               car_trainer_config *trainer);

/* Everything a run owns, in the order of creation. */
typedef struct car_train_run {
    car_train_options options;
    car_report_function report; /* NULL: car_train_on_step */
    car_context *context;
    car_graph *graph;
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_arena *arena;
    car_trainer *trainer;
    car_synthetic source;
    int input_tensor, label_tensor;
    /* What the output needs to know. */
    FILE *metrics;
    bool terminal;
    double started, shown, first_loss, loss;
    int64_t reported;
    double *step_ms; /* of the last steps, for the median */
    double last_time;
    car_evaluation evaluation;
    bool evaluated;
} car_train_run;

/* Creates all of a run from its options; what was created is taken down again in any case. */
car_status car_train_set_up(car_train_run *run);
void car_train_tear_down(car_train_run *run);

/* Feeds synthetic samples; car_train_feed_evaluation takes others than training does. */
car_status car_train_feed(void *user, int64_t step, int worker, car_tape *tape);
car_status car_train_feed_evaluation(void *user, int64_t batch, int worker, car_tape *tape);

/* Output: the head, a line for a step, the evaluation, the end; and the files of the run directory. */
car_status car_train_open_output(car_train_run *run);
void car_train_close_output(car_train_run *run);
void car_train_show_model(const car_train_run *run);
void car_train_on_step(void *user, const car_step_report *report);
void car_train_show_evaluation(car_train_run *run);
car_status car_train_summarize(car_train_run *run, bool interrupted);

#endif
