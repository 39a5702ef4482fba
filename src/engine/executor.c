/* The executor: threads that choose among the workers' next tasks, and run them in portions. It owns no order of its own: each
 * worker's tasks come from the plan, one after the other, and what is chosen is only whose turn it is.
 *
 * One lock guards the state; it is held for choosing and for noting what was done, never while kernels
 * run. With N workers a choice costs N looks, which is nothing beside a stage's work. */
#include "engine/trainer_internal.h"

static const int64_t endless = (int64_t)1 << 40; /* steps: the limit is the trainer's, and may come down */

/* The first failure is the run's, with the message of the thread that had it. */
static void note_failure(car_trainer *trainer, car_status status) {
    if (trainer->status == CAR_OK) {
        trainer->status = status;
        car_context_publish_error(trainer->context);
    }
}

/* ---- the next task of a worker --------------------------------------------------------------- */

/* Tasks of steps before this run were done by an earlier one. NULL: none left before the limit. */
const car_task *car_trainer_head(car_trainer *trainer, car_worker *worker) {
    int index = (int)(worker - trainer->worker);
    while (!worker->finished) {
        for (; worker->next < worker->list.count; worker->next++) {
            const car_task *task = &worker->list.tasks[worker->next];
            if (task->step >= trainer->limit && task->kind == CAR_TASK_FORWARD) {
                worker->finished = true; /* tasks of one worker are in order of steps */
                return NULL;
            }
            if (task->step >= trainer->first_step && task->step < trainer->limit) {
                return task;
            }
        }
        worker->next = 0;
        worker->window++;
        car_status status = car_plan_expand(trainer->plan, index, worker->window, endless, &worker->list);
        if (status != CAR_OK) {
            note_failure(trainer, status);
            worker->finished = true;
        }
    }
    return NULL;
}

/* ---- what is ready --------------------------------------------------------------------------- */

static bool weights_are_there(const car_trainer *trainer, const car_task *task) {
    bool has_weights = trainer->partition->bundles[task->stage].bytes > 0;
    if (has_weights && trainer->made[task->stage] < task->version) {
        return false;
    }
    for (int b = trainer->stages; task->tied_version != CAR_NONE && b < trainer->partition->bundle_count; b++) {
        const car_bundle *bundle = &trainer->partition->bundles[b];
        if (bundle->stage == task->stage && trainer->made[bundle->home] < task->tied_version) {
            return false;
        }
    }
    return true;
}

/* Whether the sums that the first worker of a step writes over have been turned into weights. Sums with
 * two buffers, by parity of the step, have one step more time. */
static bool sums_are_free(const car_trainer *trainer, const car_task *task) {
    for (int b = task->stage; b < trainer->partition->bundle_count; b = b < trainer->stages ? trainer->stages : b + 1) {
        const car_bundle *bundle = &trainer->partition->bundles[b];
        bool two = trainer->cyclic && (trainer->deferred || bundle->home != bundle->stage);
        if (bundle->stage == task->stage && bundle->bytes > 0 &&
            trainer->made[bundle->home] < task->step - (two ? 1 : 0)) {
            return false;
        }
    }
    return true;
}

bool car_trainer_is_ready(car_trainer *trainer, const car_task *task) {
    int64_t n = task->step * trainer->workers + task->worker;
    car_rule rule = car_plan_config_of(trainer->plan)->rule;
    if (task->kind == CAR_TASK_UPDATE) {
        return trainer->added[task->stage] == (task->step + 1) * trainer->workers &&
               car_trainer_cut_is_free(trainer, task->step + 1);
    }
    if (trainer->worker[task->worker].at != CAR_NONE) {
        return true; /* it has begun */
    }
    if (!weights_are_there(trainer, task)) {
        return false;
    }
    if (task->kind == CAR_TASK_BACKWARD) {
        /* In the ring a sum is passed on; dp begins no backward before all forwards are done, as N devices would. */
        return trainer->ring ? trainer->added[task->stage] == n && (task->worker > 0 || sums_are_free(trainer, task))
                             : car_trainer_record(trainer, task->step)->forwards == trainer->workers;
    }
    int together = car_plan_config_of(trainer->plan)->threads;
    if (rule == CAR_RULE_ACCUMULATE && task->worker >= together) {
        return trainer->worker[task->worker - together].steps_done > task->step;
    }
    return true;
}

static bool all_finished(car_trainer *trainer) {
    for (int i = 0; i < trainer->workers; i++) {
        if (trainer->worker[i].running || car_trainer_head(trainer, &trainer->worker[i])) {
            return false;
        }
    }
    return true;
}

/* ---- what was done --------------------------------------------------------------------------- */

/* Skipping is for a step now and then. Weights that give nothing finite for so long will not recover by it. */
static void count_skipped(car_trainer *trainer, const car_step_record *record) {
    trainer->skipped_in_a_row = record->skipped ? trainer->skipped_in_a_row + 1 : 0;
    if (trainer->skipped_in_a_row >= CAR_TRAINER_MOST_SKIPPED) {
        note_failure(trainer, car_context_fail(
                                  trainer->context, CAR_ERROR_NOT_FINITE,
                                  "%d steps in a row were skipped because their loss or gradient is not finite, the "
                                  "last is step %lld: go "
                                  "back to an earlier checkpoint, with a smaller learning rate, warm-up or --clip-norm",
                                  trainer->skipped_in_a_row, (long long)record->step + 1));
    }
}

static void report_steps(car_trainer *trainer) {
    while (trainer->skipped_in_a_row < CAR_TRAINER_MOST_SKIPPED) { /* else it has given up */
        car_step_record *record = car_trainer_record(trainer, trainer->reported);
        if (record->step != trainer->reported || record->forwards < trainer->workers ||
            record->updates < trainer->updates_per_step) {
            return;
        }
        double sum = 0;
        for (int i = 0; i < trainer->workers; i++) {
            sum += record->loss[i];
        }
        const car_step_report report = {.step = record->step,
                                        .loss = sum / trainer->workers,
                                        .lr = car_schedule_lr(&trainer->config.schedule, record->step),
                                        .gradient_norm = record->norm,
                                        .skipped = record->skipped,
                                        .when = car_clock_seconds()};
        trainer->reported++;
        if (trainer->config.report) {
            trainer->config.report(trainer->config.report_user, &report);
        }
        count_skipped(trainer, record);
    }
}

static void note_done(car_trainer *trainer, car_worker *worker, const car_task *task) {
    car_step_record *record = car_trainer_record(trainer, task->step);
    if (task->kind == CAR_TASK_FORWARD && task->stage == trainer->stages - 1) {
        record->loss[task->worker] = car_tape_loss(worker->tape);
        record->forwards++;
    } else if (task->kind == CAR_TASK_BACKWARD) {
        trainer->added[task->stage]++;
        worker->steps_done += task->stage == 0;
    }
    report_steps(trainer);
    worker->next++;
}

/* The first forward of a step claims its record. */
static void note_started(car_trainer *trainer, const car_task *task) {
    car_step_record *record = car_trainer_record(trainer, task->step);
    if (task->step > trainer->last_started) {
        trainer->last_started = task->step;
    }
    if (record->step != task->step) {
        double *loss = record->loss, *square = record->stage_square;
        *record =
            (car_step_record){.step = task->step, .loss = loss, .stage_square = square, .norm = __builtin_nan("")};
    }
}

static car_status run_portion(car_thread *thread, car_worker *worker, const car_task *task) {
    car_trainer *trainer = thread->trainer;
    int at = worker->at; /* the worker's is read by others, with the lock */
    car_trainer_hold(trainer, worker, task, true);
    pthread_mutex_unlock(&trainer->lock);
    car_status status = task->kind == CAR_TASK_FORWARD ? car_trainer_forward(thread, task, &at)
                                                       : car_trainer_backward(thread, task, &at);
    thread->task_end = car_clock_seconds();
    pthread_mutex_lock(&trainer->lock);
    worker->at = at;
    car_trainer_hold(trainer, worker, task, false);
    return status;
}

/* The track that notes the task, if somebody wants to know of it. The worker's tape is this thread's for now. */
static car_track *begin_record(car_thread *thread, car_worker *worker, const car_task *task, double now) {
    const car_trainer *trainer = thread->trainer;
    bool wanted = car_recorder_wants(trainer->config.recorder, trainer->plan, task->slot);
    car_track *track = wanted ? thread->track : NULL;
    if (track) {
        car_track_begin(track, task, (int)(worker - trainer->worker), now, thread->waited);
    }
    worker->tape->track = track;
    thread->waited = 0;
    return track;
}

/* Asked to stop: a step that has updated some weights gets what its other updates need, all later ones are dropped. */
static void shorten(car_trainer *trainer) {
    int64_t end = trainer->newest > trainer->first_step ? trainer->newest : trainer->first_step;
    trainer->limit = end < trainer->limit ? end : trainer->limit;
}

/* One turn with the lock held; false when there is nothing more to do. */
static bool take_turn(car_thread *thread, double *mark) {
    car_trainer *trainer = thread->trainer;
    if (atomic_load(&trainer->stop)) {
        shorten(trainer);
    }
    car_worker *worker = trainer->status == CAR_OK ? car_trainer_choose(trainer) : NULL;
    if (!worker) {
        if (trainer->status != CAR_OK || all_finished(trainer)) {
            return false;
        }
        double before = car_clock_seconds();
        pthread_cond_wait(&trainer->changed, &trainer->lock);
        double waited = car_clock_seconds() - before;
        thread->waiting += waited;
        thread->waited += waited;
        return true;
    }
    const car_task task = *car_trainer_head(trainer, worker);
    worker->running = true;
    thread->task = &task;
    note_started(trainer, &task);
    double before = car_clock_seconds();
    thread->choosing += before - *mark;
    car_track *track = begin_record(thread, worker, &task, before);
    car_status status =
        task.kind == CAR_TASK_UPDATE ? car_trainer_update(thread, &task) : run_portion(thread, worker, &task);
    *mark = thread->task_end; /* what comes after, the lock included, is the executor's */
    thread->tasks += *mark - before;
    if (track) {
        car_track_end(track, *mark);
    }
    thread->task = NULL;
    worker->running = false;
    trainer->progress++;
    if (status != CAR_OK) {
        note_failure(trainer, status);
    } else if (worker->at == CAR_NONE) { /* or else there are more portions of it */
        note_done(trainer, worker, &task);
    }
    pthread_cond_broadcast(&trainer->changed);
    return true;
}

void *car_trainer_thread(void *argument) {
    car_thread *thread = argument;
    car_trainer *trainer = thread->trainer;
    car_error_scope scope;
    car_context_open_scope(trainer->context, &scope);
    pthread_mutex_lock(&trainer->lock);
    double mark = car_clock_seconds(), waited = thread->waiting;
    while (take_turn(thread, &mark)) {
        if (thread->waiting > waited) { /* waiting is not choosing */
            waited = thread->waiting;
            mark = car_clock_seconds();
        }
    }
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->lock);
    car_context_close_scope(trainer->context, &scope);
    return NULL;
}
