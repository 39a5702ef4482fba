/* Creating, running and reading a trainer. */
#include "carousel/trainer.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "engine/arithmetic.h"
#include "engine/trainer_internal.h"

car_trainer_config car_trainer_config_default(void) {
    return (car_trainer_config){
        .threads = 1, .optimizer = car_optimizer_config_default(), .schedule = {.lr = 0.05}, .watchdog_seconds = 30};
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Whether a use's sum of one step must survive the beginning of the next step's: a tied use's, which
 * waits for its home's update, and with deferred updates everybody's. */
static bool needs_second_sum(const car_trainer *trainer, int use) {
    const car_graph *graph = car_program_graph(trainer->program);
    if (!trainer->cyclic || trainer->deferred) {
        return trainer->cyclic;
    }
    for (int u = 0; u < use; u++) {
        if (car_graph_use_param(graph, u) == car_graph_use_param(graph, use)) {
            return true;
        }
    }
    return false;
}

static car_status create_sums(car_trainer *trainer) {
    const car_graph *graph = car_program_graph(trainer->program);
    int uses = car_graph_use_count(graph);
    car_status status = CAR_OK;
    trainer->sum_count = !trainer->ring ? trainer->workers : trainer->cyclic ? 2 : 1;
    CAR_TRY(car_context_allocate(trainer->context, (size_t)trainer->sum_count, sizeof *trainer->sums, &trainer->sums));
    for (int s = 0; s < trainer->sum_count; s++) {
        car_gradients *sum = NULL;
        CAR_TRY(car_context_allocate(trainer->context, 1, sizeof *sum, &sum));
        trainer->sums[s] = sum;
        sum->program = trainer->program;
        sum->arena = trainer->arena;
        CAR_TRY(car_context_allocate(trainer->context, (size_t)uses, sizeof(void *), &sum->use));
        for (int u = 0; u < uses; u++) {
            if (s == 0 || !trainer->ring || needs_second_sum(trainer, u)) {
                size_t bytes = car_program_param_bytes(trainer->program, car_graph_use_param(graph, u));
                CAR_TRY(car_arena_allocate(trainer->arena, CAR_MEMORY_GRADIENTS, bytes, &sum->use[u]));
            }
        }
    }
done:
    return status;
}

static car_status create_threads(car_trainer *trainer) {
    const car_graph *graph = car_program_graph(trainer->program);
    size_t threads = (size_t)trainer->config.threads;
    bool apart = trainer->ring && trainer->workers > 1;
    int ops = car_graph_op_count(graph);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(trainer->context, threads, sizeof *trainer->thread, &trainer->thread));
    for (size_t p = 0; p < threads; p++) {
        car_thread *thread = &trainer->thread[p];
        thread->trainer = trainer;
        thread->gradients.program = trainer->program;
        thread->track = car_recorder_track(trainer->config.recorder, (int)p);
        CAR_TRY(car_context_allocate(trainer->context, (size_t)car_graph_use_count(graph), sizeof(void *),
                                     &thread->gradients.use));
        CAR_TRY(car_context_allocate(trainer->context, (size_t)car_graph_param_count(graph), sizeof(void *),
                                     &thread->params));
        CAR_TRY(car_lane_create(trainer->program, trainer->arena, &thread->lane));
        CAR_TRY(car_arena_allocate(trainer->arena, CAR_MEMORY_WORKSPACE,
                                   apart ? car_engine_addend_bytes(trainer->program, 0, ops) : 0, &thread->addend));
    }
done:
    return status;
}

static car_status create_workers(car_trainer *trainer) {
    car_context *context = trainer->context;
    size_t workers = (size_t)trainer->workers, stages = (size_t)trainer->stages;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, workers, sizeof *trainer->worker, &trainer->worker));
    for (size_t i = 0; i < workers; i++) {
        CAR_TRY(car_tape_create(trainer->program, trainer->arena, &trainer->worker[i].tape));
    }
    CAR_TRY(car_context_allocate(context, stages, sizeof *trainer->made, &trainer->made));
    CAR_TRY(car_context_allocate(context, stages, sizeof *trainer->added, &trainer->added));
    CAR_TRY(car_context_allocate(context, stages, sizeof(double), &trainer->phase_forward));
    CAR_TRY(car_context_allocate(context, stages, sizeof(double), &trainer->phase_backward));
    for (int r = 0; r < CAR_STEPS_IN_FLIGHT; r++) {
        trainer->record[r].step = CAR_NONE;
        CAR_TRY(car_context_allocate(context, workers, sizeof(double), &trainer->record[r].loss));
        CAR_TRY(car_context_allocate(context, stages, sizeof(double), &trainer->record[r].stage_square));
    }
done:
    return status;
}

/* ---- creating -------------------------------------------------------------------------------- */

static void compute_phases(car_trainer *trainer) {
    double share = 0;
    for (int j = 0; j < trainer->stages; j++) {
        trainer->phase_forward[j] = share;
        share += trainer->partition->stages[j].forward;
        trainer->updates_per_step += trainer->partition->bundles[j].bytes > 0;
    }
    for (int j = trainer->stages - 1; j >= 0; j--) {
        trainer->phase_backward[j] = share;
        share += trainer->partition->stages[j].backward;
    }
}

static car_status check(const car_plan *plan, const car_program *program, const car_trainer_config *config) {
    car_context *context = car_plan_context(plan);
    if (car_plan_config_of(plan)->placement != CAR_PLACEMENT_SHARED) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED, "threads execute plans of placement shared only");
    }
    if (car_plan_partition(plan)->graph != car_program_graph(program)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "the plan and the program are of different graphs");
    }
    const car_partition *partition = car_plan_partition(plan);
    for (int b = partition->stage_count; b < partition->bundle_count; b++) {
        const car_stage *stage = &partition->stages[partition->bundles[b].stage];
        for (int l = stage->first; l < stage->end; l++) {
            const car_op *op = car_graph_op(partition->graph, l);
            bool tied = op->param_count > 0 && op->params[0] == partition->bundles[b].param;
            if (tied && car_program_derived_bytes(program, l) > 0) {
                return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                                        "%s: a tied weight whose kernel wants a derived form", op->name);
            }
        }
    }
    if (config->threads < 1 || config->threads > 1024 || !config->feed) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a trainer wants 1 to 1024 threads and a feed");
    }
    if (config->cut_every < 0 || (config->cut_every > 0 && !config->on_cut)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a trainer that takes cuts wants a function for them");
    }
    return CAR_OK;
}

static car_status create_locks(car_trainer *trainer) {
    if (pthread_mutex_init(&trainer->lock, NULL) != 0) {
        return car_context_fail(trainer->context, CAR_ERROR_MEMORY, "could not create a mutex");
    }
    if (!car_clock_create_condition(&trainer->changed)) { /* the watchdog waits by it */
        pthread_mutex_destroy(&trainer->lock);
        return car_context_fail(trainer->context, CAR_ERROR_MEMORY, "could not create a condition");
    }
    return CAR_OK;
}

static car_status create_contents(car_trainer *trainer) {
    car_status status = CAR_OK;
    for (int v = 0; v < trainer->versions; v++) {
        CAR_TRY(car_weights_create(trainer->program, trainer->arena, &trainer->weights[v]));
    }
    CAR_TRY(car_optimizer_create_for(trainer->program, trainer->arena, &trainer->config.optimizer, NULL,
                                     trainer->config.threads, &trainer->optimizer));
    CAR_TRY(create_sums(trainer));
    CAR_TRY(create_workers(trainer));
    CAR_TRY(create_threads(trainer));
    if (trainer->config.cut_every > 0) {
        CAR_TRY(car_trainer_create_cut(trainer, &trainer->cut));
    }
    compute_phases(trainer);
    CAR_TRY(car_trainer_set_pace(trainer));
done:
    return status;
}

car_status car_trainer_create(const car_plan *plan, const car_program *program, car_arena *arena,
                              const car_trainer_config *config, car_trainer **out) {
    car_context *context = car_plan_context(plan);
    car_trainer *trainer = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(check(plan, program, config));
    CAR_TRY(car_context_allocate(context, 1, sizeof *trainer, &trainer));
    car_rule rule = car_plan_config_of(plan)->rule;
    trainer->context = context;
    trainer->plan = plan;
    trainer->partition = car_plan_partition(plan);
    trainer->program = program;
    trainer->arena = arena;
    trainer->config = *config;
    trainer->workers = car_plan_config_of(plan)->workers;
    trainer->stages = trainer->partition->stage_count;
    trainer->cyclic = car_plan_is_cyclic(plan);
    trainer->versions =
        car_plan_delay(plan, 0, 0) > 0 ? 2 : 1; /* if anybody is stale, the first worker is, at stage 0 */
    trainer->ring = trainer->cyclic || rule == CAR_RULE_ACCUMULATE;
    trainer->deferred = (config->clip_norm > 0 || config->skip_nonfinite) && rule != CAR_RULE_CDP_V2;
    trainer->last_norm = NAN;
    trainer->cut_step = CAR_NONE;
    status = create_locks(trainer);
    if (status != CAR_OK) {
        car_context_release(context, trainer, 1, sizeof *trainer);
        return status;
    }
    CAR_TRY(create_contents(trainer));
    *out = trainer;
    trainer = NULL;
done:
    car_trainer_destroy(trainer);
    return status;
}

static void destroy_threads(car_trainer *trainer) {
    const car_graph *graph = car_program_graph(trainer->program);
    for (int p = 0; trainer->thread && p < trainer->config.threads; p++) {
        car_thread *thread = &trainer->thread[p];
        car_arena_release(trainer->arena, thread->addend);
        car_lane_destroy(thread->lane);
        car_context_release(trainer->context, thread->params, (size_t)car_graph_param_count(graph), sizeof(void *));
        car_context_release(trainer->context, thread->gradients.use, (size_t)car_graph_use_count(graph),
                            sizeof(void *));
    }
    car_context_release(trainer->context, trainer->thread, (size_t)trainer->config.threads, sizeof *trainer->thread);
}

static void destroy_workers(car_trainer *trainer) {
    car_context *context = trainer->context;
    size_t workers = (size_t)trainer->workers, stages = (size_t)trainer->stages;
    for (int r = 0; r < CAR_STEPS_IN_FLIGHT; r++) {
        car_context_release(context, trainer->record[r].stage_square, stages, sizeof(double));
        car_context_release(context, trainer->record[r].loss, workers, sizeof(double));
    }
    car_context_release(context, trainer->phase_backward, stages, sizeof(double));
    car_context_release(context, trainer->phase_forward, stages, sizeof(double));
    car_context_release(context, trainer->added, stages, sizeof *trainer->added);
    car_context_release(context, trainer->made, stages, sizeof *trainer->made);
    for (size_t i = 0; trainer->worker && i < workers; i++) {
        car_task_list_release(trainer->plan, &trainer->worker[i].list);
        car_tape_destroy(trainer->worker[i].tape);
    }
    car_context_release(context, trainer->worker, workers, sizeof *trainer->worker);
}

void car_trainer_destroy(car_trainer *trainer) {
    if (!trainer) {
        return;
    }
    destroy_threads(trainer);
    destroy_workers(trainer);
    for (int s = 0; trainer->sums && s < trainer->sum_count; s++) {
        car_gradients_destroy(trainer->sums[s]);
    }
    car_context_release(trainer->context, trainer->sums, (size_t)trainer->sum_count, sizeof *trainer->sums);
    car_cut_destroy(trainer->cut);
    car_optimizer_destroy(trainer->optimizer);
    for (int v = 0; v < trainer->versions; v++) {
        car_weights_destroy(trainer->weights[v]);
    }
    pthread_cond_destroy(&trainer->changed);
    pthread_mutex_destroy(&trainer->lock);
    car_context_release(trainer->context, trainer, 1, sizeof *trainer);
}

car_status car_trainer_initialize(car_trainer *trainer, uint64_t seed) {
    car_status status = CAR_OK;
    for (int v = 0; status == CAR_OK && v < trainer->versions; v++) {
        status = car_weights_initialize(trainer->weights[v], seed);
    }
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

void car_trainer_forget_from(car_trainer *trainer, int64_t step) {
    for (int j = 0; j < trainer->stages; j++) {
        trainer->added[j] = step * trainer->workers;
    }
    for (int i = 0; i < trainer->workers; i++) {
        trainer->worker[i].steps_done = step;
    }
    for (int r = 0; r < CAR_STEPS_IN_FLIGHT; r++) {
        trainer->record[r].step = trainer->record[r].step < step ? trainer->record[r].step : CAR_NONE;
    }
    trainer->cut_step = trainer->cut_step <= step ? trainer->cut_step : CAR_NONE;
}

/* Steps that had begun when the run was asked to stop. */
static void drop_steps(car_trainer *trainer) {
    for (int i = 0; i < trainer->workers; i++) {
        car_tape_begin(trainer->worker[i].tape, 0, true); /* frees what it holds */
    }
    car_trainer_forget_from(trainer, trainer->limit);
}

/* Every worker begins at the window of the first step that is left. */
static void rewind_workers(car_trainer *trainer, int64_t steps) {
    trainer->limit = steps;
    trainer->reported = trainer->first_step;
    trainer->last_started = trainer->first_step - 1;
    trainer->ended = false;
    for (int i = 0; i < trainer->workers; i++) {
        car_worker *worker = &trainer->worker[i];
        worker->window = trainer->first_step - 1;
        worker->list.count = 0;
        worker->next = 0;
        worker->at = CAR_NONE;
        worker->holds = 0;
        worker->running = worker->finished = false;
    }
}

static car_status start_threads(car_trainer *trainer) {
    for (int p = 0; p < trainer->config.threads; p++) {
        car_thread *thread = &trainer->thread[p];
        thread->started = pthread_create(&thread->handle, NULL, car_trainer_thread, thread) == 0;
        if (!thread->started && p == 0) {
            return car_context_fail(trainer->context, CAR_ERROR_MEMORY, "could not start a thread");
        }
        if (!thread->started) { /* fewer threads give the same result */
            car_context_log(trainer->context, CAR_LOG_WARNING, "only %d of %d threads could be started", p,
                            trainer->config.threads);
            break;
        }
    }
    return CAR_OK;
}

static void join_threads(car_trainer *trainer) {
    for (int p = 0; p < trainer->config.threads; p++) {
        car_thread *thread = &trainer->thread[p];
        if (thread->started) {
            pthread_join(thread->handle, NULL);
            thread->started = false;
        }
        trainer->times.tasks += thread->tasks;
        trainer->times.waiting += thread->waiting;
        trainer->times.choosing += thread->choosing;
        thread->tasks = thread->waiting = thread->choosing = thread->waited = 0;
    }
}

car_status car_trainer_run(car_trainer *trainer, int64_t steps) {
    pthread_t watchdog;
    double start = car_clock_seconds();
    if (trainer->status != CAR_OK || steps <= trainer->first_step) {
        return trainer->status;
    }
    rewind_workers(trainer, steps);
    bool watched = pthread_create(&watchdog, NULL, car_trainer_watch, trainer) == 0;
    car_status status = start_threads(trainer);
    join_threads(trainer);
    pthread_mutex_lock(&trainer->lock);
    trainer->ended = true;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->lock);
    if (watched) {
        pthread_join(watchdog, NULL);
    }
    status = status == CAR_OK ? trainer->status : status;
    if (status == CAR_OK && trainer->last_started >= trainer->limit) {
        drop_steps(trainer);
    }
    trainer->first_step = status == CAR_OK ? trainer->limit : trainer->reported; /* after a failure, what is certain */
    trainer->times.wall += car_clock_seconds() - start;
    return status;
}

void car_trainer_stop(car_trainer *trainer) {
    atomic_store(&trainer->stop, true);
}

int64_t car_trainer_steps(const car_trainer *trainer) {
    return trainer->first_step;
}

car_weights *car_trainer_weights(car_trainer *trainer) {
    return car_trainer_version(trainer, trainer->first_step);
}

car_weights *car_trainer_previous_weights(car_trainer *trainer) {
    return car_trainer_version(trainer, trainer->first_step > 0 ? trainer->first_step - 1 : 0);
}

car_optimizer *car_trainer_optimizer(car_trainer *trainer) {
    return trainer->optimizer;
}

car_trainer_times car_trainer_time(const car_trainer *trainer) {
    return trainer->times;
}
