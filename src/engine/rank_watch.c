/* The watchdog. Ranks send each other statuses as heartbeats, and notice when a rank falls silent. */
#include <stdio.h>
#include <string.h>

#include "engine/rank_internal.h"

/* The watchdog looks about four times a second. If more seconds than this pass between two looks, this process was
 * itself stopped, perhaps together with all others. Then all timeouts start again. */
static double lapse_of(const car_rank *rank) {
    double quarter = rank->config.watchdog_seconds / 4;
    return quarter > 0.5 ? quarter : 0.5;
}

void car_rank_be_patient(car_rank *rank) {
    for (int r = 0; r < rank->devices; r++) {
        rank->sightings[r].when = car_clock_seconds();
    }
}

/* The first task that is running, or the first one that waits; NULL if there is none. */
static const car_entry *task_at(const car_rank *rank) {
    for (int64_t n = rank->oldest; n < rank->listed; n++) {
        if (car_rank_entry(rank, n)->running) {
            return car_rank_entry(rank, n);
        }
    }
    return car_rank_first(rank);
}

/* The text of a task, or of `none` if there is no task. */
typedef struct task_text {
    char text[96];
} task_text;

static task_text name_task(const car_rank *rank, const car_entry *entry, const char *none) {
    task_text t = {""};
    if (entry) {
        car_task_format(rank->plan, &entry->task, t.text, sizeof t.text);
    } else {
        snprintf(t.text, sizeof t.text, "%s", none);
    }
    return t;
}

/* ---- statuses -------------------------------------------------------------------------------- */

bool car_rank_is_urgent(void *user) {
    car_rank *rank = user;
    return atomic_load(&rank->stop) && !atomic_load(&rank->wished);
}

size_t car_rank_tell(void *user, char *text) {
    car_rank *rank = user;
    pthread_mutex_lock(&rank->lock);
    const car_entry *at = task_at(rank);
    car_rank_status status = {.step = at ? car_rank_step_of(rank, &at->task) : rank->first_step + rank->limit,
                              .run = rank->run,
                              .waits = at && !at->running,
                              .wishes_to_stop = atomic_load(&rank->stop)};
    const task_text doing = name_task(rank, at, rank->aside ? rank->aside : "the end");
    memcpy(status.doing, doing.text, sizeof status.doing);
    atomic_store(&rank->wished, status.wishes_to_stop != 0);
    pthread_mutex_unlock(&rank->lock);
    memcpy(text, &status, sizeof status);
    return sizeof status;
}

static void see(car_rank *rank, int from, const char *text) {
    car_sighting *sighting = &rank->sightings[from];
    car_rank_status *told = &sighting->told;
    sighting->when = car_clock_seconds();
    memcpy(told, text, sizeof *told);
    told->doing[sizeof told->doing - 1] = '\0';
    if (told->run == rank->run && told->wishes_to_stop && rank->device == 0) {
        atomic_store(&rank->stop, true);
        car_rank_look_for_stop(rank);
    }
}

void car_rank_heard(void *user, int from, const char *text, size_t bytes) {
    car_rank *rank = user;
    pthread_mutex_lock(&rank->lock);
    if (bytes == sizeof(car_rank_status)) {
        see(rank, from, text);
    } else {
        car_rank_fail(rank, car_context_fail(rank->context, CAR_ERROR_IO,
                                             "rank %d sent a status of an unexpected size, %zu bytes: the ranks run "
                                             "different builds, or the network is broken",
                                             from, bytes));
    }
    pthread_mutex_unlock(&rank->lock);
}

/* ---- silent ranks ----------------------------------------------------------------------------- */

static void describe_self(const car_rank *rank, char *text, size_t capacity) {
    const car_entry *at = task_at(rank);
    const task_text task = name_task(rank, at, "");
    if (at && !at->running && at->task.kind == CAR_TASK_RECEIVE) {
        snprintf(text, capacity, "rank %d waits for %s from rank %d, in step %lld", rank->device, task.text,
                 at->task.peer, (long long)car_rank_step_of(rank, &at->task) + 1);
    } else if (at) {
        snprintf(text, capacity, "rank %d is at %s", rank->device, task.text);
    } else if (rank->aside) {
        snprintf(text, capacity, "rank %d %s %s", rank->device, rank->device == 0 ? "is busy with" : "waits for",
                 rank->aside);
    } else {
        snprintf(text, capacity, "rank %d waits for the other ranks between two steps", rank->device);
    }
}

static void describe_other(const car_rank *rank, int r, double now, char *text, size_t capacity) {
    const car_sighting *s = &rank->sightings[r];
    if (s->told.doing[0]) {
        snprintf(text, capacity, "rank %d was last heard from %.1f s ago, %s %s in step %lld", r, now - s->when,
                 s->told.waits ? "waiting for" : "in", s->told.doing, (long long)s->told.step + 1);
    } else {
        snprintf(text, capacity, "rank %d has not been heard from", r);
    }
}

/* True if this rank watches rank r. Rank 0 watches all others; every other rank watches the rank before it. */
static bool hears(const car_rank *rank, int r) {
    return r != rank->device && (rank->device == 0 || r == (rank->device + rank->devices - 1) % rank->devices);
}

static size_t explain(const car_rank *rank, char *text, size_t capacity) {
    double now = car_clock_seconds();
    char line[256];
    describe_self(rank, line, sizeof line);
    size_t used = (size_t)snprintf(text, capacity, "%s", line);
    for (int r = 0; r < rank->devices && used < capacity; r++) {
        if (hears(rank, r)) {
            describe_other(rank, r, now, line, sizeof line);
            used += (size_t)snprintf(text + used, capacity - used, "\n  %s", line);
        }
    }
    return used < capacity ? used : capacity - 1;
}

size_t car_rank_explain(car_rank *rank, char *text, size_t capacity) {
    if (!rank || !text || capacity == 0) {
        return 0;
    }
    pthread_mutex_lock(&rank->lock);
    size_t length = explain(rank, text, capacity);
    pthread_mutex_unlock(&rank->lock);
    return length;
}

/* ---- no progress ------------------------------------------------------------------------------ */

static void describe_worker(const car_rank *rank, int worker) {
    const car_entry *at = NULL;
    for (int64_t n = rank->oldest; n < rank->listed && !at; n++) {
        const car_entry *entry = car_rank_entry(rank, n);
        bool own = !entry->over && car_task_computes(&entry->task) && entry->task.micro_batch % rank->workers == worker;
        at = own ? entry : at;
    }
    const char *state = !at ? "finished" : at->running ? "running" : "waiting to run";
    car_context_log(rank->context, CAR_LOG_ERROR, "  worker %d: %s %s, step %lld", worker, state,
                    name_task(rank, at, "").text, at ? (long long)car_rank_step_of(rank, &at->task) + 1 : -1LL);
}

/* For a rank that is alone: logs what each worker and thread is doing, if no task has ended for a while. */
static void look_for_progress(car_rank *rank, double now) {
    if (!rank->alone || !car_rank_first(rank) || now - rank->progressed < rank->config.watchdog_seconds) {
        return;
    }
    car_context_log(rank->context, CAR_LOG_ERROR, "no task has ended for %g s; current state:", now - rank->progressed);
    for (int i = 0; i < rank->workers; i++) {
        describe_worker(rank, i);
    }
    if (car_rank_snapshot_is_away(rank)) {
        car_context_log(rank->context, CAR_LOG_ERROR, "  the last snapshot has not been returned");
    }
    for (int p = 0; p < rank->config.threads; p++) {
        car_context_log(rank->context, CAR_LOG_ERROR, "  thread %d: %s", p,
                        name_task(rank, rank->thread[p].entry, "waiting for a task").text);
    }
    for (int j = 0; j < rank->stages; j++) {
        car_context_log(rank->context, CAR_LOG_ERROR, "  stage %d: version %lld made", j,
                        (long long)rank->first_step + rank->holding[j].made);
    }
    rank->progressed = now;
}

static void watch(car_rank *rank) {
    double now = car_clock_seconds();
    if (now - rank->watched > lapse_of(rank)) {
        car_rank_be_patient(rank);
    }
    rank->watched = now;
    look_for_progress(rank, now);
    car_rank_look_for_stop(rank);
    for (int r = 0; r < rank->devices && rank->status == CAR_OK; r++) {
        double silent = now - rank->sightings[r].when;
        if (hears(rank, r) && silent > rank->config.watchdog_seconds) { /* it is considered lost */
            char text[2048], line[256];
            describe_other(rank, r, now, line, sizeof line);
            explain(rank, text, sizeof text);
            car_rank_fail(
                rank, car_context_fail(rank->context, CAR_ERROR_IO,
                                       "rank %d does not respond: it was killed or stopped, its machine is "
                                       "unreachable, or it does not make the same calls as the other ranks. %s\n  %s",
                                       r, line, text));
        }
    }
}

void car_rank_watch(void *user) {
    car_rank *rank = user;
    pthread_mutex_lock(&rank->lock);
    watch(rank);
    pthread_mutex_unlock(&rank->lock);
}
