/* Pacing between ranks of one machine.
 *
 * A worker i in step t that has done a share c of the step's cost is at phase t + i/N + c. Left to themselves ranks
 * follow each other as closely as the messages allow, and are all at their peak of memory at about the same time. So a
 * forward or backward waits for the messages that the worker before would have sent if it were at the same phase, less
 * the longest task: they tell how far it is, and no further exchange is needed.
 *
 *   worker 1   F0  F1  F2  B2 . B1 . B0 .
 *                    \   \   \    \    \      each message tells where its sender is
 *   worker 2           F0  F1  F2   B2 . B1 . B0
 *
 * Nothing is held back for long, since not every partition allows every distance. */
#include "engine/rank_internal.h"

static double phase_before(const car_rank *rank, int stage, bool backward) {
    double share = 0;
    for (int j = 0; j < (backward ? rank->stages : stage); j++) {
        share += rank->partition->stages[j].forward;
    }
    for (int j = rank->stages - 1; backward && j > stage; j--) {
        share += rank->partition->stages[j].backward;
    }
    return share;
}

static double phase_of(const car_rank *rank, int64_t step, int worker, int stage, bool backward) {
    return (double)step + (double)worker / rank->workers + phase_before(rank, stage, backward);
}

/* The phase that the worker before has reached when it sends this; negative if it is not from there. */
static double phase_of_sender(const car_rank *rank, const car_task *task, int before) {
    const car_stage *stage = &rank->partition->stages[task->stage];
    bool partial = task->cargo == CAR_CARGO_PARTIAL, finished = task->cargo == CAR_CARGO_FINISHED;
    if ((!partial && !finished) || task->peer != car_plan_device(rank->plan, 0, before, 0)) {
        return -1;
    }
    if (partial || before == rank->workers - 1) { /* after its backward */
        return phase_of(rank, task->step, before, task->stage, true) + stage->backward;
    }
    /* It passes a finished sum on after its first forward with the result. */
    int64_t step = task->step + 1 + car_plan_delay(rank->plan, before, task->stage);
    return phase_of(rank, step, before, task->stage, false) + stage->forward;
}

/* One worker on each rank: only then the messages of one neighbour tell all. */
static bool is_paced(const car_rank *rank, const car_task *task) {
    bool places = rank->placement == CAR_PLACEMENT_REPLICA || rank->placement == CAR_PLACEMENT_ZERO;
    bool computes = task->kind == CAR_TASK_FORWARD || task->kind == CAR_TASK_BACKWARD;
    return rank->shares_memory && places && computes && rank->devices == rank->workers && rank->workers > 1;
}

static bool neighbour_is_behind(const car_rank *rank, const car_task *task) {
    int before = (task->worker + rank->workers - 1) % rank->workers;
    double most = phase_of(rank, task->step, task->worker, task->stage, task->kind == CAR_TASK_BACKWARD) -
                  rank->partition->longest_task;
    for (const car_entry *entry = rank->first; entry; entry = entry->next) {
        if (entry->task.kind == CAR_TASK_RECEIVE && !entry->over && !entry->arrived) {
            double phase = phase_of_sender(rank, &entry->task, before);
            if (phase >= 0 && phase <= most) {
                return true;
            }
        }
    }
    return false;
}

double car_rank_pace_patience(const car_rank *rank) {
    double patience = rank->step_seconds > 0 ? rank->step_seconds / 2 : 0.1;
    return patience < 0.002 ? 0.002 : patience > 2 ? 2 : patience;
}

bool car_rank_is_held_back(car_rank *rank, car_entry *entry) {
    if (!is_paced(rank, &entry->task) || !neighbour_is_behind(rank, &entry->task)) {
        return false;
    }
    double now = car_clock_seconds();
    entry->held_back = entry->held_back > 0 ? entry->held_back : now;
    return now - entry->held_back < car_rank_pace_patience(rank);
}

void car_rank_note_pace(car_rank *rank, const car_task *task) {
    if (!rank->shares_memory || (task->kind != CAR_TASK_FORWARD && task->kind != CAR_TASK_BACKWARD)) {
        return;
    }
    car_arena_trim(rank->arena);
    if (task->kind == CAR_TASK_FORWARD && task->stage == rank->first_stage) {
        double now = car_clock_seconds();
        rank->step_seconds = rank->step_began > 0 ? now - rank->step_began : rank->step_seconds;
        rank->step_began = now;
    }
}
