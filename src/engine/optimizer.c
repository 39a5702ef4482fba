/* Optimizers: names and configurations, and the state of every parameter. */
#include <string.h>

#include "base/base.h"
#include "engine/muon_internal.h"
#include "engine/optimizer_internal.h"

const char *car_optimizer_text(car_optimizer_kind kind) {
    static const char *const texts[] = {
#define OPTIMIZER_TEXT(code, text) text,
        CAR_OPTIMIZER_LIST(OPTIMIZER_TEXT)
#undef OPTIMIZER_TEXT
    };
    return kind < CAR_OPTIMIZERS ? texts[kind] : "unknown";
}

car_status car_optimizer_find(car_context *context, const char *name, car_optimizer_kind *out) {
    for (int k = 0; k < CAR_OPTIMIZERS; k++) {
        if (strcmp(name, car_optimizer_text(k)) == 0) {
            *out = k;
            return CAR_OK;
        }
    }
    return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME,
                            "there is no optimizer '%s'; known are sgd, adamw and muon", name);
}

car_optimizer_config car_optimizer_config_default(void) {
    return (car_optimizer_config){
        .kind = CAR_OPTIMIZER_SGD, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .adamw_ratio = 1};
}

/* SGD without momentum has nothing to correct with, and Nesterov's momentum is a correction. */
static car_correction correction_of(const car_optimizer_config *config) {
    if (config->kind == CAR_OPTIMIZER_SGD && config->momentum == 0) {
        return (car_correction){0};
    }
    bool nesterov = config->kind == CAR_OPTIMIZER_SGD && config->nesterov;
    return nesterov ? (car_correction){.c = config->momentum} : config->correction;
}

/* Muon's matrices have momentum, what AdamW trains has two moments. */
int car_optimizer_own_states(const car_optimizer_config *config, const car_graph *graph, int param) {
    if (config->kind == CAR_OPTIMIZER_SGD) {
        return config->momentum != 0;
    }
    return config->kind == CAR_OPTIMIZER_MUON && car_muon_takes(graph, param) ? 1 : 2;
}

int car_optimizer_param_states(const car_optimizer_config *config, const car_graph *graph, int param) {
    car_correction correction = correction_of(config);
    bool matrix = config->kind == CAR_OPTIMIZER_MUON && car_muon_takes(graph, param);
    if (car_graph_param(graph, param)->role == CAR_PARAM_STATISTIC) {
        return 0;
    }
    return car_optimizer_own_states(config, graph, param) + (matrix ? correction.c != 0 : correction.a != 0);
}

int car_optimizer_config_states(const car_optimizer_config *config) {
    int own = config->kind == CAR_OPTIMIZER_SGD ? config->momentum != 0 : 2;
    return own + (correction_of(config).a != 0);
}

int car_optimizer_states(const car_optimizer *optimizer) {
    return car_optimizer_config_states(&optimizer->config);
}

float *car_optimizer_state(car_optimizer *optimizer, int state, int param) {
    return optimizer->state[state] ? optimizer->state[state][param] : NULL;
}

car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out) {
    return car_optimizer_create_for(program, arena, config, NULL, 1, out);
}

static car_status create_rooms(car_optimizer *optimizer, const bool *wanted, int threads) {
    car_context *context = car_program_context(optimizer->program);
    size_t bytes = car_muon_room_bytes(optimizer->program, wanted);
    car_status status = CAR_OK;
    if (pthread_mutex_init(&optimizer->lock, NULL) != 0) {
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a mutex");
    }
    if (pthread_cond_init(&optimizer->given_back, NULL) != 0) {
        pthread_mutex_destroy(&optimizer->lock);
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a condition");
    }
    optimizer->has_lock = true;
    CAR_TRY(car_context_allocate(context, (size_t)threads, sizeof(void *), &optimizer->rooms));
    optimizer->room_count = threads;
    for (int r = 0; r < threads; r++) {
        CAR_TRY(car_arena_allocate(optimizer->arena, CAR_MEMORY_OPTIMIZER, bytes, &optimizer->rooms[r]));
        optimizer->rooms_free++;
    }
done:
    return status;
}

static void destroy_rooms(car_optimizer *optimizer) {
    for (int r = 0; r < optimizer->rooms_free; r++) {
        car_arena_release(optimizer->arena, optimizer->rooms[r]);
    }
    car_context_release(car_program_context(optimizer->program), optimizer->rooms, (size_t)optimizer->room_count,
                        sizeof(void *));
    if (optimizer->has_lock) {
        pthread_cond_destroy(&optimizer->given_back);
        pthread_mutex_destroy(&optimizer->lock);
    }
}

static car_status create_state(car_optimizer *optimizer, int state, const bool *wanted) {
    const car_graph *graph = car_program_graph(optimizer->program);
    int params = car_graph_param_count(graph);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(car_program_context(optimizer->program), (size_t)params, sizeof(void *),
                                 &optimizer->state[state]));
    for (int p = 0; p < params; p++) {
        size_t bytes = car_program_param_bytes(optimizer->program, p);
        if (state < car_optimizer_param_states(&optimizer->config, graph, p) && (!wanted || wanted[p])) {
            CAR_TRY(car_arena_allocate(optimizer->arena, CAR_MEMORY_OPTIMIZER, bytes, &optimizer->state[state][p]));
            memset(optimizer->state[state][p], 0, bytes);
        }
    }
done:
    return status;
}

car_status car_optimizer_create_for(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                    const bool *wanted, int threads, car_optimizer **out) {
    car_context *context = car_program_context(program);
    car_optimizer *optimizer = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *optimizer, &optimizer));
    optimizer->program = program;
    optimizer->arena = arena;
    optimizer->config = config ? *config : car_optimizer_config_default();
    optimizer->config.correction = correction_of(&optimizer->config);
    for (int state = 0; state < car_optimizer_states(optimizer); state++) {
        CAR_TRY(create_state(optimizer, state, wanted));
    }
    if (optimizer->config.kind == CAR_OPTIMIZER_MUON) {
        CAR_TRY(create_rooms(optimizer, wanted, threads));
    }
    *out = optimizer;
    optimizer = NULL;
done:
    car_optimizer_destroy(optimizer);
    return status;
}

void car_optimizer_destroy(car_optimizer *optimizer) {
    if (!optimizer) {
        return;
    }
    car_context *context = car_program_context(optimizer->program);
    int params = car_graph_param_count(car_program_graph(optimizer->program));
    for (int s = 0; s < CAR_OPTIMIZER_MAX_STATES; s++) {
        for (int p = 0; optimizer->state[s] && p < params; p++) {
            car_arena_release(optimizer->arena, optimizer->state[s][p]);
        }
        car_context_release(context, optimizer->state[s], (size_t)params, sizeof(void *));
    }
    destroy_rooms(optimizer);
    car_context_release(context, optimizer, 1, sizeof *optimizer);
}

int64_t car_optimizer_since(const car_optimizer *optimizer) {
    return optimizer->since;
}

void car_optimizer_set_since(car_optimizer *optimizer, int64_t since) {
    optimizer->since = since;
}
