/* Optimizers: names, configurations, and the state of every parameter. The methods are in optimizers/. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "engine/arithmetic.h"
#include "engine/optimizer_internal.h"

static const car_optimizer_method *const methods[CAR_OPTIMIZERS] = {
#define METHOD(code, name) [code] = &car_optimizer_##name,
    CAR_OPTIMIZER_LIST(METHOD)
#undef METHOD
};

const car_optimizer_method *car_optimizer_method_of(const car_optimizer_config *config) {
    return config->own ? &car_optimizer_own : methods[config->kind];
}

const car_optimizer_info *car_optimizer_info_of(car_optimizer_kind kind) {
    return &methods[kind]->info;
}

const char *car_optimizer_text(car_optimizer_kind kind) {
    return kind < CAR_OPTIMIZERS ? methods[kind]->info.name : "unknown";
}

bool car_optimizer_is_known(const char *name, car_optimizer_kind *out) {
    for (int k = 0; k < CAR_OPTIMIZERS; k++) {
        if (strcmp(name, methods[k]->info.name) == 0) {
            *out = (car_optimizer_kind)k;
            return true;
        }
    }
    return false;
}

static const char family[] = "optimizer";

car_status car_optimizer_register(car_context *context, const car_optimizer_class *own) {
    CAR_REQUIRE(NULL, context);
    car_optimizer_kind kind;
    car_status status = car_optimizer_check_own(context, own, NULL);
    if (status == CAR_OK && car_optimizer_is_known(own->name, &kind)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "an optimizer named '%s' already exists", own->name);
    }
    return status == CAR_OK ? car_context_register(context, family, own->name, own) : status;
}

static const char *name_at(car_context *context, int index) {
    return index < CAR_OPTIMIZERS ? methods[index]->info.name
                                  : car_context_registered_name(context, family, index - CAR_OPTIMIZERS);
}

car_status car_optimizer_find(car_context *context, const char *name, car_optimizer_config *config) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, config);
    char known[512] = "";
    size_t used = 0;
    const car_optimizer_class *own = car_context_find_registered(context, family, name);
    if (own || car_optimizer_is_known(name, &config->kind)) {
        config->own = own;
        return CAR_OK;
    }
    for (int k = 0; name_at(context, k) && used < sizeof known; k++) {
        const char *before = k == 0 ? "" : name_at(context, k + 1) ? ", " : " and ";
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", before, name_at(context, k));
    }
    return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "there is no optimizer '%s'; the optimizers are %s", name,
                            known);
}

const char *car_optimizer_config_name(const car_optimizer_config *config) {
    return config->own ? config->own->name : car_optimizer_text(config->kind);
}

car_optimizer_config car_optimizer_config_default(void) {
    return (car_optimizer_config){
        .kind = CAR_OPTIMIZER_SGD, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .adamw_ratio = 1};
}

bool car_optimizer_can_correct(const car_optimizer_config *config) {
    const car_optimizer_method *method = car_optimizer_method_of(config);
    return !method->corrects_memory || method->memory(config) != 0;
}

/* The correction that is used. Nesterov momentum is one, too. */
static car_correction correction_of(const car_optimizer_config *config) {
    if (!car_optimizer_can_correct(config)) {
        return (car_correction){0};
    }
    bool nesterov = car_optimizer_method_of(config)->info.has_nesterov && config->nesterov;
    return nesterov ? (car_correction){.c = config->momentum} : config->correction;
}

/* The number of states of a parameter, without the average. */
static int own_states(const car_optimizer_config *config, const car_graph *graph, int param) {
    const car_optimizer_method *method = car_optimizer_method_of(config);
    car_optimizer_config resolved = *config;
    resolved.correction = correction_of(config);
    if (car_graph_param(graph, param)->role == CAR_PARAM_STATISTIC || car_optimizer_freezes(config, graph, param)) {
        return 0;
    }
    bool last = method->keeps_last ? method->keeps_last(&resolved, graph, param) : resolved.correction.a != 0;
    return method->states(config, graph, param) + last;
}

bool car_optimizer_keeps(const car_optimizer_config *config, const car_graph *graph, int param, int state) {
    if (state == CAR_OPTIMIZER_AVERAGE) {
        return config->average > 0 && !car_optimizer_freezes(config, graph, param);
    }
    return state < own_states(config, graph, param);
}

int car_optimizer_param_states(const car_optimizer_config *config, const car_graph *graph, int param) {
    return own_states(config, graph, param) + car_optimizer_keeps(config, graph, param, CAR_OPTIMIZER_AVERAGE);
}

size_t car_optimizer_state_bytes(const car_optimizer_config *config, const car_graph *graph) {
    size_t bytes = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        bytes += (size_t)car_optimizer_param_states(config, graph, p) * car_param_bytes(car_graph_param(graph, p));
    }
    return bytes;
}

/* The most states of any parameter, without the average. */
static int config_states(const car_optimizer_config *config) {
    return car_optimizer_method_of(config)->states(config, NULL, CAR_NONE) + (correction_of(config).a != 0);
}

int car_optimizer_config_states(const car_optimizer_config *config) {
    return config_states(config) + (config->average > 0);
}

size_t car_optimizer_scratch_bytes(const car_optimizer_config *config, const car_graph *graph) {
    const car_optimizer_method *method = car_optimizer_method_of(config);
    return method->scratch_bytes ? method->scratch_bytes(config, graph) : 0;
}

int car_optimizer_states(const car_optimizer *optimizer) {
    return optimizer->config.average > 0 ? CAR_OPTIMIZER_AVERAGE + 1 : config_states(&optimizer->config);
}

float *car_optimizer_state(car_optimizer *optimizer, int state, int param) {
    return optimizer->state[state] ? optimizer->state[state][param] : NULL;
}

car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(car_program_context(program), arena);
    CAR_REQUIRE(car_program_context(program), out);
    return car_optimizer_create_for(program, arena, config, NULL, 1, out);
}

static car_status create_rooms(car_optimizer *optimizer, const bool *wanted, int threads) {
    car_context *context = car_program_context(optimizer->program);
    size_t bytes = optimizer->method->room_bytes(optimizer, wanted);
    car_status status = CAR_OK;
    CAR_TRY(car_clock_create_lock(context, &optimizer->lock, &optimizer->given_back));
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
        if (car_optimizer_keeps(&optimizer->config, graph, p, state) && (!wanted || wanted[p])) {
            CAR_TRY(car_arena_allocate(optimizer->arena, CAR_MEMORY_OPTIMIZER, bytes, &optimizer->state[state][p]));
            memset(optimizer->state[state][p], 0, bytes);
        }
    }
done:
    return status;
}

static bool is_at_least_zero(double value) {
    return value >= 0 && isfinite(value);
}

bool car_optimizer_find_mistake(const car_optimizer_config *config, car_optimizer_mistake *out) {
    static const char at_least_zero[] = "a number of at least 0", below_one[] = "at least 0 and below 1";
    bool known = config->own || (unsigned)config->kind < CAR_OPTIMIZERS;
    bool listed = config->rule_count == 0 || (config->rule_count > 0 && config->rules);
    const struct {
        car_optimizer_mistake mistake;
        bool fine;
    } checks[] = {
        {{"kind", (double)config->kind, "a car_optimizer_kind"}, known},
        {{"momentum", config->momentum, at_least_zero}, is_at_least_zero(config->momentum)},
        {{"weight_decay", config->weight_decay, at_least_zero}, is_at_least_zero(config->weight_decay)},
        {{"average", config->average, below_one}, config->average >= 0 && config->average < 1},
        {{"correction.c", config->correction.c, at_least_zero}, is_at_least_zero(config->correction.c)},
        {{"correction.a", config->correction.a, at_least_zero}, is_at_least_zero(config->correction.a)},
        {{"beta1", config->beta1, below_one}, config->beta1 >= 0 && config->beta1 < 1},
        {{"beta2", config->beta2, below_one}, config->beta2 >= 0 && config->beta2 < 1},
        {{"eps", config->eps, at_least_zero}, is_at_least_zero(config->eps)},
        {{"adamw_ratio", config->adamw_ratio, at_least_zero}, is_at_least_zero(config->adamw_ratio)},
        {{"rule_count", config->rule_count, "the number of settings.rules"}, listed},
    };
    for (size_t c = 0; c < sizeof checks / sizeof checks[0]; c++) {
        if (!checks[c].fine) {
            *out = checks[c].mistake;
            return true;
        }
    }
    return false;
}

car_status car_optimizer_create_for(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                    const bool *wanted, int threads, car_optimizer **out) {
    car_context *context = car_program_context(program);
    car_optimizer_mistake mistake;
    car_optimizer *optimizer = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (config && car_optimizer_find_mistake(config, &mistake)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "the optimizer's %s is %.15g, but must be %s",
                                mistake.field, mistake.value, mistake.wanted);
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *optimizer, &optimizer));
    optimizer->program = program;
    optimizer->arena = arena;
    optimizer->config = config ? *config : car_optimizer_config_default();
    optimizer->config.correction = correction_of(&optimizer->config);
    optimizer->method = car_optimizer_method_of(&optimizer->config);
    if (optimizer->config.own) {
        CAR_TRY(car_optimizer_check_own(context, optimizer->config.own, car_program_graph(program)));
    }
    CAR_TRY(car_optimizer_resolve_rules(optimizer));
    for (int state = 0; state < car_optimizer_states(optimizer); state++) {
        CAR_TRY(create_state(optimizer, state, wanted));
    }
    if (optimizer->method->room_bytes) {
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
    car_context_release(context, optimizer->lr_scale, optimizer->lr_scale ? (size_t)params : 0,
                        sizeof *optimizer->lr_scale);
    car_context_release(context, optimizer, 1, sizeof *optimizer);
}

void car_optimizer_get_since(const car_optimizer *optimizer, car_snapshot_numbers *out) {
    out->since = optimizer->since;
    out->averaged = optimizer->averaged;
}

void car_optimizer_set_since(car_optimizer *optimizer, const car_snapshot_numbers *numbers) {
    optimizer->since = numbers->since;
    optimizer->averaged = numbers->averaged;
}

/* ---- updates --------------------------------------------------------------------------------- */

car_status car_optimizer_update_range(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                      double lr, double scale, const float *from, float *to, const float *sum) {
    const car_param_update update = {.optimizer = optimizer,
                                     .param = param,
                                     .first = first,
                                     .count = count,
                                     .step = step,
                                     .lr = optimizer->lr_scale ? lr * optimizer->lr_scale[param] : lr,
                                     .scale = scale,
                                     .from = from + first,
                                     .sum = sum + first,
                                     .to = to + first};
    return optimizer->method->update(&update);
}

car_status car_optimizer_update(car_optimizer *optimizer, int param, int64_t step, double lr, double scale,
                                const float *from, float *to, const float *sum) {
    CAR_REQUIRE(NULL, optimizer);
    CAR_REQUIRE(car_program_context(optimizer->program), from);
    CAR_REQUIRE(car_program_context(optimizer->program), to);
    CAR_REQUIRE(car_program_context(optimizer->program), sum);
    int64_t count = car_engine_count(optimizer->program, param);
    if (car_program_is_double(optimizer->program, param)) {
        return car_optimizer_update_doubles(optimizer, param, 0, count, step, lr, scale, (const void *)from, (void *)to,
                                            (const void *)sum);
    }
    return car_optimizer_update_range(optimizer, param, 0, count, step, lr, scale, from, to, sum);
}

bool car_optimizer_is_whole(const car_optimizer *optimizer, int param) {
    return optimizer->method->is_whole && optimizer->method->is_whole(optimizer, param);
}

float *car_optimizer_state_of(const car_param_update *update, int state) {
    float *values = car_optimizer_state(update->optimizer, state, update->param);
    return values ? values + update->first : NULL;
}

double car_optimizer_decay(const car_param_update *update) {
    const car_optimizer_config *config = &update->optimizer->config;
    const car_param *p = car_graph_param(car_program_graph(update->optimizer->program), update->param);
    bool exempt = p->shape.rank == 1 || p->role == CAR_PARAM_NORM || p->role == CAR_PARAM_BIAS;
    return config->decay_weights_only && exempt ? 0.0 : config->weight_decay;
}

double car_optimizer_change_weight(const car_param_update *update) {
    return update->step > update->optimizer->since ? update->optimizer->config.correction.a : 0;
}

float *car_optimizer_last_gradient(const car_param_update *update) {
    car_optimizer *optimizer = update->optimizer;
    bool kept = optimizer->config.correction.a != 0;
    int own = optimizer->method->states(&optimizer->config, car_program_graph(optimizer->program), update->param);
    return kept ? car_optimizer_state_of(update, own) : NULL;
}

void *car_optimizer_take_room(car_optimizer *optimizer) {
    pthread_mutex_lock(&optimizer->lock);
    while (optimizer->rooms_free == 0) {
        pthread_cond_wait(&optimizer->given_back, &optimizer->lock);
    }
    void *room = optimizer->rooms[--optimizer->rooms_free];
    pthread_mutex_unlock(&optimizer->lock);
    return room;
}

void car_optimizer_give_room_back(car_optimizer *optimizer, void *room) {
    pthread_mutex_lock(&optimizer->lock);
    optimizer->rooms[optimizer->rooms_free++] = room;
    pthread_cond_signal(&optimizer->given_back);
    pthread_mutex_unlock(&optimizer->lock);
}
