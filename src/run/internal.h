/* The inside of a run.
 *
 *   check.c     options that make no sense
 *   options.c   names and zeroes of the options into configurations
 *   run.c       creating, in this order: model, transport, plan, program, data, members
 *   team.c      members: the ranks of this process, and calls that all of them make together
 *   drive.c     training, evaluations and predictions
 *   save.c      checkpoints and files of weights
 */
#ifndef CAR_RUN_INTERNAL_H
#define CAR_RUN_INTERNAL_H

#include <stdatomic.h>

#include "base/base.h"
#include "carousel/feeder.h"
#include "carousel/mapping.h"
#include "carousel/run.h"

/* Pixels on a side up to which a model takes the size of the images. */
enum { CAR_FEEDER_SMALL_IMAGE = 64 };

/* A rank of this process. Over MPI there is one; in one process all are here, each with threads of its own. */
typedef struct car_member {
    car_run *run;
    int index;
    pthread_t thread; /* while all do something together; the first one is the caller's */
    bool started;
    bool settled; /* it failed as all of them did: nobody waits for it, and the run can go on */
    bool stopped; /* all ranks know that the run was stopped */
    car_status status;
    car_arena *arena;
    car_transport *transport;
    car_rank *rank;
    car_feeder *feeder;    /* NULL: the options have a feed */
    car_weights *gathered; /* on the first rank of several, since `gathered_step` */
    int64_t gathered_step; /* CAR_NONE: not of the weights as they are */
} car_member;

/* A file that could not be written on the way. */
typedef struct car_loss_of_file {
    car_status status; /* CAR_OK: all were */
    int64_t step;
    char why[CAR_ERROR_BYTES];
} car_loss_of_file;

struct car_run {
    car_context *context;
    car_run_options options; /* zeroes resolved */
    bool stages_given;       /* or else one for each worker */
    car_plan_config plan_config;
    int64_t devices; /* of the plan that is to be */
    car_trainer_config training;
    car_graph *own_graph; /* NULL: the options' */
    const car_graph *graph;
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_dataset *own_dataset; /* NULL: the options' */
    car_dataset *dataset;     /* NULL: there is a feed */
    bool launched;            /* ranks are processes */
    car_hub *hub;             /* ranks are here */
    car_member *members;
    int member_count;
    car_snapshot_thread *writer; /* of checkpoints on the way; NULL: none are written */
    car_machines machines;       /* where the ranks are */
    double best_value;           /* of the best evaluation on the way; these three are rank 0's */
    int64_t best_step;           /* CAR_NONE: there was none */
    int64_t best_saved;          /* the step whose weights the file of the best has; CAR_NONE: there is no such file */
    int worse;                   /* evaluations since */
    int64_t saved_step;          /* of the newest checkpoint; CAR_NONE: none. The writer's while there is one */
    /* The first ones since a training told of them; rank 0's, of checkpoints the writer's while there is one. */
    car_loss_of_file lost_checkpoint, lost_best;
    int64_t steps, epoch_steps;
    atomic_bool stop;          /* somebody has called car_run_stop */
    car_status broken;         /* what a rank failed with, so that the run cannot go on, */
    char why[CAR_ERROR_BYTES]; /* and what it said */
};

/* ---- check.c --------------------------------------------------------------------------------- */

car_status car_run_check_options(car_context *context, const car_run_options *options);

/* ---- options.c ------------------------------------------------------------------------------- */

car_status car_run_resolve(car_run *run, const car_run_options *options);
/* The model's sizes that are left open, from the data. */
car_status car_run_find_sizes(car_run *run);
/* When epochs have a length: how many steps there are, and what of the schedule depends on it. */
car_status car_run_count_steps(car_run *run);
/* What all ranks must have the same of, the plainest first: what it is, and a text to compare. */
enum { CAR_RUN_FACTS = 4 };
typedef struct car_run_fact {
    const char *what;
    char text[160];
} car_run_fact;
void car_run_describe(const car_run *run, car_run_fact facts[CAR_RUN_FACTS]);

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
/* The weights as they are, on rank 0: gathered where they are spread over ranks. Elsewhere NULL. Called by all members. */
car_status car_member_gather(car_member *member, car_weights **out);
/* Rank 0 works while the others wait; its status, and `bytes` of result, are everybody's. */
car_status car_member_work_first(car_member *member, car_member_function function, void *user, void *result,
                                 size_t bytes);
static inline bool car_member_is_first(const car_member *member) {
    return car_transport_rank(member->transport) == 0;
}

/* ---- drive.c --------------------------------------------------------------------------------- */

/* Whether an evaluation can work at all. */
car_status car_run_check_evaluation(const car_run *run);

/* ---- save.c ---------------------------------------------------------------------------------- */

car_status car_run_open_writer(car_run *run); /* before the members are created */
/* The first state of a member: drawn, or the newest checkpoint's. */
car_status car_member_begin(car_member *member);
/* Whether files can be written where the options want them. */
car_status car_run_try_paths(const car_run *run);
/* The weights as they are in a file, written by rank 0. Training goes on after a failure. Called by all members. */
car_status car_member_save_best(car_member *member);
/* At the end of a training: what was not written on the way. */
car_status car_run_write_last(car_run *run);
/* Fails if anything could not be written on the way. */
car_status car_run_tell_losses(car_run *run);

#endif
