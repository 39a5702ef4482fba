/* A run: one object from model and data to trained weights.
 *
 *     car_run_options options = {.model = "resnet20", .data = "cifar10:DIR", .epochs = 3};
 *     car_run_create(context, &options, &run) -> car_run_train(run) -> car_run_evaluate(run, &result) -> car_run_save(run, path)
 *
 * It owns the graph, the plan and everything that executes it, in one process or over ranks. Ranks are the processes
 * that mpirun or srun started, all with the same options; without a launcher they are threads of this process. All
 * ranks make the same calls; on_step, on_evaluation and on_activity are called on rank 0 only. A process may have
 * several runs, one after the other or at once. Over MPI all ranks make their calls in the same order, one at a time.
 *
 * `carousel train` parses options, runs a car_run and prints its results.
 *
 * Each call that can fail first clears the context's message, so after a failure car_context_error describes that
 * call. The handles that a run is made of can also be used directly: trainer.h, rank.h. */
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

/* Called after an evaluation during training, after `step` steps. It may call car_run_stop, car_run_average and
 * car_run_confusion. */
typedef void (*car_evaluation_function)(void *user, int64_t step, const car_evaluation *evaluation);

/* What rank 0 does in car_run_train. A program that is told to end should wait until saving is done. */
typedef enum car_run_activity {
    CAR_RUN_TRAINING, /* or evaluating; ends soon after car_run_stop */
    CAR_RUN_SAVING    /* writing files */
} car_run_activity;
typedef void (*car_activity_function)(void *user, car_run_activity activity);

/* Zero or NULL selects the default, which is given in brackets. Texts and everything pointed to must outlive the
 * run. */
typedef struct car_run_options {
    /* The model: a name of model.h with its sizes, or a finished graph. (Sizes: batch 32, while carousel train uses
     * 16; others from the data or the model.) */
    const char *model;
    car_model_config shape;
    const car_graph *graph;

    /* The data: KIND:PATH for car_dataset_open ("synthetic"); or a dataset, e.g. your own; or a feed, which is
     * called for each micro-batch of a step. For evaluations with a feed, set eval_batches. */
    const char *data;
    bool no_augment;
    car_augmentation augmentation; /* how images are changed at random (a crop that suits their size, and a flip) */
    bool sequential;               /* samples in their own order (shuffled in each epoch) */
    car_dataset *dataset;
    /* evaluation_feed is called with the micro-batch's number as step, and micro_batch 0. */
    car_feed_function feed, evaluation_feed;
    void *feed_user;

    /* Who computes what, when: names from rule.h ("cdp-v2") and placement.h ("shared"). */
    const char *rule, *placement;
    int workers;      /* (4) */
    int stages;       /* (one for each worker) */
    int accumulate;   /* micro-batches per worker and step (1) */
    int threads;      /* of each rank (the machine's cores, divided by the ranks on it) */
    int data_threads; /* threads of each rank that read ahead (1); negative: none */
    int most_ranks;   /* limit of ranks that are threads of this process (1024) */
    /* More settings: of the plan, such as pieces and the order of sums (plan.h); of the kernels; and of the engine, such
     * as pacing (trainer.h). The fields of this struct override them. */
    const car_plan_config *planning;
    const car_program_config *kernels;
    const car_trainer_config *execution;
    /* Which workers share a rank and a machine: a name, or "auto" for the mapping that suits the machines (that of
     * `planning`, or else "auto"). */
    const char *mapping;
    /* The text of a plan (plan.h; `carousel plan --dump`), which replaces all of these: a custom schedule. `plan_name` is
     * what messages call it (options.plan). */
    const char *plan, *plan_name;
    /* Recomputation of activations: as given (none), or as little as keeps each device's predicted memory below
     * memory_limit bytes (no limit). */
    car_recompute_config recompute;
    double memory_limit;
    bool force; /* run even if it is predicted to need more memory than is free (refuse) */

    /* How long to train, and how weights are updated. */
    int64_t steps;         /* in all (100, if epochs is not set) */
    double epochs;         /* with steps: whichever ends first */
    const char *optimizer; /* a name, or that of a registered one ("sgd") */
    /* Settings of the optimizer, instead of its name (its defaults, with the delay correction for the rule). */
    const car_optimizer_config *settings;
    /* lr (0.05); a cosine's total (steps); warmup: CAR_NONE is automatic, by the rule's delay correction (docs/delay.md). 0
     * is automatic, too, unless `settings` is given: then there is none. An optimizer of your own has none by itself. */
    car_schedule schedule;
    bool zero_lr;           /* an lr of 0 means 0, not the default */
    double schedule_epochs; /* instead of schedule.every: epochs, or steps of endless data */
    double clip_norm;       /* (no clipping) */
    bool skip_nonfinite;
    uint64_t seed; /* for weights, order, augmentation and dropout */

    /* Evaluations, on the data's evaluation split. */
    int64_t eval_every;   /* steps (never during training) */
    int64_t eval_batches; /* micro-batches per evaluation (all; 8 of endless data) */
    bool eval_at_end; /* also after the last step: with eval_every, or if the data is finite and has samples for it */
    bool eval_beside; /* over ranks, without patience: evaluate snapshots while training goes on (training waits) */
    bool confusion;   /* count which classes are confused: car_run_confusion */
    car_metric_function metric;
    /* What evaluations during training decide, by loss or, with by_accuracy, by accuracy, counting from car_run_create
     * (and car_run_recall): `best` is a file for the best weights so far (none); `patience` ends training after so many
     * evaluations without a better one (never). With averaged weights (settings.average) both are about the average. */
    const char *best;
    int patience;
    bool by_accuracy;

    /* A directory for checkpoints (none), created if it does not exist. One run at a time may use it: DIRECTORY/lock
     * names that run. */
    const char *directory;
    /* Make it a run directory (docs/formats.md): checkpoints go to checkpoints/; when training ends, the weights go to
     * weights.safetensors and their average to average.safetensors. If the directory is removed, the run ends. */
    bool run_directory;
    bool no_checkpoints;          /* write none */
    int64_t checkpoint_every;     /* steps (only when car_run_train ends) */
    int keep;                     /* how many, newest first (2) */
    car_precision save_precision; /* of files of weights, except checkpoints (fp32) */
    bool resume;                  /* continue from the newest; without one begin, or in a run directory fail */
    int64_t resume_step;          /* continue from the checkpoint of this step */
    bool other_optimizer;         /* accept a checkpoint of another optimizer, without its state (refuse) */
    /* The caller's description of the run, a JSON object in which "optimizer" names the optimizer (only that). It is
     * stored in checkpoints and compared between ranks. See also car_run_set_configuration. */
    const char *configuration;

    bool record, record_memory; /* record some steps, and memory by category: car_run_record */

    car_report_function on_step; /* report->step counts from 0, the step of on_evaluation from 1 */
    car_evaluation_function on_evaluation;
    car_activity_function on_activity;
    void *user; /* for these three and for the metric */
    /* A reason, found by the caller, why these options are refused (none). car_run_create fails with it on all ranks. */
    const char *refused;
    bool dashes; /* messages say --eval-every, as `carousel train` does (options.eval_every) */
} car_run_options;

/* Builds everything and draws the weights, or resumes. CAR_ERROR_ARGUMENT or CAR_ERROR_UNKNOWN_NAME for bad options,
 * for ranks whose options differ, and for evaluations that cannot work; CAR_ERROR_IO if `directory` or `best` is not
 * writable. On failure *out is NULL. If one rank fails, all fail with its message and may try again. The context
 * must outlive the run. */
car_status car_run_create(car_context *context, const car_run_options *options, car_run **out);
void car_run_destroy(car_run *run);

/* Trains until all steps are made, or car_run_stop, with evaluations and checkpoints on the way. At the end it saves what
 * is worth most first: the weights, in a run directory; a checkpoint, if there is a directory; then it makes the last
 * evaluation. If something cannot be written, it tries the rest and then fails; the run can continue. A checkpoint that
 * could not be written on the way is forgiven if a later one was. If a rank fails during training, the others may wait
 * for it, and over MPI car_run_destroy does, too: exit with a status other than 0 instead, and the launcher ends all
 * ranks. */
car_status car_run_train(car_run *run);
/* The same, until `steps` steps have been made in all, at most options.steps. Does nothing if as many have been
 * made. */
car_status car_run_train_to(car_run *run, int64_t steps);
/* Makes car_run_train end soon, on all ranks after the same step, and breaks off an evaluation. May be called from any
 * thread, callback or signal handler. This is final: the run can be evaluated and saved, but makes no further step. To
 * train on, create a run that resumes or loads the weights. */
void car_run_stop(car_run *run);
/* Whether the run was stopped; use it to end a loop around car_run_train_to. Over MPI it is the same on all ranks
 * from the end of a training call on, whichever rank was stopped. */
bool car_run_is_stopped(const car_run *run);

/* Whether the last training reached its end, including saving, even if something could not be written. */
bool car_run_has_ended(const car_run *run);
/* Whether nothing is left to do: all steps were made, or patience ran out, and car_run_stop broke off no evaluation. */
bool car_run_is_complete(const car_run *run);
/* Whether weights.safetensors in the run directory holds the weights that the last training ended with. Rank 0 only. */
bool car_run_has_result(const car_run *run);
/* Whether patience ended the training. Rank 0 only. */
bool car_run_lost_patience(const car_run *run);
int car_run_worse(const car_run *run); /* evaluations since the best one; rank 0 only */
/* Whether the run cannot continue: car_run_train failed in a way that other ranks may not know of. */
bool car_run_is_broken(const car_run *run);

/* The following are called between training calls, by all ranks. If rank 0 fails, all fail with its message, and the
 * run can continue. After a failure that ends the run, calls return the status and the message of that failure. */

/* Loss, accuracy and metric of the current weights. The same on all ranks. */
car_status car_run_evaluate(car_run *run, car_evaluation *out);
/* Computes the logits of one micro-batch, [rows, classes] floats, on all ranks. Rows are samples, or the tokens of
 * texts. `inputs` has the shape of the graph's input, always with `shape.batch` samples, so pad it if you have
 * fewer. It is the data's input or, with a feed, the only one besides the labels. */
car_status car_run_predict(car_run *run, const void *inputs, float *logits);
/* Writes the weights to a safetensors file, on rank 0. */
car_status car_run_save(car_run *run, const char *path);
/* Replaces the initial weights, before the first step. It is an error if the file lacks a parameter of the model
 * (checkpoint.h). */
car_status car_run_load(car_run *run, const char *path);
/* The same, with the settings of car_weights_load. `report` is filled on rank 0. `config` and `report` may be NULL. */
car_status car_run_load_with(car_run *run, const char *path, const car_weights_load_config *config,
                             car_weights_load_report *report);
/* Writes a checkpoint of the current state. CAR_ERROR_ARGUMENT without a directory. */
car_status car_run_checkpoint(car_run *run);
/* SHA-256 of the weights, 65 characters; equal if the weights are equal to the bit. The same on all ranks. */
car_status car_run_digest(car_run *run, char *text);

/* ---- resuming ---------------------------------------------------------------------------------------------------- */

/* The step that the run continued from; 0 if it began. */
int64_t car_run_first_step(const car_run *run);
/* The configuration stored in the checkpoint, NULL without one. Rank 0 only. */
const char *car_run_then(const car_run *run);
/* Whether the checkpoint held the whole state of training. It does not hold the options: the same bits need the same
 * options. Put what matters into options.configuration, and compare it with car_run_then. Rank 0 only. */
bool car_run_goes_on_exactly(const car_run *run);

/* An earlier evaluation: the steps made before it, and the value that evaluations are compared by. */
typedef struct car_past_evaluation {
    int64_t step;
    double value;
} car_past_evaluation;
/* Tells the run of earlier evaluations, in their order, before the first training. Rank 0 must call it, others may. If
 * the file of the best weights is not from the best of them, it is removed and the search begins anew. An evaluation
 * that was due at the step that the run continues from, but is not in the list, is made first. */
car_status car_run_recall(car_run *run, const car_past_evaluation *list, int count);
/* Replaces options.configuration in later checkpoints. The text is copied. Between training calls. */
car_status car_run_set_configuration(car_run *run, const char *json);

/* ---- records and accounts ---------------------------------------------------------------------------------------- */

/* With options.record, called by all ranks between training calls: records steps first .. end - 1. */
car_status car_run_record(car_run *run, int64_t first, int64_t end);
/* Gathers the recorded steps afterwards. *out belongs to the run; it is NULL except on rank 0 with options.record. */
car_status car_run_gather_record(car_run *run, car_recorder **out);

/* Memory, traffic and waiting of one rank. */
typedef struct car_rank_account {
    double memory[CAR_MEMORY_CATEGORIES]; /* bytes at the peak; over ranks, during training */
    double activations_mean, extent;      /* bytes of the arena */
    double rss, rss_end;                  /* bytes of the process: at the peak, and now */
    double data_waited;                   /* seconds */
    car_rank_traffic traffic;
    double waiting, tasks; /* seconds of its threads */
} car_rank_account;
/* The accounts of all ranks, car_run_ranks of them, the same on every rank. They belong to the run and are valid until
 * the next call. Called by all ranks between training calls. */
car_status car_run_account(car_run *run, const car_rank_account **out);
double car_run_resident(void); /* bytes of this process, now */

/* ---- queries ----------------------------------------------------------------------------------------------------- */

int64_t car_run_steps(const car_run *run);       /* made so far */
int64_t car_run_total_steps(const car_run *run); /* that car_run_train makes in all */
/* The step of the best evaluation during training, whose weights are in the file `best`; CAR_NONE if there was none.
 * Rank 0 only. */
int64_t car_run_best_step(const car_run *run);
double car_run_best_value(const car_run *run); /* the value that it was the best by */
/* The last evaluation during training, of the averaged weights; NULL without an average. Rank 0 only. */
const car_evaluation *car_run_average(const car_run *run);
/* With options.confusion: counts[label * classes + answer] of the last evaluation during training; NULL without classes,
 * or with more than 2000. Rank 0 only. */
int64_t *car_run_confusion(const car_run *run);
int64_t car_run_epoch_steps(const car_run *run); /* 0 with endless data, or with a feed */
int car_run_rank(const car_run *run);            /* of this process: 0, except over MPI */
int car_run_ranks(const car_run *run);
const car_graph *car_run_graph(const car_run *run);
const car_plan *car_run_plan(const car_run *run);
/* Bytes of all ranks of this process, each at its peak. */
size_t car_run_peak(const car_run *run, car_memory category);

/* What data, rule and machine decided: the model's sizes (zero: its own), the schedule, the threads of a rank. */
car_model_config car_run_shape(const car_run *run);
const car_schedule *car_run_schedule(const car_run *run);
int car_run_threads(const car_run *run);
/* Which machines the ranks are on. */
const car_machines *car_run_machines(const car_run *run);
/* The figures that the mapping was chosen by; NULL if none were compared. */
const car_mapping_choice *car_run_mapping(const car_run *run);
/* Predicted peak bytes of activations, of rank 0 or in one process of all workers; 0 if not known. */
double car_run_planned(const car_run *run);

/* The handles of the first rank of this process, for reading. They belong to the run. */
car_dataset *car_run_dataset(const car_run *run); /* NULL with a feed; the same for the feeder */
const car_feeder *car_run_feeder(const car_run *run);
const car_arena *car_run_arena(const car_run *run);
car_rank *car_run_engine(const car_run *run);
car_transport *car_run_transport(const car_run *run);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
