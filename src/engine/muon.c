/* Muon's update of a matrix: momentum, five steps of Newton and Schulz, and a step along the result.
 *
 * State and weights are in stored layout, the iteration wants the canonical one. Where the two differ, the update is
 * exported before it and imported after it:
 *
 *   stored update ──► room 1 ──export──► room 0 ──iteration──► room 1 ──import──► room 0 ──► weights
 *   stored = canonical: ───────────────► room 0 ──iteration──► room 1 ──────────────────────► weights
 *
 * Each room is as large as the larger of the two layouts; behind room 1 lie the iteration's squares. */
#include "carousel/muon.h"

#include <math.h>

#include "base/base.h"
#include "engine/muon_internal.h"
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
    bool own = user && (user->kind == CAR_OP_CARRY || user->kind == CAR_OP_STAGE); /* not a matrix of a layer */
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

void car_optimizer_stage_bytes(const car_optimizer_config *config, const car_partition *partition, size_t *stage) {
    const car_graph *graph = partition->graph;
    for (int j = 0; j < partition->stage_count; j++) {
        stage[j] = 0;
        for (int l = partition->stages[j].first; l < partition->stages[j].end; l++) {
            const car_op *op = car_graph_op(graph, l);
            for (int p = 0; p < op->param_count; p++) {
                int states = car_optimizer_param_states(config, graph, op->params[p]);
                size_t bytes = car_param_bytes(car_graph_param(graph, op->params[p]));
                stage[j] += car_optimizer_user_of(graph, op->params[p]) == op ? (size_t)states * bytes : 0;
            }
        }
    }
}

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t room_floats(const car_muon_matrix *m, size_t stored) {
    size_t canonical = (size_t)(m->rows * m->columns);
    return stored > canonical ? stored : canonical;
}

/* Both rooms and the squares. */
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

size_t car_muon_room_bytes(const car_program *program, const bool *wanted) {
    const car_graph *graph = car_program_graph(program);
    size_t most = 0;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        size_t stored = car_program_param_bytes(program, p) / sizeof(float);
        bool taken = car_muon_takes(graph, p) && (!wanted || wanted[p]);
        size_t floats = taken ? scratch_floats(graph, p, stored) : 0;
        most = floats > most ? floats : most;
    }
    return most * sizeof(float);
}

/* ---- the update ------------------------------------------------------------------------------ */

car_status car_muon_update(const car_program *program, const car_muon_step *step, const float *from, float *to,
                           const float *sum) {
    const car_graph *graph = car_program_graph(program);
    const car_vector *vector = car_vector_select();
    car_muon_matrix m = car_muon_matrix_of(graph, step->param);
    int64_t count = (int64_t)(car_program_param_bytes(program, step->param) / sizeof(float));
    size_t room = room_floats(&m, (size_t)count);
    float *rooms[] = {step->scratch, step->scratch + room};
    bool own_layout = car_program_has_own_layout(program, step->param);
    car_status status = CAR_OK;
    vector->muon_momentum(rooms[own_layout], step->momentum_state, sum, (float)step->scale, (float)step->momentum,
                          count);
    if (own_layout) {
        CAR_TRY(car_program_export_param(program, step->param, rooms[1], rooms[0]));
    }
    if (!car_orthogonalize(rooms[0], m.rows, m.columns, rooms[1])) {
        return car_context_fail(car_program_context(program), CAR_ERROR_KERNEL,
                                "%s: oneDNN failed to multiply matrices for Muon",
                                car_graph_param(graph, step->param)->name);
    }
    if (own_layout) {
        CAR_TRY(car_program_import_param(program, step->param, rooms[1], rooms[0]));
    }
    double ratio = m.out_by_in ? (double)m.rows / (double)m.columns : (double)m.columns / (double)m.rows;
    const car_vector_muon muon = {.shrink = (float)(1 - step->lr * step->decay),
                                  .lr = (float)(step->lr * sqrt(ratio > 1 ? ratio : 1)),
                                  .c = (float)step->c};
    vector->muon_step(to, from, step->last_state, rooms[own_layout ? 0 : 1], &muon, count);
done:
    return status;
}
