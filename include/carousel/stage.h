/* Stages of one's own: any forward and backward as a link of the chain that the runtime schedules.
 *
 * A stage is a class: callbacks, and the sizes of what they work on. It becomes an operation of a graph, alone or
 * between the operations of graph.h, and from there on it is planned, validated, traced and run like the rest, under
 * every rule and placement. The runtime gives all memory, decides when and where each call runs, keeps versions of the
 * parameters, sums gradients, and sends what crosses between ranks.
 *
 *     stage 0            stage 1            stage 2
 *     forward  ─output─► forward  ─output─► forward      each may read data of its micro-batch and add to the loss
 *        │held              │held              │held     from a forward to its backward, in the arena
 *     backward ◄gradient─ backward ◄gradient─ backward   each adds to the gradients of its parameters
 *
 * A callback works on what it is given and nothing else: it may run on any thread, in any process, at any time between
 * its neighbours. Calls for different micro-batches run at the same time. Denormal numbers are flushed to zero while it
 * runs, as in all kernels. */
#ifndef CAROUSEL_STAGE_H
#define CAROUSEL_STAGE_H

#include "carousel/rank.h"
#include "carousel/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { CAR_STAGE_MAX_CARRIED = 3, CAR_STAGE_MAX_DATA = 4 };

/* What a callback works on. All memory is aligned to 64 bytes. Pointers to things that the stage does not have, or not
 * in this call, are NULL. */
typedef struct car_stage_io {
    const void *user;   /* of the stage's config */
    const void *input;  /* what the stage before handed on; in backward only if the class keeps it */
    void *output;       /* forward writes what is handed on; in backward only if the class keeps it */
    double *loss;       /* forward adds this stage's contribution to the micro-batch's loss; it begins at 0 */
    void *held;         /* forward writes, backward reads; NULL in a forward that no backward follows */
    void *rebuilt;      /* recompute writes, backward reads; what the call before left stays, from segment to segment */
    int segment;        /* of recompute and backward */
    void *scratch;      /* undefined at the beginning of each call */
    const void *params; /* floats or doubles, as the class says */
    void *param_gradients; /* backward adds to it */
    const void *carried[CAR_STAGE_MAX_CARRIED];
    void *carried_gradients[CAR_STAGE_MAX_CARRIED]; /* backward adds to them */
    const void *data[CAR_STAGE_MAX_DATA];           /* inputs of the graph, as they were fed */
    const void *output_gradient; /* as many bytes as the output; NULL if the stage hands nothing on */
    void *input_gradient;        /* backward writes it; zero at the beginning. NULL if nobody wants it */
    car_context *context;        /* for car_stage_fail */
    const char *name;
} car_stage_io;

/* What a stage is. The pointers must stay valid as long as the graph does. */
typedef struct car_stage_class {
    car_status (*forward)(const car_stage_io *io);
    car_status (*backward)(const car_stage_io *io);
    /* Makes what backward needs of what was held and of the input, right before backward. NULL: backward needs nothing
     * besides. */
    car_status (*recompute)(const car_stage_io *io);
    /* Backward runs in so many segments, the last first: recompute(s), backward(s), recompute(s - 1), ... with one
     * `rebuilt` for all, so a stage of many steps rebuilds some at a time. 0 is 1; more need a recompute. */
    int segments;
    size_t input_bytes;  /* of what it takes in; 0: nothing */
    size_t output_bytes; /* of what it hands on; 0: nothing, which is for the graph's last operation */
    /* Rank 0: the output is bytes of any type, for a stage of one's own. Else it is floats of this shape, of rank 1 to 3,
     * for the operations of graph.h. */
    car_shape output_shape;
    size_t held_bytes;                  /* from forward to backward */
    size_t rebuilt_bytes;               /* while a backward runs */
    size_t scratch_bytes;               /* while a call runs */
    bool keeps_input;                   /* backward and recompute read the input */
    bool keeps_output;                  /* backward and recompute read the output */
    int64_t param_count;                /* of the stage's own: the parameter NAME.params */
    car_dtype dtype;                    /* of these, their gradients and sums: CAR_F32 or CAR_F64 */
    car_init init;                      /* of these */
    double forward_cost, backward_cost; /* in any unit, the same for all; 0: 1, and twice the forward's */
} car_stage_class;

/* Where a stage stands. */
typedef struct car_stage_config {
    int input; /* tensor that it takes in, of the stage or operation before; CAR_NONE if it takes nothing */
    int carried_count, carried[CAR_STAGE_MAX_CARRIED]; /* of car_graph_carry */
    int data_count, data[CAR_STAGE_MAX_DATA];          /* inputs of the graph, of any type */
    const void *user; /* for the callbacks, which only read it: settings of this stage. Must outlive the graph */
} car_stage_config;

car_stage_config car_stage_config_default(void); /* takes nothing */

/* Appends a stage and returns the tensor that it hands on, or the loss if it hands on nothing. Failure is sticky, as
 * with all builders. */
int car_graph_stage(car_graph *graph, const char *name, const car_stage_class *stage, const car_stage_config *config);

/* A parameter that many stages use, such as a velocity model: the tensor that stages name in `carried`. A micro-batch
 * takes its values along, in the version of its first stage, and one gradient that all stages add to goes back down
 * with its backward. There it is summed over micro-batches: there is one sum, not one for each stage. Every rank that
 * computes a stage has a copy for each micro-batch under way, also under `zero`. */
int car_graph_carry(car_graph *graph, const char *name, car_shape shape, car_dtype dtype, car_init init);

/* For callbacks: leaves a message, which ends the run, and returns CAR_ERROR_STAGE. */
car_status car_stage_fail(const car_stage_io *io, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- one step at a time ---------------------------------------------------------------------- */

/* Between runs. These calls are about the micro-batches that the next step would train on (the feed is asked for step
 * car_trainer_steps), with the weights as they are for all workers. They leave weights, optimizer and the number of
 * steps as they are. Values are in canonical layout, of the parameter's type, one pointer per parameter of the graph;
 * NULL: not wanted. Over ranks all call them, with the same arguments, and all get the same. If the run was told to
 * stop, the loss is NaN and nothing else is written. */

/* Mean loss over the step's micro-batches, without backward. It need not be finite. Operations of graph.h run as in an
 * evaluation: batch norm by its running statistics, no dropout. */
car_status car_trainer_evaluate(car_trainer *trainer, double *loss);
/* Mean loss and mean gradient. Running statistics have none: zero. */
car_status car_trainer_gradient(car_trainer *trainer, double *loss, void *const *gradients);
/* An update of one's own: these weights in the place of the trainer's, in all versions. */
car_status car_trainer_assign(car_trainer *trainer, const void *const *weights);
/* The weights as they are. */
car_status car_trainer_read(car_trainer *trainer, void *const *weights);

car_status car_rank_evaluate(car_rank *rank, double *loss);
car_status car_rank_gradient(car_rank *rank, double *loss, void *const *gradients);
car_status car_rank_assign(car_rank *rank, const void *const *weights);
car_status car_rank_read(car_rank *rank, void *const *weights);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
