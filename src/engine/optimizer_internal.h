/* The inside of an optimizer: optimizer.c keeps the states, each file in optimizers/ has one method. */
#ifndef CAR_ENGINE_OPTIMIZER_INTERNAL_H
#define CAR_ENGINE_OPTIMIZER_INTERNAL_H

#include <pthread.h>

#include "carousel/correction.h"
#include "engine/internal.h"

enum { CAR_OPTIMIZER_MAX_STATES = CAR_OPTIMIZER_AVERAGE + 1 };

/* Stands for a rate that is never used. */
static const double car_optimizer_no_rate = -1;

/* One update of elements first .. first + count - 1 of a parameter, in stored layout: `to` from `from` and gradient =
 * scale * sum, which point to the first of these. */
typedef struct car_param_update {
    car_optimizer *optimizer;
    int param;
    int64_t first, count;
    int64_t step; /* counts updates from 0 */
    double lr, scale;
    const float *from, *sum;
    float *to;
} car_param_update;

typedef struct car_optimizer_method {
    car_optimizer_info info;
    /* Numbers that it keeps for each weight of a parameter, without the one that a correction keeps: at most
     * CAR_OPTIMIZER_AVERAGE - 1. CAR_NONE: the most of any parameter. */
    int (*states)(const car_optimizer_config *config, const car_graph *graph, int param);
    /* Whether a correction keeps one more. NULL: the last gradient, if there is an a. */
    bool (*keeps_last)(const car_optimizer_config *config, const car_graph *graph, int param);
    /* The momentum that a delay makes worse, and that a correction looks ahead with; 0: none. */
    double (*memory)(const car_optimizer_config *config);
    /* Whether a correction is refused where there is no memory. */
    bool corrects_memory;
    /* The warm-up of rules that are late everywhere, as a share of the steps (docs/delay.md). */
    struct {
        int64_t part, of;
    } warmup;
    /* Scratch of each thread that updates any of the wanted parameters (NULL: all); and without a program, see
     * car_optimizer_scratch_bytes. NULL: none. */
    size_t (*room_bytes)(const car_optimizer *optimizer, const bool *wanted);
    size_t (*scratch_bytes)(const car_optimizer_config *config, const car_graph *graph);
    /* Whether a parameter can only be updated as a whole. NULL: none. */
    bool (*is_whole)(const car_optimizer *optimizer, int param);
    car_status (*update)(const car_param_update *update);
} car_optimizer_method;

#define CAR_OPTIMIZER_DECLARE(code, name) extern const car_optimizer_method car_optimizer_##name;
CAR_OPTIMIZER_LIST(CAR_OPTIMIZER_DECLARE)
#undef CAR_OPTIMIZER_DECLARE

extern const car_optimizer_method car_optimizer_own; /* calls a class of the user's back */

const car_optimizer_method *car_optimizer_method_of(const car_optimizer_config *config);

struct car_optimizer {
    const car_program *program;
    car_arena *arena;
    car_optimizer_config config;
    const car_optimizer_method *method;
    int64_t since; /* the first update whose gradient, or orthogonal update, is in the last state */
    void **state[CAR_OPTIMIZER_MAX_STATES]; /* per parameter; NULL where there is none */
    double *lr_scale;                       /* per parameter, car_optimizer_no_rate for those; NULL: 1 for all */
    /* Scratch: a room for each thread that may be updating. */
    void **rooms;
    int room_count, rooms_free; /* rooms[0 .. rooms_free - 1] are free */
    pthread_mutex_t lock;       /* of the rooms */
    pthread_cond_t given_back;
    bool has_lock;
};

/* ---- optimizer_params.c ---------------------------------------------------------------------- */

car_status car_optimizer_resolve_rules(car_optimizer *optimizer);
/* The first operation that has a parameter. */
const car_op *car_optimizer_user_of(const car_graph *graph, int param);

/* ---- optimizers/own.c -------------------------------------------------------------------------- */

/* A class is sound, and fits the graph (NULL: any). */
car_status car_optimizer_check_own(car_context *context, const car_optimizer_class *own, const car_graph *graph);
/* Of a parameter of floats or doubles; the pointers are to the whole of it. */
car_status car_optimizer_update_own(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                    double lr, double scale, const void *from, void *to, const void *sum);

/* ---- what methods share ---------------------------------------------------------------------- */

float *car_optimizer_state_of(const car_param_update *update, int state); /* from its first element on */
double car_optimizer_decay(const car_param_update *update);
/* The weight of the gradient's change: none while there is no gradient to compare with. */
double car_optimizer_change_weight(const car_param_update *update);
/* The last gradient, behind the method's own states; NULL if it is not kept. */
float *car_optimizer_last_gradient(const car_param_update *update);
/* Waits for a room if more threads update than were spoken of. */
void *car_optimizer_take_room(car_optimizer *optimizer);
void car_optimizer_give_room_back(car_optimizer *optimizer, void *room);

/* Muon's other parameters are AdamW's, at a rate of their own. */
car_status car_optimizer_update_adamw(const car_param_update *update, double lr);

#endif
