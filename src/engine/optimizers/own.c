/* A user-defined optimizer (car_optimizer_class). It calls back with what the engine stores, in canonical shapes.
 *
 *   elementwise    blocks of elements where they are, in stored order; the mean gradient of a block is on the stack
 *   whole          a room: gradient | weights | states | scratch. Weights and states are copied there only if their
 *                  layout is not the canonical one; otherwise the callback works on them in place
 *
 * A padded layout is exported even if the class is elementwise: padding has to stay zero, and a callback need not know
 * about it. */
#include <ctype.h>
#include <string.h>

#include "base/base.h"
#include "engine/optimizer_internal.h"
#include "kernels/program.h"

enum { BLOCK = 2048, ALIGNMENT = 64 };

/* ---- checks ----------------------------------------------------------------------------------- */

static bool is_name(const char *name) {
    const char *c = name;
    while (c && (isalnum((unsigned char)*c) || (*c && strchr("_-", *c)))) {
        c++;
    }
    return c && c > name && *c == '\0' && !isdigit((unsigned char)name[0]);
}

static car_status check_states(car_context *context, const car_optimizer_class *own) {
    if (own->state_count < 0 || own->state_count > CAR_OPTIMIZER_OWN_STATES) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "optimizer %s: it can have 0 to %d states, not %d",
                                own->name, CAR_OPTIMIZER_OWN_STATES, own->state_count);
    }
    for (int s = 0; s < own->state_count; s++) {
        if (!is_name(own->state_names[s])) {
            return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                    "optimizer %s: state %d is named '%s'; checkpoints use that name, so it must "
                                    "consist of letters, digits, _ and -, and must not start with a digit",
                                    own->name, s, own->state_names[s] ? own->state_names[s] : "");
        }
        for (int before = 0; before < s; before++) {
            if (strcmp(own->state_names[before], own->state_names[s]) == 0) {
                return car_context_fail(context, CAR_ERROR_ARGUMENT, "optimizer %s: two of its states are named '%s'",
                                        own->name, own->state_names[s]);
            }
        }
    }
    return CAR_OK;
}

car_status car_optimizer_check_own(car_context *context, const car_optimizer_class *own, const car_graph *graph) {
    if (!own || !is_name(own->name)) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "the name of an optimizer must consist of letters, digits, _ and -, and must not start with a digit");
    }
    if (!own->update) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "optimizer %s has no update function", own->name);
    }
    if (own->elementwise && own->scratch_bytes) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "optimizer %s is elementwise and asks for scratch_bytes: only updates of whole "
                                "parameters can have scratch memory, because elementwise calls are of any size",
                                own->name);
    }
    for (int p = 0; graph && !own->takes_doubles && p < car_graph_param_count(graph); p++) {
        if (car_graph_param(graph, p)->dtype == CAR_F64) {
            return car_context_fail(
                context, CAR_ERROR_UNSUPPORTED,
                "optimizer %s: parameter %s has doubles, but the optimizer does not set takes_doubles", own->name,
                car_graph_param(graph, p)->name);
        }
    }
    return check_states(context, own);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static int states(const car_optimizer_config *config, const car_graph *graph, int param) {
    (void)graph, (void)param;
    return config->own->state_count;
}

static double memory(const car_optimizer_config *config) {
    (void)config;
    return 0;
}

static bool is_moved(const car_optimizer *optimizer, int param) {
    return !car_program_is_double(optimizer->program, param) && car_program_has_own_layout(optimizer->program, param);
}

static bool is_whole(const car_optimizer *optimizer, int param) {
    const car_param *p = car_graph_param(car_program_graph(optimizer->program), param);
    bool padded = car_program_param_bytes(optimizer->program, param) != car_param_bytes(p);
    return !optimizer->config.own->elementwise || (is_moved(optimizer, param) && padded);
}

/* The bytes of one array of a parameter in canonical layout. */
static size_t array_bytes(const car_param *param) {
    return car_round_up((size_t)car_shape_elements(param->shape) * car_dtype_bytes(param->dtype), ALIGNMENT);
}

/* The bytes of a room: gradient, scratch and, if they are copied (`moved`), weights and states. */
static size_t whole_bytes(const car_optimizer_class *own, const car_param *param, bool moved) {
    size_t arrays = 1 + (moved ? 1 + (size_t)own->state_count : 0);
    return arrays * array_bytes(param) + (own->scratch_bytes ? own->scratch_bytes(own->user, param->shape) : 0);
}

static size_t room_bytes(const car_optimizer *optimizer, const bool *wanted) {
    const car_graph *graph = car_program_graph(optimizer->program);
    size_t most = ALIGNMENT;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        const car_param *param = car_graph_param(graph, p);
        bool counts = param->role != CAR_PARAM_STATISTIC && (!wanted || wanted[p]) && is_whole(optimizer, p);
        size_t bytes = counts ? whole_bytes(optimizer->config.own, param, is_moved(optimizer, p)) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* An estimate: without a program it is not known which parameters are copied. */
static size_t scratch_bytes(const car_optimizer_config *config, const car_graph *graph) {
    size_t most = 0;
    for (int p = 0; !config->own->elementwise && p < car_graph_param_count(graph); p++) {
        const car_param *param = car_graph_param(graph, p);
        size_t bytes = param->role == CAR_PARAM_STATISTIC ? 0 : whole_bytes(config->own, param, false);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- the update ------------------------------------------------------------------------------ */

/* Computes the mean gradient; for floats in float, like the optimizers of the library. */
static void scale_sum(car_dtype dtype, double scale, const void *sum, void *gradient, int64_t count) {
    if (dtype == CAR_F64) {
        for (int64_t i = 0; i < count; i++) {
            ((double *)gradient)[i] = scale * ((const double *)sum)[i];
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        ((float *)gradient)[i] = (float)scale * ((const float *)sum)[i];
    }
}

static car_status call(const car_optimizer *optimizer, const car_optimizer_io *io) {
    const car_optimizer_class *own = optimizer->config.own;
    car_status status = own->update(io);
    return status == CAR_OK ? CAR_OK
                            : car_context_fail(io->context, status, "optimizer %s failed with %s in update %lld: %s",
                                               own->name, io->param, (long long)io->step + 1, car_status_text(status));
}

static car_status update_blocks(car_optimizer *optimizer, int param, int64_t first, int64_t count,
                                const car_optimizer_io *whole, double scale, const void *sum) {
    double block[BLOCK]; /* or the same number of floats */
    size_t size = car_dtype_bytes(whole->dtype);
    for (int64_t done = 0; done < count; done += BLOCK) {
        size_t at = (size_t)(first + done) * size;
        car_optimizer_io io = *whole;
        io.count = count - done < BLOCK ? count - done : BLOCK;
        io.weights = (char *)whole->weights + at;
        io.gradient = block;
        for (int s = 0; s < optimizer->config.own->state_count; s++) {
            io.states[s] = (char *)(void *)car_optimizer_state(optimizer, s, param) + at;
        }
        scale_sum(io.dtype, scale, (const char *)sum + at, block, io.count);
        car_status status = call(optimizer, &io);
        if (status != CAR_OK) {
            return status;
        }
    }
    return CAR_OK;
}

/* Updates a whole parameter whose layout is not canonical, by way of copies in the room. */
static car_status update_moved(car_optimizer *optimizer, int param, car_optimizer_io *io, char *room, double scale,
                               const float *sum, float *weights) {
    const car_program *program = optimizer->program;
    size_t bytes = array_bytes(car_graph_param(car_program_graph(program), param));
    int kept = optimizer->config.own->state_count;
    car_status status = CAR_OK;
    float *gradient = (float *)(void *)room;
    io->weights = room + bytes;
    CAR_TRY(car_program_export_param(program, param, sum, gradient));
    scale_sum(io->dtype, scale, gradient, gradient, io->count);
    CAR_TRY(car_program_export_param(program, param, weights, io->weights));
    for (int s = 0; s < kept; s++) {
        io->states[s] = room + (2 + (size_t)s) * bytes;
        CAR_TRY(car_program_export_param(program, param, car_optimizer_state(optimizer, s, param), io->states[s]));
    }
    io->gradient = gradient;
    io->scratch = room + (2 + (size_t)kept) * bytes;
    CAR_TRY(call(optimizer, io));
    CAR_TRY(car_program_import_param(program, param, io->weights, weights));
    for (int s = 0; s < kept; s++) {
        CAR_TRY(car_program_import_param(program, param, io->states[s], car_optimizer_state(optimizer, s, param)));
    }
done:
    return status;
}

static car_status update_in_place(car_optimizer *optimizer, int param, car_optimizer_io *io, char *room, double scale,
                                  const void *sum) {
    io->gradient = room;
    io->scratch = room + array_bytes(car_graph_param(car_program_graph(optimizer->program), param));
    for (int s = 0; s < optimizer->config.own->state_count; s++) {
        io->states[s] = car_optimizer_state(optimizer, s, param);
    }
    scale_sum(io->dtype, scale, sum, room, io->count);
    return call(optimizer, io);
}

car_status car_optimizer_update_own(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                    double lr, double scale, const void *from, void *to, const void *sum) {
    const car_param *p = car_graph_param(car_program_graph(optimizer->program), param);
    const car_param_update asked = {.optimizer = optimizer, .param = param, .step = step};
    size_t size = car_dtype_bytes(p->dtype), at = (size_t)first * size;
    car_optimizer_io io = {.user = optimizer->config.own->user,
                           .param = p->name,
                           .shape = p->shape,
                           .role = p->role,
                           .dtype = p->dtype,
                           .count = car_shape_elements(p->shape),
                           .step = step,
                           .lr = lr,
                           .weight_decay = car_optimizer_decay(&asked),
                           .weights = to,
                           .context = car_program_context(optimizer->program)};
    if (from != to) {
        memcpy((char *)to + at, (const char *)from + at, (size_t)count * size);
    }
    if (!is_whole(optimizer, param)) {
        return update_blocks(optimizer, param, first, count, &io, scale, sum);
    }
    char *room = car_optimizer_take_room(optimizer);
    car_status status = is_moved(optimizer, param) ? update_moved(optimizer, param, &io, room, scale, sum, to)
                                                   : update_in_place(optimizer, param, &io, room, scale, sum);
    car_optimizer_give_room_back(optimizer, room);
    return status;
}

static car_status update(const car_param_update *u) {
    return car_optimizer_update_own(u->optimizer, u->param, u->first, u->count, u->step, u->lr, u->scale,
                                    u->from - u->first, u->to - u->first, u->sum - u->first);
}

const car_optimizer_method car_optimizer_own = {
    .info = {.name = "own", .summary = "a custom optimizer"},
    .states = states,
    .memory = memory,
    .corrects_memory = true,
    .warmup = {0, 1},
    .room_bytes = room_bytes,
    .scratch_bytes = scratch_bytes,
    .is_whole = is_whole,
    .update = update,
};
