/* User-defined stages: any forward and backward, as a link of the chain that the runtime schedules.
 *
 * A stage is a class of callbacks with the sizes of their buffers. It becomes an operation of a graph, alone or
 * between the operations of graph.h. It is planned, validated, traced and run like the others, under every rule and
 * placement. The runtime provides all memory, decides when and where each call runs, keeps versions of the
 * parameters, sums gradients, and sends data between ranks.
 *
 *     stage 0            stage 1            stage 2
 *     forward  ─output─► forward  ─output─► forward      each may read data of its micro-batch and add to the loss
 *        │held              │held              │held     from a forward to its backward, in the arena
 *     backward ◄gradient─ backward ◄gradient─ backward   each adds to the gradients of its parameters
 *
 * A callback must use only what it is given: it may run on any thread, in any process, at any time between its
 * neighbours. Calls for different micro-batches run at the same time. Denormal numbers are flushed to zero during a
 * call, as in all kernels. */
#ifndef CAROUSEL_STAGE_H
#define CAROUSEL_STAGE_H

#include "carousel/rank.h"
#include "carousel/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { CAR_STAGE_MAX_CARRIED = 3, CAR_STAGE_MAX_DATA = 4 };

/* What a callback works on. All memory is aligned to 64 bytes. Pointers that do not apply to the stage or the call
 * are NULL. */
typedef struct car_stage_io {
    const void *user;      /* from the stage's config */
    const void *input;     /* output of the previous stage; in backward only if the class keeps it */
    void *output;          /* forward writes it; in backward only if the class keeps it */
    double *loss;          /* forward adds this stage's contribution to the micro-batch's loss; starts at 0 */
    void *held;            /* forward writes, backward reads; NULL in a forward without a backward */
    void *rebuilt;         /* recompute writes, backward reads; kept from segment to segment */
    int segment;           /* number of the segment, for recompute and backward */
    void *scratch;         /* undefined at the start of each call */
    const void *params;    /* floats or doubles, as the class says */
    void *param_gradients; /* backward adds to it */
    const void *carried[CAR_STAGE_MAX_CARRIED];
    void *carried_gradients[CAR_STAGE_MAX_CARRIED]; /* backward adds to them */
    const void *data[CAR_STAGE_MAX_DATA];           /* inputs of the graph, as they were fed */
    const void *output_gradient;                    /* as large as the output; NULL if the stage hands nothing on */
    void *input_gradient;                           /* backward writes it; zero at the start; NULL if not needed */
    car_context *context;                           /* for car_stage_fail */
    const char *name;
} car_stage_io;

/* A user-defined stage. The pointers must stay valid as long as the graph. */
typedef struct car_stage_class {
    car_status (*forward)(const car_stage_io *io);
    car_status (*backward)(const car_stage_io *io);
    /* Rebuilds, right before backward, what backward needs from `held` and the input. NULL: not needed. */
    car_status (*recompute)(const car_stage_io *io);
    /* Number of segments in which backward runs, last first: recompute(s), backward(s), recompute(s - 1), ... All
     * share one `rebuilt`, so a stage of many time steps rebuilds only some at a time. 0 means 1; more require
     * `recompute`. */
    int segments;
    size_t input_bytes;  /* 0: takes nothing */
    size_t output_bytes; /* 0: hands nothing on; only for the graph's last operation */
    /* Rank 0: the output is bytes of any type, for another user-defined stage. Otherwise it is floats of this shape,
     * of rank 1 to 3, for the operations of graph.h. */
    car_shape output_shape;
    size_t held_bytes;    /* kept from forward to backward */
    size_t rebuilt_bytes; /* kept while a backward runs */
    size_t scratch_bytes; /* for one call */
    bool keeps_input;     /* backward and recompute read the input */
    bool keeps_output;    /* backward and recompute read the output */
    int64_t param_count;  /* values of the stage's own parameter, NAME.params */
    car_dtype dtype;      /* of that parameter, its gradients and sums: CAR_F32 or CAR_F64 */
    car_init init;        /* initial distribution of that parameter */
    /* Relative costs, in the same unit for all stages; 0 means 1, and twice the forward's. */
    double forward_cost, backward_cost;
} car_stage_class;

/* The stage's place in a graph. */
typedef struct car_stage_config {
    int input; /* output of the previous stage or operation; CAR_NONE if it takes nothing */
    int carried_count, carried[CAR_STAGE_MAX_CARRIED]; /* from car_graph_carry */
    int data_count, data[CAR_STAGE_MAX_DATA];          /* inputs of the graph, of any type */
    const void *user; /* settings for the callbacks, read-only; must outlive the graph */
} car_stage_config;

car_stage_config car_stage_config_default(void); /* takes nothing */

/* Appends a stage. Returns the tensor that it hands on, or the loss if it hands nothing on. Failure is sticky, as
 * with all builders. */
int car_graph_stage(car_graph *graph, const char *name, const car_stage_class *stage, const car_stage_config *config);

/* A parameter that many stages use, such as a velocity model. Returns the tensor that stages list in `carried`. Each
 * micro-batch carries a copy of its values, in the version of its first stage, and one gradient that all stages add
 * to, which travels back with the backward. So there is one sum over micro-batches instead of one for each stage.
 * Each rank that computes a stage has a copy for each micro-batch in flight, also under `zero`. */
int car_graph_carry(car_graph *graph, const char *name, car_shape shape, car_dtype dtype, car_init init);

/* For callbacks: stores a message and returns CAR_ERROR_STAGE, which ends the run. */
car_status car_stage_fail(const car_stage_io *io, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- one step at a time ---------------------------------------------------------------------- */

/* Call these between runs. They use the micro-batches of the next step (they call the feed with step
 * car_trainer_steps) and the current weights for all workers. Except for assign they change
 * neither weights nor optimizer nor step count. Values are in canonical layout and of the parameter's type, one pointer per parameter of the graph; NULL if
 * not wanted. Over ranks, all ranks must call them with the same arguments, and get the same results. If the run has
 * been stopped, the loss is NaN and nothing else is written. */

/* Mean loss of the step's micro-batches, without backward; it need not be finite. Operations of graph.h run as in
 * evaluation: BatchNorm uses running statistics, and there is no dropout. */
car_status car_trainer_evaluate(car_trainer *trainer, double *loss);
/* Mean loss and mean gradient. Running statistics have none: their gradient is zero. */
car_status car_trainer_gradient(car_trainer *trainer, double *loss, void *const *gradients);
/* Replaces the trainer's weights, in all versions: for updates of your own. */
car_status car_trainer_assign(car_trainer *trainer, const void *const *weights);
/* Copies the current weights. */
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
