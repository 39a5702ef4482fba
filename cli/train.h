/* What the files of `carousel train` share: a car_run (carousel/run.h) whose options are parsed and whose results are shown. */
#ifndef CAR_CLI_TRAIN_H
#define CAR_CLI_TRAIN_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "carousel/events.h"
#include "carousel/run.h"
#include "classes.h"
#include "config.h"

enum { CAR_TRAIN_OPTIONS = 96, CAR_TRAIN_PATH = 4096, CAR_TRAIN_LOCAL_RANKS = 64 };

typedef struct car_train_options {
    const char *model, *data, *rule, *placement, *optimizer, *schedule, *betas, *out, *order, *init, *config, *mapping,
        *plan;
    const char *convolutions, *memory, *trace, *trace_steps, *delay_correction, *augment, *keep_best, *precision,
        *save_precision;
    const char *recompute, *memory_limit;
    car_precision saves_as; /* what save_precision names */
    car_model_config shape; /* of the model; zero where it is left open */
    int workers, stages, threads, steps, eval_every, eval_batches;
    int accumulate; /* micro-batches of a worker in a step */
    const char *sum_order, *pace_links;
    int warmup; /* CAR_NONE: left to the rule */
    bool warmup_by_rule;
    int asked_steps; /* `steps` before --epochs had a say */
    int freshness_slack, zero_copies, zero_ahead;
    double piece_bytes; /* 0: left open */
    int data_threads, checkpoint_every, keep, resume_step, patience;
    double lr, adamw_lr, momentum, weight_decay, clip_norm, epochs, step_seconds, step_jitter, ema;
    bool nesterov, decay_weights_only, skip_nonfinite, unpaced, no_augment, resume, reset_head, force, tensorboard;
    uint64_t seed;
    char *plan_text; /* what --plan names; released with the options */
    car_cli_list freeze, lr_scale;
    /* What these two come to: see train_rules.c. */
    car_param_rule rules[2 * CAR_CLI_LIST_LENGTH];
    int rule_count;
    char patterns[CAR_CLI_LIST_LENGTH][128];
    car_cli_config *config_texts; /* owns texts above that came from a file */
} car_train_options;

static inline bool car_train_resumes(const car_train_options *o) {
    return o->resume || o->resume_step != CAR_NONE;
}
/* Samples of a step. */
static inline double car_train_step_samples(const car_train_options *o) {
    return (double)o->workers * o->accumulate * o->shape.batch;
}

/* Lines of a file in the run directory. */
typedef struct car_train_lines {
    _Atomic int64_t written, missing; /* over ranks, steps and evaluations are reported by two threads */
    int reason;                       /* errno of the first that is missing */
} car_train_lines;

/* A run, and what its output needs to know. */
typedef struct car_train_run {
    car_train_options options; /* with what the rule and the data decide filled in */
    car_context *context;
    car_run *run;
    car_domain domain;
    bool has_ranks; /* or else all is in one process, one engine */
    bool launched;  /* they are processes of MPI */
    /* What its options point to. */
    car_plan_config planning;
    car_program_config kernels;
    car_trainer_config execution;
    car_optimizer_config optimizer;
    char best[CAR_TRAIN_PATH];
    char *configuration; /* as typed, for comparing ranks */
    /* The run directory. */
    int metrics_file;                            /* if it is written to */
    int events_file;                             /* TensorBoard's, if it is written to */
    car_events *step_events, *evaluation_events; /* its records; over ranks two threads make them */
    car_train_lines metrics, evaluations, events;
    bool writes, writes_events; /* metrics_file is open; events_file is */
    /* How it goes. */
    bool alone;       /* what failed here the other ranks do not know */
    bool terminal;    /* somebody watches */
    bool interrupted; /* it ended early */
    bool foretold;    /* the duration has been estimated */
    double started, shown, first_loss, loss;
    double first_reported; /* when */
    double aside;          /* seconds that were not training: evaluations */
    int64_t reported;      /* steps, by this call */
    double *step_ms;       /* of the last steps, for the median */
    double last_time;
    car_evaluation evaluation;
    int64_t evaluated_step; /* of the last evaluation; CAR_NONE: none */
    const car_rank_account *accounts;
    car_status failure;      /* of something that did not keep the run from going on to its end */
    char failure_text[1024]; /* its message */
} car_train_run;

/* Whether this process speaks for all: the only one, or rank 0. */
static inline bool car_train_is_first(const car_train_run *t) {
    return car_run_rank(t->run) == 0;
}

/* ---- train_signals.c: how a run is told to end ------------------------------------------------------------------- */

/* Before any other thread is started, which must not get the signals. Until _stop_listening the run must stay. */
void car_train_listen(car_train_run *t);
void car_train_listen_for(car_train_run *t); /* from here on there is something to save */
void car_train_stop_listening(void);
void car_train_on_activity(void *user, car_run_activity activity);

/* ---- train_options.c: as typed, with their defaults; then turned into the options of a run ------------------------ */

void car_train_default_options(car_train_options *options);
int car_train_read_options(int argc, char **argv, car_train_options *options);
/* Sets what a run's config.json has. Returns CAR_CLI_GO_ON, or the code to exit with after a message. */
int car_train_read_config(const car_cli_command *command, const char *path, car_train_options *options);
/* Sets what the names of precisions mean. */
car_status car_train_read_precision(car_context *context, car_train_options *options);
/* As config.json has them; NULL without memory. */
cJSON *car_train_config_of(const car_train_options *options);

/* ---- train_configure.c -------------------------------------------------------------------------------------------- */

/* The options of the run, which point into `t`. */
car_status car_train_configure(car_train_run *t, car_run_options *out);
/* When there is a run: fills in what it has decided. */
void car_train_take_over(car_train_run *t);

/* ---- train_rules.c: single parameters, and augmentation ----------------------------------------------------------- */

/* Fills options->rules, which the optimizer's configuration then points to: the options must stay where they are. */
car_status car_train_read_rules(car_context *context, car_train_options *options);
/* Sets how images are changed at random. */
car_status car_train_read_augmentation(car_context *context, const car_train_options *options, bool *none,
                                       car_augmentation *out);
void car_train_show_rules(const car_train_run *t); /* how much is frozen, if anything is */

/* ---- correction.c: the delay's correction, of a run -------------------------------------------------------------- */

/* What the first line of a run says of it. */
void car_train_describe_correction(const car_train_run *t, char *text, size_t capacity);
/* What a run from before there was a correction is taken to have. */
void car_train_default_correction(cJSON *then);
/* A resumed run: warns if the correction is another. `has_last`: whether the checkpoint has all that it needs. */
void car_train_tell_correction(const car_train_run *t, const cJSON *then, bool has_last);

/* ---- train_resume.c: a run that goes on, or begins with weights from a file ----------------------------------------- */

/* Says what differs from the run that the checkpoint is of. */
void car_train_tell_differences(const car_train_run *t);
/* Tells the run of the evaluations in evaluations.jsonl. */
car_status car_train_recall(car_train_run *t);
/* --init, and says what did not fit. */
car_status car_train_load(car_train_run *t);
/* By all ranks: whether the run was over before and its summary is there. */
car_status car_train_was_over(car_train_run *t, bool *out);

/* ---- train_plan.c: --plan FILE ------------------------------------------------------------------------------------ */

/* Reads the file, if there is one, and sets the options that it answers. Returns CAR_CLI_GO_ON, or the code to exit with
 * after a message. */
int car_train_read_plan(int argc, char **argv, car_train_options *options);
/* A copy for --resume in the run directory. */
car_status car_train_keep_plan(const car_train_run *t);

/* ---- train_account.c: what ranks used and sent, in the closing line and in summary.json ---------------------------- */

void car_train_print_peak(const car_train_run *t);
void car_train_add_memory(const car_train_run *t, cJSON *json);
/* Adds "comm" and, over ranks, "ranks". */
void car_train_add_traffic(const car_train_run *t, cJSON *json);

/* ---- train_record.c: what was done in some of the steps, for --trace and the run directory ----------------------- */

/* Looks at --trace-steps before anything is done. */
car_status car_train_check_trace(const car_train_run *t);
/* When the first step is known: which steps are recorded. Called by all ranks. */
car_status car_train_start_recorder(car_train_run *t);
/* At the end: the files. Called by all ranks. */
car_status car_train_write_records(car_train_run *t);

/* ---- train_metrics.c: metrics.jsonl and evaluations.jsonl --------------------------------------------------------- */

/* Opens them, with what earlier starts have written as far as this one goes on from it. */
car_status car_train_open_metrics(car_train_run *t);
void car_train_close_metrics(car_train_run *t); /* says which lines are missing */
/* A line each; nothing without a run directory. */
void car_train_write_metrics(car_train_run *t, const car_step_report *report);
void car_train_write_evaluation(car_train_run *t, int64_t step);
/* Appends all bytes or none. Returns 0, or the errno of what went wrong. */
int car_train_append(int file, const void *line, size_t length);
/* Counts a line that was written (`reason` 0) or could not be; warns of the first that is missing. */
void car_train_note_line(car_train_run *t, car_train_lines *lines, const char *name, int64_t step, int reason);

/* ---- train_tensorboard.c: the same numbers for TensorBoard; they do nothing without --tensorboard ------------------- */

car_status car_train_open_events(car_train_run *t);
void car_train_close_events(car_train_run *t);
void car_train_write_step_event(car_train_run *t, const car_step_report *report, double samples_per_s);
void car_train_write_evaluation_event(car_train_run *t, int64_t step);

/* ---- train_progress.c: how far a run is, and how long it will take ------------------------------------------------ */

/* After each step, at `now`: a line, if one is due; once, how long the whole will take. */
void car_train_show_progress(car_train_run *t, double now);

/* ---- train_output.c: the head, a line for a step, the evaluation, the end; and the files of the run directory ---- */

car_status car_train_open_output(car_train_run *t);
void car_train_close_output(car_train_run *t);
void car_train_show_model(const car_train_run *t); /* over ranks also where they are */
void car_train_on_step(void *user, const car_step_report *report);
void car_train_on_evaluation(void *user, int64_t step, const car_evaluation *evaluation);
void car_train_show_problems(const car_train_run *t); /* samples that could not be read, if there were any */
/* The closing line, and summary.json; `digest`: of the weights. */
car_status car_train_summarize(car_train_run *t, const char *digest);
/* Keeps a failure and its message for the end; whether there was none. */
bool car_train_remember(car_train_run *t, car_status status);
/* What the share of labels that were the best guess is called in files: a language model's labels are next tokens. */
const char *car_train_accuracy_name(car_domain domain);
/* Loss and accuracy, of tokens also perplexity, as a line without its end. */
void car_train_print_evaluation(FILE *stream, car_domain domain, const car_evaluation *evaluation);
/* What evaluations are compared by: "accuracy" or "loss". */
const char *car_train_metric(const car_train_run *t);
/* DIR/NAME. */
car_status car_train_path(car_context *context, const char *directory, const char *name, char *path);

#endif
