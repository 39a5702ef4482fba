/* Muon: hidden matrices take a step along an orthogonal matrix, at the rate lr; AdamW updates all other parameters. The
 * update of a matrix is momentum, then five Newton-Schulz iterations that make it orthogonal, then a step along the
 * result.
 *
 * State and weights are in stored layout, but the iteration needs the canonical one. If the two differ, the update is
 * exported before the iteration and imported after it:
 *
 *   stored update ──► room 1 ──export──► room 0 ──iteration──► room 1 ──import──► room 0 ──► weights
 *   stored = canonical: ───────────────► room 0 ──iteration──► room 1 ──────────────────────► weights
 *
 * Each room is as large as the larger of the two layouts. The iteration's squares lie behind room 1. */
#include "carousel/muon.h"

#include <math.h>

#include "base/base.h"
#include "engine/optimizer_internal.h"
#include "kernels/kernel.h"
#include "kernels/orthogonal.h"
#include "kernels/program.h"
#include "kernels/vector/vector.h"

/* ---- which parameters ------------------------------------------------------------------------ */

static bool is_head(const car_graph *graph, int param) {
    const car_op *op = car_graph_head(graph) != CAR_NONE ? car_graph_op(graph, car_graph_head(graph)) : NULL;
    for (int p = 0; op && p < op->param_count; p++) {
        if (op->params[p] == param) {
            return true;
        }
    }
    return false;
}

bool car_muon_takes(const car_graph *graph, int param) {
    const car_param *p = car_graph_param(graph, param);
    const car_op *user = car_optimizer_user_of(graph, param);
    bool own = user && (user->kind == CAR_OP_CARRY ||
                        user->kind == CAR_OP_STAGE); /* user-defined, so not known to be a matrix */
    return p->role == CAR_PARAM_WEIGHT && p->shape.rank >= 2 && !own && !is_head(graph, param);
}

car_muon_matrix car_muon_matrix_of(const car_graph *graph, int param) {
    car_shape shape = car_graph_param(graph, param)->shape;
    const car_op *op = car_optimizer_user_of(graph, param);
    return (car_muon_matrix){.rows = shape.dim[0],
                             .columns = car_shape_elements(shape) / shape.dim[0],
                             .out_by_in = !(op && op->kind == CAR_OP_LINEAR && op->config.linear.in_by_out)};
}

double car_muon_flops(const car_partition *partition, int stage, bool done) {
    const car_graph *graph = partition->graph;
    double sum = 0;
    for (int l = partition->stages[stage].first; l < partition->stages[stage].end; l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (car_muon_takes(graph, op->params[p]) && car_optimizer_user_of(graph, op->params[p]) == op) {
                car_muon_matrix m = car_muon_matrix_of(graph, op->params[p]);
                sum += done ? car_orthogonal_flops_done(m.rows, m.columns) : car_orthogonal_flops(m.rows, m.columns);
            }
        }
    }
    return sum;
}

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t room_floats(const car_muon_matrix *m, size_t stored) {
    size_t canonical = (size_t)(m->rows * m->columns);
    return stored > canonical ? stored : canonical;
}

/* The floats of both rooms and the squares. */
static size_t scratch_floats(const car_graph *graph, int param, size_t stored) {
    car_muon_matrix m = car_muon_matrix_of(graph, param);
    size_t room = room_floats(&m, stored), canonical = (size_t)(m.rows * m.columns);
    return 2 * room + car_orthogonal_scratch(m.rows, m.columns) - canonical;
}

size_t car_muon_scratch_bytes(const car_graph *graph) {
    size_t most = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        size_t floats = car_muon_takes(graph, p) ? scratch_floats(graph, p, 0) : 0;
        most = floats > most ? floats : most;
    }
    return most * sizeof(float);
}

static size_t room_bytes(const car_optimizer *optimizer, const bool *wanted) {
    const car_graph *graph = car_program_graph(optimizer->program);
    size_t most = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        size_t stored = car_program_param_bytes(optimizer->program, p) / sizeof(float);
        bool taken = car_muon_takes(graph, p) && (!wanted || wanted[p]);
        size_t floats = taken ? scratch_floats(graph, p, stored) : 0;
        most = floats > most ? floats : most;
    }
    return most * sizeof(float);
}

static size_t scratch_bytes(const car_optimizer_config *config, const car_graph *graph) {
    (void)config;
    return car_muon_scratch_bytes(graph);
}

/* ---- state ------------------------------------------------------------------------------------ */

/* Matrices have momentum; the parameters that AdamW updates have two moments. */
static int states(const car_optimizer_config *config, const car_graph *graph, int param) {
    (void)config;
    return param != CAR_NONE && car_muon_takes(graph, param) ? 1 : 2;
}

static bool keeps_last(const car_optimizer_config *config, const car_graph *graph, int param) {
    return car_muon_takes(graph, param) ? config->correction.c != 0 : config->correction.a != 0;
}

static double memory(const car_optimizer_config *config) {
    return config->beta1;
}

/* ---- the update ------------------------------------------------------------------------------ */

/* Makes the update orthogonal. It is in rooms[0] or, if the layout is not canonical, in rooms[1]; see the top of the
 * file for where the result goes. */
static car_status orthogonalize(const car_program *program, int param, const car_muon_matrix *m, float *const *rooms) {
    bool own_layout = car_program_has_own_layout(program, param);
    car_status status = CAR_OK;
    if (own_layout) {
        CAR_TRY(car_program_export_param(program, param, rooms[1], rooms[0]));
    }
    if (!car_orthogonalize(rooms[0], m->rows, m->columns, rooms[1])) {
        return car_context_fail(car_program_context(program), CAR_ERROR_KERNEL,
                                "%s: oneDNN failed to multiply matrices for Muon",
                                car_graph_param(car_program_graph(program), param)->name);
    }
    if (own_layout) {
        CAR_TRY(car_program_import_param(program, param, rooms[1], rooms[0]));
    }
done:
    return status;
}

static car_status update_matrix(const car_param_update *u, float *room) {
    car_optimizer *optimizer = u->optimizer;
    const car_program *program = optimizer->program;
    const car_vector *vector = car_vector_select();
    const car_correction *correction = &optimizer->config.correction;
    car_muon_matrix m = car_muon_matrix_of(car_program_graph(program), u->param);
    float *rooms[] = {room, room + room_floats(&m, (size_t)u->count)};
    bool own_layout = car_program_has_own_layout(program, u->param);
    float *last = correction->c != 0 ? car_optimizer_state(optimizer, 1, u->param) : NULL;
    car_status status = CAR_OK;
    vector->muon_momentum(rooms[own_layout], car_optimizer_state(optimizer, 0, u->param), u->sum, (float)u->scale,
                          (float)optimizer->config.momentum, u->count);
    CAR_TRY(orthogonalize(program, u->param, &m, rooms));
    double ratio = m.out_by_in ? (double)m.rows / (double)m.columns : (double)m.columns / (double)m.rows;
    const car_vector_muon muon = {.shrink = (float)(1 - u->lr * car_optimizer_decay(u)),
                                  .lr = (float)(u->lr * sqrt(ratio > 1 ? ratio : 1)),
                                  .c = (float)(u->step > optimizer->since ? correction->c : 0)};
    vector->muon_step(u->to, u->from, last, rooms[own_layout ? 0 : 1], &muon, u->count);
done:
    return status;
}

static car_status update(const car_param_update *u) {
    car_optimizer *optimizer = u->optimizer;
    if (!car_muon_takes(car_program_graph(optimizer->program), u->param)) {
        return car_optimizer_update_adamw(u, u->lr * optimizer->config.adamw_ratio);
    }
    float *room = car_optimizer_take_room(optimizer);
    car_status status = update_matrix(u, room);
    car_optimizer_give_room_back(optimizer, room);
    return status;
}

static bool is_whole(const car_optimizer *optimizer, int param) {
    return car_muon_takes(car_program_graph(optimizer->program), param);
}

const car_optimizer_method car_optimizer_muon = {
    .info = {.name = "muon",
             .summary = "orthogonalized updates of hidden matrices, the rest by AdamW",
             .momentum = 0.95,
             .has_momentum = true,
             .has_betas = true,
             .two_rates = true,
             .uneven = true},
    .states = states,
    .keeps_last = keeps_last,
    .memory = memory,
    .warmup = {1, 4},
    .room_bytes = room_bytes,
    .scratch_bytes = scratch_bytes,
    .is_whole = is_whole,
    .update = update,
};
