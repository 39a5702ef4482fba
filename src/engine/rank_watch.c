/* Who is where, and who is silent: what ranks tell each other of themselves, by the statuses of the transport. */
#include <stdio.h>
#include <string.h>

#include "engine/rank_internal.h"

/* What a status carries. */
typedef struct status_head {
    int64_t step; /* that the rank is in */
    int64_t run;  /* which it is in */
    int32_t waits;
    int32_t wishes_to_stop;
    char doing[96];
} status_head;

/* Seconds without a sign of life. */
static double patience_of(const car_rank *rank) {
    return rank->config.watchdog_seconds > 0 ? rank->config.watchdog_seconds : 30;
}

/* Seconds between two looks after which what we know of others is too old to judge them by: we were stopped ourselves,
 * perhaps all of us. Looks are a quarter of a second apart. */
static double lapse_of(const car_rank *rank) {
    double quarter = patience_of(rank) / 4;
    return quarter > 0.5 ? quarter : 0.5;
}

const car_entry *car_rank_at(const car_rank *rank) {
    for (const car_entry *entry = rank->first; entry; entry = entry->next) {
        if (entry->running) {
            return entry;
        }
    }
    return rank->first;
}

/* ---- statuses -------------------------------------------------------------------------------- */

static void describe(car_rank *rank, status_head *head) {
    const car_entry *at = car_rank_at(rank);
    head->waits = at && !at->running;
    head->step = at ? car_rank_step_of(rank, &at->task) : rank->first_step + rank->limit;
    if (at) {
        car_task_format(rank->plan, &at->task, head->doing, sizeof head->doing);
    } else {
        snprintf(head->doing, sizeof head->doing, "%s", rank->aside ? rank->aside : "the end");
    }
}

bool car_rank_is_urgent(void *user) {
    car_rank *rank = user;
    return atomic_load(&rank->stop) && !atomic_load(&rank->wished);
}

size_t car_rank_tell(void *user, char *status) {
    car_rank *rank = user;
    status_head head = {0};
    pthread_mutex_lock(&rank->lock);
    describe(rank, &head);
    head.run = rank->run;
    head.wishes_to_stop = atomic_load(&rank->stop);
    atomic_store(&rank->wished, head.wishes_to_stop != 0);
    pthread_mutex_unlock(&rank->lock);
    memcpy(status, &head, sizeof head);
    return sizeof head;
}

/* Reads what a peer says only as far as it goes. */
static car_status read_status(car_rank *rank, int from, const char *status, size_t bytes, status_head *head) {
    if (bytes != sizeof *head) {
        return car_context_fail(rank->context, CAR_ERROR_IO,
                                "rank %d sent a status of %zu bytes that makes no sense: ranks of another build, or a "
                                "broken network",
                                from, bytes);
    }
    memcpy(head, status, sizeof *head);
    head->doing[sizeof head->doing - 1] = '\0';
    return CAR_OK;
}

static void see(car_rank *rank, int from, const status_head *head) {
    car_sighting *sighting = &rank->sightings[from];
    sighting->when = car_clock_seconds();
    sighting->step = head->step;
    sighting->waits = head->waits != 0;
    memcpy(sighting->doing, head->doing, sizeof sighting->doing);
    if (head->run == rank->run && head->wishes_to_stop && rank->device == 0) {
        atomic_store(&rank->stop, true);
        car_rank_look_for_stop(rank);
    }
}

void car_rank_heard(void *user, int from, const char *text, size_t bytes) {
    car_rank *rank = user;
    status_head head = {0};
    pthread_mutex_lock(&rank->lock);
    car_status status = read_status(rank, from, text, bytes, &head);
    if (status == CAR_OK) {
        see(rank, from, &head);
    }
    if (status != CAR_OK) {
        car_rank_fail(rank, status);
    }
    pthread_mutex_unlock(&rank->lock);
}

/* ---- silence --------------------------------------------------------------------------------- */

static void describe_self(const car_rank *rank, char *text, size_t capacity) {
    const car_entry *at = car_rank_at(rank);
    char task[96] = "";
    if (at) {
        car_task_format(rank->plan, &at->task, task, sizeof task);
    }
    if (at && !at->running && at->task.kind == CAR_TASK_RECEIVE) {
        snprintf(text, capacity, "rank %d waits for %s from rank %d, in step %lld", rank->device, task, at->task.peer,
                 (long long)car_rank_step_of(rank, &at->task) + 1);
    } else if (at) {
        snprintf(text, capacity, "rank %d is at %s", rank->device, task);
    } else if (rank->aside) {
        snprintf(text, capacity, "rank %d %s %s", rank->device, rank->device == 0 ? "is at" : "waits for", rank->aside);
    } else {
        snprintf(text, capacity, "rank %d waits for the others, between two steps", rank->device);
    }
}

static void describe_other(const car_rank *rank, int r, double now, char *text, size_t capacity) {
    const car_sighting *s = &rank->sightings[r];
    if (s->doing[0]) {
        snprintf(text, capacity, "rank %d was last heard of %.1f s ago, %s %s in step %lld", r, now - s->when,
                 s->waits ? "waiting for" : "in", s->doing, (long long)s->step + 1);
    } else {
        snprintf(text, capacity, "rank %d has not been heard of", r);
    }
}

/* Rank 0 hears of all, the others of the one before them. */
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
    pthread_mutex_lock(&rank->lock);
    size_t length = explain(rank, text, capacity);
    pthread_mutex_unlock(&rank->lock);
    return length;
}

/* ---- nothing moves --------------------------------------------------------------------------- */

static void describe_worker(const car_rank *rank, int worker) {
    const car_entry *at = NULL;
    char text[96] = "";
    for (const car_entry *entry = rank->first; entry && !at; entry = entry->next) {
        bool own = !entry->over && car_task_computes(&entry->task) && entry->task.worker % rank->workers == worker;
        at = own ? entry : at;
    }
    if (at) {
        car_task_format(rank->plan, &at->task, text, sizeof text);
    }
    car_context_log(rank->context, CAR_LOG_ERROR, "  worker %d: %s %s, step %lld", worker,
                    !at           ? "finished"
                    : at->running ? "running"
                                  : "waiting to run",
                    text, at ? (long long)car_rank_step_of(rank, &at->task) + 1 : -1LL);
}

static void describe_thread(const car_rank *rank, int p) {
    const car_entry *entry = rank->thread[p].entry;
    char text[96] = "waiting for a task";
    if (entry) {
        car_task_format(rank->plan, &entry->task, text, sizeof text);
    }
    car_context_log(rank->context, CAR_LOG_ERROR, "  thread %d: %s", p, text);
}

/* Where everybody is, if no task has ended for a while. */
static void look_for_progress(car_rank *rank, double now) {
    double patience = patience_of(rank);
    if (!rank->alone || !rank->first || now - rank->progressed < patience) {
        return;
    }
    car_context_log(rank->context, CAR_LOG_ERROR,
                    "no task has ended for %g s; this is where everybody is:", now - rank->progressed);
    for (int i = 0; i < rank->workers; i++) {
        describe_worker(rank, i);
    }
    if (car_rank_snapshot_is_away(rank)) {
        car_context_log(rank->context, CAR_LOG_ERROR, "  the last snapshot has not been given back");
    }
    for (int p = 0; p < rank->config.threads; p++) {
        describe_thread(rank, p);
    }
    for (int j = 0; j < rank->stages; j++) {
        car_context_log(rank->context, CAR_LOG_ERROR, "  stage %d: version %lld made", j,
                        (long long)rank->first_step + rank->holding[j].made);
    }
    rank->progressed = now;
}

static void watch(car_rank *rank) {
    double now = car_clock_seconds(), patience = patience_of(rank);
    if (now - rank->watched > lapse_of(rank)) {
        for (int r = 0; r < rank->devices; r++) {
            rank->sightings[r].when = now;
        }
    }
    rank->watched = now;
    look_for_progress(rank, now);
    car_rank_look_for_stop(rank);
    for (int r = 0; r < rank->devices && rank->status == CAR_OK; r++) {
        double silent = now - rank->sightings[r].when;
        if (hears(rank, r) && silent > patience) {
            char text[2048], line[256];
            describe_other(rank, r, now, line, sizeof line);
            explain(rank, text, sizeof text);
            car_rank_fail(rank, car_context_fail(rank->context, CAR_ERROR_IO,
                                                 "rank %d gives no sign of life: it was killed or stopped, or its "
                                                 "machine is unreachable. %s\n  %s",
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
