/* What the files of `carousel train` share. */
#ifndef CAR_CLI_TRAIN_H
#define CAR_CLI_TRAIN_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "carousel/available.h"
#include "carousel/card.h"
#include "carousel/data.h"
#include "carousel/evaluate.h"
#include "carousel/events.h"
#include "carousel/feeder.h"
#include "carousel/mapping.h"
#include "carousel/model.h"
#include "carousel/partition.h"
#include "carousel/plan.h"
#include "carousel/rank.h"
#include "carousel/trainer.h"
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
    char *plan_text;  /* what --plan names; released with the options of the first run */
    int plan_devices; /* that its header names; 0: none was given */
    car_cli_list freeze, lr_scale;
    /* What these two come to: see train_rules.c. */
    car_param_rule rules[2 * CAR_CLI_LIST_LENGTH];
    int rule_count;
    char patterns[CAR_CLI_LIST_LENGTH][128];
    car_cli_config *config_texts; /* owns texts above that came from a file */
} car_train_options;

/* ---- train_signals.c: how a run is told to end ------------------------------------------------------------------- */

/* What a signal means depends on what the run is at. */
typedef enum car_train_activity {
    CAR_TRAIN_STARTING, /* there is nothing to save yet */
    CAR_TRAIN_TRAINING, /* or evaluating: has to end soon */
    CAR_TRAIN_SAVING    /* takes as long as it takes */
} car_train_activity;

struct car_train_run;
/* Before any other thread is started, which must not get the signals. Until _stop_listening the run must stay. */
void car_train_listen(struct car_train_run *run);
void car_train_stop_listening(void);
void car_train_enter(const struct car_train_run *run, car_train_activity activity);
bool car_train_is_interrupted(void); /* it was asked to end */

/* ---- train_options.c: as typed, with their defaults; then turned into the configurations of the library ---------- */

void car_train_default_options(car_train_options *options);
int car_train_read_options(int argc, char **argv, car_train_options *options);
/* Sets what a run's config.json has. Returns CAR_CLI_GO_ON, or the code to exit with after a message. */
int car_train_read_config(const car_cli_command *command, const char *path, car_train_options *options);
car_status car_train_configure(car_context *context, const car_train_options *options, car_plan_config *plan,
                               car_program_config *program, car_trainer_config *trainer);
/* `epoch_steps`: what an epoch of --lr-schedule step:EPOCHS:GAMMA is. */
car_status car_train_read_schedule(car_context *context, const car_train_options *options, int64_t epoch_steps,
                                   car_schedule *out);
/* Sets what the names of precisions mean. */
car_status car_train_read_precision(car_context *context, car_train_options *options);
/* As config.json has them; NULL without memory. */
cJSON *car_train_config_of(const car_train_options *options);

/* ---- train_rules.c: single parameters, and augmentation ----------------------------------------------------------- */

/* Fills options->rules, which the optimizer's configuration then points to: the options must stay where they are. */
car_status car_train_read_rules(car_context *context, car_train_options *options);
/* Sets how images are changed at random. */
car_status car_train_read_augmentation(car_context *context, const car_train_options *options, car_dataset_config *out);

/* ---- train_data.c: samples, for training and for evaluation ----------------------------------------------------- */

/* A model's samples. */
typedef struct car_train_data {
    car_domain domain;
    car_model_config model; /* as resolved */
    car_dataset *set;
    car_feeder *feeder;
} car_train_data;

/* Asks the data for what the options leave open: classes, the size of small images, the vocabulary of a tokenizer. */
car_status car_train_find_sizes(car_context *context, car_train_options *options);
/* Opens the data for a model; its graph must outlive it. */
car_status car_train_open_data(car_train_data *data, car_context *context, const car_train_options *options,
                               const car_graph *graph);
void car_train_close_data(car_train_data *data);
/* Evaluates weights on the samples that are not trained on; `counts` as car_evaluate_config has them, or NULL. */
car_status car_train_evaluate(const car_train_data *data, const car_train_options *options, const car_program *program,
                              car_arena *arena, const car_weights *weights, int64_t *counts, car_evaluation *out);

/* ---- a run ------------------------------------------------------------------------------------------------------ */

typedef struct car_train_writer car_train_writer;

/* Lines of a file in the run directory. */
typedef struct car_train_lines {
    _Atomic int64_t written, missing; /* over ranks, steps and evaluations are reported by two threads */
    int reason;                       /* errno of the first that is missing */
} car_train_lines;

/* Everything a run owns, in the order of creation. */
typedef struct car_train_run {
    car_train_options options;  /* with what the rule and the data decide filled in */
    car_report_function report; /* NULL: car_train_on_step */
    car_context *context;
    car_graph *graph;
    car_partition *partition;
    car_recompute_config recompute; /* what the options come to */
    car_plan *plan;
    car_program *program;
    car_arena *arena;
    car_train_data data;
    car_recorder *recorder;   /* NULL if nobody wants to know */
    car_trainer *trainer;     /* NULL over ranks */
    car_transport *transport; /* NULL in one process */
    car_rank *rank;
    car_hub *hub;                        /* NULL unless ranks are threads of this process; not the run's own */
    size_t addresses;                    /* that its arena may reserve; 0: as many as it can */
    car_snapshot *snapshot;              /* over ranks, on the first one: what was gathered last */
    car_weights *gathered;               /* the same, as weights */
    void *accounts;                      /* over ranks: what each of them used and sent */
    double peaks[CAR_MEMORY_CATEGORIES]; /* over ranks: bytes while training */
    car_machines machines;               /* over ranks: where they run */
    car_mapping_choice choice;           /* over ranks: of the mapping, if `chosen` */
    car_optimizer_config optimizer;
    car_train_writer *writer; /* NULL if no checkpoints are written on the way */
    int64_t saved_step;       /* of the newest checkpoint that this run wrote or began with; 0: none */
    car_available available;  /* memory, before this run took any */
    double planned;           /* bytes of activations at the peak, as the plan predicts them; over ranks this rank's */
    int hub_rank;             /* which of the hub's ranks this is */
    car_status failure;       /* of something that did not keep the run from going on to its end */
    char failure_text[1024];  /* its message */
    /* The run directory. */
    int lock_file, metrics_file;                 /* if it is locked; if it is written to */
    int events_file;                             /* TensorBoard's, if it is written to */
    car_events *step_events, *evaluation_events; /* its records; over ranks two threads make them */
    dev_t out_device;                            /* which directory it is */
    ino_t out_number;                            /* the same */
    double looked;                               /* when it was last looked for */
    car_train_lines metrics, evaluations, events;
    bool settled, chosen; /* over ranks: all end in the same way, and why has been said; the mapping was chosen */
    bool locked, out_is_new, out_is_gone; /* this run has its lock; created it; it was removed */
    bool writes, writes_events;           /* metrics_file is open; events_file is */
    bool weights_written;                 /* weights.safetensors has the result */
    /* What the output needs to know. */
    bool terminal;
    bool interrupted;       /* it ended early */
    bool evaluates;         /* at the end, since there is real data for it */
    bool foretold;          /* the duration has been estimated */
    bool evaluated;         /* `evaluation` is of the weights as they are */
    int64_t first_step;     /* 0, or where it was resumed */
    int64_t last_evaluated; /* on the first rank: the step of the last evaluation before that, 0: none */
    int64_t epoch_steps;    /* 0: endless */
    double started, shown, first_loss, loss;
    double first_reported; /* when */
    double aside;          /* seconds that were not training: evaluations */
    int64_t reported;      /* by this call */
    double *step_ms;       /* of the last steps, for the median */
    double last_time;
    car_evaluation evaluation, average_evaluation;
    car_cli_confusion confusion; /* of the last evaluation of an image model */
    /* What evaluations have decided: train_best.c. */
    bool averaged; /* the average has begun */
    bool has_best, stopped_early;
    double best_value;
    int64_t best_step;
    int worse; /* evaluations since the best */
} car_train_run;

/* Creates all of a run from its options; what was created is taken down again in any case. */
car_status car_train_set_up(car_train_run *run);
void car_train_tear_down(car_train_run *run);

void car_train_show_rules(const car_train_run *run); /* how much is frozen, if anything is */

/* ---- train_lock.c ----------------------------------------------------------------------------------------------- */

/* Creates the run directory, unless a run there is to go on, and locks it: one run at a time. The message of a refusal
 * says who has it. Before anything is looked at or written there. */
car_status car_train_lock(car_train_run *run);
void car_train_unlock(car_train_run *run); /* last; a directory that nothing was written to goes again */

/* ---- correction.c: the delay's correction, of a run -------------------------------------------------------------- */

/* When the number of steps is known: the warm-up, if it was not given. */
void car_train_choose_warmup(car_train_options *options, car_rule rule, const car_optimizer_config *optimizer);
/* What the first line of a run says of it. */
void car_train_describe_correction(const car_train_run *run, char *text, size_t capacity);
/* What a run from before there was a correction is taken to have. */
void car_train_default_correction(cJSON *then);
/* A resumed run: warns if the correction is another. `has_last`: whether the checkpoint has all that it needs. */
void car_train_tell_correction(const car_train_run *run, const cJSON *then, bool has_last);

/* ---- train_checkpoint.c ----------------------------------------------------------------------------------------- */

/* Sets the snapshots of the trainer or rank to be, if checkpoints, or over ranks evaluations, are to be made on the way. */
car_status car_train_open_writer(car_train_run *run, car_trainer_config *trainer);
void car_train_close_writer(car_train_run *run); /* waits until what is being written is written */
/* Refuses a run directory that holds another run. */
car_status car_train_check_directory(car_train_run *run);
/* Puts the trainer into the state of the newest checkpoint, or of --resume-step. */
car_status car_train_resume(car_train_run *run);
car_status car_train_initialize(car_train_run *run); /* the weights: drawn, or --init */
/* At the end: a checkpoint of where the run stands. */
car_status car_train_write_checkpoint(car_train_run *run);

/* Reads the newest checkpoint, or that of --resume-step, into a snapshot, and says what differs. */
car_status car_train_read_snapshot(car_train_run *run, car_snapshot *snapshot);
car_status car_train_write_snapshot(car_train_run *run, const car_snapshot *snapshot);
/* Fills weights from --init, and says what did not fit. */
car_status car_train_load(car_train_run *run, car_weights *weights);

/* ---- train_plan.c: --plan FILE ------------------------------------------------------------------------------------ */

/* Reads the file, if there is one, and sets the options that it answers. Returns CAR_CLI_GO_ON, or the code to exit with
 * after a message. */
int car_train_read_plan(int argc, char **argv, car_train_options *options);
/* The run's plan, from the file or by the rule, proven. */
car_status car_train_make_plan(car_train_run *run, const car_plan_config *config);
/* When the number of steps is known: whether the plan has as many. */
car_status car_train_check_plan_steps(car_train_run *run);
/* A copy for --resume in the run directory. */
car_status car_train_keep_plan(car_train_run *run);

/* ---- train_fit.c, train_fit_ranks.c: memory and disk, before any of it is taken ------------------------------------ */

/* Micro-batches and samples of a step. */
static inline int car_train_batches(const car_train_options *o) {
    return o->workers * o->accumulate;
}
static inline double car_train_step_samples(const car_train_options *o) {
    return (double)car_train_batches(o) * o->shape.batch;
}

/* Whether the lists of tasks of so many workers and stages fit; before the plan is made. */
car_status car_train_check_tasks(car_train_run *run, int workers, int stages);
/* In one process, with the plan and, for the whole of it, the program and the arena: refuses a run that is predicted to
 * need more memory than there is, unless --force is given, and says what would fit. */
car_status car_train_check_memory(car_train_run *run);
/* The same over ranks; all of them call it, when they have their numbers. */
car_status car_train_check_rank_memory(car_train_run *run, int optimizer_states);
/* A warning if the disk has less room than weights and checkpoints will take. */
void car_train_check_disk(car_train_run *run, int optimizer_states);

/* ---- train_agree.c: over MPI, before the first step -------------------------------------------------------------- */

/* Over ranks, if --mapping leaves it open: which workers a rank and a machine host. Sets it in plan and options. */
car_status car_train_choose_mapping(car_train_run *run, car_plan_config *plan, int optimizer_states);
void car_train_show_ranks(const car_train_run *run); /* a line */
/* Whether setting up went well everywhere, and all ranks have the same of everything. */
car_status car_train_agree(car_train_run *run, car_status own);
/* Where some failed, all end: the first of those says why. */
car_status car_train_settle(car_train_run *run, car_status own);

/* ---- train_local.c: ranks as threads of this process ------------------------------------------------------------- */

/* Whether the options want ranks. */
bool car_train_has_ranks(const car_train_options *options);
/* The same, and no launcher has started any. */
bool car_train_is_local(const car_train_options *options);
/* All of a run, and of taking it down; says what goes wrong. */
car_status car_train_locally(car_train_run *first);

/* ---- train_ranks.c: the same over MPI --------------------------------------------------------------------------- */

/* Joins the other ranks, if there are any. Before anything else: the options may depend on it. */
car_status car_train_join(car_train_run *run);
/* Whether this process speaks for all: the only one, or rank 0. */
bool car_train_is_first(const car_train_run *run);
/* Creates the rank, with its first state: drawn, --init, or --resume. */
car_status car_train_open_rank(car_train_run *run, const car_trainer_config *trainer);
/* From the first step to the last, with evaluations and checkpoints on the way, and the summary. */
car_status car_train_over_ranks(car_train_run *run);
/* Whether ranks wait for evaluations on the way, because these decide how the run goes on. */
bool car_train_pauses(const car_train_options *options);
/* Copies the weights of a snapshot; *weights is created if it is NULL. */
car_status car_train_copy_weights(car_train_run *run, const car_snapshot *snapshot, car_arena *arena,
                                  car_weights **weights);
void car_train_close_rank(car_train_run *run);
/* Ends the job, with a message, if this rank failed in the middle of it. */
void car_train_leave(car_train_run *run, car_status status);

/* Steps made, and the weights after them, wherever they are. */
int64_t car_train_steps(const car_train_run *run);
car_weights *car_train_weights(car_train_run *run);
car_trainer_times car_train_times(const car_train_run *run);
/* Adds "comm" and, over ranks, "ranks" to the summary. */
void car_train_add_traffic(car_train_run *run, cJSON *json);

/* Peak bytes of a run: of the process, or over ranks of the largest rank in each (while training). */
typedef struct car_train_peaks {
    int ranks; /* 1: one process */
    int rank;  /* the one with most activations */
    double largest[CAR_MEMORY_CATEGORIES], activations_mean, extent, rss;
    double activations_sum, rss_sum; /* of all ranks' peaks, which need not be at one time */
} car_train_peaks;
car_train_peaks car_train_get_peaks(const car_train_run *run);
double car_train_resident_bytes(void); /* of this process, now */

/* ---- train_memory.c: those peaks, with the word whose they are --------------------------------------------------- */

void car_train_print_peak(const car_train_run *run); /* for the closing line */
void car_train_add_memory(const car_train_run *run, cJSON *json);

/* ---- train_record.c: what was done in some of the steps, for --trace and the run directory ----------------------- */

/* Looks at --trace-steps before anything is done. */
car_status car_train_check_trace(car_train_run *run);
/* Creates the recorder, if there is to be one, and gives it to the trainer or rank to be. */
car_status car_train_open_recorder(car_train_run *run, car_trainer_config *trainer);
/* When the first step is known, and the run directory is there: which steps are recorded. Called by all ranks. */
car_status car_train_start_recorder(car_train_run *run);
/* At the end: the files. Called by all ranks. */
car_status car_train_write_records(car_train_run *run);

/* ---- train_end.c: failures that do not keep the rest from being saved ---------------------------------------------- */

/* Keeps a failure and its message for the end; whether there was none. */
bool car_train_remember(car_train_run *run, car_status status);
/* At the end: `status`, or else the failure that was kept. */
car_status car_train_conclude(car_train_run *run, car_status status);
/* ---- train_best.c: the best weights, the end that evaluations decide, the average ---------------------------------- */

/* weights.safetensors and the average, if there is a run directory. */
car_status car_train_write_weights(car_train_run *run);
/* The card of what is written now, to be destroyed. */
car_status car_train_make_card(car_train_run *run, int64_t step, car_card **out);
/* What evaluations are compared by: "accuracy" or "loss". */
const char *car_train_metric(const car_train_run *run);
/* Refuses --keep-best and --patience that cannot be. */
car_status car_train_check_best(car_train_run *run);
/* What an evaluation is of. */
typedef struct car_train_subject {
    int64_t step;
    car_weights *weights, *average; /* average: NULL without --ema */
} car_train_subject;
/* With --ema: adds the average of the weights, from a snapshot or (NULL) from the trainer. It is to be destroyed. */
car_status car_train_add_average(car_train_run *run, const car_snapshot *snapshot, car_arena *arena,
                                 car_train_subject *subject);
/* Evaluates, shows it, and keeps the weights if they are the best; or decides that the run has waited long enough. */
car_status car_train_evaluate_subject(car_train_run *run, const car_train_subject *subject, car_arena *arena);
car_status car_train_evaluate_here(car_train_run *run); /* the same of where the run stands */
/* A resumed run: counts the evaluations that were made before. */
car_status car_train_recall_best(car_train_run *run);

/* ---- train_metrics.c: metrics.jsonl and evaluations.jsonl --------------------------------------------------------- */

/* Opens them, with what earlier starts have written as far as this one goes on from it. */
car_status car_train_open_metrics(car_train_run *run);
void car_train_close_metrics(car_train_run *run); /* says which lines are missing */
/* A line each; nothing without a run directory. Stops the run if the directory is gone. */
void car_train_write_metrics(car_train_run *run, const car_step_report *report);
void car_train_write_evaluation(car_train_run *run, int64_t step);
/* Appends all bytes or none. Returns 0, or the errno of what went wrong. */
int car_train_append(int file, const void *line, size_t length);
/* Counts a line that was written (`reason` 0) or could not be; warns of the first that is missing. */
void car_train_note_line(car_train_run *run, car_train_lines *lines, const char *name, int64_t step, int reason);
/* Fails if the run directory was removed. */
car_status car_train_find_directory(car_train_run *run);

/* ---- train_tensorboard.c: the same numbers for TensorBoard; they do nothing without --tensorboard ------------------- */

car_status car_train_open_events(car_train_run *run);
void car_train_close_events(car_train_run *run);
void car_train_write_step_event(car_train_run *run, const car_step_report *report, double samples_per_s);
void car_train_write_evaluation_event(car_train_run *run, int64_t step);

/* ---- train_progress.c: how far a run is, and how long it will take ------------------------------------------------ */

/* After each step, at `now`: a line, if one is due; once, how long the whole will take. */
void car_train_show_progress(car_train_run *run, double now);

/* ---- train_output.c: the head, a line for a step, the evaluation, the end; and the files of the run directory ---- */

car_status car_train_open_output(car_train_run *run);
void car_train_close_output(car_train_run *run);
void car_train_show_model(const car_train_run *run);
void car_train_on_step(void *user, const car_step_report *report);
void car_train_show_evaluation(car_train_run *run, int64_t step); /* that it is of */
void car_train_show_problems(const car_train_run *run); /* samples that could not be read, if there were any */
/* Whether the run was over before and its summary is there. */
car_status car_train_was_over(car_train_run *run, bool *out);
car_status car_train_summarize(car_train_run *run, bool interrupted);
/* What the share of labels that were the best guess is called in files: a language model's labels are next tokens. */
const char *car_train_accuracy_name(car_domain domain);
/* Loss and accuracy, of tokens also perplexity, as a line without its end. */
void car_train_print_evaluation(FILE *stream, car_domain domain, const car_evaluation *evaluation);
/* Room for which classes are taken for which, in the evaluation to come. */
car_status car_train_create_confusion(car_train_run *run);
/* The answer to --eval-every. */
car_status car_train_evaluate_now(car_train_run *run);
void car_train_begin_part(void *user); /* of a run, in the loop of rank.h; `user` is the run */
/* Whether a resumed run stands where --eval-every asks for an evaluation. It was made before, if `last_evaluated` says
 * so; otherwise a signal or a kill has snapshot it short, and it is made now. */
bool car_train_begins_at_evaluation(const car_train_run *run);
/* DIR/NAME. */
car_status car_train_path(car_context *context, const char *directory, const char *name, char *path);

#endif
