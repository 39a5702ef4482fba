/* A run: one object from model and data to trained weights.
 *
 *     car_run_options options = {.model = "resnet20", .data = "cifar10:DIR", .epochs = 3};
 *     car_run_create(context, &options, &run) -> car_run_train(run) -> car_run_evaluate(run, &result) -> car_run_save(run, path)
 *
 * It owns the graph, the plan and all that executes it, in one process or over ranks. These are the processes that
 * mpirun or srun started, all with the same options, or without a launcher threads of this process. All ranks make the
 * same calls; on_step and on_evaluation are called on rank 0 only. There may be several runs, one after the other or at
 * once; over MPI their calls are made in the same order on all ranks, one at a time.
 *
 * Calls that can fail begin by clearing the context's message: after a failure car_context_error is about that call. The
 * handles that a run is made of can be used on their own, too: trainer.h, rank.h. */
#ifndef CAROUSEL_RUN_H
#define CAROUSEL_RUN_H

#include "carousel/data.h"
#include "carousel/evaluate.h"
#include "carousel/rank.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_run car_run;

/* An evaluation on the way, after `step` steps. It may call car_run_stop. */
typedef void (*car_evaluation_function)(void *user, int64_t step, const car_evaluation *evaluation);

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
    /* Finer choices of the plan, such as pieces and the order of sums (plan.h; the defaults, with the mapping that suits the
     * machines): what stands above comes from there. And of the kernels. */
    const car_plan_config *planning;
    /* The text of a plan (plan.h; `carousel plan --dump`), which says all of this itself: a schedule of one's own. */
    const char *plan;
    const car_program_config *kernels;
    /* Activations that are made again instead of held: as said (none), or as few as keep the prediction of every device below
     * a number of bytes (no limit). */
    car_recompute_config recompute;
    double memory_limit;
    bool force; /* also if a run in one process is predicted to need more memory than is free (refuses) */

    /* How long, and how weights are updated. */
    int64_t steps;         /* in all (100, if there are no epochs) */
    double epochs;         /* with steps: what ends first */
    const char *optimizer; /* by name, also a registered one ("sgd") */
    const car_optimizer_config
        *settings;         /* of the optimizer, in the place of the name (its defaults, with the correction
                                            * of the delay that goes with the rule) */
    car_schedule schedule; /* lr (0.05); a cosine's total (steps) */
    double clip_norm;      /* (no clipping) */
    bool skip_nonfinite;
    uint64_t seed; /* of weights, order, augmentation, dropout */

    /* Evaluations: on the data's own samples for it. */
    int64_t eval_every;   /* steps (never on the way) */
    int64_t eval_batches; /* micro-batches of one (all; endless data: 8) */
    car_metric_function metric;
    /* What evaluations on the way decide, by their loss or with by_accuracy by their accuracy, counted from car_run_create on:
     * a file of the best weights, written anew for each (none), and after how many without a better one training ends (never). */
    const char *best;
    int patience;
    bool by_accuracy;

    /* What is kept: checkpoints below this directory (none), which is made if it is not there. */
    const char *directory;
    int64_t checkpoint_every; /* steps (when car_run_train ends) */
    int keep;                 /* newest checkpoints (2) */
    bool resume;              /* go on from the newest; where there is none, begin */

    car_report_function on_step; /* report->step counts from 0, the step of on_evaluation from 1 */
    car_evaluation_function on_evaluation;
    void *user; /* of these two and of the metric */
} car_run_options;

/* Builds all of it and draws the weights, or resumes. Bad options are CAR_ERROR_ARGUMENT or CAR_ERROR_UNKNOWN_NAME,
 * with a message; so are ranks whose options differ, and an evaluation on the way that cannot work. On failure *out is
 * NULL; if one rank fails, all do with its message, and may try again. So it is if `directory` or `best` cannot be
 * written, CAR_ERROR_IO. The context must outlive the run. */
car_status car_run_create(car_context *context, const car_run_options *options, car_run **out);
void car_run_destroy(car_run *run);

/* Trains until all steps are made, or car_run_stop, with evaluations and checkpoints on the way; writes a checkpoint
 * at the end, if there is a directory. If a checkpoint or the best weights could not be written on the way it trains to
 * the end, and fails then; the run can go on. Where a rank fails while it trains, the others may wait for it, and so does
 * car_run_destroy over MPI: exit with a status other than 0 without it, and the launcher ends them all. */
car_status car_run_train(car_run *run);
/* The same, up to a number of steps in all, e.g. one more than were made; at most options.steps. Nothing is done if
 * as many were made. */
car_status car_run_train_to(car_run *run, int64_t steps);
/* Makes car_run_train end soon, on all ranks after the same step. From any thread, callback or signal handler. It is
 * for good: the run can be evaluated and saved, but car_run_train makes no step any more. To train further create one
 * that resumes or loads the weights. */
void car_run_stop(car_run *run);
/* Whether it was stopped: what ends a loop around car_run_train_to. Over MPI from the end of a training on, the same on
 * all ranks, whichever was told to stop. */
bool car_run_is_stopped(const car_run *run);

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
/* A checkpoint of where the run stands; CAR_ERROR_ARGUMENT without a directory. */
car_status car_run_checkpoint(car_run *run);
/* SHA-256 of the weights, 65 characters: equal weights, to the bit, have equal ones. The same on all ranks. */
car_status car_run_digest(car_run *run, char *text);

int64_t car_run_steps(const car_run *run);       /* made so far */
int64_t car_run_total_steps(const car_run *run); /* that car_run_train makes in all */
int64_t car_run_best_step(
    const car_run
        *run); /* of the best evaluation on the way, with `best` the one in the file; CAR_NONE: none. Rank 0's */
int64_t car_run_epoch_steps(const car_run *run); /* 0: endless data, or a feed */
int car_run_rank(const car_run *run);            /* of this process: 0, but over MPI */
int car_run_ranks(const car_run *run);
const car_graph *car_run_graph(const car_run *run);
const car_plan *car_run_plan(const car_run *run);
/* Bytes of the ranks of this process, each at its peak. */
size_t car_run_peak(const car_run *run, car_memory category);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
