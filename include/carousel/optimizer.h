/* Optimizers and learning-rate schedules, as PyTorch defines them.
 *
 * An update reads one version of a parameter and writes the next, which may be the same buffer. All
 * works on parameters in their stored layout: padding has zero gradients and stays zero. */
#ifndef CAROUSEL_OPTIMIZER_H
#define CAROUSEL_OPTIMIZER_H

#include "carousel/program.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_optimizer car_optimizer;

/* The name of each is also that of its file in src/engine/optimizers/ and, behind car_optimizer_, of its method. */
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

/* What an optimizer is, for help texts and for whoever has to tell optimizers apart. */
typedef struct car_optimizer_info {
    const char *name, *summary;
    double momentum;   /* what --momentum is if it is left out */
    bool has_nesterov; /* knows --nesterov */
    bool two_rates;    /* some parameters have a rate of their own: adamw_ratio, --adamw-lr */
    bool uneven;       /* keeps more numbers for a weight of some parameters than of others */
} car_optimizer_info;

/* Of any optimizer below CAR_OPTIMIZERS. */
const car_optimizer_info *car_optimizer_info_of(car_optimizer_kind kind);
const char *car_optimizer_text(car_optimizer_kind kind);
bool car_optimizer_is_known(const char *name, car_optimizer_kind *out); /* of the list */

/* Corrects for gradients that are one step late (docs/delay.md). All zero: no correction.
 *
 *   SGD:    w -= lr * (v + c * (v - v_last) + a * (g - g_last))
 *   AdamW:  the same with the bias-corrected first moment for v and (1 - beta1) * (g - g_last), over the root of the
 *           second moment
 *   Muon:   w -= lr * (u + c * (u - u_last)), u being its orthogonal update; the last one is one more state */
typedef struct car_correction {
    double c; /* of the momentum's change: needs no memory, but of Muon's update */
    double a; /* of the gradient's change: keeps the last gradient, one more state */
} car_correction;

/* Of parameters whose name matches a pattern as file names match one of the shell's: '*' stands for any part of a name,
 * dots included. */
typedef struct car_param_rule {
    const char *pattern;
    bool frozen;     /* they stay as they are to the bit; if not, */
    double lr_scale; /* their learning rate is multiplied by this; of several rules that match the last one counts */
} car_param_rule;

/* ---- an optimizer of one's own ----------------------------------------------------------------- */

enum { CAR_OPTIMIZER_OWN_STATES = 3 };

/* What one call works on: a parameter, or (elementwise) some elements of it in any order. Arrays are floats, or
 * doubles for a parameter of doubles. */
typedef struct car_optimizer_io {
    const void *user;                       /* the class's */
    const char *param;                      /* name of the parameter */
    car_shape shape;                        /* canonical, as PyTorch has it: row-major */
    car_param_role role;                    /* weight, bias, ... */
    car_dtype dtype;                        /* CAR_F32 or CAR_F64 */
    int64_t count;                          /* elements of this call; the shape's, unless the class is elementwise */
    int64_t step;                           /* updates that were made before this one */
    double lr;                              /* the schedule's, times the parameter's own factor */
    double weight_decay;                    /* of this parameter */
    void *weights;                          /* the callback changes them in place */
    const void *gradient;                   /* mean over the step's micro-batches, clipped */
    void *states[CAR_OPTIMIZER_OWN_STATES]; /* in the order of the class's names; zero before the first update */
    void *scratch;                          /* undefined at the beginning of each call */
    car_context *context;                   /* for car_callback_fail */
} car_optimizer_io;

/* Any update rule. The class and all it points to must stay as long as what is created with it. The callback is called
 * from any thread, for several parameters at the same time, and must depend on nothing but what it is given: then the
 * weights are the same for any number of threads, and over ranks. The correction of the delay does not apply to it. */
typedef struct car_optimizer_class {
    const char *name;
    car_status (*update)(const car_optimizer_io *io);
    /* Numbers that are kept for each weight, by name: checkpoints have them as optimizer.NAME.PARAMETER. */
    int state_count;
    const char *state_names[CAR_OPTIMIZER_OWN_STATES];
    /* An element's update depends on that element alone: then threads share large parameters, and nothing is copied. */
    bool elementwise;
    bool takes_doubles;                                         /* also knows parameters of doubles */
    size_t (*scratch_bytes)(const void *user, car_shape shape); /* of a call; NULL: none. Not if elementwise */
    const void *user;
} car_optimizer_class;

/* Makes an optimizer known by its name in this context. CAR_ERROR_ARGUMENT, with the reason, for a class that cannot
 * be, and for a name that is taken. */
car_status car_optimizer_register(car_context *context, const car_optimizer_class *own);

/* ---- configuration ----------------------------------------------------------------------------- */

typedef struct car_optimizer_config {
    car_optimizer_kind kind;
    const car_optimizer_class *own; /* in the place of `kind`; NULL: none. It need not be registered */
    double weight_decay;
    bool decay_weights_only;  /* no decay on biases, norms and other vectors */
    double momentum;          /* SGD; Muon: its own is 0.95 */
    bool nesterov;            /* SGD: the correction with c = momentum, a = 0, which takes its place */
    double beta1, beta2, eps; /* AdamW */
    double adamw_ratio;       /* Muon: the rate of what AdamW trains over that of what Muon trains */
    car_correction correction;
    const car_param_rule *rules; /* must stay as long as the optimizer; NULL: none */
    int rule_count;
    double average; /* decay of a moving average of the weights: average = decay * average + (1 - decay) * weights after
                     * each update, beginning with the first weights; running statistics too. 0: none is kept */
} car_optimizer_config;

car_optimizer_config car_optimizer_config_default(void); /* SGD, momentum 0.9; betas 0.9, 0.999, eps 1e-8; ratio 1 */
/* Sets the optimizer by its name: one of the list, or one that was registered. CAR_ERROR_UNKNOWN_NAME with the known
 * ones in the message. */
car_status car_optimizer_find(car_context *context, const char *name, car_optimizer_config *config);
const char *car_optimizer_config_name(const car_optimizer_config *config);
int car_optimizer_config_states(const car_optimizer_config *config); /* numbers kept for a weight at most: 0 to 4 */
/* Whether a correction has something to work with: SGD needs momentum for it. */
bool car_optimizer_can_correct(const car_optimizer_config *config);
/* Scratch bytes of each thread that updates. Of canonical sizes: a padded layout adds some. */
size_t car_optimizer_scratch_bytes(const car_optimizer_config *config, const car_graph *graph);
/* Of one parameter: of Muon's matrices fewer, of frozen ones none, of a running statistic only an average. */
int car_optimizer_param_states(const car_optimizer_config *config, const car_graph *graph, int param);
/* Bytes of all of them, in canonical layouts. */
size_t car_optimizer_state_bytes(const car_optimizer_config *config, const car_graph *graph);

/* Where the average is among the states; behind all others, which need not all be there. */
enum { CAR_OPTIMIZER_AVERAGE = 3 };
/* Whether state `state` of a parameter is kept. */
bool car_optimizer_keeps(const car_optimizer_config *config, const car_graph *graph, int param, int state);

/* Whether a parameter is frozen: its name matches, or it is a statistic of a normalisation whose weight and bias are.
 */
bool car_optimizer_freezes(const car_optimizer_config *config, const car_graph *graph, int param);
double car_optimizer_lr_scale(const car_optimizer_config *config, const car_graph *graph, int param);
/* CAR_ERROR_ARGUMENT for a pattern that matches nothing, if nothing is left to train, and for a class of one's own that
 * cannot be; CAR_ERROR_UNSUPPORTED if that does not know this graph's doubles. */
car_status car_optimizer_check(const car_optimizer_config *config, const car_graph *graph);

/* State of all parameters, zero. One optimizer may update different parameters from several threads at once. */
car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out);
void car_optimizer_destroy(car_optimizer *optimizer);

/* One update of one parameter (not a statistic): `to` from `from` and gradient = scale * sum. `step` counts updates
 * from 0. Fails only where matrices are multiplied or laid out anew, and if an optimizer of one's own does. */
car_status car_optimizer_update(car_optimizer *optimizer, int param, int64_t step, double lr, double scale,
                                const float *from, float *to, const float *sum);

/* State s of a parameter in stored layout, NULL if there is none: momentum, or first and second moment; behind them
 * the last gradient, if the correction has an a; of Muon's matrices momentum, and the last update, if it has a c. The
 * average is CAR_OPTIMIZER_AVERAGE, undefined before the first update. */
int car_optimizer_states(const car_optimizer *optimizer);
float *car_optimizer_state(car_optimizer *optimizer, int state, int param);

/* ---- schedules ------------------------------------------------------------------------------- */

typedef enum car_schedule_kind { CAR_SCHEDULE_CONSTANT, CAR_SCHEDULE_STEP, CAR_SCHEDULE_COSINE } car_schedule_kind;

/* The rate of a step. Called from any thread, more than once for a step: it must depend on the step alone. */
typedef double (*car_schedule_function)(const void *user, int64_t step);

typedef struct car_schedule {
    car_schedule_kind kind;
    double lr;
    int64_t warmup; /* steps of a linear rise from lr / warmup to lr, before the rest begins */
    int64_t every;  /* STEP: the rate is multiplied by gamma every so many steps */
    double gamma;
    int64_t total;             /* COSINE: steps until the rate is zero, warm-up included */
    car_schedule_function own; /* in the place of all of this; NULL: none */
    const void *own_user;
} car_schedule;

double car_schedule_lr(const car_schedule *schedule, int64_t step);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
