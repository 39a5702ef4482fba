/* A run: one object from model and data to trained weights.
 *
 *     car_run_options options = {.model = "resnet20", .data = "cifar10:DIR", .epochs = 3};
 *     car_run_create(context, &options, &run) -> car_run_train(run) -> car_run_evaluate(run, &result) -> car_run_save(run, path)
 *
 * It owns the graph, the plan and all that executes it, in one process or over ranks. These are the processes that
 * mpirun or srun started, all with the same options, or without a launcher threads of this process. All ranks make the
 * same calls; callbacks are called on rank 0 only. There may be several runs, one after the other or at once; over MPI
 * their calls are made in the same order on all ranks, one at a time.
 *
 * `carousel train` is a car_run with its options parsed and its results printed: cli/train.c.
 *
 * Calls that can fail begin by clearing the context's message: after a failure car_context_error is about that call. The
 * handles that a run is made of can be used on their own, too: trainer.h, rank.h. */
#ifndef CAROUSEL_RUN_H
#define CAROUSEL_RUN_H

#include "carousel/checkpoint.h"
#include "carousel/data.h"
#include "carousel/evaluate.h"
#include "carousel/feeder.h"
#include "carousel/mapping.h"
#include "carousel/rank.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_run car_run;

/* An evaluation on the way, after `step` steps. It may call car_run_stop, and ask for car_run_average and
 * car_run_confusion. */
typedef void (*car_evaluation_function)(void *user, int64_t step, const car_evaluation *evaluation);

/* What rank 0 is at in car_run_train: a program that is told to end waits for the second as long as it takes. */
typedef enum car_run_activity {
    CAR_RUN_TRAINING, /* or evaluating: ends soon after car_run_stop */
    CAR_RUN_SAVING    /* files are written */
} car_run_activity;
typedef void (*car_activity_function)(void *user, car_run_activity activity);

/* Zero, or NULL, means what stands in brackets. Texts and what is pointed to must outlive the run. */
typedef struct car_run_options {
    /* The model: one of model.h by name with its sizes (batch 32, where carousel train has 16; the model's own, or the data's), or a finished graph. */
    const char *model;
    car_model_config shape;
    const car_graph *graph;

    /* Its data: KIND:PATH, as car_dataset_open takes it ("synthetic"); a dataset, such as one's own; or a feed, called for
     * each micro-batch of a step, with the number of micro-batches that an evaluation asks it for. */
    const char *data;
    bool no_augment;
    car_augmentation augmentation; /* how images are changed at random (a crop that suits their size, and a flip) */
    bool sequential;               /* samples in their own order (shuffled in every epoch) */
    car_dataset *dataset;
    car_feed_function feed, evaluation_feed; /* evaluation_feed: step is the micro-batch's number, worker 0 */
    void *feed_user;

    /* Who computes what when: names of rule.h ("cdp-v2") and placement.h ("shared"). */
    const char *rule, *placement;
    int workers;      /* (4) */
    int stages;       /* (one for each worker) */
    int accumulate;   /* micro-batches of a worker in a step (1) */
    int threads;      /* of each rank (the machine's cores, divided by the ranks on it) */
    int data_threads; /* that read ahead, of each rank (1); negative: none */
    int most_ranks;   /* that may be threads of this process (1024) */
    /* Finer choices of the plan, such as pieces and the order of sums (plan.h; the defaults): what stands above comes from
     * there. Of the kernels. And of the engine, such as pacing (trainer.h; the defaults): what has an option here comes
     * from it. */
    const car_plan_config *planning;
    const car_program_config *kernels;
    const car_trainer_config *execution;
    /* Which workers share a rank and a machine, by name, or "auto", which suits the machines (that of `planning`; without
     * it "auto"). */
    const char *mapping;
    /* The text of a plan (plan.h; `carousel plan --dump`), which says all of this itself: a schedule of one's own; and what
     * messages call it (options.plan). */
    const char *plan, *plan_name;
    /* Activations that are made again instead of held: as said (none), or as few as keep the prediction of every device below
     * a number of bytes (no limit). */
    car_recompute_config recompute;
    double memory_limit;
    bool force; /* begin also if it is predicted to need more memory than is free (refuses) */

    /* How long, and how weights are updated. */
    int64_t steps;         /* in all (100, if there are no epochs) */
    double epochs;         /* with steps: what ends first */
    const char *optimizer; /* by name, also a registered one ("sgd") */
    /* Of the optimizer, in the place of the name (its defaults, with the correction of the delay that goes with the rule). */
    const car_optimizer_config *settings;
    /* lr (0.05); a cosine's total (steps); warmup: CAR_NONE is the one that goes with the rule's correction (0; without
     * `settings` that one) */
    car_schedule schedule;
    bool zero_lr;           /* an lr of 0 is meant as it stands */
    double schedule_epochs; /* in the place of schedule.every: epochs, of endless data steps */
    double clip_norm;       /* (no clipping) */
    bool skip_nonfinite;
    uint64_t seed; /* of weights, order, augmentation, dropout */

    /* Evaluations: on the data's own samples for it. */
    int64_t eval_every;   /* steps (never on the way) */
    int64_t eval_batches; /* micro-batches of one (all; endless data: 8) */
    bool eval_at_end;     /* one after the last step, with eval_every or where data has an end and samples for it */
    bool eval_beside;     /* over ranks, without patience: of snapshots, while training goes on (training pauses) */
    bool confusion;       /* counts which classes are taken for which: car_run_confusion */
    car_metric_function metric;
    /* What evaluations on the way decide, by their loss or with by_accuracy by their accuracy, counted from car_run_create on
     * (and car_run_recall): a file of the best weights, written anew for each (none), and after how many without a better one
     * training ends (never). With an average of the weights (settings.average) these are its. */
    const char *best;
    int patience;
    bool by_accuracy;

    /* What is kept: checkpoints below this directory (none), which is made if it is not there. One run at a time may have
     * it: DIRECTORY/lock says who. */
    const char *directory;
    /* It is a run directory, as docs/formats.md has it: checkpoints are in checkpoints/, and when a training ends the weights
     * are in weights.safetensors, their average in average.safetensors. A directory that is removed ends the run. */
    bool run_directory;
    bool no_checkpoints;          /* none are written */
    int64_t checkpoint_every;     /* steps (when car_run_train ends) */
    int keep;                     /* newest checkpoints (2) */
    car_precision save_precision; /* of files of weights, but for checkpoints (fp32) */
    bool resume;                  /* go on from the newest; where there is none, begin; in a run directory fail */
    int64_t resume_step;          /* go on from the checkpoint of this step */
    bool other_optimizer;         /* go on from one of another optimizer, without its state (refuses) */
    /* What the caller knows the run by, a JSON object: kept in checkpoints (see also car_run_set_configuration), where
     * "optimizer" names the optimizer, and compared between ranks. (The optimizer) */
    const char *configuration;

    bool record, record_memory; /* what is done in some steps; with the arena's categories: car_run_record */

    car_report_function on_step; /* report->step counts from 0, the step of on_evaluation from 1 */
    car_evaluation_function on_evaluation;
    car_activity_function on_activity;
    void *user; /* of these three and of the metric */
    /* Why these options cannot be, found out by the caller (they can): car_run_create fails with it, on all ranks. */
    const char *refused;
    bool dashes; /* messages name settings as options of `carousel train`, --eval-every (options.eval_every) */
} car_run_options;

/* Builds all of it and draws the weights, or resumes. Bad options are CAR_ERROR_ARGUMENT or CAR_ERROR_UNKNOWN_NAME,
 * with a message; so are ranks whose options differ, and an evaluation on the way that cannot work. On failure *out is
 * NULL; if one rank fails, all do with its message, and may try again. So it is if `directory` or `best` cannot be
 * written, CAR_ERROR_IO. The context must outlive the run. */
car_status car_run_create(car_context *context, const car_run_options *options, car_run **out);
void car_run_destroy(car_run *run);

/* Trains until all steps are made, or car_run_stop, with evaluations and checkpoints on the way. At the end it saves, in the
 * order of its worth: the weights, in a run directory; a checkpoint, if there is a directory; and then makes the last
 * evaluation. What could not be written does not keep the rest from being tried; it fails then, and the run can go on. A
 * checkpoint that could not be written on the way is forgiven if a later one was. Where a rank fails while it trains, the
 * others may wait for it, and so does car_run_destroy over MPI: exit with a status other than 0 without it, and the
 * launcher ends them all. */
car_status car_run_train(car_run *run);
/* The same, up to a number of steps in all, e.g. one more than were made; at most options.steps. No step is made if as
 * many were. */
car_status car_run_train_to(car_run *run, int64_t steps);
/* Makes car_run_train end soon, on all ranks after the same step, and breaks an evaluation on the way off. From any thread,
 * callback or signal handler. It is for good: the run can be evaluated and saved, but car_run_train makes no step any more. To train further create one
 * that resumes or loads the weights. */
void car_run_stop(car_run *run);
/* Whether it was stopped: what ends a loop around car_run_train_to. Over MPI from the end of a training on, the same on
 * all ranks, whichever was told to stop. */
bool car_run_is_stopped(const car_run *run);

/* Whether the last training came to its end, saving included, also if not everything could be written; and whether there
 * was nothing left to do: all steps were made, or patience was at an end, and no evaluation was broken off by
 * car_run_stop. */
bool car_run_has_ended(const car_run *run);
bool car_run_is_complete(const car_run *run);
/* Whether weights.safetensors of the run directory has the weights that the last training ended with. On rank 0. */
bool car_run_has_result(const car_run *run);
/* Whether patience ended the training; and evaluations without a better one. On rank 0. */
bool car_run_lost_patience(const car_run *run);
int car_run_worse(const car_run *run);
/* Whether no call can go on any more: after a failure of car_run_train that others may not know of. */
bool car_run_is_broken(const car_run *run);

/* Between trainings, by all ranks. If rank 0 fails, all do with its message, and the run can go on. After a failure that it
 * cannot go on from, calls fail with the status and the message of that one. */

/* Loss and accuracy of the weights as they are, and the metric. The same on all ranks. */
car_status car_run_evaluate(car_run *run, car_evaluation *out);
/* The logits of one micro-batch of inputs, in the shape of the graph's input: always as many samples as its first
 * dimension says (`shape.batch`), so pad what is fewer. [rows, classes] floats, on all ranks; rows are the samples, of
 * texts their tokens. The input is the data's, or with a feed the only one besides the labels. */
car_status car_run_predict(car_run *run, const void *inputs, float *logits);
/* A safetensors file of the weights, written by rank 0. */
car_status car_run_save(car_run *run, const char *path);
/* Weights to go on with, in the place of those that were drawn, before the first step; what the model lacks is an error (checkpoint.h). */
car_status car_run_load(car_run *run, const char *path);
/* The same with what car_weights_load takes; `report` is filled on rank 0. Both may be NULL. */
car_status car_run_load_with(car_run *run, const char *path, const car_weights_load_config *config,
                             car_weights_load_report *report);
/* A checkpoint of where the run stands; CAR_ERROR_ARGUMENT without a directory. */
car_status car_run_checkpoint(car_run *run);
/* SHA-256 of the weights, 65 characters: equal weights, to the bit, have equal ones. The same on all ranks. */
car_status car_run_digest(car_run *run, char *text);

/* ---- a run that goes on ------------------------------------------------------------------------------------------ */

/* The step that it went on from; 0: it began. On rank 0: the configuration in the checkpoint, NULL without one, and whether
 * the checkpoint had all that training depends on. */
int64_t car_run_first_step(const car_run *run);
const char *car_run_then(const car_run *run);
bool car_run_goes_on_exactly(const car_run *run);

/* An evaluation that was made before: after how many steps, and the number that evaluations are compared by. */
typedef struct car_past_evaluation {
    int64_t step;
    double value;
} car_past_evaluation;
/* Counts them, in their order, before the first training; by rank 0, and by others if they like. If the file of the best
 * weights is not of the best of them it is removed, and the best is looked for anew. An evaluation that was due at the step
 * that the run goes on from, and is not among them, is made first of all. */
car_status car_run_recall(car_run *run, const car_past_evaluation *list, int count);
/* What later checkpoints keep in the place of options.configuration; copied. Between trainings. */
car_status car_run_set_configuration(car_run *run, const char *json);

/* ---- what was done, and what it took ------------------------------------------------------------------------------- */

/* With options.record, by all ranks between trainings: records steps first .. end - 1; and afterwards gathers what was
 * recorded. *out is the run's; NULL on other ranks than rank 0, and without options.record. */
car_status car_run_record(car_run *run, int64_t first, int64_t end);
car_status car_run_gather_record(car_run *run, car_recorder **out);

/* What one rank used and sent. */
typedef struct car_rank_account {
    double memory[CAR_MEMORY_CATEGORIES]; /* bytes at the peak; over ranks while training */
    double activations_mean, extent;      /* of the arena, bytes */
    double rss, rss_end;                  /* of the process: at the peak, and now */
    double data_waited;                   /* seconds */
    car_rank_traffic traffic;
    double waiting, tasks; /* seconds of its threads */
} car_rank_account;
/* By all ranks, between trainings: of each rank, the same everywhere; car_run_ranks of them, which stay the run's until the
 * next call. */
car_status car_run_account(car_run *run, const car_rank_account **out);
double car_run_resident(void); /* bytes of this process, now */

/* ---- questions ----------------------------------------------------------------------------------------------------- */

int64_t car_run_steps(const car_run *run);       /* made so far */
int64_t car_run_total_steps(const car_run *run); /* that car_run_train makes in all */
/* Of the best evaluation on the way: the step, with `best` of the weights in the file, CAR_NONE: none; and the number that
 * it was the best by. Rank 0's. */
int64_t car_run_best_step(const car_run *run);
double car_run_best_value(const car_run *run);
/* Of the last evaluation on the way, on rank 0: that of the averaged weights, NULL without one; and with options.confusion
 * counts[label * classes + answer], NULL where there are no classes or more than 2000. */
const car_evaluation *car_run_average(const car_run *run);
int64_t *car_run_confusion(const car_run *run);
int64_t car_run_epoch_steps(const car_run *run); /* 0: endless data, or a feed */
int car_run_rank(const car_run *run);            /* of this process: 0, but over MPI */
int car_run_ranks(const car_run *run);
const car_graph *car_run_graph(const car_run *run);
const car_plan *car_run_plan(const car_run *run);
/* Bytes of the ranks of this process, each at its peak. */
size_t car_run_peak(const car_run *run, car_memory category);

/* As the data, the rule and the machine have decided: the model's sizes (zero: its own), the schedule, threads of a rank. */
car_model_config car_run_shape(const car_run *run);
const car_schedule *car_run_schedule(const car_run *run);
int car_run_threads(const car_run *run);
/* Where the ranks are; and the numbers by which the mapping was chosen, NULL if none were compared. */
const car_machines *car_run_machines(const car_run *run);
const car_mapping_choice *car_run_mapping(const car_run *run);
/* Bytes of activations that rank 0, or in one process all workers, are predicted to hold at the peak; 0: not known. */
double car_run_planned(const car_run *run);

/* The handles that the run is made of, of the first rank of this process, to ask and to look at; they stay the run's. */
car_dataset *car_run_dataset(const car_run *run); /* NULL: there is a feed, and below */
const car_feeder *car_run_feeder(const car_run *run);
const car_arena *car_run_arena(const car_run *run);
car_rank *car_run_engine(const car_run *run);
car_transport *car_run_transport(const car_run *run);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
