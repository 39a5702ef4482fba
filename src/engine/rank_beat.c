/* Beats keep ranks that have whole workers an N-th of a step apart.
 *
 * A replica can compute as soon as the last sums have arrived; under cdp-v1 those are a step old. A rank of zero can
 * compute as soon as weights are passed on to it. So without beats all ranks would begin together and stay together.
 * All would hold their most activations at the same moment, and all sums would be sent at once, as under dp. In the
 * cycle each micro-batch begins 2k slots, an N-th of a step, after the one before. So a rank tells the next rank with a
 * beat when the next micro-batch may begin, and the next rank waits until then:
 *
 *   rank 0   F0 F1 F2 F3 B3 B2 B1 B0 F0 F1 ...      k = 1, N = 4
 *   rank 1         F0 F1 F2 F3 B3 B2 B1 B0 ...
 *                  ^ beat
 *
 * In the first step a beat is sent when the task 2k slots later begins, and is due at once. Later it is sent when a
 * micro-batch begins, and is due a little less than an N-th of a micro-batch's time later. So ranks of equal speed do
 * not wait for beats, and a rank that fell behind a little catches up. In other placements the plan's own messages keep
 * ranks apart. */
#include "engine/rank_internal.h"

/* Minimum gap between micro-batch starts, as a fraction of an N-th of a micro-batch's time. Between machines it is
 * smaller: there sums are sometimes late, and a rank that waits for one should not hold up all ranks after it. */
static const double part = 0.75, part_nearby = 0.95;

static bool is_here(const car_rank *rank, int64_t number) {
    return car_rank_has(rank, number / rank->batches, (int)(number % rank->batches), 0);
}

bool car_beat_has_come(const car_rank *rank, const car_task *task) {
    int64_t number = task->step * rank->batches + task->micro_batch;
    if (task->kind != CAR_TASK_FORWARD || task->stage > 0 || number == 0 || !car_plan_needs_beats(rank->plan) ||
        is_here(rank, number - 1)) {
        return true;
    }
    return rank->beat_run == rank->run && rank->beat >= number;
}

void car_beat_note_begin(car_rank *rank, const car_task *task) {
    int64_t next = task->step * rank->batches + task->micro_batch + 1;
    if (!car_plan_needs_beats(rank->plan) || next >= rank->limit * rank->batches || is_here(rank, next) ||
        next <= rank->told) {
        return;
    }
    int64_t since = task->slot - car_plan_forward_slot(rank->plan, task->step, task->micro_batch, 0);
    int own = rank->workers / rank->devices, threads = rank->config.threads < own ? rank->config.threads : own;
    double time = rank->computes * own / threads;
    if (since == 0 && time > 0) {
        double share = car_transport_machines(rank->transport) > 1 ? part : part_nearby;
        car_transport_beat(rank->transport, rank->run, next, share * time / rank->workers);
        rank->told = next;
    } else if (since >= 2 * rank->per_worker) { /* the time was not known when this micro-batch began */
        car_transport_beat(rank->transport, rank->run, next, 0);
        rank->told = next;
    }
}

void car_beat_note_end(car_rank *rank, const car_task *task, double seconds) {
    double *computed = &rank->computed[task->micro_batch];
    *computed += seconds;
    if (task->kind == CAR_TASK_BACKWARD && task->stage == 0) {
        rank->computes = *computed;
    }
}

void car_rank_hear_beat(void *user, int64_t run, int64_t number) {
    car_rank *rank = user;
    pthread_mutex_lock(&rank->lock);
    rank->beat = run == rank->beat_run && rank->beat > number ? rank->beat : number;
    rank->beat_run = run;
    pthread_cond_broadcast(&rank->changed);
    pthread_mutex_unlock(&rank->lock);
}
