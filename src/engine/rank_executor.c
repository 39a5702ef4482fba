/* The executor of a rank. Each thread takes the first task in the plan's order that can run, and runs it.
 *
 *   plan's order   R p2   B2   S p2   R s1   U1   F1 ...
 *                  |      '-blocked by the receive, because both use the same sum
 *                  '-posted ahead; over when it has arrived and its data was put in place
 *
 * A receive is posted ahead of its use, in general by 2k slots, because the plan gives a message that long to arrive.
 * Collectives start in the plan's order, which is the same on all ranks of a group. One lock guards the state of a
 * rank. It is never held while a kernel runs. */
#include "engine/rank_internal.h"

/* ---- which tasks can run ---------------------------------------------------------------------- */

/* The slot of the first task that is not over. An update that has measured its gradient, and waits for a norm, does not
 * count. */
static int64_t current_slot(const car_rank *rank) {
    int64_t n = rank->oldest;
    const car_entry *entry = car_rank_entry(rank, n);
    while (n + 1 < rank->listed && (entry->over || (entry->task.kind == CAR_TASK_UPDATE && entry->at != CAR_NONE))) {
        entry = car_rank_entry(rank, ++n);
    }
    return entry->task.slot;
}

static bool may_start(const car_rank *rank, const car_entry *entry, int64_t now) {
    const car_task *task = &entry->task;
    bool soon = task->slot <= now + car_rank_slots_ahead(rank, task);
    if (task->kind == CAR_TASK_RECEIVE) {
        return soon;
    }
    bool gives = task->kind != CAR_TASK_BROADCAST || rank->holding[task->bundle].owned; /* it has the data */
    return car_rank_may_commit(rank, task->step + 1) && (gives ? entry->blockers == 0 : soon);
}

/* True unless the task is an update in place, and a message still sends the weights that it would overwrite. */
static bool target_is_free(const car_rank *rank, const car_task *task) {
    if (task->kind != CAR_TASK_UPDATE) {
        return true;
    }
    for (int b = car_bundle_of_home(rank->partition, task->bundle, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(rank->partition, task->bundle, b)) {
        const car_holding_of_bundle *h = &rank->holding[b];
        if (h->owned && h->places > 0 && h->held[0].block->references > 1) {
            return false;
        }
    }
    return true;
}

/* True if the carrier runs this task. It does not run messages of activations: a compute thread packs them when they
 * are made and unpacks them when they are used, because otherwise they would be held twice. */
static bool is_carried(const car_task *task) {
    return car_task_is_message(task) && !car_task_crosses(task);
}

/* True if the task has to wait for a forward or backward that comes earlier in the plan. The first portion of an
 * update, which measures the sum for a norm, need not wait, because other ranks may wait for the result. */
static bool is_behind_compute(const car_rank *rank, const car_entry *entry) {
    bool measures = rank->measures && entry->at == CAR_NONE;
    if (measures || !car_usage_follows_computes(rank->usage, &entry->task)) {
        return false;
    }
    for (int64_t n = rank->oldest; n < entry->number; n++) {
        const car_entry *earlier = car_rank_entry(rank, n);
        if (car_task_computes(&earlier->task) && !earlier->over) {
            return true;
        }
    }
    return false;
}

/* True if a task of the ready set can run. Pacing between the workers of the rank is checked later. */
static bool may_run(const car_rank *rank, const car_entry *entry) {
    const car_task *task = &entry->task;
    if (car_task_arrives(task)) {
        return entry->arrived;
    }
    if (task->kind == CAR_TASK_UPDATE && (is_behind_compute(rank, entry) || !car_rank_may_update(rank, entry))) {
        return false;
    }
    return target_is_free(rank, task) && car_beat_has_come(rank, task) && car_rank_may_note_loss(rank, task);
}

/* Posts the receives that are due, and starts collectives in the order that is the same on all ranks. */
static void start_arrivals(car_rank *rank) {
    int64_t now = rank->arrivals ? current_slot(rank) : 0;
    bool waits[CAR_TASK_KINDS] = {false}; /* an earlier collective of this kind has not been started */
    for (car_entry **place = &rank->arrivals; *place && rank->status == CAR_OK;) {
        car_entry *entry = *place;
        if (waits[entry->task.kind] || !may_start(rank, entry, now)) {
            waits[entry->task.kind] = car_task_is_collective(&entry->task);
            place = &entry->next_arrival;
            continue;
        }
        *place = entry->next_arrival;
        car_rank_fail(rank, car_rank_start_arrival(rank, entry));
    }
}

/* The task that a thread runs next; NULL if it has to wait.
 *
 * Without pacing this is the first task in the plan's order that can run. With pacing, updates and messages still come
 * first, because others wait for them. The forwards and backwards that can run are candidates, and pacing picks the one
 * whose worker is furthest behind. */
static car_entry *choose(car_rank *rank, bool carries) {
    bool candidates = false;
    start_arrivals(rank);
    for (car_entry *entry = rank->ready; entry && rank->status == CAR_OK; entry = entry->next_ready) {
        bool may_take = !entry->running && (!carries || is_carried(&entry->task));
        bool can = may_take && may_run(rank, entry);
        bool paced = rank->pacing && car_task_computes(&entry->task);
        if (can && !paced) {
            return entry;
        }
        entry->candidate = can;
        candidates = candidates || can;
    }
    return candidates && rank->status == CAR_OK ? car_rank_choose_paced(rank) : NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

static car_status run(car_rank_thread *thread, car_entry *entry) {
    switch (entry->task.kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        return car_rank_compute(thread, entry);
    case CAR_TASK_UPDATE:
        return car_rank_update(thread, entry);
    case CAR_TASK_SEND:
        return car_rank_send(thread->rank, &entry->task);
    default:
        return car_rank_take_arrival(thread->rank, entry);
    }
}

/* Drops the weights from before a restart once the first step is over. */
static void drop_older(car_rank *rank) {
    const car_entry *first = car_rank_first(rank);
    if (!rank->holds_older || (first && first->task.slot <= car_plan_first_step_end(rank->plan))) {
        return;
    }
    rank->holds_older = false;
    for (int b = 0; b < rank->bundles; b++) {
        car_block_clear(rank, &rank->holding[b].older);
    }
}

/* Drops a sum once its last use is over, and so are all earlier tasks that read it: sending a finished sum on and
 * updating from it may happen in any order. */
static void free_sum(car_rank *rank, const car_entry *entry) {
    const car_task *task = &entry->task;
    if (task->bundle < 0) {
        return;
    }
    car_sum *sum = car_rank_find_sum(rank, task->bundle, task->step, 0, car_usage_leg(rank->usage, task));
    if (sum && car_usage_ends_sum(rank->usage, task)) {
        sum->readers_end = entry->number + 1;
    }
    if (!sum || sum->readers_end == 0) {
        return;
    }
    for (int64_t n = rank->oldest; n < sum->readers_end; n++) {
        const car_entry *e = car_rank_entry(rank, n);
        bool same = e->task.bundle == task->bundle && e->task.step == task->step;
        if (!e->over && same && car_usage_reads_sum(rank->usage, &e->task)) {
            return;
        }
    }
    car_rank_drop_sum(rank, task->bundle, sum);
}

/* ---- recording ------------------------------------------------------------------------------- */

static bool has_tape(const car_task *task) {
    return car_task_computes(task) || car_task_crosses(task);
}

static int64_t version_of_run(const car_rank *rank, int64_t version) {
    return version == CAR_NONE             ? CAR_NONE
           : version == CAR_VERSION_BEFORE ? rank->first_step - 1
                                           : rank->first_step + version;
}

/* Starts recording the task, if the recorder wants it, and makes its tape record on this thread's track. */
static car_track *begin_record(car_rank_thread *thread, const car_entry *entry, double now) {
    car_rank *rank = thread->rank;
    car_task task = entry->task;
    task.step = car_rank_step_of(rank, &task); /* the plan counts from the start of the run */
    task.slot += rank->first_step * car_plan_period(rank->plan);
    task.version = version_of_run(rank, task.version);
    task.tied_version = version_of_run(rank, task.tied_version);
    bool wanted = car_recorder_wants(rank->config.recorder, rank->plan, task.slot);
    car_track *track = wanted ? thread->track : NULL;
    if (track) {
        car_track_begin(track, &task, has_tape(&task) ? task.micro_batch % rank->workers : CAR_NONE, now,
                        thread->carries ? 0 : thread->waited);
    }
    if (has_tape(&task)) {
        rank->tapes[car_usage_tape_of(rank->usage, &entry->task)]->track = track;
    }
    thread->waited = 0;
    return track;
}

static void end_record(const car_rank *rank, car_track *track, const car_entry *entry, double now) {
    if (!track) {
        return;
    }
    if (car_task_crosses(&entry->task)) {
        car_track_hold(track, rank->tapes[car_usage_tape_of(rank->usage, &entry->task)]->live);
    }
    if (car_task_arrives(&entry->task)) {
        car_track_arrival(track, entry->message.started, entry->message.finished);
    }
    car_track_end(track, now);
}

static bool is_done(const car_rank *rank) {
    return rank->window >= rank->windows && !car_rank_first(rank) && !rank->frozen && car_rank_snapshots_are_done(rank);
}

/* A task, or a portion of it, has ended. */
static void note_end(car_rank *rank, car_entry *entry, car_status status, double begin, double end) {
    bool dropped = car_rank_is_dropped(rank, &entry->task), whole = entry->at == CAR_NONE;
    bool abandoned = dropped && !car_task_is_message(&entry->task); /* the early end was decided while it ran */
    status = status == CAR_OK && whole && !dropped ? car_rank_note_step(rank, &entry->task) : status;
    if (status != CAR_OK) { /* the entry stays `running`, so that messages can name it */
        car_rank_fail(rank, status);
        return;
    }
    rank->progressed = end;
    car_rank_note_end(rank, entry, end - begin);
    entry->running = false;
    if (!whole && !abandoned) {
        return; /* more portions follow */
    }
    entry->over = true;
    if (!abandoned) {
        free_sum(rank, entry);
    }
    car_rank_retire(rank, entry);
    drop_older(rank);
}

/* Runs before each choice: looks for an early end, lists the next window, hands over snapshots. Handing over releases
 * the lock. If the run was shortened meanwhile, tasks are listed again before one is chosen. */
static void look_around(car_rank *rank) {
    int64_t limit = 0;
    car_rank_look_for_stop(rank);
    do {
        limit = rank->limit;
        if (rank->status == CAR_OK) {
            car_rank_fail(rank, car_rank_fill(rank));
        }
        if (rank->status == CAR_OK) {
            car_rank_fail(rank, car_rank_tend_snapshots(rank));
        }
    } while (rank->status == CAR_OK && rank->limit != limit);
}

/* Called when a thread has chosen its next task, or none. It wakes idle threads only if one of them could run
 * something, because each wake-up costs a system call here and a useless search there. No task is missed: a thread that
 * makes tasks runnable by ending another searches next, and comes here before it releases the lock. All other events
 * wake every thread. */
static void wake_others(car_rank *rank) {
    if (rank->idle > 0 && choose(rank, false)) {
        pthread_cond_broadcast(&rank->changed);
    }
}

/* Runs a task or a portion of it. Returns the time at which it ended. */
static double work_on(car_rank_thread *thread, car_entry *entry, double now) {
    car_rank *rank = thread->rank;
    entry->running = true;
    thread->entry = entry;
    car_rank_note_begin(rank, entry);
    wake_others(rank);
    car_track *track = begin_record(thread, entry, now);
    car_status status = run(thread, entry);
    double end = car_clock_seconds();
    end_record(rank, track, entry, end);
    thread->entry = NULL;
    note_end(rank, entry, status, now, end);
    return end;
}

/* Helps with a large update, or sleeps until something happens. Returns true if it slept. */
static bool pass_time(car_rank_thread *thread) {
    car_rank *rank = thread->rank;
    if (!thread->carries && car_rank_help(rank)) {
        return false;
    }
    if (thread->carries) { /* it may have unblocked tasks for compute threads */
        wake_others(rank);
    }
    rank->idle++;
    pthread_cond_wait(&rank->changed, &rank->lock);
    rank->idle--;
    return true;
}

/* Runs one task or portion, or waits. Hold the lock. `*mark` is the time up to which this thread's time has been
 * counted. Returns false when nothing is left to do. */
static bool take_turn(car_rank_thread *thread, double *mark) {
    car_rank *rank = thread->rank;
    look_around(rank);
    car_entry *entry = rank->status == CAR_OK ? choose(rank, thread->carries) : NULL;
    if (rank->status != CAR_OK || (!entry && is_done(rank))) {
        return false;
    }
    double now = car_clock_seconds();
    thread->choosing += now - *mark;
    bool waits = !entry && pass_time(thread);
    *mark = entry ? work_on(thread, entry, now) : car_clock_seconds();
    thread->tasks += waits ? 0 : *mark - now;
    thread->waiting += waits && rank->begun ? *mark - now : 0;
    thread->waited += waits ? *mark - now : 0;
    return true;
}

void *car_rank_thread_run(void *argument) {
    car_rank_thread *thread = argument;
    car_rank *rank = thread->rank;
    car_error_scope scope;
    car_context_open_scope(rank->context, &scope);
    pthread_mutex_lock(&rank->lock);
    double mark = car_clock_seconds();
    while (take_turn(thread, &mark)) {
    }
    pthread_cond_broadcast(&rank->changed);
    pthread_mutex_unlock(&rank->lock);
    car_context_close_scope(rank->context, &scope);
    return NULL;
}
