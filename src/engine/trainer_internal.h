/* The inside of a trainer, for executor.c, pacing.c, tasks.c and watchdog.c. */
#ifndef CAR_ENGINE_TRAINER_INTERNAL_H
#define CAR_ENGINE_TRAINER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "carousel/trainer.h"
#include "engine/internal.h"
#include "engine/recorder.h"

enum { CAR_STEPS_IN_FLIGHT = 4 }; /* a step's record is reused after so many; the cycle overlaps two */

/* A worker walks its device's tasks, window after window. */
typedef struct car_worker {
    car_tape *tape;
    car_task_list list;
    int64_t window;
    int next;      /* index into list */
    int at;        /* operation that comes next in the task under way, CAR_NONE if it has not begun */
    bool running;  /* a thread is on its task */
    size_t holds;  /* bytes of activations, as the curve counts them: the most of a portion under way */
    bool finished; /* nothing left before the limit */
    int64_t steps_done;
} car_worker;

/* What is known of a step while it is under way. */
typedef struct car_step_record {
    int64_t step;
    int forwards; /* workers that have finished all forwards */
    double *loss; /* per worker */
    int updates;  /* made or deferred */
    bool decided, skipped;
    int64_t update;             /* which update of the optimizer it is: skipped steps do not count */
    double norm, *stage_square; /* of the averaged gradient; per stage */
} car_step_record;

typedef struct car_thread {
    struct car_trainer *trainer;
    pthread_t handle;
    bool started;
    car_lane *lane;
    car_gradients gradients; /* a view: where the gradients of the operation at hand go */
    void *addend;            /* gradients before they are added to the sum */
    void **params;           /* for views of weights with a tied parameter of another version */
    const car_task *task;    /* at work on, for the watchdog; guarded by the lock */
    double task_end;         /* when the last piece of work ended, before the lock was taken again */
    double tasks, waiting, choosing;
    double waited;    /* since its last piece of work */
    car_track *track; /* NULL without a recorder */
} car_thread;

struct car_trainer {
    car_context *context;
    const car_plan *plan;
    const car_partition *partition;
    const car_program *program;
    car_arena *arena;
    car_trainer_config config;
    int workers, stages, versions; /* versions: 1 or 2 stores */
    bool cyclic;
    bool ring;     /* sums are made in place in ring order; otherwise per worker */
    bool deferred; /* all updates of a step wait for its last sum: exact norm */
    car_weights *weights[2];
    car_optimizer *optimizer;
    car_gradients *
        *sums; /* ring: 1, or 2 by step parity where a sum must outlive the next step's first; else per worker */
    int sum_count;
    double *phase_forward, *phase_backward; /* cost share of a step before a stage's forward, backward */
    double portion; /* a task is run in portions of at least this cost share, so that pacing is finer than stages */
    double window;
    double budget; /* bytes of activations that pacing keeps to, as the curve counts them; 0: no budget */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    car_worker *worker;
    car_thread *thread;
    int64_t *made;  /* per stage: newest version */
    int64_t *added; /* per stage: micro-batches whose backward is done, counted from 0 (ring: in order) */
    car_step_record record[CAR_STEPS_IN_FLIGHT];
    int64_t first_step, limit, reported, last_started;
    int64_t newest; /* version that an update has made, or makes */
    int updates_per_step;
    int64_t updates_made; /* by the optimizer; steps that were skipped are not among them */
    int skipped_in_a_row; /* steps, up to the last that was reported */
    double last_norm;     /* of the newest step whose norm is complete; NaN: none yet */
    car_cut *cut;         /* NULL if none are taken */
    int64_t cut_step;     /* the version that it is being filled with, or CAR_NONE */
    int cut_stages;       /* copied so far */
    bool cut_is_away;     /* handed over, and not yet given back */
    car_status status;
    uint64_t progress; /* tasks ended, for the watchdog */
    bool ended;
    atomic_bool stop;
    car_trainer_times times;
};

static inline car_step_record *car_trainer_record(car_trainer *trainer, int64_t step) {
    return &trainer->record[step % CAR_STEPS_IN_FLIGHT];
}
static inline car_weights *car_trainer_version(car_trainer *trainer, int64_t version) {
    return trainer->weights[version % trainer->versions];
}
/* The sum of a use that a worker adds to. */
float *car_trainer_sum(car_trainer *trainer, int use, int64_t step, int worker);

/* tasks.c: run the next portion of a forward or backward, without the lock, from operation *at on (CAR_NONE: from
 * the beginning). Sets *at to where the next portion begins, CAR_NONE at the end of the task. */
car_status car_trainer_forward(car_thread *thread, const car_task *task, int *at);
car_status car_trainer_backward(car_thread *thread, const car_task *task, int *at);
/* The update of one stage, or with deferred updates of all stages after the last. Called with the lock, which it
 * lets go while it works. */
car_status car_trainer_update(car_thread *thread, const car_task *task);

/* Whether this use is where the parameter belongs: its first. */
bool car_trainer_is_first_use(const car_graph *graph, int use);

/* trainer_cut.c. With the lock: whether an update that makes this version may begin; that it does; that it is done, which
 * lets the lock go to hand the cut over. Without: copies a stage that has reached the version. They do nothing where no cut is due. */
bool car_trainer_cut_is_free(const car_trainer *trainer, int64_t version);
void car_trainer_cut_claim(car_trainer *trainer, int64_t version);
void car_trainer_cut_note(car_trainer *trainer, int64_t version);
void car_trainer_cut_copy(car_trainer *trainer, int stage, int64_t version);

/* trainer.c: between runs, nothing of this step and later ones has been done. */
void car_trainer_forget_from(car_trainer *trainer, int64_t step);

/* executor.c */
void *car_trainer_thread(void *argument); /* a car_thread */
const car_task *car_trainer_head(car_trainer *trainer, car_worker *worker);
bool car_trainer_is_ready(car_trainer *trainer, const car_task *task); /* all but the pace allows it */

/* pacing.c */
car_status car_trainer_set_pace(car_trainer *trainer);
/* Where a worker stands in its life: t + i/N + share of the step's cost done. */
double car_trainer_phase(const car_trainer *trainer, const car_worker *worker, const car_task *task);
/* Whether a portion that began at event `from` of the step would be too long with event `next`. */
bool car_trainer_portion_is_full(const car_trainer *trainer, int from, int next);
/* Whose turn it is, NULL if nobody's. */
car_worker *car_trainer_choose(car_trainer *trainer);
/* Notes what a worker holds while it runs the portion that comes next, and once it is done. */
void car_trainer_hold(car_trainer *trainer, car_worker *worker, const car_task *task, bool running);

/* watchdog.c */
void *car_trainer_watch(void *argument); /* the car_trainer */

#endif
