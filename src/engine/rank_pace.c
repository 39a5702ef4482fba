/* Pacing: who may start next, of those that could run. This file has what a rank does with several workers of its own, all
 * of them in one process; beats between ranks are in rank_beat.c.
 *
 * Workers are kept evenly apart, because then the sum of what they hold is flat: a worker that has done a share c of a
 * micro-batch's cost is at the phase at which that is due (car_plan_phase; in the cycle with one for each worker, worker i's of
 * step t at t + i/N) plus c, and may go on only if that is at most the slowest worker's phase plus a lead. There is a
 * budget as well: what would lift the sum of all workers above it waits while others run, since real times are not quite the
 * costs that phases count in.
 *
 * With a thread for every worker tasks are run in portions of an operation or so, and the lead is little longer: all keep
 * their distance. With fewer threads both are whole tasks: while some workers run, the others rest between
 * two tasks, where they hold least. */
#include "carousel/predict.h"
#include "engine/rank_internal.h"
#include "plan/pace.h"

static const double endless = 1e300; /* a phase */

/* The budget with fewer threads than workers, over the predicted peak. A task counts with the most that it holds, so this
 * is not reached. */
static const double predicted_share = 1.03;
static const int64_t few_enough = 4096; /* micro-batches of a step times stages, to be simulated before a run */

/* Where a worker is. */
typedef struct pacing_worker {
    double phase;
    size_t holds; /* bytes of activations, as the curve counts them: the most of a portion under way */
} pacing_worker;

struct car_pacing {
    double *forward, *backward; /* per stage: the share of a step's cost before it */
    double portion;             /* share of a step's cost that a portion may have */
    double lead;
    double budget; /* bytes; 0: none */
    pacing_worker *workers;
};

/* ---- setting up ------------------------------------------------------------------------------ */

/* Workers that are computed here. */
static int count_own(const car_rank *rank) {
    int own = 0;
    for (int i = 0; i < rank->workers; i++) {
        own += car_rank_has(rank, 0, i, 0);
    }
    return own;
}

static car_status set_pace(car_rank *rank) {
    const car_partition *partition = rank->partition;
    struct car_pacing *p = rank->pacing;
    car_simulation predicted;
    car_device_prediction device;
    car_status status = CAR_OK;
    bool own_threads = rank->config.threads >= count_own(rank);
    p->portion = own_threads ? car_pace_portion(&partition->curve) : 1;
    p->lead = own_threads ? car_pace_lead(&partition->curve) : partition->longest_task;
    if (!rank->alone) { /* how far apart its workers are is the mapping's business */
        CAR_TRY(car_plan_predict_device(rank->plan, rank->device, 0, &device));
        p->budget = predicted_share * (double)device.activations;
    } else if (own_threads) {
        p->budget = car_pace_budget(partition, rank->workers);
    } else if ((int64_t)rank->batches * rank->stages <= few_enough) {
        CAR_TRY(car_plan_predict_timed(rank->plan, rank->config.threads, &predicted));
        p->budget = predicted_share * (double)predicted.peak;
    }
done:
    return status;
}

car_status car_rank_create_pacing(car_rank *rank) {
    size_t stages = (size_t)rank->stages, workers = (size_t)rank->workers;
    double share = 0;
    car_status status = CAR_OK;
    if (!rank->spaced || rank->range || count_own(rank) < 2 || rank->config.unpaced) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->pacing, &rank->pacing));
    CAR_TRY(car_context_allocate(rank->context, stages, sizeof(double), &rank->pacing->forward));
    CAR_TRY(car_context_allocate(rank->context, stages, sizeof(double), &rank->pacing->backward));
    CAR_TRY(car_context_allocate(rank->context, workers, sizeof(pacing_worker), &rank->pacing->workers));
    for (int j = 0; j < rank->stages; j++) {
        rank->pacing->forward[j] = share;
        share += rank->partition->stages[j].forward;
    }
    for (int j = rank->stages - 1; j >= 0; j--) {
        rank->pacing->backward[j] = share;
        share += rank->partition->stages[j].backward;
    }
    CAR_TRY(set_pace(rank));
done:
    return status;
}

void car_rank_destroy_pacing(car_rank *rank) {
    struct car_pacing *p = rank->pacing;
    if (p) {
        car_context_release(rank->context, p->workers, (size_t)rank->workers, sizeof *p->workers);
        car_context_release(rank->context, p->backward, (size_t)rank->stages, sizeof(double));
        car_context_release(rank->context, p->forward, (size_t)rank->stages, sizeof(double));
        car_context_release(rank->context, p, 1, sizeof *p);
    }
}

void car_rank_rewind_pacing(car_rank *rank) {
    for (int i = 0; rank->pacing && i < rank->workers; i++) {
        bool own = car_rank_has(rank, 0, i, 0);
        rank->pacing->workers[i] = (pacing_worker){.phase = own ? car_plan_phase(rank->plan, 0, i) : endless};
    }
}

/* ---- portions -------------------------------------------------------------------------------- */

/* The first event of the step's curve that belongs to an operation's forward or backward, and the first behind them. */
static int event_of(const car_rank *rank, const car_task *task, int op) {
    return task->kind == CAR_TASK_FORWARD ? op : car_curve_backward(&rank->partition->curve, op);
}
static int event_behind(const car_rank *rank, const car_task *task, int op) {
    return event_of(rank, task, task->kind == CAR_TASK_FORWARD ? op + 1 : op - 1);
}

/* A task's first operation, and the one behind its last. */
static int first_op(const car_rank *rank, const car_task *task) {
    const car_stage *stage = &rank->partition->stages[task->stage];
    return task->kind == CAR_TASK_FORWARD ? stage->first : stage->end - 1;
}
static int end_op(const car_rank *rank, const car_task *task) {
    const car_stage *stage = &rank->partition->stages[task->stage];
    return task->kind == CAR_TASK_FORWARD ? stage->end : stage->first - 1;
}

/* Whether a portion from operation `from` on ends before operation `next`. */
static bool is_full(const car_rank *rank, const car_task *task, int from, int next) {
    const car_curve *curve = &rank->partition->curve;
    int first = event_of(rank, task, from), behind = event_behind(rank, task, next);
    double end = behind < curve->events ? curve->begin[behind] : 1.0;
    return from != next && end - curve->begin[first] > rank->pacing->portion * (1 + 1e-9);
}

/* Finds the end of the next portion, and the most that its worker holds meanwhile. */
static void find_portion(const car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    int from = entry->at != CAR_NONE ? entry->at : first_op(rank, task), end = end_op(rank, task);
    int step = task->kind == CAR_TASK_FORWARD ? 1 : -1, l = rank->pacing ? from : end;
    size_t most = 0;
    if (entry->portioned) {
        return;
    }
    for (; l != end && !is_full(rank, task, from, l); l += step) {
        for (int e = event_of(rank, task, l); e < event_behind(rank, task, l); e++) {
            size_t during = rank->partition->curve.during[e];
            most = during > most ? during : most;
        }
    }
    entry->portioned = true;
    entry->until = l;
    entry->most = most;
}

/* What a worker holds between two operations is alive during both, so the smaller of the two bounds it. */
static size_t resting_bytes(const car_rank *rank, const car_entry *entry) {
    const car_curve *curve = &rank->partition->curve;
    int next = entry->at != CAR_NONE ? entry->at : end_op(rank, &entry->task);
    int event = event_of(rank, &entry->task, next);
    if (event == 0 || event >= curve->events) {
        return 0; /* between two micro-batches */
    }
    return curve->during[event - 1] < curve->during[event] ? curve->during[event - 1] : curve->during[event];
}

/* ---- where workers are ------------------------------------------------------------------------- */

static double phase_of(const car_rank *rank, const car_entry *entry) {
    const car_task *task = &entry->task;
    double share =
        task->kind == CAR_TASK_FORWARD ? rank->pacing->forward[task->stage] : rank->pacing->backward[task->stage];
    if (entry->at != CAR_NONE) {
        share = rank->partition->curve.begin[event_of(rank, task, entry->at)];
    }
    return car_plan_phase(rank->plan, task->step, task->micro_batch) + share;
}

void car_rank_note_begin(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    if (!car_task_computes(task)) {
        return;
    }
    rank->begun = true;
    if (task->kind == CAR_TASK_FORWARD && task->stage == 0 && entry->at == CAR_NONE) {
        rank->computed[task->micro_batch] = 0;
    }
    car_beat_note_begin(rank, task);
    car_rank_note_slot(rank, task);
    find_portion(rank, entry);
    if (rank->pacing) {
        rank->pacing->workers[task->micro_batch % rank->workers] = (pacing_worker){phase_of(rank, entry), entry->most};
    }
}

/* Where a worker is that has done what the entry says of its task. */
static double phase_after(const car_rank *rank, const car_entry *entry) {
    const car_task *task = &entry->task;
    const car_stage *stage = &rank->partition->stages[task->stage];
    if (entry->at != CAR_NONE) {
        return phase_of(rank, entry);
    }
    if (task->kind == CAR_TASK_BACKWARD && task->stage == 0) {
        int next = task->micro_batch + rank->workers; /* its worker's */
        if (next < rank->batches) {
            return car_plan_phase(rank->plan, task->step, next);
        }
        bool last = task->step + 1 >= rank->limit;
        return last ? endless : car_plan_phase(rank->plan, task->step + 1, next - rank->batches);
    }
    return phase_of(rank, entry) + (task->kind == CAR_TASK_FORWARD ? stage->forward : stage->backward);
}

void car_rank_note_end(car_rank *rank, car_entry *entry, double seconds) {
    const car_task *task = &entry->task;
    if (!car_task_computes(task)) {
        return;
    }
    entry->portioned = false;
    rank->computing += seconds;
    car_beat_note_end(rank, task, seconds);
    if (rank->pacing) {
        rank->pacing->workers[task->micro_batch % rank->workers] =
            (pacing_worker){phase_after(rank, entry), resting_bytes(rank, entry)};
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* All workers together, if this one ran its next portion. */
static double bytes_with(const car_rank *rank, car_entry *entry) {
    find_portion(rank, entry);
    double sum = (double)entry->most;
    for (int i = 0; i < rank->workers; i++) {
        sum += i != entry->task.micro_batch % rank->workers ? (double)rank->pacing->workers[i].holds : 0;
    }
    return sum;
}

static bool somebody_runs(const car_rank *rank) {
    for (const car_entry *entry = rank->ready; entry; entry = entry->next_ready) {
        if (entry->running) {
            return true;
        }
    }
    return false;
}

/* The candidate that is furthest behind, of those up to a phase and within the budget; NULL if there is none. */
static car_entry *find_up_to(car_rank *rank, double most, double budget) {
    double best = endless;
    car_entry *found = NULL;
    for (car_entry *entry = rank->ready; entry; entry = entry->next_ready) {
        if (!entry->candidate) {
            continue;
        }
        double phase = phase_of(rank, entry);
        if (phase <= most + 1e-9 && phase < best && (budget <= 0 || bytes_with(rank, entry) <= budget)) {
            best = phase;
            found = entry;
        }
    }
    return found;
}

/* Within lead and budget, unless nothing would move: what fits the budget may lie beyond the lead, and where stages are
 * cut without regard to time, the slowest worker may wait for weights that are made beyond its lead. */
car_entry *car_rank_choose_paced(car_rank *rank) {
    double slowest = endless;
    for (int i = 0; i < rank->workers; i++) {
        double phase = rank->pacing->workers[i].phase;
        slowest = phase < slowest ? phase : slowest;
    }
    double most = slowest + rank->pacing->lead;
    car_entry *chosen = find_up_to(rank, most, rank->pacing->budget);
    if (!chosen && !somebody_runs(rank)) {
        chosen = find_up_to(rank, most, 0);
        chosen = chosen ? chosen : find_up_to(rank, endless, 0);
    }
    return chosen;
}
