/* The tasks of the shared placement: forward, backward with the sum, update. */
#include <math.h>
#include <string.h>

#include "engine/arithmetic.h"
#include "engine/trainer_internal.h"
#include "kernels/vector/vector.h"

static int64_t count_of(const car_trainer *trainer, int param) {
    return car_engine_count(trainer->program, param);
}

static bool is_statistic(const car_trainer *trainer, int param) {
    return car_engine_is_statistic(trainer->program, param);
}

float *car_trainer_sum(car_trainer *trainer, int use, int64_t step, int worker) {
    int index = trainer->ring ? (int)(step % trainer->sum_count) : worker;
    float *sum = trainer->sums[index]->use[use];
    return sum ? sum : trainer->sums[0]->use[use];
}

/* ---- forward and backward -------------------------------------------------------------------- */

/* The operations of a stage use the stage's version, but for a tied parameter, which has its own. The
 * tape takes one version, so such an operation gets a view with the tied parameter replaced. */
static car_weights *weights_of_op(car_thread *thread, const car_task *task, const car_op *op, car_weights *view,
                                  void **params) {
    car_trainer *trainer = thread->trainer;
    car_weights *own = car_trainer_version(trainer, task->version);
    if (task->tied_version == CAR_NONE || task->tied_version == task->version) {
        return own;
    }
    for (int b = trainer->stages; b < trainer->partition->bundle_count; b++) {
        const car_bundle *bundle = &trainer->partition->bundles[b];
        for (int p = 0; p < op->param_count; p++) {
            if (bundle->stage == task->stage && bundle->param == op->params[p]) {
                *view = *own;
                memcpy(params, own->param,
                       (size_t)car_graph_param_count(car_program_graph(trainer->program)) * sizeof *params);
                params[bundle->param] = car_trainer_version(trainer, task->tied_version)->param[bundle->param];
                view->param = params;
                return view;
            }
        }
    }
    return own;
}

static car_status begin_micro_batch(car_trainer *trainer, const car_task *task) {
    uint64_t key = car_engine_key(trainer->config.seed, task->step, trainer->workers, task->worker);
    car_tape *tape = trainer->worker[task->worker].tape;
    car_tape_begin(tape, key, true);
    return trainer->config.feed(trainer->config.feed_user, task->step, task->worker, tape);
}

car_status car_trainer_forward(car_thread *thread, const car_task *task, int *at) {
    car_trainer *trainer = thread->trainer;
    const car_graph *graph = car_program_graph(trainer->program);
    const car_stage *stage = &trainer->partition->stages[task->stage];
    car_tape *tape = trainer->worker[task->worker].tape;
    int first = *at != CAR_NONE ? *at : stage->first, l = first;
    car_status status = CAR_OK;
    if (task->stage == 0 && *at == CAR_NONE) {
        CAR_TRY(begin_micro_batch(trainer, task));
    }
    for (; l < stage->end && (l == first || !car_trainer_portion_is_full(trainer, first, l)); l++) {
        car_weights view;
        CAR_TRY(car_tape_forward(tape, thread->lane,
                                 weights_of_op(thread, task, car_graph_op(graph, l), &view, thread->params), l, l + 1));
    }
    *at = l < stage->end ? l : CAR_NONE;
    bool last = *at == CAR_NONE && task->stage == trainer->stages - 1;
    if (last && !isfinite(car_tape_loss(tape)) && !trainer->config.skip_nonfinite) {
        return car_context_fail(trainer->context, CAR_ERROR_NOT_FINITE,
                                "the loss of worker %d in step %lld is not finite: a smaller learning rate, warm-up, "
                                "--clip-norm or --skip-nonfinite may help",
                                task->worker, (long long)task->step + 1);
    }
done:
    return status;
}

static float statistic_momentum(const car_op *op) {
    return (float)op->config.batchnorm.momentum;
}

/* The first worker's gradient is the sum so far; every other's is computed apart, then added. */
static void place_gradients(car_thread *thread, const car_task *task, const car_op *op) {
    car_trainer *trainer = thread->trainer;
    char *addend = thread->addend;
    bool apart = trainer->ring && task->worker > 0;
    for (int p = 0; p < op->param_count; p++) {
        int use = op->first_use + p;
        thread->gradients.use[use] =
            apart ? (void *)addend : (void *)car_trainer_sum(trainer, use, task->step, task->worker);
        addend += car_round_up(car_program_param_bytes(trainer->program, op->params[p]), 64);
    }
}

static void add_gradients(car_thread *thread, const car_task *task, const car_op *op) {
    car_trainer *trainer = thread->trainer;
    for (int p = 0; trainer->ring && p < op->param_count; p++) {
        int use = op->first_use + p;
        float *sum = car_trainer_sum(trainer, use, task->step, task->worker);
        car_engine_add(trainer->program, op, p, sum, thread->gradients.use[use], task->worker == 0);
    }
}

car_status car_trainer_backward(car_thread *thread, const car_task *task, int *at) {
    car_trainer *trainer = thread->trainer;
    const car_graph *graph = car_program_graph(trainer->program);
    const car_stage *stage = &trainer->partition->stages[task->stage];
    int events = trainer->partition->curve.events;
    int first = *at != CAR_NONE ? *at : stage->end - 1, l = first;
    car_kernel_mode mode = car_kernels_enter(car_program_threads(trainer->program)); /* sums too flush denormals */
    car_status status = CAR_OK;
    for (;
         l >= stage->first && (l == first || !car_trainer_portion_is_full(trainer, events - 1 - first, events - 1 - l));
         l--) {
        const car_op *op = car_graph_op(graph, l);
        car_weights view;
        place_gradients(thread, task, op);
        CAR_TRY(car_tape_backward(trainer->worker[task->worker].tape, thread->lane,
                                  weights_of_op(thread, task, op, &view, thread->params), &thread->gradients, l,
                                  l + 1));
        add_gradients(thread, task, op);
    }
    *at = l >= stage->first ? l : CAR_NONE;
done:
    car_kernels_leave(mode);
    return status;
}

/* ---- update ---------------------------------------------------------------------------------- */

/* One use's sum over all workers. In the ring it is there already; dp keeps a buffer per worker, which are
 * added in worker order into the first one's. */
static float *sum_of_workers(car_trainer *trainer, int use, int64_t step, int64_t count) {
    float *sum = car_trainer_sum(trainer, use, step, 0);
    for (int i = 1; !trainer->ring && i < trainer->workers; i++) {
        car_vector_select()->accumulate(sum, car_trainer_sum(trainer, use, step, i), count);
    }
    return sum;
}

/* The same for a running statistic: acc = (1 - m) * acc + m * s_i. */
static void blend_workers(car_trainer *trainer, const car_op *op, int slot, int64_t step) {
    float momentum = statistic_momentum(op), *sum = car_trainer_sum(trainer, op->first_use + slot, step, 0);
    for (int i = 0; !trainer->ring && i < trainer->workers; i++) {
        const float *own = car_trainer_sum(trainer, op->first_use + slot, step, i);
        car_vector_select()->blend(sum, own, i > 0 ? 1 - momentum : 0, momentum, count_of(trainer, op->params[slot]));
    }
}

/* A parameter's sum over all workers and uses, in ascending order of uses, in the buffer of the first. */
static float *whole_sum(car_trainer *trainer, int param, int first_use, int64_t step) {
    const car_graph *graph = car_program_graph(trainer->program);
    int64_t count = count_of(trainer, param);
    float *sum = sum_of_workers(trainer, first_use, step, count);
    for (int u = first_use + 1; u < car_graph_use_count(graph); u++) {
        if (car_graph_use_param(graph, u) == param) {
            car_vector_select()->accumulate(sum, sum_of_workers(trainer, u, step, count), count);
        }
    }
    return sum;
}

bool car_trainer_is_first_use(const car_graph *graph, int use) {
    for (int u = 0; u < use; u++) {
        if (car_graph_use_param(graph, u) == car_graph_use_param(graph, use)) {
            return false;
        }
    }
    return true;
}

/* Completes the sums of a stage; returns the squared norm of its averaged gradient if it is wanted. */
static double complete_sums(car_trainer *trainer, int stage, int64_t step) {
    const car_graph *graph = car_program_graph(trainer->program);
    bool wanted = trainer->config.clip_norm > 0 || trainer->config.skip_nonfinite;
    double square = 0;
    for (int l = trainer->partition->stages[stage].first; l < trainer->partition->stages[stage].end; l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (is_statistic(trainer, op->params[p])) {
                blend_workers(trainer, op, p, step);
                continue;
            }
            if (!car_trainer_is_first_use(graph, op->first_use + p)) {
                continue;
            }
            const float *sum = whole_sum(trainer, op->params[p], op->first_use + p, step);
            square += wanted ? car_vector_select()->square_sum(sum, count_of(trainer, op->params[p])) : 0;
        }
    }
    return square / ((double)trainer->workers * trainer->workers);
}

static car_status update_param(car_trainer *trainer, const car_op *op, int slot, const car_step_record *record,
                               double scale) {
    int64_t step = record->step;
    int param = op->params[slot];
    const float *from = car_trainer_version(trainer, step)->param[param];
    float *to = car_trainer_version(trainer, step + 1)->param[param];
    const float *sum = car_trainer_sum(trainer, op->first_use + slot, step, 0);
    if (record->skipped) {
        memmove(to, from, (size_t)count_of(trainer, param) * sizeof *to);
        return CAR_OK;
    }
    const car_renewal renewal = {.optimizer = trainer->optimizer,
                                 .update = record->update,
                                 .lr = car_schedule_lr(&trainer->config.schedule, step),
                                 .scale = scale,
                                 .workers = trainer->workers};
    return car_engine_renew(trainer->program, op, slot, &renewal, from, to, sum);
}

static car_status update_stage(car_thread *thread, int stage, const car_step_record *record, double scale) {
    car_trainer *trainer = thread->trainer;
    const car_graph *graph = car_program_graph(trainer->program);
    int first = trainer->partition->stages[stage].first, end = trainer->partition->stages[stage].end;
    car_status status = CAR_OK;
    for (int l = first; l < end; l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (car_trainer_is_first_use(graph, op->first_use + p)) {
                CAR_TRY(update_param(trainer, op, p, record, scale));
            }
        }
    }
    CAR_TRY(car_weights_refresh(car_trainer_version(trainer, record->step + 1), thread->lane, first, end));
done:
    return status;
}

/* Before the first update of a step its losses are all known: whether to take it at all. */
static void decide(car_trainer *trainer, car_step_record *record) {
    if (record->decided) {
        return;
    }
    for (int i = 0; i < trainer->workers; i++) {
        record->skipped = record->skipped || !isfinite(record->loss[i]);
    }
    record->update = trainer->updates_made;
    record->decided = true;
}

static double clip_scale(const car_trainer *trainer, double norm) {
    double most = trainer->config.clip_norm;
    return most > 0 && isfinite(norm) && norm > most ? most / (norm + 1e-6) : 1.0; /* as PyTorch's clip_grad_norm_ */
}

static double norm_of(const car_trainer *trainer, const car_step_record *record) {
    double square = 0;
    for (int j = 0; j < trainer->stages; j++) { /* in a fixed order, whoever added them */
        square += record->stage_square[j];
    }
    return sqrt(square);
}

/* All updates of a step at once, with the exact norm. */
static car_status update_all(car_thread *thread, car_step_record *record) {
    car_trainer *trainer = thread->trainer;
    car_status status = CAR_OK;
    record->norm = norm_of(trainer, record);
    if (!isfinite(record->norm) && !record->skipped && !trainer->config.skip_nonfinite) {
        return car_context_fail(
            trainer->context, CAR_ERROR_NOT_FINITE,
            "the gradient of step %lld is not finite: a smaller learning rate or --skip-nonfinite may help",
            (long long)record->step + 1);
    }
    record->skipped = record->skipped || !isfinite(record->norm);
    for (int j = 0; status == CAR_OK && j < trainer->stages; j++) {
        status = update_stage(thread, j, record, clip_scale(trainer, record->norm));
    }
    return status;
}

static car_status update_one(car_thread *thread, car_step_record *record, int stage, bool last) {
    car_trainer *trainer = thread->trainer;
    double square = record->stage_square[stage];
    bool wanted = trainer->config.clip_norm > 0 || trainer->config.skip_nonfinite;
    if (wanted && !record->skipped && !isfinite(square)) {
        return car_context_fail(
            trainer->context, CAR_ERROR_NOT_FINITE,
            "a gradient of stage %d in step %lld is not finite; under cdp-v2 such a step cannot be "
            "skipped, because other stages are updated already: use cdp-v1 or a smaller learning rate",
            stage, (long long)record->step + 1);
    }
    car_status status = update_stage(thread, stage, record, clip_scale(trainer, trainer->last_norm));
    if (last && wanted && !record->skipped) {
        record->norm = norm_of(trainer, record);
        trainer->last_norm = record->norm;
    }
    return status;
}

car_status car_trainer_update(car_thread *thread, const car_task *task) {
    car_trainer *trainer = thread->trainer;
    car_step_record *record = car_trainer_record(trainer, task->step);
    bool last = record->updates + 1 == trainer->updates_per_step;
    decide(trainer, record);
    if (!trainer->deferred || last) {
        trainer->newest = task->step + 1 > trainer->newest ? task->step + 1 : trainer->newest;
    }
    car_trainer_cut_claim(trainer, task->step + 1);
    pthread_mutex_unlock(&trainer->lock);
    car_kernel_mode mode = car_kernels_enter(car_program_threads(trainer->program));
    record->stage_square[task->stage] = complete_sums(trainer, task->stage, task->step);
    car_status status = CAR_OK;
    if (!trainer->deferred) {
        status = update_one(thread, record, task->stage, last);
    } else if (last) {
        status = update_all(thread, record);
    }
    for (int j = 0; status == CAR_OK && j < trainer->stages; j++) {
        if (trainer->deferred ? last : j == task->stage) {
            car_trainer_cut_copy(trainer, j, task->step + 1);
        }
    }
    car_kernels_leave(mode);
    thread->task_end = car_clock_seconds();
    pthread_mutex_lock(&trainer->lock);
    if (status != CAR_OK) {
        return status; /* nobody may take the step for made */
    }
    for (int j = 0; j < trainer->stages; j++) {
        if (trainer->deferred ? last : j == task->stage) {
            trainer->made[j] = task->step + 1;
        }
    }
    record->updates++;
    trainer->updates_made += last && !record->skipped;
    car_trainer_cut_note(trainer, task->step + 1);
    return status;
}
