/* A thread that processes snapshots, so that training does not wait for it. */
#include <pthread.h>

#include "base/base.h"
#include "carousel/trainer.h"

struct car_snapshot_thread {
    car_context *context;
    car_snapshot_function take;
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    const car_snapshot
        *snapshot; /* the next one to process, or NULL; another comes only after this one was given back */
    bool busy, ending;
};

static void *take_snapshots(void *argument) {
    car_snapshot_thread *t = argument;
    car_error_scope scope; /* failures here are not the reason why a run ends */
    car_context_open_scope(t->context, &scope);
    pthread_mutex_lock(&t->lock);
    while (t->snapshot || !t->ending) {
        if (!t->snapshot) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        const car_snapshot *snapshot = t->snapshot; /* not touched by the trainer until it is given back */
        t->snapshot = NULL;
        t->busy = true;
        pthread_mutex_unlock(&t->lock);
        t->take(t->user, snapshot);
        pthread_mutex_lock(&t->lock);
        t->busy = false;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    car_context_close_scope(t->context, &scope);
    return NULL;
}

car_status car_snapshot_thread_create(car_context *context, car_snapshot_function take, void *user,
                                      car_snapshot_thread **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, take);
    CAR_REQUIRE(context, out);
    car_snapshot_thread *t = NULL;
    *out = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, 1, sizeof *t, &t));
    *t = (car_snapshot_thread){.context = context, .take = take, .user = user};
    CAR_TRY(car_clock_create_lock(context, &t->lock, &t->changed));
    if (pthread_create(&t->thread, NULL, take_snapshots, t) != 0) {
        pthread_cond_destroy(&t->changed);
        pthread_mutex_destroy(&t->lock);
        status = car_context_fail(context, CAR_ERROR_MEMORY, "could not start a thread for checkpoints");
        goto done;
    }
    *out = t;
    t = NULL;
done:
    car_context_release(context, t, 1, sizeof *t);
    return status;
}

void car_snapshot_thread_hand_over(void *thread, const car_snapshot *snapshot) {
    car_snapshot_thread *t = thread;
    if (!t || !snapshot) {
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->snapshot = snapshot;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void car_snapshot_thread_wait(car_snapshot_thread *t) {
    if (t) {
        pthread_mutex_lock(&t->lock);
        while (t->snapshot || t->busy) {
            pthread_cond_wait(&t->changed, &t->lock);
        }
        pthread_mutex_unlock(&t->lock);
    }
}

void car_snapshot_thread_destroy(car_snapshot_thread *t) {
    if (!t) {
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->ending = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    car_context_release(t->context, t, 1, sizeof *t);
}
