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
 */
#ifndef CAR_RUN_INTERNAL_H
#define CAR_RUN_INTERNAL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/base.h"
#include "carousel/available.h"
#include "carousel/fit.h"
#include "carousel/run.h"

/* Pixels on a side up to which a model takes the size of the images. */
enum { CAR_FEEDER_SMALL_IMAGE = 64 };

/* A rank of this process. Over MPI there is one; in one process all are here, each with threads of its own. */
typedef struct car_member {
    car_run *run;
    int index;
    pthread_t thread; /* while all do something together; the first one is the caller's */
    bool started;
    bool settled;    /* it failed as all of them did: nobody waits for it, and the run can go on */
    bool stopped;    /* all ranks know that the run was stopped */
    bool enough;     /* the same: patience is at an end */
    bool broken_off; /* the last evaluation was, by car_run_stop; the same on all ranks */
    car_status status;
    car_arena *arena;
    car_transport *transport;
    car_recorder *recorder; /* NULL: nobody wants to know */
    car_rank *rank;
    car_feeder *feeder;                  /* NULL: the options have a feed */
    car_weights *gathered, *average;     /* on the first rank of several, since `gathered_step` */
    int64_t gathered_step;               /* CAR_NONE: not of the weights as they are */
    double peaks[CAR_MEMORY_CATEGORIES]; /* over ranks: bytes while training, before the first one held all */
} car_member;

/* A failure that training went on after. */
typedef struct car_kept_failure {
    car_status status; /* CAR_OK: there was none */
    int64_t step;
    char why[CAR_ERROR_BYTES];
} car_kept_failure;

/* What is evaluated or saved. */
typedef struct car_subject {
    int64_t step;
    car_weights *weights, *average; /* average: NULL without one */
} car_subject;

/* The directory, of rank 0. */
typedef struct car_run_place {
    bool locked, is_new; /* this run has its lock; it made the directory */
    int lock_file;
    dev_t device; /* which directory it is */
    ino_t number; /* the same */
    double looked;
} car_run_place;

/* Evaluations on the way, of rank 0. */
typedef struct car_run_judge {
    car_evaluation average;
    bool averaged;           /* the average has begun */
    int64_t *counts;         /* of the classes; NULL: nobody wants to know */
    int64_t evaluated_step;  /* of the last one; CAR_NONE: none */
    int64_t recalled_step;   /* of the last one of an earlier start; 0: none */
    bool recalled;           /* these are known */
    double best_value;       /* of the best one */
    int64_t best_step;       /* CAR_NONE: there was none */
    int64_t best_saved;      /* the step whose weights the file of the best has; CAR_NONE: there is no such file */
    int worse;               /* evaluations since */
    car_kept_failure failed; /* one beside training, which ends it */
} car_run_judge;

struct car_run {
    car_context *context;
    car_run_options options; /* zeroes resolved */
    bool chooses_mapping;
    car_plan_config plan_config;
    int64_t devices; /* of the plan that is to be */
    car_trainer_config training;
    car_graph *own_graph; /* NULL: the options' */
    const car_graph *graph;
    car_recompute_config recompute; /* what the options lead to */
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_dataset *own_dataset; /* NULL: the options' */
    car_dataset *dataset;     /* NULL: there is a feed */
    car_model_config shape;   /* of the data's samples, as resolved */
    bool launched;            /* ranks are processes */
    car_hub *hub;             /* ranks are here */
    car_member *members;
    int member_count;
    size_t addresses;            /* that an arena may reserve; 0: as many as it can */
    car_snapshot_thread *writer; /* of checkpoints, and of evaluations beside training; NULL: there are none */
    car_machines machines;       /* where the ranks are */
    car_mapping_choice choice;   /* of the mapping, if `compared` */
    bool compared;
    car_available available; /* memory, before this run took any */
    double planned;          /* see car_run_planned */
    car_run_place place;
    car_run_judge judge;
    int64_t begin_step, first_step; /* the checkpoint to go on from, on rank 0, -1: none; and the step, 0: none */
    char *then;                     /* the configuration in that checkpoint */
    bool exact;                     /* it had everything */
    char *configuration;            /* kept in checkpoints */
    int64_t saved_step;             /* of the newest checkpoint; CAR_NONE: none. The writer's while there is one */
    /* The first ones since a training told of them; rank 0's, of checkpoints the writer's while there is one. */
    car_kept_failure lost_checkpoint, lost_best, lost_end;
    int64_t steps, epoch_steps;
    atomic_llong target;            /* steps of the training under way */
    bool ended, complete;           /* see car_run_has_ended */
    atomic_bool stop;               /* somebody has called car_run_stop */
    bool lost_patience, has_result; /* in weights.safetensors */
    car_rank_account *accounts;     /* of all ranks */
    int account_count;
    car_status broken;         /* what a rank failed with, so that the run cannot go on, */
    char why[CAR_ERROR_BYTES]; /* and what it said */
};

/* ---- check.c --------------------------------------------------------------------------------- */

car_status car_run_check_options(car_context *context, const car_run_options *options);
/* What messages call a setting: options.eval_every, or --eval-every. */
typedef struct car_setting_name {
    char text[48];
} car_setting_name;
car_setting_name car_run_name(const car_run_options *options, const char *setting);

/* ---- options.c ------------------------------------------------------------------------------- */

car_status car_run_resolve(car_run *run, const car_run_options *options);
/* The model's sizes that are left open, from the data. */
car_status car_run_find_sizes(car_run *run);
/* When epochs have a length: how many steps there are, and what of the schedule depends on it. */
car_status car_run_count_steps(car_run *run);
/* Whether there are ranks at all. */
bool car_run_has_ranks(const car_run *run);
/* Whether this process has rank 0. */
bool car_run_is_first(const car_run *run);
static inline double car_run_average_decay(const car_run *run) {
    return run->training.optimizer.average;
}

/* ---- directory.c ----------------------------------------------------------------------------- */

enum { CAR_RUN_PATH = 4096 };
/* DIRECTORY/NAME. */
car_status car_run_place_path(const car_run *run, const char *name, char path[CAR_RUN_PATH]);
/* Where checkpoints are. */
car_status car_run_checkpoints(const car_run *run, char path[CAR_RUN_PATH]);
bool car_run_saves(const car_run *run); /* checkpoints, at all */
/* On rank 0, before anything is looked at or written there: makes the directory, unless a run there is to go on, and locks it;
 * the message of a refusal says who has it. */
car_status car_run_lock(car_run *run);
void car_run_unlock(car_run *run); /* last; a directory that nothing was written to is removed again */
/* Which checkpoint to go on from; refuses a directory that holds another run. On rank 0. */
car_status car_run_look(car_run *run);
/* A run directory that was removed: asks the run to end, after a step; and fails, on rank 0. */
void car_run_look_for_directory(car_run *run, double now);
car_status car_run_find_directory(const car_run *run);

/* ---- fit.c, fit_ranks.c ------------------------------------------------------------------------ */

/* Whether the lists of tasks fit; before the plan is made. */
car_status car_run_check_tasks(const car_run *run);
/* In one process, with the plan and, for the whole of it, the program and the arena: refuses a run that is predicted to need
 * more memory than there is, unless options.force, and says what would fit. */
car_status car_run_check_memory(car_run *run, const car_arena *arena);
/* The same over ranks, by all members. */
car_status car_member_check_memory(car_member *member);
/* A warning if the disk has less room than weights and checkpoints will take. */
void car_run_check_disk(const car_run *run);

/* ---- agree.c --------------------------------------------------------------------------------- */

/* Fails on all ranks if they do not have the same of everything. */
car_status car_member_agree(car_member *member);

/* ---- team.c ---------------------------------------------------------------------------------- */

typedef car_status (*car_member_function)(car_member *member, void *user);
/* Every member calls it, in a thread of its own; what failed first is the result. A run that cannot go on since an earlier
 * call repeats what it said then. */
car_status car_run_together(car_run *run, car_member_function function, void *user);
car_status car_run_create_members(car_run *run);
void car_run_destroy_members(car_run *run);
/* Called by all members, with how each fared. Over MPI all fail if one did, with its message; in one process a member that
 * fails wakes the others, so there is nothing to exchange. */
car_status car_member_settle(car_member *member, car_status own);
/* Called by all members: what became of rank 0's work is everybody's result. The run can go on after a failure. */
car_status car_member_follow_first(car_member *member, car_status own);
/* The weights as they are, on rank 0: gathered where they are spread over ranks. Elsewhere NULL. Called by all members.
 * Their average is to be destroyed with car_member_drop, if there is one rank. */
car_status car_member_gather(car_member *member, car_subject *out);
void car_member_drop(const car_member *member, car_subject *subject);
/* Rank 0 works while the others wait; its status, and `bytes` of result, are everybody's. */
car_status car_member_work_first(car_member *member, car_member_function function, void *user, void *result,
                                 size_t bytes);
static inline bool car_member_is_first(const car_member *member) {
    return car_transport_rank(member->transport) == 0;
}

/* ---- evaluate.c ------------------------------------------------------------------------------ */

/* Whether an evaluation can work at all. */
car_status car_run_check_evaluation(const car_run *run);
/* Whether evaluations are made beside training. */
bool car_run_evaluates_beside(const car_run *run);
/* The averaged weights of a snapshot, or of a rank that has all workers (NULL); to be destroyed. */
car_status car_run_copy_average(car_run *run, const car_snapshot *snapshot, car_arena *arena, car_subject *subject);
/* Beside training, on rank 0: the writer's thread takes this snapshot, and gives it back. */
void car_run_evaluate_snapshot(car_run *run, const car_snapshot *snapshot);
/* In a pause, by all members: evaluates, and lets that decide. *ends: all of them end here. */
car_status car_member_evaluate(car_member *member, bool *ends);
/* Whether any rank was told to stop: then all of them know. Called by all members. */
car_status car_member_agree_on_stop(car_member *member);

/* ---- save.c ---------------------------------------------------------------------------------- */

car_status car_run_open_writer(car_run *run); /* before the members are created */
/* Whether files can be written where the options want them. */
car_status car_run_try_paths(const car_run *run);
/* Weights or their average as a file. `best`: with the number that made them the best. */
car_status car_run_write_weights(car_run *run, const char *path, const car_subject *subject, bool average, bool best);
/* Training goes on, and tells of it at its end. */
void car_run_note_loss(const car_run *run, const char *what, int64_t step, car_status status, car_kept_failure *loss);
/* At the end of a training, by all members: the weights in a run directory; a checkpoint. What fails is kept. */
car_status car_member_write_result(car_member *member);
car_status car_member_write_last(car_member *member);
/* Fails if anything could not be written. By all members. */
car_status car_member_tell_losses(car_member *member);

/* ---- resume.c -------------------------------------------------------------------------------- */

/* The first state of a member: drawn, or a checkpoint's. */
car_status car_member_begin(car_member *member);

/* ---- account.c ------------------------------------------------------------------------------- */

car_status car_member_open_recorder(car_member *member);
/* Before rank 0 holds what all have. */
void car_member_note_peaks(car_member *member);

#endif
