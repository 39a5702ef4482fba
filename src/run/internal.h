/* The inside of a run.
 *
 *   check.c       refuses options that make no sense
 *   options.c     turns names and zeroes of the options into configurations
 *   run.c         creates, in this order: model, transport, plan, program, data, members
 *   directory.c   the directory: its lock, its files, whether it still exists
 *   fit.c, fit_ranks.c, need.c   whether memory and disk suffice, before any is taken
 *   agree.c       checks that all ranks have the same options
 *   team.c        members: the ranks of this process, and calls that all of them make together
 *   drive.c       training, and its end
 *   evaluate.c    evaluations, and what they decide
 *   predict.c     predictions
 *   save.c        checkpoints and files of weights
 *   resume.c      where a run begins: initial weights, a checkpoint or a file
 *   account.c     records, and each rank's memory, traffic and waiting
 *   ask.c         the query functions of run.h
 *
 * Besides runs: trained.c and classify.c, which use weights (trained.h).
 */
#ifndef CAR_RUN_INTERNAL_H
#define CAR_RUN_INTERNAL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/base.h"
#include "carousel/available.h"
#include "carousel/fit.h"
#include "carousel/run.h"

/* Square images up to this size, in pixels per side, set the model's image size. */
enum { CAR_FEEDER_SMALL_IMAGE = 64 };

/* A rank of this process. Over MPI there is one. Without a launcher all ranks are here, each with its own threads. */
typedef struct car_member {
    car_run *run;
    int index;
    pthread_t thread; /* runs during car_run_together; member 0 uses the caller's thread */
    bool started;
    bool settled;    /* all ranks know of its failure: nobody waits for it, and the run can go on */
    bool stopped;    /* all ranks know that the run was stopped */
    bool enough;     /* patience ran out; all ranks know it */
    bool broken_off; /* car_run_stop interrupted the last evaluation; all ranks know it */
    car_status status;
    car_arena *arena;
    car_transport *transport;
    car_recorder *recorder; /* NULL if nothing is recorded */
    car_rank *rank;
    car_feeder *feeder;                  /* NULL if the options have a feed */
    car_weights *gathered, *average;     /* rank 0 of several: a copy of step `gathered_step` */
    int64_t gathered_step;               /* CAR_NONE if the copy is out of date */
    double peaks[CAR_MEMORY_CATEGORIES]; /* over ranks: peak bytes of training, before rank 0 gathers the weights */
} car_member;

/* A failure after which training went on. */
typedef struct car_kept_failure {
    car_status status; /* CAR_OK if there was none */
    int64_t step;
    char why[CAR_ERROR_BYTES];
} car_kept_failure;

/* Weights to evaluate or save. */
typedef struct car_subject {
    int64_t step;
    car_weights *weights, *average; /* average: NULL if there is none */
} car_subject;

/* The run's directory. Used on rank 0. */
typedef struct car_run_place {
    bool locked, is_new; /* this run holds the lock; this run created the directory */
    int lock_file;
    dev_t device; /* with `number`: identifies the directory */
    ino_t number; /* its inode */
    double looked;
} car_run_place;

/* State of evaluations during training. Used on rank 0. */
typedef struct car_run_judge {
    car_evaluation average;
    bool averaged;           /* at least one update has gone into the average */
    int64_t *counts;         /* the confusion matrix; NULL if it is not counted */
    int64_t evaluated_step;  /* step of the last evaluation, or CAR_NONE */
    int64_t recalled_step;   /* step of the last evaluation before a resume, or 0 */
    bool recalled;           /* car_run_recall has passed the evaluations before a resume */
    double best_value;       /* loss or accuracy of the best evaluation */
    int64_t best_step;       /* CAR_NONE if there was none */
    int64_t best_saved;      /* step of the weights in the file of the best; CAR_NONE if there is no such file */
    int worse;               /* evaluations since the best one */
    car_kept_failure failed; /* a failed evaluation beside training, which ends the run */
} car_run_judge;

struct car_run {
    car_context *context;
    car_run_options options; /* with defaults filled in */
    bool chooses_mapping;
    car_plan_config plan_config;
    int64_t devices; /* of the plan, known before the plan is made */
    car_trainer_config training;
    car_graph *own_graph; /* NULL if the options have the graph */
    const car_graph *graph;
    car_recompute_config recompute; /* as given, or as chosen for memory_limit */
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_dataset *own_dataset; /* NULL if the options have the dataset */
    car_dataset *dataset;     /* NULL if there is a feed */
    car_model_config shape;   /* sizes of the model, with defaults filled in */
    bool launched;            /* ranks are processes of a launcher */
    car_hub *hub;             /* connects ranks that are threads; NULL if launched */
    car_member *members;
    int member_count;
    size_t addresses;            /* limit on what an arena may reserve; 0 = no limit */
    car_snapshot_thread *writer; /* writes checkpoints and evaluates beside training; NULL if neither is wanted */
    car_machines machines;       /* which machines the ranks run on */
    car_mapping_choice choice;   /* how the mapping was chosen, if `compared` */
    bool compared;
    car_available available; /* memory, before this run took any */
    double planned;          /* see car_run_planned */
    car_run_place place;
    car_run_judge judge;
    int64_t begin_step, first_step; /* checkpoint to resume from (rank 0; -1 = none); step resumed at (0 = none) */
    char *then;                     /* the configuration in that checkpoint */
    bool exact;                     /* that checkpoint was complete */
    char *configuration;            /* stored in checkpoints */
    int64_t saved_step;             /* of the newest checkpoint, or CAR_NONE. The writer owns it while it exists */
    /* The first failure of each kind since they were last reported. Used on rank 0; the writer owns lost_checkpoint
     * while it exists. */
    car_kept_failure lost_checkpoint, lost_best, lost_end;
    int64_t steps, epoch_steps;
    atomic_llong target;            /* the step at which the current training ends */
    bool ended, complete;           /* see car_run_has_ended */
    atomic_bool stop;               /* car_run_stop was called */
    bool lost_patience, has_result; /* has_result: weights.safetensors is written */
    car_rank_account *accounts;     /* of all ranks */
    int account_count;
    car_status broken;         /* status of the failure after which the run cannot go on */
    char why[CAR_ERROR_BYTES]; /* its message */
};

/* ---- check.c --------------------------------------------------------------------------------- */

car_status car_run_check_options(car_context *context, const car_run_options *options);
/* How messages name a setting: options.eval_every, or --eval-every. */
typedef struct car_setting_name {
    char text[48];
} car_setting_name;
car_setting_name car_run_name(const car_run_options *options, const char *setting);

/* ---- options.c ------------------------------------------------------------------------------- */

car_status car_run_resolve(car_run *run, const car_run_options *options);
/* Takes the model sizes that the options leave open from the data. */
car_status car_run_find_sizes(car_run *run);
/* Computes the number of steps, once the length of an epoch is known, and the schedule's values that depend on it. */
car_status car_run_count_steps(car_run *run);
/* True if the placement uses ranks. */
bool car_run_has_ranks(const car_run *run);
/* True if this process has rank 0. */
bool car_run_is_first(const car_run *run);
static inline double car_run_average_decay(const car_run *run) {
    return run->training.optimizer.average;
}

/* ---- directory.c ----------------------------------------------------------------------------- */

enum { CAR_RUN_PATH = 4096 };
/* Writes DIRECTORY/NAME to path. */
car_status car_run_place_path(const car_run *run, const char *name, char path[CAR_RUN_PATH]);
/* Writes the directory of the checkpoints to path. */
car_status car_run_checkpoints(const car_run *run, char path[CAR_RUN_PATH]);
bool car_run_saves(const car_run *run); /* true if it writes checkpoints */
/* On rank 0, before anything is read or written there: locks the directory, after creating it unless a run is resumed.
 * If another run holds the lock, the message names it. */
car_status car_run_lock(car_run *run);
void car_run_unlock(car_run *run); /* call last; also removes a directory that this run created and wrote nothing to */
/* Finds the checkpoint to resume from. Fails if the directory holds another run. On rank 0. */
car_status car_run_look(car_run *run);
/* If the run directory was removed: the first asks the run to stop, after a step; the second fails, on rank 0. */
void car_run_look_for_directory(car_run *run, double now);
car_status car_run_find_directory(const car_run *run);

/* ---- fit.c, fit_ranks.c ------------------------------------------------------------------------ */

/* Fails if the plan's task lists do not fit into memory. Call it before the plan is made. */
car_status car_run_check_tasks(const car_run *run);
/* In one process: fails if the run is predicted to need more memory than is available, and names settings that would
 * fit. options.force turns this off. Called with the plan only, and again with program and arena, when everything is
 * known. */
car_status car_run_check_memory(car_run *run, const car_arena *arena);
/* The same over ranks. All members call it. */
car_status car_member_check_memory(car_member *member);
/* Logs a warning if the disk has too little space for weights and checkpoints. */
void car_run_check_disk(const car_run *run);

/* ---- agree.c --------------------------------------------------------------------------------- */

/* Fails on all ranks if their programs, options, graphs or data differ. */
car_status car_member_agree(car_member *member);

/* ---- team.c ---------------------------------------------------------------------------------- */

typedef car_status (*car_member_function)(car_member *member, void *user);
/* Every member calls `function`, in its own thread. Returns the first failure. If an earlier failure ended the run,
 * returns that one again. */
car_status car_run_together(car_run *run, car_member_function function, void *user);
car_status car_run_create_members(car_run *run);
void car_run_destroy_members(car_run *run);
/* All members call it with their own status. Over MPI all fail if one did, with its message. In one process a member
 * that fails wakes the others, so nothing is exchanged. */
car_status car_member_settle(car_member *member, car_status own);
/* All members call it; all return rank 0's status. The run can go on after a failure. */
car_status car_member_follow_first(car_member *member, car_status own);
/* All members call it. Gives rank 0 the current weights, gathered if they are spread over ranks, and the others NULL.
 * Call car_member_drop afterwards: with one rank the average is a copy. */
car_status car_member_gather(car_member *member, car_subject *out);
void car_member_drop(const car_member *member, car_subject *subject);
/* Rank 0 calls `function` while the others wait. All return its status and get `bytes` of its result. */
car_status car_member_work_first(car_member *member, car_member_function function, void *user, void *result,
                                 size_t bytes);
static inline bool car_member_is_first(const car_member *member) {
    return car_transport_rank(member->transport) == 0;
}

/* ---- evaluate.c ------------------------------------------------------------------------------ */

/* Fails if the data or the graph cannot be evaluated. */
car_status car_run_check_evaluation(const car_run *run);
/* True if evaluations run beside training. */
bool car_run_evaluates_beside(const car_run *run);
/* Whether the moving average of a snapshot's weights, if it has one, has begun. */
bool car_run_has_average(const car_snapshot *snapshot);
/* Copies the averaged weights from a snapshot or, with NULL, from a rank that has all workers. The caller destroys the
 * copy. */
car_status car_run_copy_average(car_run *run, const car_snapshot *snapshot, car_arena *arena, car_subject *subject);
/* Evaluates a snapshot beside training, in the writer's thread, on rank 0, and returns the snapshot. */
void car_run_evaluate_snapshot(car_run *run, const car_snapshot *snapshot);
/* Evaluates during a pause; all members call it. *ends: all members end training here. */
car_status car_member_evaluate(car_member *member, bool *ends);
/* Exchanges whether any rank was told to stop, so that all ranks know. All members call it. */
car_status car_member_agree_on_stop(car_member *member);

/* ---- save.c ---------------------------------------------------------------------------------- */

car_status car_run_open_writer(car_run *run); /* before the members are created */
/* Fails early if checkpoints or the file of the best weights cannot be written. */
car_status car_run_try_paths(const car_run *run);
/* Writes weights or their average to a file. `best`: the file also names the loss or accuracy. */
car_status car_run_write_weights(car_run *run, const char *path, const car_subject *subject, bool average, bool best);
/* Logs a failed write and keeps the first one in *loss, to report it when training ends. */
void car_run_note_loss(const car_run *run, const char *what, int64_t step, car_status status, car_kept_failure *loss);
/* At the end of training, called by all members: write the weights to a run directory; write a checkpoint. Failures are
 * kept for car_member_tell_losses. */
car_status car_member_write_result(car_member *member);
car_status car_member_write_last(car_member *member);
/* Fails if anything could not be written. All members call it. */
car_status car_member_tell_losses(car_member *member);

/* ---- resume.c -------------------------------------------------------------------------------- */

/* Sets a member's initial state: random weights, or a checkpoint. */
car_status car_member_begin(car_member *member);

/* ---- account.c ------------------------------------------------------------------------------- */

car_status car_member_open_recorder(car_member *member);
/* Notes a rank's peak memory before rank 0 gathers the weights, which would raise it. */
void car_member_note_peaks(car_member *member);

#endif
