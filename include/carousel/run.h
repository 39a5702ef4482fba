/* A run: one object from model and data to trained weights.
 *
 *     car_run_options options = {.model = "resnet20", .data = "cifar10:DIR", .epochs = 3};
 *     car_run_create(context, &options, &run) -> car_run_train(run) -> car_run_evaluate(run, &result) -> car_run_save(run, path)
 *
 * It owns the graph, the plan and everything that executes it, in one process or over ranks. Ranks are the processes
 * that mpirun or srun started, all with the same options; without a launcher they are threads of this process. All
 * ranks make the same calls; on_step and on_evaluation are called on rank 0 only. A process may have several runs,
 * one after the other or at once. Over MPI all ranks make their calls in the same order, one at a time.
 *
 * Each call that can fail first clears the context's message, so after a failure car_context_error describes that
 * call. The handles that a run is made of can also be used directly: trainer.h, rank.h. */
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

/* Called after an evaluation during training, after `step` steps. It may call car_run_stop. */
typedef void (*car_evaluation_function)(void *user, int64_t step, const car_evaluation *evaluation);

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
    /* More settings of the plan, such as pieces and the order of sums (plan.h; defaults, with the mapping that suits
     * the machines). The fields above override it. `kernels` has those of the kernels. */
    const car_plan_config *planning;
    /* The text of a plan (plan.h; `carousel plan --dump`), which replaces all of these: a custom schedule. */
    const char *plan;
    const car_program_config *kernels;
    /* Recomputation of activations: as given (none), or as little as keeps each device's predicted memory below
     * memory_limit bytes (no limit). */
    car_recompute_config recompute;
    double memory_limit;
    bool force; /* run even if one process is predicted to need more memory than is free (refuse) */

    /* How long to train, and how weights are updated. */
    int64_t steps;         /* in all (100, if epochs is not set) */
    double epochs;         /* with steps: whichever ends first */
    const char *optimizer; /* a name, or that of a registered one ("sgd") */
    /* Settings of the optimizer, instead of its name (its defaults, with the delay correction for the rule). */
    const car_optimizer_config *settings;
    car_schedule schedule; /* lr (0.05); a cosine's total (steps) */
    double clip_norm;      /* (no clipping) */
    bool skip_nonfinite;
    uint64_t seed; /* for weights, order, augmentation and dropout */

    /* Evaluations, on the data's evaluation split. */
    int64_t eval_every;   /* steps (never during training) */
    int64_t eval_batches; /* micro-batches per evaluation (all; 8 of endless data) */
    car_metric_function metric;
    /* What evaluations during training decide, by loss or, with by_accuracy, by accuracy, counting from
     * car_run_create: `best` is a file for the best weights so far (none); `patience` ends training after so many
     * evaluations without a better one (never). */
    const char *best;
    int patience;
    bool by_accuracy;

    /* Checkpoints: a directory for them (none), created if it does not exist. */
    const char *directory;
    int64_t checkpoint_every; /* steps (only when car_run_train ends) */
    int keep;                 /* how many, newest first (2) */
    bool resume;              /* continue from the newest checkpoint, if there is one */

    car_report_function on_step; /* report->step counts from 0, the step of on_evaluation from 1 */
    car_evaluation_function on_evaluation;
    void *user; /* for these two and for the metric */
} car_run_options;

/* Builds everything and draws the weights, or resumes. CAR_ERROR_ARGUMENT or CAR_ERROR_UNKNOWN_NAME for bad options,
 * for ranks whose options differ, and for evaluations that cannot work; CAR_ERROR_IO if `directory` or `best` is not
 * writable. On failure *out is NULL. If one rank fails, all fail with its message and may try again. The context
 * must outlive the run. */
car_status car_run_create(car_context *context, const car_run_options *options, car_run **out);
void car_run_destroy(car_run *run);

/* Trains until all steps are made, or car_run_stop, with evaluations and checkpoints on the way. Writes a checkpoint
 * at the end if there is a directory. If a checkpoint or the best weights could not be written on the way, it trains
 * to the end and then fails; the run can continue. If a rank fails during training, the others may wait for it, and
 * over MPI car_run_destroy does, too: exit with a status other than 0 instead, and the launcher ends all ranks. */
car_status car_run_train(car_run *run);
/* The same, until `steps` steps have been made in all, at most options.steps. Does nothing if as many have been
 * made. */
car_status car_run_train_to(car_run *run, int64_t steps);
/* Makes car_run_train end soon, on all ranks after the same step. May be called from any thread, callback or signal
 * handler. This is final: the run can be evaluated and saved, but makes no further step. To train on, create a run
 * that resumes or loads the weights. */
void car_run_stop(car_run *run);
/* Whether the run was stopped; use it to end a loop around car_run_train_to. Over MPI it is the same on all ranks
 * from the end of a training call on, whichever rank was stopped. */
bool car_run_is_stopped(const car_run *run);

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
/* Writes a checkpoint of the current state. CAR_ERROR_ARGUMENT without a directory. */
car_status car_run_checkpoint(car_run *run);
/* SHA-256 of the weights, 65 characters; equal if the weights are equal to the bit. The same on all ranks. */
car_status car_run_digest(car_run *run, char *text);

int64_t car_run_steps(const car_run *run);       /* made so far */
int64_t car_run_total_steps(const car_run *run); /* that car_run_train makes in all */
/* The step of the best evaluation during training, which is in the file `best`; CAR_NONE if there was none. Only on
 * rank 0. */
int64_t car_run_best_step(const car_run *run);
int64_t car_run_epoch_steps(const car_run *run); /* 0 with endless data, or with a feed */
int car_run_rank(const car_run *run);            /* of this process: 0, except over MPI */
int car_run_ranks(const car_run *run);
const car_graph *car_run_graph(const car_run *run);
const car_plan *car_run_plan(const car_run *run);
/* Bytes of all ranks of this process, each at its peak. */
size_t car_run_peak(const car_run *run, car_memory category);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
