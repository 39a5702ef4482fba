/* What the files of optimizers share: optimizer.c keeps the states, and each file in optimizers/ has one method. */
#ifndef CAR_ENGINE_OPTIMIZER_INTERNAL_H
#define CAR_ENGINE_OPTIMIZER_INTERNAL_H

#include <pthread.h>

#include "carousel/correction.h"
#include "engine/internal.h"

enum { CAR_OPTIMIZER_MAX_STATES = CAR_OPTIMIZER_AVERAGE + 1 };

/* In `lr_scale`: marks a frozen parameter. */
static const double car_optimizer_no_rate = -1;

/* One update of elements first .. first + count - 1 of a parameter, in stored layout. It computes `to` from `from` and
 * gradient = scale * sum; these three point to the first of the elements. */
typedef struct car_param_update {
    car_optimizer *optimizer;
    int param;
    int64_t first, count;
    int64_t step; /* number of the update, from 0 */
    double lr, scale;
    const float *from, *sum;
    float *to;
} car_param_update;

typedef struct car_optimizer_method {
    car_optimizer_info info;
    /* The number of states that it keeps for each weight of a parameter, without the one that a correction adds.
     * Together they are at most CAR_OPTIMIZER_AVERAGE. For CAR_NONE: the most of any parameter. */
    int (*states)(const car_optimizer_config *config, const car_graph *graph, int param);
    /* True if a correction adds a state. NULL: it adds the last gradient, if it has an `a`. */
    bool (*keeps_last)(const car_optimizer_config *config, const car_graph *graph, int param);
    /* The momentum: what a delay makes worse, and a correction extrapolates with; 0 = none. */
    double (*memory)(const car_optimizer_config *config);
    /* True if a correction needs momentum, and is not applied without it. */
    bool corrects_memory;
    /* True if its correction looks further ahead where every gradient is late. */
    bool looks_ahead;
    /* The warm-up under rules that are late everywhere, as a share `part` / `of` of all steps (docs/delay.md). */
    struct {
        int64_t part, of;
    } warmup;
    /* Bytes of scratch for each thread that updates any of the wanted parameters (NULL: all). The second function
     * estimates them without a program, see car_optimizer_scratch_bytes. NULL: none. */
    size_t (*room_bytes)(const car_optimizer *optimizer, const bool *wanted);
    size_t (*scratch_bytes)(const car_optimizer_config *config, const car_graph *graph);
    /* True if a parameter can only be updated as a whole. NULL: none. */
    bool (*is_whole)(const car_optimizer *optimizer, int param);
    car_status (*update)(const car_param_update *update);
} car_optimizer_method;

#define CAR_OPTIMIZER_DECLARE(code, name) extern const car_optimizer_method car_optimizer_##name;
CAR_OPTIMIZER_LIST(CAR_OPTIMIZER_DECLARE)
#undef CAR_OPTIMIZER_DECLARE

extern const car_optimizer_method car_optimizer_own; /* calls back a user-defined class */

const car_optimizer_method *car_optimizer_method_of(const car_optimizer_config *config);

struct car_optimizer {
    const car_program *program;
    car_arena *arena;
    car_optimizer_config config;
    const car_optimizer_method *method;
    int64_t since; /* the first update whose gradient (Muon: orthogonal update) the last state has seen */
    bool averaged; /* the moving average began before the first update */
    void **state[CAR_OPTIMIZER_MAX_STATES]; /* for each parameter; NULL = it does not have this state */
    double *lr_scale;                       /* for each parameter; car_optimizer_no_rate = frozen. NULL: 1 for all */
    /* Scratch: a room for each thread that may update at once. */
    void **rooms;
    int room_count, rooms_free; /* rooms[0 .. rooms_free - 1] are free */
    pthread_mutex_t lock;       /* guards the rooms */
    pthread_cond_t given_back;
    bool has_lock;
};

/* ---- optimizer.c ------------------------------------------------------------------------------ */

/* A setting that no optimizer can have. */
typedef struct car_optimizer_mistake {
    const char *field;
    double value;
    const char *wanted;
} car_optimizer_mistake;
/* Finds the first mistake of a configuration; false if there is none. */
bool car_optimizer_find_mistake(const car_optimizer_config *config, car_optimizer_mistake *out);

/* ---- optimizer_params.c ---------------------------------------------------------------------- */

car_status car_optimizer_resolve_rules(car_optimizer *optimizer);
/* The first operation that uses a parameter; NULL if there is none. */
const car_op *car_optimizer_user_of(const car_graph *graph, int param);

/* ---- optimizers/own.c -------------------------------------------------------------------------- */

/* Checks a user-defined class, and whether it fits the graph (NULL: any graph). */
car_status car_optimizer_check_own(car_context *context, const car_optimizer_class *own, const car_graph *graph);
/* Updates some elements of a parameter of floats or doubles. The pointers are to the whole parameter. */
car_status car_optimizer_update_own(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                    double lr, double scale, const void *from, void *to, const void *sum);

/* ---- shared by the methods -------------------------------------------------------------------- */

float *car_optimizer_state_of(const car_param_update *update, int state); /* from the update's first element on */
double car_optimizer_decay(const car_param_update *update);
/* The factor of the gradient's change: 0 as long as there is no earlier gradient to compare with. */
double car_optimizer_change_weight(const car_param_update *update);
/* The last gradient, which comes after the method's own states; NULL if it is not kept. */
float *car_optimizer_last_gradient(const car_param_update *update);
/* Takes a room. Waits for one if more threads update than car_optimizer_create_for was told. */
void *car_optimizer_take_room(car_optimizer *optimizer);
void car_optimizer_give_room_back(car_optimizer *optimizer, void *room);

/* Muon updates the parameters that it does not orthogonalize with this, at a rate of their own. */
car_status car_optimizer_update_adamw(const car_param_update *update, double lr);

#endif
