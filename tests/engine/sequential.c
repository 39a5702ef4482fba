/* The sequential trainer. Slow and plain on purpose: one loop over steps, one over workers, one over
 * operations, and every version of the weights kept. */
#include "engine/sequential.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/orthogonal.h"
#include "kernels/program.h"
#include "kernels/vector/vector.h"

enum { STATES = 3 }; /* two of the optimizer, and the last gradient */

struct car_sequential {
    const car_program *program;
    const car_graph *graph;
    car_context *context;
    car_sequential_config config;
    int operations, params, uses, stages;
    int *stage;          /* per operation */
    int *home;           /* per parameter: the stage of the first operation that uses it */
    car_weights **theta; /* 0 .. T */
    car_gradients *own;  /* of one micro-batch */
    car_gradients *part; /* over one worker's */
    car_gradients *sum;  /* over workers, for each use */
    int batches;         /* M*N */
    float **state[STATES];
    double *loss, *norm; /* per step */
    car_lane *lane;
    car_tape *tape;
};

/* ---- stages ---------------------------------------------------------------------------------- */

/* Operation l belongs to stage floor(S * phi), phi = the share of the forward FLOPs that lies before it. FLOPs are
 * whole numbers, so this is exact. */
static void find_stages(car_sequential *s) {
    int64_t total = 0, before = 0;
    for (int l = 0; l < s->operations; l++) {
        total += llround(car_graph_op(s->graph, l)->flops_forward);
    }
    for (int p = 0; p < s->params; p++) {
        s->home[p] = CAR_NONE;
    }
    for (int l = 0; l < s->operations; l++) {
        const car_op *op = car_graph_op(s->graph, l);
        int64_t stage = s->stages * before / total;
        s->stage[l] =
            stage < s->stages ? (int)stage : s->stages - 1; /* what is free of cost may begin at the very end */
        before += llround(op->flops_forward);
        for (int p = 0; p < op->param_count; p++) {
            if (s->home[op->params[p]] == CAR_NONE) {
                s->home[op->params[p]] = s->stage[l];
            }
        }
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t bytes_of(const car_sequential *s, int param) {
    return car_program_param_bytes(s->program, param);
}

static int64_t count_of(const car_sequential *s, int param) {
    return (int64_t)(bytes_of(s, param) / sizeof(float));
}

static car_status allocate(car_sequential *s, car_arena *arena) {
    size_t steps = (size_t)s->config.steps;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(s->context, (size_t)s->operations, sizeof *s->stage, &s->stage));
    CAR_TRY(car_context_allocate(s->context, (size_t)s->params, sizeof *s->home, &s->home));
    CAR_TRY(car_context_allocate(s->context, steps, sizeof *s->loss, &s->loss));
    CAR_TRY(car_context_allocate(s->context, steps, sizeof *s->norm, &s->norm));
    CAR_TRY(car_context_allocate(s->context, steps + 1, sizeof(void *), &s->theta));
    for (size_t t = 0; t <= steps; t++) {
        CAR_TRY(car_weights_create(s->program, arena, &s->theta[t]));
    }
    for (int k = 0; k < STATES; k++) {
        CAR_TRY(car_context_allocate(s->context, (size_t)s->params, sizeof(void *), &s->state[k]));
        for (int p = 0; p < s->params; p++) {
            CAR_TRY(car_context_allocate(s->context, bytes_of(s, p), 1, &s->state[k][p]));
        }
    }
    CAR_TRY(car_gradients_create(s->program, arena, &s->own));
    CAR_TRY(car_gradients_create(s->program, arena, &s->part));
    CAR_TRY(car_gradients_create(s->program, arena, &s->sum));
    CAR_TRY(car_lane_create(s->program, arena, &s->lane));
    CAR_TRY(car_tape_create(s->program, arena, &s->tape));
done:
    return status;
}

car_status car_sequential_create(const car_program *program, car_arena *arena, const car_sequential_config *config,
                                 car_sequential **out) {
    car_context *context = car_program_context(program);
    const car_graph *graph = car_program_graph(program);
    car_sequential *s = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *s, &s));
    s->program = program;
    s->graph = graph;
    s->context = context;
    s->config = *config;
    s->operations = car_graph_op_count(graph);
    s->params = car_graph_param_count(graph);
    s->uses = car_graph_use_count(graph);
    s->stages = config->workers * config->per_worker;
    s->config.accumulate = config->accumulate > 0 ? config->accumulate : 1;
    s->batches = config->workers * s->config.accumulate;
    CAR_TRY(allocate(s, arena));
    find_stages(s);
    *out = s;
    s = NULL;
done:
    car_sequential_destroy(s);
    return status;
}

void car_sequential_destroy(car_sequential *s) {
    if (!s) {
        return;
    }
    size_t steps = (size_t)s->config.steps;
    car_tape_destroy(s->tape);
    car_lane_destroy(s->lane);
    car_gradients_destroy(s->part);
    car_gradients_destroy(s->sum);
    car_gradients_destroy(s->own);
    for (int k = 0; k < STATES; k++) {
        for (int p = 0; s->state[k] && p < s->params; p++) {
            car_context_release(s->context, s->state[k][p], bytes_of(s, p), 1);
        }
        car_context_release(s->context, s->state[k], (size_t)s->params, sizeof(void *));
    }
    for (size_t t = 0; s->theta && t <= steps; t++) {
        car_weights_destroy(s->theta[t]);
    }
    car_context_release(s->context, s->theta, steps + 1, sizeof(void *));
    car_context_release(s->context, s->norm, steps, sizeof *s->norm);
    car_context_release(s->context, s->loss, steps, sizeof *s->loss);
    car_context_release(s->context, s->home, (size_t)s->params, sizeof *s->home);
    car_context_release(s->context, s->stage, (size_t)s->operations, sizeof *s->stage);
    car_context_release(s->context, s, 1, sizeof *s);
}

car_weights *car_sequential_weights(const car_sequential *s, int64_t t) {
    return s->theta[t];
}

double car_sequential_loss(const car_sequential *s, int64_t t) {
    return s->loss[t];
}

double car_sequential_norm(const car_sequential *s, int64_t t) {
    return s->norm[t];
}

int car_sequential_stage(const car_sequential *s, int op) {
    return s->stage[op];
}

/* ---- one worker's gradient ------------------------------------------------------------------- */

/* The weights that micro-batch i of step t uses for stage j; theta_-1 is theta_0. Only the first of a worker may be late. */
static int64_t version_of(const car_sequential *s, int64_t t, int i, int j) {
    bool fresh = true, first = i < s->config.workers;
    if (s->config.rule == CAR_RULE_CDP_V1) {
        fresh = !first;
    } else if (s->config.rule == CAR_RULE_CDP_V2) {
        fresh = !first || s->config.per_worker * (i + 1) + j >= s->stages + s->config.freshness_slack;
    }
    return fresh || t == 0 ? t : t - 1;
}

/* The rule goes by the home of the parameters. An operation's parameters have one home together: a tied weight has
 * no bias beside it. */
static car_status weights_of(const car_sequential *s, int64_t t, int i, int l, car_weights **out) {
    const car_op *op = car_graph_op(s->graph, l);
    int home = op->param_count > 0 ? s->home[op->params[0]] : s->stage[l];
    for (int p = 0; p < op->param_count; p++) {
        if (s->home[op->params[p]] != home) {
            return car_context_fail(s->context, CAR_ERROR_UNSUPPORTED, "%s has parameters of two homes", op->name);
        }
    }
    *out = s->theta[version_of(s, t, i, home)];
    return CAR_OK;
}

static car_status run_batch(car_sequential *s, int64_t t, int i, double *loss) {
    uint64_t key = car_random_u64(car_random_key(s->config.seed, "dropout"), (uint64_t)(t * s->batches + i));
    car_weights *weights = NULL;
    car_status status = CAR_OK;
    car_tape_begin(s->tape, key, true);
    CAR_TRY(s->config.feed(s->config.feed_user, t, i, s->tape));
    for (int l = 0; l < s->operations; l++) {
        CAR_TRY(weights_of(s, t, i, l, &weights));
        CAR_TRY(car_tape_forward(s->tape, s->lane, weights, l, l + 1));
    }
    *loss = car_tape_loss(s->tape);
    for (int l = s->operations - 1; l >= 0; l--) {
        CAR_TRY(weights_of(s, t, i, l, &weights));
        CAR_TRY(car_tape_backward(s->tape, s->lane, weights, s->own, l, l + 1));
    }
done:
    return status;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static bool is_statistic(const car_sequential *s, int param) {
    return car_graph_param(s->graph, param)->role == CAR_PARAM_STATISTIC;
}

/* Of the BatchNorm that a statistic belongs to. */
static double momentum_of(const car_sequential *s, int param) {
    for (int l = 0; l < s->operations; l++) {
        const car_op *op = car_graph_op(s->graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (op->params[p] == param) {
                return op->config.batchnorm.momentum;
            }
        }
    }
    return NAN;
}

/* Ring order. Gradients: g_0 + g_1 + ...; statistics: acc = (1-m) * acc + m * s_i, from 0. */
static void add_batch(car_sequential *s, car_gradients *to, bool first) {
    const car_vector *vector = car_vector_select();
    for (int u = 0; u < s->uses; u++) {
        int param = car_graph_use_param(s->graph, u);
        float *sum = car_gradients_data(to, u);
        const float *own = car_gradients_data(s->own, u);
        if (is_statistic(s, param)) {
            float m = (float)momentum_of(s, param);
            if (first) {
                memset(sum, 0, bytes_of(s, param));
            }
            vector->blend(sum, own, 1.0f - m, m, count_of(s, param));
        } else if (first) {
            memcpy(sum, own, bytes_of(s, param));
        } else {
            vector->accumulate(sum, own, count_of(s, param));
        }
    }
}

/* By worker: p_0 + p_1 + ..., the p being the workers' own sums; statistics: acc = (1-m)^M * acc + own. */
static void add_worker(car_sequential *s, bool first) {
    for (int u = 0; u < s->uses; u++) {
        int param = car_graph_use_param(s->graph, u);
        float *sum = car_gradients_data(s->sum, u);
        const float *own = car_gradients_data(s->part, u);
        double keep = 1, m = is_statistic(s, param) ? momentum_of(s, param) : 0;
        for (int r = 0; r < s->config.accumulate; r++) {
            keep *= 1 - m;
        }
        if (first) {
            memcpy(sum, own, bytes_of(s, param));
        } else if (is_statistic(s, param)) {
            car_vector_select()->blend(sum, own, (float)keep, 1.0f, count_of(s, param));
        } else {
            car_vector_select()->accumulate(sum, own, count_of(s, param));
        }
    }
}

/* Adds the sums of all uses of each parameter, in ascending order, into that of its first use. */
static void join_uses(car_sequential *s) {
    for (int first = 0; first < s->uses; first++) {
        int param = car_graph_use_param(s->graph, first);
        for (int u = first + 1; u < s->uses; u++) {
            if (car_graph_use_param(s->graph, u) == param) {
                car_vector_select()->accumulate(car_gradients_data(s->sum, first), car_gradients_data(s->sum, u),
                                                count_of(s, param));
            }
        }
    }
}

static float *sum_of(const car_sequential *s, int param) {
    for (int u = 0; u < s->uses; u++) {
        if (car_graph_use_param(s->graph, u) == param) {
            return car_gradients_data(s->sum, u);
        }
    }
    return NULL;
}

/* The norm of the averaged gradient: squares are added stage by stage, in order of uses within a stage, so that
 * the rounding is the same for whoever follows that order. */
static double norm_of(const car_sequential *s) {
    double all = 0;
    for (int j = 0; j < s->stages; j++) {
        double stage = 0;
        for (int u = 0; u < s->uses; u++) {
            int param = car_graph_use_param(s->graph, u);
            if (s->home[param] == j && !is_statistic(s, param) && sum_of(s, param) == car_gradients_data(s->sum, u)) {
                stage += car_vector_select()->square_sum(sum_of(s, param), count_of(s, param));
            }
        }
        all += stage / ((double)s->batches * s->batches);
    }
    return sqrt(all);
}

/* ---- update ---------------------------------------------------------------------------------- */

/* PyTorch's clip_grad_norm_. cdp-v2 has only the norm of the step before, and none in the first. */
static double clip_factor(const car_sequential *s, int64_t t) {
    double most = s->config.clip_norm;
    bool previous = s->config.rule == CAR_RULE_CDP_V2;
    if (most <= 0 || (previous && t == 0)) {
        return 1;
    }
    double norm = s->norm[previous ? t - 1 : t];
    return norm > most ? most / (norm + 1e-6) : 1;
}

static void update_statistic(car_sequential *s, int64_t t, int param) {
    double keep = 1, m = momentum_of(s, param);
    float *to = car_weights_data(s->theta[t + 1], param);
    for (int i = 0; i < s->batches; i++) {
        keep *= 1 - m;
    }
    memcpy(to, car_weights_data(s->theta[t], param), bytes_of(s, param));
    car_vector_select()->blend(to, sum_of(s, param), (float)keep, 1.0f, count_of(s, param));
}

/* The weight of the gradient's change, which there is none of in the first step. */
static double change_of(const car_sequential *s, int64_t t) {
    return t > 0 ? s->config.optimizer.correction.a : 0;
}

static void update_sgd(car_sequential *s, int64_t t, int param, double decay, double scale) {
    const car_optimizer_config *o = &s->config.optimizer;
    if (o->correction.c != 0 || o->correction.a != 0) {
        const car_vector_sgd_corrected corrected = {.lr = (float)s->config.lr[t],
                                                    .scale = (float)scale,
                                                    .momentum = (float)o->momentum,
                                                    .weight_decay = (float)decay,
                                                    .c = (float)o->correction.c,
                                                    .a = (float)change_of(s, t)};
        car_vector_select()->sgd_corrected(
            car_weights_data(s->theta[t + 1], param), car_weights_data(s->theta[t], param), s->state[0][param],
            o->correction.a != 0 ? s->state[2][param] : NULL, sum_of(s, param), &corrected, count_of(s, param));
        return;
    }
    const car_vector_sgd sgd = {.lr = (float)s->config.lr[t],
                                .scale = (float)scale,
                                .momentum = (float)o->momentum,
                                .weight_decay = (float)decay,
                                .nesterov = o->nesterov};
    car_vector_select()->sgd(car_weights_data(s->theta[t + 1], param), car_weights_data(s->theta[t], param),
                             o->momentum != 0 ? s->state[0][param] : NULL, sum_of(s, param), &sgd, count_of(s, param));
}

static void update_adamw(car_sequential *s, int64_t t, int param, double decay, double scale) {
    const car_optimizer_config *o = &s->config.optimizer;
    double lr = s->config.lr[t] * (o->kind == CAR_OPTIMIZER_MUON ? o->adamw_ratio : 1), updates = (double)(t + 1);
    const car_vector_adamw adamw = {.shrink = (float)(1 - lr * decay),
                                    .scale = (float)scale,
                                    .beta1 = (float)o->beta1,
                                    .rest1 = (float)(1 - o->beta1),
                                    .beta2 = (float)o->beta2,
                                    .rest2 = (float)(1 - o->beta2),
                                    .step_size = (float)(lr / (1 - pow(o->beta1, updates))),
                                    .root = (float)(1 / sqrt(1 - pow(o->beta2, updates))),
                                    .eps = (float)o->eps};
    if (o->correction.c != 0 || o->correction.a != 0) {
        double c = t > 0 ? o->correction.c : 0, a = change_of(s, t) * (1 - o->beta1);
        const car_vector_adamw_corrected corrected = {
            .plain = adamw,
            .moved = (float)(lr * (1 + c) / (1 - pow(o->beta1, updates))),
            .before = c != 0 ? (float)(-lr * c / (1 - pow(o->beta1, updates - 1))) : 0,
            .a = (float)(lr * a)};
        car_vector_select()->adamw_corrected(car_weights_data(s->theta[t + 1], param),
                                             car_weights_data(s->theta[t], param), s->state[0][param],
                                             s->state[1][param], o->correction.a != 0 ? s->state[2][param] : NULL,
                                             sum_of(s, param), &corrected, count_of(s, param));
        return;
    }
    car_vector_select()->adamw(car_weights_data(s->theta[t + 1], param), car_weights_data(s->theta[t], param),
                               s->state[0][param], s->state[1][param], sum_of(s, param), &adamw, count_of(s, param));
}

/* Hidden matrices: weights of operations other than the one that makes the logits. Embeddings have another role. */
static bool is_muons(const car_sequential *s, int param) {
    const car_op *head = car_graph_op(s->graph, car_graph_head(s->graph));
    const car_param *p = car_graph_param(s->graph, param);
    return p->role == CAR_PARAM_WEIGHT && p->shape.rank > 1 && head->params[0] != param;
}

static bool is_in_by_out(const car_sequential *s, int param) {
    for (int l = 0; l < s->operations; l++) {
        const car_op *op = car_graph_op(s->graph, l);
        if (op->kind == CAR_OP_LINEAR && op->params[0] == param) {
            return op->config.linear.in_by_out;
        }
    }
    return false;
}

static car_status update_muon(car_sequential *s, int64_t t, int param, double decay, double scale) {
    const car_optimizer_config *o = &s->config.optimizer;
    const car_vector *vector = car_vector_select();
    car_shape shape = car_graph_param(s->graph, param)->shape;
    int64_t rows = shape.dim[0], columns = car_shape_elements(shape) / rows;
    size_t stored = bytes_of(s, param), room = (size_t)(rows * columns) * sizeof(float);
    size_t scratch = car_orthogonal_scratch(rows, columns) * sizeof(float);
    double ratio = is_in_by_out(s, param) ? (double)columns / (double)rows : (double)rows / (double)columns;
    float *u = NULL, *x = NULL, *work = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(s->context, stored, 1, &u));
    CAR_TRY(car_context_allocate(s->context, room, 1, &x));
    CAR_TRY(car_context_allocate(s->context, scratch, 1, &work));
    vector->muon_momentum(u, s->state[0][param], sum_of(s, param), (float)scale, (float)o->momentum,
                          count_of(s, param));
    CAR_TRY(car_program_export_param(s->program, param, u, x));
    car_orthogonalize(x, rows, columns, work);
    CAR_TRY(car_program_import_param(s->program, param, work, u));
    const car_vector_muon muon = {.shrink = (float)(1 - s->config.lr[t] * decay),
                                  .lr = (float)(s->config.lr[t] * sqrt(ratio > 1 ? ratio : 1)),
                                  .c = t > 0 ? (float)o->correction.c : 0};
    vector->muon_step(car_weights_data(s->theta[t + 1], param), car_weights_data(s->theta[t], param),
                      o->correction.c != 0 ? s->state[2][param] : NULL, u, &muon, count_of(s, param));
done:
    car_context_release(s->context, work, work ? scratch : 0, 1);
    car_context_release(s->context, x, x ? room : 0, 1);
    car_context_release(s->context, u, u ? stored : 0, 1);
    return status;
}

static car_status update_param(car_sequential *s, int64_t t, int param) {
    const car_optimizer_config *o = &s->config.optimizer;
    bool matrix = car_graph_param(s->graph, param)->shape.rank > 1;
    double decay = o->decay_weights_only && !matrix ? 0 : o->weight_decay;
    double scale = clip_factor(s, t) / s->batches;
    if (is_statistic(s, param)) {
        update_statistic(s, t, param);
    } else if (o->kind == CAR_OPTIMIZER_SGD) {
        update_sgd(s, t, param, decay, scale);
    } else if (o->kind == CAR_OPTIMIZER_MUON && is_muons(s, param)) {
        return update_muon(s, t, param, decay, scale);
    } else {
        update_adamw(s, t, param, decay, scale);
    }
    return CAR_OK;
}

/* One micro-batch after the other, or one worker's after the other. */
static car_status run_batches(car_sequential *s, int64_t t, double *losses) {
    int N = s->config.workers, M = s->config.accumulate;
    car_status status = CAR_OK;
    for (int i = 0; i < s->batches && !s->config.by_worker; i++) {
        CAR_TRY(run_batch(s, t, i, &losses[i]));
        add_batch(s, s->sum, i == 0);
    }
    for (int i = 0; i < s->batches && s->config.by_worker; i++) {
        int worker = i / M, round = i % M, number = round * N + worker;
        CAR_TRY(run_batch(s, t, number, &losses[number]));
        add_batch(s, s->part, round == 0);
        if (round == M - 1) {
            add_worker(s, worker == 0);
        }
    }
done:
    return status;
}

static car_status run_step(car_sequential *s, int64_t t) {
    enum { MOST = 64 };
    double losses[MOST];
    car_status status = CAR_OK;
    if (s->batches > MOST) {
        return car_context_fail(s->context, CAR_ERROR_ARGUMENT, "a step of more than %d micro-batches", MOST);
    }
    CAR_TRY(run_batches(s, t, losses));
    for (int i = 0; i < s->batches; i++) {
        s->loss[t] += losses[i];
    }
    s->loss[t] /= s->batches;
    join_uses(s);
    s->norm[t] = norm_of(s);
    for (int p = 0; p < s->params; p++) {
        CAR_TRY(update_param(s, t, p));
    }
    CAR_TRY(car_weights_refresh(s->theta[t + 1], s->lane, 0, s->operations));
done:
    return status;
}

car_status car_sequential_run(car_sequential *s) {
    car_kernel_mode mode = car_kernels_enter(car_program_threads(s->program)); /* sums flush denormals as kernels do */
    car_status status = CAR_OK;
    for (int64_t t = 0; status == CAR_OK && t < s->config.steps; t++) {
        status = run_step(s, t);
    }
    car_kernels_leave(mode);
    return status;
}
