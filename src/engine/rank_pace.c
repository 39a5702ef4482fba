/* Pacing decides which of the tasks that could run may start. This file paces the workers of one rank. Beats, which
 * pace ranks among each other, are in rank_beat.c.
 *
 * Workers are kept evenly apart, because then the activations of all workers together stay about constant. A worker has
 * a phase: the time at which its micro-batch is due in the clock (car_plan_phase; t + i/N for worker i in step t of the
 * cycle, if each worker has one micro-batch per step), plus the share c of the micro-batch's cost that is done. It may
 * go on only if its phase is at most the slowest worker's phase plus a lead. There is also a budget of bytes: work that
 * would lift the sum over all workers above it waits while others run. The budget is needed because phases count in
 * costs, and real times differ a little from those.
 *
 * With a thread for every worker, tasks run in portions of about one operation, and the lead is little longer. So all
 * workers keep their distance. With fewer threads, a portion is a whole task, and the lead is the longest task: while
 * some workers run, the others rest between two tasks, where they hold least. */
#include "carousel/predict.h"
#include "engine/rank_internal.h"
#include "plan/pace.h"

static const double endless = 1e300; /* the phase of a worker that is not here or is done */

/* The budget over the predicted peak of activations, where the budget is not that of evenly spaced workers. Each
 * portion counts with the most that it holds at any time, so the real peak stays below the budget. */
static const double predicted_share = 1.03;
/* Plans with more micro-batches per step times stages than this are not simulated before a run. They have no budget. */
static const int64_t few_enough = 4096;

/* Where a worker is, and what it holds. */
typedef struct pacing_worker {
    double phase;
    /* Bytes of activations by the curve. While a portion runs, this is the most that the worker holds during it. */
    size_t holds;
} pacing_worker;

struct car_pacing {
    double *forward, *backward; /* for each stage: the share of a micro-batch's cost that lies before it */
    double portion;             /* the largest share of a micro-batch's cost in a portion */
    double lead;
    double budget; /* in bytes; 0 = no budget */
    pacing_worker *workers;
};

/* ---- setting up ------------------------------------------------------------------------------ */

/* The number of workers on this rank. */
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
    bool pretends = rank->config.step_seconds > 0; /* which gives times to whole tasks */
    p->portion = own_threads && !pretends ? car_pace_portion(&partition->curve) : 1;
    p->lead = own_threads ? car_pace_lead(&partition->curve) : partition->longest_task;
    if (!rank->alone) { /* the mapping decides which workers are here, so predict this rank */
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

/* The first event of the curve that belongs to an operation's forward or backward; and the first event after those. */
static int event_of(const car_rank *rank, const car_task *task, int op) {
    return task->kind == CAR_TASK_FORWARD ? op : car_curve_backward(&rank->partition->curve, op);
}
static int event_behind(const car_rank *rank, const car_task *task, int op) {
    return event_of(rank, task, task->kind == CAR_TASK_FORWARD ? op + 1 : op - 1);
}

/* The first operation of a task in running order; and the one after its last. */
static int first_op(const car_rank *rank, const car_task *task) {
    const car_stage *stage = &rank->partition->stages[task->stage];
    return task->kind == CAR_TASK_FORWARD ? stage->first : stage->end - 1;
}
static int end_op(const car_rank *rank, const car_task *task) {
    const car_stage *stage = &rank->partition->stages[task->stage];
    return task->kind == CAR_TASK_FORWARD ? stage->end : stage->first - 1;
}

/* True if a portion that begins with operation `from` has to end before operation `next`. It has at least one
 * operation. */
static bool is_full(const car_rank *rank, const car_task *task, int from, int next) {
    const car_curve *curve = &rank->partition->curve;
    int first = event_of(rank, task, from), behind = event_behind(rank, task, next);
    double end = behind < curve->events ? curve->begin[behind] : 1.0;
    return from != next && end - curve->begin[first] > rank->pacing->portion * (1 + 1e-9);
}

/* Finds the end of the next portion, and the most bytes that its worker holds during it. Without pacing it is the whole
 * task. */
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

/* The bytes that a worker holds after a portion. What it holds between two operations is alive during both, so the
 * smaller of the two operations' bytes is an upper bound. */
static size_t resting_bytes(const car_rank *rank, const car_entry *entry) {
    const car_curve *curve = &rank->partition->curve;
    int next = entry->at != CAR_NONE ? entry->at : end_op(rank, &entry->task);
    int event = event_of(rank, &entry->task, next);
    if (event == 0 || event >= curve->events) {
        return 0; /* between two micro-batches */
    }
    return curve->during[event - 1] < curve->during[event] ? curve->during[event - 1] : curve->during[event];
}

/* ---- phases of workers ------------------------------------------------------------------------ */

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

/* The phase of a worker after a portion: entry->at says how much of its task is done. */
static double phase_after(const car_rank *rank, const car_entry *entry) {
    const car_task *task = &entry->task;
    const car_stage *stage = &rank->partition->stages[task->stage];
    if (entry->at != CAR_NONE) {
        return phase_of(rank, entry);
    }
    if (task->kind == CAR_TASK_BACKWARD && task->stage == 0) {
        int next = task->micro_batch + rank->workers; /* the worker's next micro-batch */
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

/* The bytes of all workers together, if this entry's next portion ran. */
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

/* The candidate with the lowest phase, among those with a phase up to `most` that stay within the budget (0: any); NULL
 * if there is none. */
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

/* Chooses within the lead and the budget. If there is no such candidate and no ready task is running, the rank would
 * stand still. Then it first ignores the budget, and if that is not enough, also the lead: where stages are not cut by
 * time, the slowest worker may wait for weights that only a worker beyond its lead can make. */
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
