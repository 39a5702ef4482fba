/* Pacing: whose turn it is, of the workers whose tasks could run.
 *
 * Workers are kept evenly apart, because then the sum of what they hold is flat: a task of worker i in step t with a
 * share c of the step's cost done before it has the phase t + i/N + c, and may start only if its phase is at most the
 * slowest worker's plus a window. There is a budget as well: what would lift the sum of all workers above it waits while
 * others run, since real times are not quite the costs that phases count in. */
#include "carousel/predict.h"
#include "engine/trainer_internal.h"

static const double endless = 1e300; /* a phase */

/* The budget with a thread for every worker, over the peak of workers that run evenly spaced. A little less costs no
 * time that could be measured, because it is a peak of short duration; much less makes threads wait. */
static const double spaced_share = 0.98;

/* With fewer threads, over the predicted peak. A task counts with the most that it holds, so this is not reached. */
static const double predicted_share = 1.03;
static const int64_t few_enough = 4096; /* workers times stages, to be simulated before a run */

double car_trainer_phase(const car_trainer *trainer, const car_worker *worker, const car_task *task) {
    const car_curve *curve = &trainer->partition->curve;
    double spacing = trainer->cyclic ? (double)task->worker / trainer->workers : 0;
    bool forward = task->kind == CAR_TASK_FORWARD;
    if (task->kind == CAR_TASK_UPDATE) { /* after the backward */
        return (double)task->step + spacing + trainer->phase_backward[task->stage] +
               trainer->partition->stages[task->stage].backward;
    }
    double share = forward ? trainer->phase_forward[task->stage] : trainer->phase_backward[task->stage];
    if (worker->at != CAR_NONE) {
        share = curve->begin[forward ? worker->at : curve->events - 1 - worker->at];
    }
    return (double)task->step + spacing + share;
}

bool car_trainer_portion_is_full(const car_trainer *trainer, int from, int next) {
    const car_curve *curve = &trainer->partition->curve;
    double end = next + 1 < curve->events ? curve->begin[next + 1] : 1.0;
    return end - curve->begin[from] > trainer->portion * (1 + 1e-9);
}

/* ---- the budget ------------------------------------------------------------------------------ */

/* The most that a worker holds while it runs its next portion. */
static size_t portion_bytes(const car_trainer *trainer, const car_worker *worker, const car_task *task) {
    const car_curve *curve = &trainer->partition->curve;
    const car_stage *stage = &trainer->partition->stages[task->stage];
    bool forward = task->kind == CAR_TASK_FORWARD;
    int begin = worker->at != CAR_NONE ? worker->at : forward ? stage->first : stage->end - 1;
    int first = forward ? begin : curve->events - 1 - begin;
    int end = forward ? stage->end : curve->events - stage->first;
    size_t most = 0;
    for (int e = first; e < end && (e == first || !car_trainer_portion_is_full(trainer, first, e)); e++) {
        most = curve->during[e] > most ? curve->during[e] : most;
    }
    return most;
}

/* What a worker holds between two operations is alive during both, so the smaller of the two bounds it. */
static size_t resting_bytes(const car_trainer *trainer, const car_worker *worker, const car_task *task) {
    const car_curve *curve = &trainer->partition->curve;
    const car_stage *stage = &trainer->partition->stages[task->stage];
    bool forward = task->kind == CAR_TASK_FORWARD;
    int next = worker->at != CAR_NONE ? worker->at : forward ? stage->end : stage->first - 1;
    int event = forward ? next : curve->events - 1 - next;
    if (event == 0 || event >= curve->events) {
        return 0; /* between two micro-batches */
    }
    return curve->during[event - 1] < curve->during[event] ? curve->during[event - 1] : curve->during[event];
}

void car_trainer_hold(car_trainer *trainer, car_worker *worker, const car_task *task, bool running) {
    if (trainer->budget > 0 && task->kind != CAR_TASK_UPDATE) {
        worker->holds = running ? portion_bytes(trainer, worker, task) : resting_bytes(trainer, worker, task);
    }
}

/* All workers together, if this one ran its next portion. */
static double bytes_with(const car_trainer *trainer, const car_worker *worker, const car_task *task) {
    double sum = (double)portion_bytes(trainer, worker, task);
    for (int i = 0; i < trainer->workers; i++) {
        sum += &trainer->worker[i] != worker ? (double)trainer->worker[i].holds : 0;
    }
    return sum;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The phase of the worker that is furthest behind. */
static double slowest_phase(car_trainer *trainer) {
    double slowest = endless;
    for (int i = 0; i < trainer->workers; i++) {
        const car_task *task = car_trainer_head(trainer, &trainer->worker[i]);
        if (task) {
            double phase = car_trainer_phase(trainer, &trainer->worker[i], task);
            slowest = phase < slowest ? phase : slowest;
        }
    }
    return slowest;
}

/* The ready task that is furthest behind, of those up to a phase and within the budget; NULL if there is none. */
static car_worker *choose_up_to(car_trainer *trainer, double most, double budget) {
    double best = endless;
    car_worker *chosen = NULL;
    for (int i = 0; i < trainer->workers; i++) {
        car_worker *worker = &trainer->worker[i];
        const car_task *task = worker->running ? NULL : car_trainer_head(trainer, worker);
        if (!task || !car_trainer_is_ready(trainer, task)) {
            continue;
        }
        if (task->kind == CAR_TASK_UPDATE) {
            return worker; /* others wait for it */
        }
        double phase = car_trainer_phase(trainer, worker, task);
        if (phase <= most + 1e-9 && phase < best && (budget <= 0 || bytes_with(trainer, worker, task) <= budget)) {
            best = phase;
            chosen = worker;
        }
    }
    return chosen;
}

static bool nobody_runs(const car_trainer *trainer) {
    for (int i = 0; i < trainer->workers; i++) {
        if (trainer->worker[i].running) {
            return false;
        }
    }
    return true;
}

/* Within window and budget, unless nothing would move: what fits the budget may lie beyond the window, and where
 * stages are cut without regard to time, the slowest worker may wait for weights that are made beyond its window. */
car_worker *car_trainer_choose(car_trainer *trainer) {
    bool paced = trainer->cyclic && !trainer->config.unpaced;
    double most = paced ? slowest_phase(trainer) + trainer->window : endless;
    car_worker *chosen = choose_up_to(trainer, most, trainer->budget);
    if (!chosen && paced && nobody_runs(trainer)) {
        chosen = choose_up_to(trainer, most, 0);
        chosen = chosen ? chosen : choose_up_to(trainer, endless, 0);
    }
    return chosen;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static double longest_operation(const car_curve *curve) {
    double longest = 1.0 / 256; /* finer would only cost locking */
    for (int e = 0; e < curve->events; e++) {
        double cost = (e + 1 < curve->events ? curve->begin[e + 1] : 1.0) - curve->begin[e];
        longest = cost > longest ? cost : longest;
    }
    return longest;
}

/* The grain of pacing. A worker may be as far ahead as the longest piece of work that is done in one go: less would
 * make threads wait without need. With a thread for every worker that piece is an operation, so that all keep their
 * distance as exactly as can be. With fewer threads it is a whole task: while some workers run, the others rest
 * between two tasks, where they hold least. */
car_status car_trainer_set_pace(car_trainer *trainer) {
    const car_partition *partition = trainer->partition;
    trainer->portion = 1;
    trainer->window = partition->longest_task;
    if (!trainer->cyclic || trainer->config.unpaced) {
        return CAR_OK;
    }
    if (trainer->config.threads >= trainer->workers) {
        trainer->portion = trainer->window = longest_operation(&partition->curve);
        trainer->budget = spaced_share * car_predict_free_running(partition, trainer->workers) *
                          (double)trainer->workers * (double)partition->curve.peak;
        return CAR_OK;
    }
    if ((int64_t)trainer->workers * trainer->stages > few_enough) {
        return CAR_OK;
    }
    car_simulation predicted;
    car_status status = car_plan_predict_timed(trainer->plan, trainer->config.threads, &predicted);
    trainer->budget = predicted_share * (double)predicted.peak;
    return status;
}
