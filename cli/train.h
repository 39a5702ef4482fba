/* Shared by the files of `carousel train`: it parses options, runs a car_run (carousel/run.h) and shows its results. */
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
    car_precision saves_as; /* the value of save_precision */
    car_model_config shape; /* of the model; 0 if not given */
    int workers, stages, threads, steps, eval_every, eval_batches;
    int accumulate; /* micro-batches per worker and step */
    const char *sum_order, *pace_links;
    int warmup; /* CAR_NONE if not given: the rule's default */
    bool warmup_by_rule;
    int asked_steps; /* `steps` as given, before --epochs changes it */
    int freshness_slack, zero_copies, zero_ahead;
    double piece_bytes; /* 0 if not given */
    int data_threads, checkpoint_every, keep, resume_step, patience;
    double lr, adamw_lr, momentum, weight_decay, clip_norm, epochs, step_seconds, step_jitter, ema;
    bool nesterov, decay_weights_only, skip_nonfinite, unpaced, no_augment, resume, reset_head, force, tensorboard;
    uint64_t seed;
    char *plan_text; /* contents of the --plan file; released with the options */
    car_cli_list freeze, lr_scale;
    /* The values of freeze and lr_scale: see train_rules.c. */
    car_param_rule rules[2 * CAR_CLI_LIST_LENGTH];
    int rule_count;
    char patterns[CAR_CLI_LIST_LENGTH][128];
    car_cli_config *config_texts; /* owns the texts above that came from a file */
} car_train_options;

static inline bool car_train_resumes(const car_train_options *o) {
    return o->resume || o->resume_step != CAR_NONE;
}
/* Samples per step. */
static inline double car_train_step_samples(const car_train_options *o) {
    return (double)o->workers * o->accumulate * o->shape.batch;
}

/* Counts the lines written to a file in the run directory. */
typedef struct car_train_lines {
    _Atomic int64_t written, missing; /* atomic: over ranks, two threads report steps and evaluations */
    int reason;                       /* errno of the first missing line */
} car_train_lines;

/* A run, and what its output needs. */
typedef struct car_train_run {
    car_train_options options; /* with the values that the rule and the data set */
    car_context *context;
    car_run *run;
    car_domain domain;
    bool has_ranks; /* false: everything is in one process and one engine */
    bool launched;  /* ranks are processes of MPI */
    /* The run's options point to these. */
    car_plan_config planning;
    car_program_config kernels;
    car_trainer_config execution;
    car_optimizer_config optimizer;
    char best[CAR_TRAIN_PATH];
    char *configuration; /* the options as given, to compare ranks */
    /* The run directory. */
    int metrics_file;                            /* valid if `writes` */
    int events_file;                             /* TensorBoard's; valid if `writes_events` */
    car_events *step_events, *evaluation_events; /* over ranks, two threads use them */
    car_train_lines metrics, evaluations, events;
    bool writes, writes_events; /* metrics_file is open; events_file is open */
    /* Progress. */
    bool alone;       /* it failed on this rank only; the others do not know */
    bool terminal;    /* stdout is a terminal */
    bool interrupted; /* it ended early */
    bool foretold;    /* the duration has been estimated */
    double started, shown, first_loss, loss;
    double first_reported; /* time of the first report */
    double aside;          /* seconds spent on evaluations, not on training */
    int64_t reported;      /* steps since this start */
    double *step_ms;       /* durations of the last steps, for the median */
    double last_time;
    car_evaluation evaluation;
    int64_t evaluated_step; /* step of the last evaluation, or CAR_NONE */
    const car_rank_account *accounts;
    car_status failure;      /* a failure after which the run went on */
    char failure_text[1024]; /* its message */
} car_train_run;

/* True if this process prints for all: the only one, or rank 0. */
static inline bool car_train_is_first(const car_train_run *t) {
    return car_run_rank(t->run) == 0;
}

/* ---- train_signals.c: signals that end a run --------------------------------------------------------------------- */

/* Call it before any other thread starts: only the listener may receive signals. The run must exist until
 * car_train_stop_listening. */
void car_train_listen(car_train_run *t);
void car_train_listen_for(car_train_run *t); /* from here on there is something to save */
void car_train_stop_listening(void);
void car_train_on_activity(void *user, car_run_activity activity);

/* ---- train_options.c: the options of the command line, with their defaults --------------------------------------- */

void car_train_default_options(car_train_options *options);
int car_train_read_options(int argc, char **argv, car_train_options *options);
/* Reads the options in a run's config.json. Returns CAR_CLI_GO_ON, or the exit code after a message. */
int car_train_read_config(const car_cli_command *command, const char *path, car_train_options *options);
/* Looks up the names of precisions. */
car_status car_train_read_precision(car_context *context, car_train_options *options);
/* The options as in config.json, or NULL if memory is short. */
cJSON *car_train_config_of(const car_train_options *options);

/* ---- train_configure.c: converts them to the options of a run ---------------------------------------------------- */

/* Makes the run's options, which point into `t`. */
car_status car_train_configure(car_train_run *t, car_run_options *out);
/* After the run is created: copies the values that it chose to the options. */
void car_train_take_over(car_train_run *t);

/* ---- train_rules.c: options for single parameters, and augmentation ---------------------------------------------- */

/* Fills options->rules. The optimizer's configuration points to them, so the options must not move. */
car_status car_train_read_rules(car_context *context, car_train_options *options);
/* Reads --augment and --no-augment. */
car_status car_train_read_augmentation(car_context *context, const car_train_options *options, bool *none,
                                       car_augmentation *out);
void car_train_show_rules(const car_train_run *t); /* prints how many parameters are frozen, if any */

/* ---- correction.c: the delay correction of a run ----------------------------------------------------------------- */

/* The text about it in the first line that a run prints. */
void car_train_describe_correction(const car_train_run *t, char *text, size_t capacity);
/* Adds the correction that is used, which --delay-correction auto does not tell, to a checkpoint's configuration. */
void car_train_add_correction(const car_train_run *t, cJSON *configuration);
/* Prepares a checkpoint's configuration for a comparison: sets its option to this run's if both mean the same, and to
 * `off` if it is older than the option. */
void car_train_compare_correction(const car_train_run *t, cJSON *then);
/* Warns if a resumed run has another correction. `has_last`: the checkpoint is complete. */
void car_train_tell_correction(const car_train_run *t, const cJSON *then, bool has_last);
/* Warns if a resumed run keeps a warm-up that was chosen for another number of steps. */
void car_train_tell_warmup(const car_train_run *t, const cJSON *then);

/* ---- train_resume.c: resumed runs, and initial weights from a file ----------------------------------------------- */

/* Warns about options that differ from those of the checkpoint. */
void car_train_tell_differences(const car_train_run *t);
/* Passes the evaluations in evaluations.jsonl to the run. */
car_status car_train_recall(car_train_run *t);
/* Loads the file of --init, and prints what did not fit. */
car_status car_train_load(car_train_run *t);
/* *out: the run was finished by an earlier start and has its summary. All ranks call it. */
car_status car_train_was_over(car_train_run *t, bool *out);

/* ---- train_typed.c ----------------------------------------------------------------------------------------------- */

/* Returns CAR_CLI_GO_ON, or the exit code after a message about an option that would have no effect. */
int car_train_check_typed(int argc, char **argv, const car_train_options *options);

/* ---- train_plan.c: --plan FILE ----------------------------------------------------------------------------------- */

/* Reads the --plan file, if given, and sets the options that it determines. Returns CAR_CLI_GO_ON, or the exit code
 * after a message. */
int car_train_read_plan(int argc, char **argv, car_train_options *options);
/* Copies the plan to the run directory, for --resume. */
car_status car_train_keep_plan(const car_train_run *t);

/* ---- train_account.c: memory and traffic of ranks, in the closing line and in summary.json ----------------------- */

void car_train_print_peak(const car_train_run *t);
void car_train_add_memory(const car_train_run *t, cJSON *json);
/* Adds "comm" and, over ranks, "ranks". */
void car_train_add_traffic(const car_train_run *t, cJSON *json);

/* ---- train_record.c: records some steps, for --trace and the run directory --------------------------------------- */

/* Checks --trace-steps early. */
car_status car_train_check_trace(const car_train_run *t);
/* Chooses the steps to record, once the first step is known. All ranks call it. */
car_status car_train_start_recorder(car_train_run *t);
/* Writes the files at the end. All ranks call it. */
car_status car_train_write_records(car_train_run *t);

/* ---- train_metrics.c: metrics.jsonl and evaluations.jsonl -------------------------------------------------------- */

/* Opens both files. A resumed run keeps the lines up to its first step. */
car_status car_train_open_metrics(car_train_run *t);
void car_train_close_metrics(car_train_run *t); /* also warns about missing lines */
/* Append one line each. Without a run directory they do nothing. */
void car_train_write_metrics(car_train_run *t, const car_step_report *report);
void car_train_write_evaluation(car_train_run *t, int64_t step);
/* Appends all bytes or none. Returns 0 or an errno. */
int car_train_append(int file, const void *line, size_t length);
/* Counts a line as written (`reason` 0) or missing, and warns about the first missing one. */
void car_train_note_line(car_train_run *t, car_train_lines *lines, const char *name, int64_t step, int reason);

/* ---- train_tensorboard.c: the same numbers for TensorBoard; without --tensorboard they do nothing ---------------- */

car_status car_train_open_events(car_train_run *t);
void car_train_close_events(car_train_run *t);
void car_train_write_step_event(car_train_run *t, const car_step_report *report, double samples_per_s);
void car_train_write_evaluation_event(car_train_run *t, int64_t step);

/* ---- train_progress.c: progress and estimated duration ----------------------------------------------------------- */

/* After each step: prints a line if one is due, and once the estimated duration. */
void car_train_show_progress(car_train_run *t, double now);

/* ---- train_output.c: prints the start, evaluations and the end; writes files of the run directory ---------------- */

car_status car_train_open_output(car_train_run *t);
void car_train_close_output(car_train_run *t);
void car_train_show_model(const car_train_run *t); /* over ranks also the machines */
void car_train_on_step(void *user, const car_step_report *report);
void car_train_on_evaluation(void *user, int64_t step, const car_evaluation *evaluation);
void car_train_show_problems(const car_train_run *t); /* lists samples that could not be read, if any */
/* Prints the closing line and writes summary.json. `digest`: of the weights. */
car_status car_train_summarize(car_train_run *t, const char *digest);
/* Keeps the first failure and its message for the end. Returns true if status is CAR_OK. */
bool car_train_remember(car_train_run *t, car_status status);
/* The name of top-1 accuracy in files. For language models it is about next tokens. */
const char *car_train_accuracy_name(car_domain domain);
/* Prints loss and accuracy, for tokens also perplexity, without a newline. */
void car_train_print_evaluation(FILE *stream, car_domain domain, const car_evaluation *evaluation);
/* The metric that decides which evaluation is best: "accuracy" or "loss". */
const char *car_train_metric(const car_train_run *t);
/* Writes DIR/NAME to path. */
car_status car_train_path(car_context *context, const char *directory, const char *name, char *path);

#endif
