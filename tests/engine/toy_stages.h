/* A chain of stages of one's own, small enough to compute by hand: a nonlinear oscillator whose stages are runs of time
 * steps. What crosses is the state, the model is carried, every stage has parameters and data and adds to the loss. */
#ifndef CAR_TESTS_TOY_STAGES_H
#define CAR_TESTS_TOY_STAGES_H

#include "carousel/stage.h"

enum { CAR_TOY_SIZE = 7, CAR_TOY_STEPS = 6, CAR_TOY_MOST_STAGES = 12 };

typedef struct car_toy_config {
    int stages, workers;
    int segments;   /* 0: all states of a stage are held; else those between so many checkpoints are rebuilt */
    bool bare;      /* stages have no parameters of their own */
    bool ends_bare; /* the last one has none */
    bool floats;    /* the model is of floats: to look at, not to run */
    int fault;      /* of stage 1, see toy_stages.c; 0: none */
} car_toy_config;

enum {
    CAR_TOY_WRITES_BEHIND = 1,
    CAR_TOY_WRITES_BEFORE,
    CAR_TOY_FAILS,
    CAR_TOY_FAILS_SILENTLY,
    CAR_TOY_INFINITE,
    CAR_TOY_INFINITE_ONCE
}; /* the loss of micro-batch 1 of step 1, with gradients that are finite */

/* What a stage is told. */
typedef struct car_toy_setting {
    const car_toy_config *config;
    int fault;
} car_toy_setting;

/* One rank's. */
typedef struct car_toy {
    car_toy_config config;
    car_stage_class classes[CAR_TOY_MOST_STAGES];
    car_toy_setting settings[2]; /* of all stages but stage 1, and of that */
    int targets;                 /* input of the graph: what each stage compares its state with */
    car_context *context;
    car_graph *graph;
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_arena *arena;
} car_toy;

/* A failure ends the test. `plan` needs rule, placement, ranks and threads. */
void car_toy_open(car_toy *toy, const car_toy_config *config, car_plan_config plan, bool guards);
void car_toy_close(car_toy *toy);
/* Ends the test with the context's message unless status is CAR_OK. */
void car_toy_must(const car_toy *toy, car_status status);
car_status car_toy_feed(void *toy, int64_t step, int worker, car_tape *tape);

/* All parameters one behind the other: the model, then those of the stages; as doubles. */
int car_toy_count(const car_toy *toy);
car_status car_toy_read(const car_toy *toy, car_rank *rank, double *values);
car_status car_toy_assign(const car_toy *toy, car_rank *rank, const double *values);
car_status car_toy_gradient(const car_toy *toy, car_rank *rank, double *loss, double *values);

/* Without the runtime: the stages called one after the other, gradients added in the order that is promised. */
void car_toy_serial(const car_toy *toy, int64_t step, const double *values, double *loss, double *gradient);

#endif
