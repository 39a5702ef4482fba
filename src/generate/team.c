/* A team of threads: see team.h.
 *
 * Each round has a number. Helpers spin for some microseconds until it changes before they sleep, because the next
 * round usually starts at once. A counter hands out the parts. The caller waits until no helper is busy. */
#include "generate/team.h"

#include <stdatomic.h>

#include "kernels/kernel.h"

enum { LOOKS = 4000 };

struct car_team {
    car_context *context;
    pthread_t *helpers;
    int threads, started;
    pthread_mutex_t lock;
    pthread_cond_t begun;
    atomic_int round, next, busy; /* busy: helpers that have not finished the round */
    int count;
    car_team_work work;
    void *user;
    bool ending;
};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void take_pieces(car_team *team) {
    int piece;
    while ((piece = atomic_fetch_add(&team->next, 1)) < team->count) {
        team->work(team->user, piece);
    }
}

/* Waits until a new round has begun and returns its number. */
static int wait_for_round(car_team *team, int known) {
    for (int look = 0; look < LOOKS && atomic_load(&team->round) == known; look++) {
        pause_briefly();
    }
    if (atomic_load(&team->round) == known) {
        pthread_mutex_lock(&team->lock);
        while (atomic_load(&team->round) == known) {
            pthread_cond_wait(&team->begun, &team->lock);
        }
        pthread_mutex_unlock(&team->lock);
    }
    return atomic_load(&team->round);
}

static void *help(void *user) {
    car_team *team = user;
    car_kernel_mode mode = car_kernels_enter(1);
    int round = 0;
    for (;;) {
        round = wait_for_round(team, round);
        if (team->ending) {
            break;
        }
        take_pieces(team);
        atomic_fetch_sub(&team->busy, 1);
    }
    car_kernels_leave(mode);
    return NULL;
}

static void begin_round(car_team *team) {
    pthread_mutex_lock(&team->lock);
    atomic_store(&team->next, 0);
    atomic_store(&team->busy, team->started);
    atomic_fetch_add(&team->round, 1);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
}

void car_team_run(car_team *team, int count, car_team_work work, void *user) {
    if (team->started == 0 || count == 1) {
        for (int piece = 0; piece < count; piece++) {
            work(user, piece);
        }
        return;
    }
    team->count = count;
    team->work = work;
    team->user = user;
    begin_round(team);
    take_pieces(team);
    for (int look = 0; atomic_load(&team->busy) > 0; look++) {
        if (look < LOOKS) {
            pause_briefly();
        } else {
            sched_yield(); /* more threads than cores */
        }
    }
}

car_status car_team_create(car_context *context, int threads, car_team **out) {
    car_team *team = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *team, &team);
    *out = NULL;
    if (status != CAR_OK) {
        return status;
    }
    team->context = context;
    team->threads = threads;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begun, NULL);
    CAR_TRY(car_context_allocate(context, (size_t)threads, sizeof *team->helpers, &team->helpers));
    for (; team->started < threads - 1; team->started++) {
        if (pthread_create(&team->helpers[team->started], NULL, help, team) != 0) {
            status = car_context_fail(context, CAR_ERROR_MEMORY, "could not start a thread");
            goto done;
        }
    }
    *out = team;
    team = NULL;
done:
    car_team_destroy(team);
    return status;
}

void car_team_destroy(car_team *team) {
    if (!team) {
        return;
    }
    team->ending = true;
    begin_round(team);
    for (int h = 0; h < team->started; h++) {
        pthread_join(team->helpers[h], NULL);
    }
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->lock);
    car_context_release(team->context, team->helpers, team->helpers ? (size_t)team->threads : 0, sizeof *team->helpers);
    car_context_release(team->context, team, 1, sizeof *team);
}

int car_team_threads(const car_team *team) {
    return team->threads;
}
