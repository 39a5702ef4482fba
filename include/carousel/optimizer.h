/* Optimizers and learning-rate schedules, as PyTorch defines them.
 *
 * An update reads one version of a parameter and writes the next one, which may be the same buffer. Parameters are
 * in their stored layout: padding has zero gradients and stays zero. */
#ifndef CAROUSEL_OPTIMIZER_H
#define CAROUSEL_OPTIMIZER_H

#include "carousel/program.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_optimizer car_optimizer;

/* Code and name. The name is also that of the file in src/engine/optimizers/ and, after car_optimizer_, that of its
 * method. */
#define CAR_OPTIMIZER_LIST(X)     \
    X(CAR_OPTIMIZER_SGD, sgd)     \
    X(CAR_OPTIMIZER_ADAMW, adamw) \
    X(CAR_OPTIMIZER_MUON, muon)

typedef enum car_optimizer_kind {
#define CAR_OPTIMIZER_ENUM(code, name) code,
    CAR_OPTIMIZER_LIST(CAR_OPTIMIZER_ENUM)
#undef CAR_OPTIMIZER_ENUM
        CAR_OPTIMIZERS
} car_optimizer_kind;

/* An optimizer's description. */
typedef struct car_optimizer_info {
    const char *name, *summary;
    double momentum;   /* default of --momentum */
    bool has_momentum; /* supports --momentum */
    bool has_betas;    /* supports --betas */
    bool has_nesterov; /* supports --nesterov */
    bool two_rates;    /* some parameters have their own learning rate: adamw_ratio, --adamw-lr */
    bool uneven;       /* keeps more state for some parameters than for others */
} car_optimizer_info;

/* `kind` must be below CAR_OPTIMIZERS. */
const car_optimizer_info *car_optimizer_info_of(car_optimizer_kind kind);
const char *car_optimizer_text(car_optimizer_kind kind);
bool car_optimizer_is_known(const char *name, car_optimizer_kind *out); /* only those in the list above */

/* Correction for gradients that are one step late (docs/delay.md). All zero: no correction.
 *
 *   SGD:    w -= lr * (v + c * (v - v_last) + a * (g - g_last))
 *   AdamW:  the same with the bias-corrected first moment as v and (1 - beta1) * (g - g_last), divided by the root
 * of
 *           the second moment
 *   Muon:   w -= lr * (u + c * (u - u_last)), where u is its orthogonal update; u_last is an additional state */
typedef struct car_correction {
    double c; /* factor of the momentum's change; needs no memory, except with Muon */
    double a; /* factor of the gradient's change; keeps the last gradient as an additional state */
} car_correction;

/* Settings for parameters whose name matches a shell pattern: '*' stands for any part of a name, dots included. The
 * last matching rule wins. */
typedef struct car_param_rule {
    const char *pattern;
    bool frozen;     /* their values never change */
    double lr_scale; /* otherwise, factor of their learning rate */
} car_param_rule;

/* ---- an optimizer of your own ------------------------------------------------------------------ */

enum { CAR_OPTIMIZER_OWN_STATES = 3 };

/* What one call works on: a whole parameter or, for an elementwise class, some of its elements in any order. Arrays
 * hold floats, or doubles if the parameter does. */
typedef struct car_optimizer_io {
    const void *user;     /* of the class */
    const char *param;    /* the parameter's name */
    car_shape shape;      /* canonical (PyTorch's, row-major) */
    car_param_role role;  /* weight, bias, ... */
    car_dtype dtype;      /* CAR_F32 or CAR_F64 */
    int64_t count;        /* elements in this call; all of the shape, unless the class is elementwise */
    int64_t step;         /* number of updates made before this one */
    double lr;            /* of the schedule, times the parameter's own factor */
    double weight_decay;  /* for this parameter */
    void *weights;        /* update them in place */
    const void *gradient; /* mean over the step's micro-batches, clipped */
    void *states[CAR_OPTIMIZER_OWN_STATES]; /* in the order of the class's names; zero before the first update */
    void *scratch;                          /* undefined at the start of each call */
    car_context *context;                   /* for car_callback_fail */
} car_optimizer_io;

/* A user-defined optimizer. The class and all it points to must outlive everything created with it. `update` is
 * called from any thread, for several parameters at once, and must use only what it is given: then the weights do
 * not depend on the number of threads or ranks. The correction of the delay does not apply to it. */
typedef struct car_optimizer_class {
    const char *name;
    car_status (*update)(const car_optimizer_io *io);
    /* State kept for each weight, by name. Checkpoints store it as optimizer.NAME.PARAMETER. */
    int state_count;
    const char *state_names[CAR_OPTIMIZER_OWN_STATES];
    /* Set it if an element's update depends on that element alone. Threads then share large parameters, and nothing
     * is copied. */
    bool elementwise;
    bool takes_doubles;                                         /* `update` also handles doubles */
    size_t (*scratch_bytes)(const void *user, car_shape shape); /* per call; NULL: none. Not used if elementwise */
    const void *user;
} car_optimizer_class;

/* Registers an optimizer by name in this context. CAR_ERROR_ARGUMENT, with the reason, for an invalid class or a
 * name already taken. */
car_status car_optimizer_register(car_context *context, const car_optimizer_class *own);

/* ---- configuration ----------------------------------------------------------------------------- */

typedef struct car_optimizer_config {
    car_optimizer_kind kind;
    const car_optimizer_class *own; /* replaces `kind`; NULL: none. Need not be registered */
    double weight_decay;
    bool decay_weights_only; /* no decay for biases, norms and other vectors */
    double momentum;         /* SGD, and Muon, whose default is 0.95 */
    /* SGD: Nesterov momentum, i.e. the correction with c = momentum, a = 0, instead of `correction` */
    bool nesterov;
    double beta1, beta2, eps; /* AdamW */
    double adamw_ratio;       /* Muon: learning rate of AdamW's parameters over that of Muon's */
    car_correction correction;
    const car_param_rule *rules; /* must outlive the optimizer; NULL: none */
    int rule_count;
    /* Decay of a moving average of the weights, including running statistics; 0: none is kept. It starts as the
     * initial weights; after each update average = decay * average + (1 - decay) * weights. */
    double average;
} car_optimizer_config;

/* SGD with momentum 0.9; betas 0.9 and 0.999, eps 1e-8, ratio 1. */
car_optimizer_config car_optimizer_config_default(void);
/* Selects an optimizer by name: one of the list, or a registered one. CAR_ERROR_UNKNOWN_NAME, with the known names,
 * for any other. */
car_status car_optimizer_find(car_context *context, const char *name, car_optimizer_config *config);
/* The optimizer's name, also of a user-defined one. */
const char *car_optimizer_config_name(const car_optimizer_config *config);
/* The most values of state kept for a weight: 0 to 4. */
int car_optimizer_config_states(const car_optimizer_config *config);
/* Whether the optimizer can be corrected for a delay: SGD needs momentum for it. */
bool car_optimizer_can_correct(const car_optimizer_config *config);
/* Scratch bytes for each thread that updates, for canonical sizes; padded layouts need a little more. */
size_t car_optimizer_scratch_bytes(const car_optimizer_config *config, const car_graph *graph);
/* Values of state kept for each weight of one parameter: fewer for Muon's matrices, none for frozen parameters, only
 * the average for running statistics. */
int car_optimizer_param_states(const car_optimizer_config *config, const car_graph *graph, int param);
/* Bytes of state of all parameters, in canonical layouts. */
size_t car_optimizer_state_bytes(const car_optimizer_config *config, const car_graph *graph);

/* The index of the average among the states. It comes after all others, even where some of those do not exist. */
enum { CAR_OPTIMIZER_AVERAGE = 3 };
/* Whether a state of a parameter exists. */
bool car_optimizer_keeps(const car_optimizer_config *config, const car_graph *graph, int param, int state);

/* Whether a parameter is frozen: by its name, or as a statistic of a normalisation whose weight and bias are frozen. */
bool car_optimizer_freezes(const car_optimizer_config *config, const car_graph *graph, int param);
/* The factor of a parameter's learning rate. */
double car_optimizer_lr_scale(const car_optimizer_config *config, const car_graph *graph, int param);
/* Checks a configuration against a graph. CAR_ERROR_ARGUMENT if a pattern matches nothing, nothing is left to train,
 * or a user-defined class is invalid; CAR_ERROR_UNSUPPORTED if the graph has doubles and the class does not handle
 * them. */
car_status car_optimizer_check(const car_optimizer_config *config, const car_graph *graph);

/* Creates the state of all parameters, zeroed, in the arena. Several threads may update different parameters at
 * once. */
car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out);
void car_optimizer_destroy(car_optimizer *optimizer);

/* Updates one parameter (not a statistic): computes `to` from `from` and gradient = scale * sum. `step` counts
 * updates from 0. Fails only where matrices are multiplied or reordered, and if a user-defined optimizer fails. */
car_status car_optimizer_update(car_optimizer *optimizer, int param, int64_t step, double lr, double scale,
                                const float *from, float *to, const float *sum);

/* Number of states. */
int car_optimizer_states(const car_optimizer *optimizer);
/* A state of a parameter in stored layout, or NULL if it does not exist. SGD: momentum. AdamW: first and second
 * moment. Both: then the last gradient, if the correction has an `a`. Muon's matrices: momentum, then the last
 * update if the correction has a `c`. CAR_OPTIMIZER_AVERAGE is undefined before the first update. */
float *car_optimizer_state(car_optimizer *optimizer, int state, int param);

/* ---- schedules ------------------------------------------------------------------------------- */

typedef enum car_schedule_kind { CAR_SCHEDULE_CONSTANT, CAR_SCHEDULE_STEP, CAR_SCHEDULE_COSINE } car_schedule_kind;

/* The learning rate of a step. Called from any thread, possibly several times for a step: it must depend on the step
 * alone. */
typedef double (*car_schedule_function)(const void *user, int64_t step);

typedef struct car_schedule {
    car_schedule_kind kind;
    double lr;
    int64_t warmup; /* steps of a linear rise from lr / warmup to lr; then the schedule begins */
    int64_t every;  /* STEP: multiply the rate by gamma every so many steps */
    double gamma;
    int64_t total;             /* COSINE: steps until the rate is zero, warm-up included */
    car_schedule_function own; /* replaces all of the above; NULL: none */
    const void *own_user;
} car_schedule;

/* The learning rate of a step, counted from 0. */
double car_schedule_lr(const car_schedule *schedule, int64_t step);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
