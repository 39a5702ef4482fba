/* The watchdog: when no task ends for a while, it says what everybody is doing. */
#include <errno.h>
#include <time.h>

#include "engine/trainer_internal.h"

enum { TEXT_CAPACITY = 96 };

static void describe(const car_trainer *trainer, const car_task *task, char *text) {
    text[0] = '\0';
    if (task) {
        car_task_format(trainer->plan, task, text, TEXT_CAPACITY);
    }
}

/* With the lock held. */
static void dump(car_trainer *trainer, double seconds) {
    char text[TEXT_CAPACITY];
    car_context_log(trainer->context, CAR_LOG_ERROR,
                    "no task has ended for %g s; this is where everybody is:", seconds);
    for (int i = 0; i < trainer->workers; i++) {
        car_worker *worker = &trainer->worker[i];
        const car_task *task = car_trainer_head(trainer, worker);
        describe(trainer, task, text);
        car_context_log(trainer->context, CAR_LOG_ERROR, "  worker %d: %s %s, step %lld, phase %.4f", i,
                        !task             ? "finished"
                        : worker->running ? "running"
                                          : "waiting to run",
                        text, task ? (long long)task->step : -1LL,
                        task ? car_trainer_phase(trainer, worker, task) : 0.0);
    }
    if (trainer->cut_is_away) {
        car_context_log(trainer->context, CAR_LOG_ERROR, "  the last cut has not been given back");
    }
    for (int p = 0; p < trainer->config.threads; p++) {
        describe(trainer, trainer->thread[p].task, text);
        car_context_log(trainer->context, CAR_LOG_ERROR, "  thread %d: %s", p, text[0] ? text : "waiting for a task");
    }
    for (int j = 0; j < trainer->stages; j++) {
        car_context_log(trainer->context, CAR_LOG_ERROR, "  stage %d: version %lld made, %lld backwards added", j,
                        (long long)trainer->made[j], (long long)trainer->added[j]);
    }
}

static struct timespec deadline_after(double seconds) {
    struct timespec when;
    clock_gettime(CLOCK_MONOTONIC, &when);
    when.tv_sec += (time_t)seconds;
    when.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (when.tv_nsec >= 1000000000L) {
        when.tv_sec++;
        when.tv_nsec -= 1000000000L;
    }
    return when;
}

void *car_trainer_watch(void *argument) {
    car_trainer *trainer = argument;
    double patience = trainer->config.watchdog_seconds > 0 ? trainer->config.watchdog_seconds : 30;
    pthread_mutex_lock(&trainer->lock);
    while (!trainer->ended) {
        uint64_t seen = trainer->progress;
        struct timespec deadline = deadline_after(patience);
        int result = 0;
        while (!trainer->ended && result != ETIMEDOUT) {
            result = pthread_cond_timedwait(&trainer->changed, &trainer->lock, &deadline);
        }
        if (!trainer->ended && trainer->progress == seen) {
            dump(trainer, patience);
        }
    }
    pthread_mutex_unlock(&trainer->lock);
    return NULL;
}
