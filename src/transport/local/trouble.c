/* See trouble.h. */
#include "transport/local/trouble.h"

#include "transport/local/local_internal.h"

void car_hub_make_trouble(car_hub *hub, const car_trouble *trouble) {
    hub->trouble = trouble;
}

bool car_hub_was_struck(const car_hub *hub) {
    return hub->struck;
}

/* ---- late messages ---------------------------------------------------------------------------- */

/* A random number in [0, 1). It depends on the rank and how many it has drawn, not on what other ranks do. */
static double draw(car_local *local) {
    uint64_t key = car_random_key(local->hub->trouble->seed, "trouble");
    uint64_t counter = ((uint64_t)local->base.rank << 40) + (uint64_t)local->draws++;
    return (double)car_random_uniform(key, counter);
}

double car_trouble_delay(car_local *local) {
    const car_trouble *t = local->hub->trouble;
    bool very = draw(local) < 1.0 / 16;
    return draw(local) * (very ? t->very_late : t->late);
}

void car_trouble_hold(car_local *local, car_message *message) {
    message->held = car_clock_seconds() + car_trouble_delay(local);
    for (const car_message *m = local->matched; m && m != message; m = m->next) {
        bool before = m->from == message->from && m->tag == message->tag;
        message->held = before && m->held > message->held ? m->held : message->held;
    }
}

double car_trouble_wake(const car_local *local, double until) {
    double now = car_clock_seconds();
    for (const car_local_post *post = local->inbox; post; post = post->next) {
        until = post->held > now && post->held < until ? post->held : until;
    }
    for (const car_message *m = local->matched; m; m = m->next) {
        until = m->held < until ? m->held : until;
    }
    return until;
}

void car_trouble_nap(car_local *local) {
    const car_trouble *t = local->hub->trouble;
    double seconds = 0;
    pthread_mutex_lock(&local->hub->lock);
    if (t->slow == local->base.rank && t->late > 0) {
        seconds = draw(local) * t->late;
    }
    if (t->pause > 0 && t->pauses == local->base.rank && local->begun >= t->after && !local->paused) {
        local->paused = local->hub->struck = true;
        seconds += t->pause;
    }
    pthread_mutex_unlock(&local->hub->lock);
    car_clock_sleep(seconds);
}

/* ---- lost ranks ------------------------------------------------------------------------------- */

bool car_trouble_strikes(car_local *local, bool in_loop) {
    car_hub *hub = local->hub;
    const car_trouble *t = hub->trouble;
    int64_t number = local->begun++;
    if (local->base.rank == t->fails && number >= t->after && !local->broken) {
        local->broken = hub->struck = true;
        car_hub_fail(hub);
    }
    if (local->base.rank == t->silent && number >= t->after && in_loop && !hub->failed) {
        local->silent = hub->struck = true;
    }
    return local->broken || local->silent;
}

car_status car_trouble_explain(const car_local *local) {
    return car_context_fail(local->base.context, CAR_ERROR_IO, "the transport of rank %d failed, as a test requested",
                            local->base.rank);
}

void car_trouble_be_silent(car_local *local) {
    while (local->silent && !local->hub->failed) {
        pthread_cond_wait(&local->wake, &local->hub->lock);
    }
}
