/* The hub connects ranks that are groups of threads of one process. This file also has the blocking calls around the
 * loop. */
#include <stdio.h>
#include <string.h>

#include "transport/local/local_internal.h"

/* ---- meetings --------------------------------------------------------------------------------- */

static void wake_all(car_hub *hub) {
    pthread_cond_broadcast(&hub->changed);
    for (int r = 0; r < hub->ranks; r++) {
        if (hub->ends[r]) {
            pthread_cond_signal(&hub->ends[r]->wake);
        }
    }
}

void car_hub_fail(car_hub *hub) {
    hub->failed = true;
    wake_all(hub);
}

int64_t car_hub_arrive(car_hub *hub) {
    int64_t meeting = hub->meeting;
    if (++hub->arrived == hub->ranks) {
        hub->arrived = 0;
        hub->meeting++;
        wake_all(hub);
    }
    return meeting;
}

static bool meet(car_hub *hub) {
    int64_t meeting = car_hub_arrive(hub);
    while (hub->meeting == meeting && !hub->failed) {
        pthread_cond_wait(&hub->changed, &hub->lock);
    }
    return hub->meeting != meeting;
}

/* An exchange takes two meetings: at the first one all ranks have brought their data, at the second one all have read
 * it. The hub's lock is held from open_meeting to close_meeting, except while waiting. */
static bool open_meeting(car_local *local, const void *given) {
    pthread_mutex_lock(&local->hub->lock);
    local->hub->given[local->base.rank] = given;
    bool lost = local->hub->trouble && car_trouble_strikes(local, false);
    bool met = !lost && meet(local->hub);
    return met && !local->hub->failed; /* after a failure other ranks may have left, and their data is gone */
}
static car_status close_meeting(car_local *local, bool met) {
    met = met && meet(local->hub);
    pthread_mutex_unlock(&local->hub->lock);
    if (local->broken) {
        return car_trouble_explain(local);
    }
    return met ? CAR_OK : CAR_ERROR_IO; /* the rank that failed has set the error */
}

static car_status all_gather(car_transport *transport, const void *in, size_t bytes, void *out) {
    car_local *local = car_local_of(transport);
    bool met = open_meeting(local, in);
    for (int r = 0; met && r < local->hub->ranks; r++) {
        memcpy((char *)out + (size_t)r * bytes, local->hub->given[r], bytes);
    }
    return close_meeting(local, met);
}

static car_status broadcast(car_transport *transport, int from, void *data, size_t bytes) {
    car_local *local = car_local_of(transport);
    bool met = open_meeting(local, data);
    if (met && local->base.rank != from) {
        memcpy(data, local->hub->given[from], bytes);
    }
    return close_meeting(local, met);
}

/* ---- from one rank to another ----------------------------------------------------------------- */

static car_status hand_over(car_transport *transport, int from, int to, void *data, size_t bytes) {
    car_local *local = car_local_of(transport);
    car_hub *hub = local->hub;
    bool gives = local->base.rank == from, takes = local->base.rank == to;
    if (gives == takes || bytes == 0) {
        return CAR_OK;
    }
    pthread_mutex_lock(&hub->lock);
    const void *nowhere = NULL; /* after a failure the other end may be gone */
    const void **place = takes ? &local->handed[from] : hub->failed ? &nowhere : &hub->ends[to]->handed[from];
    if (gives) {
        *place = data;
        pthread_cond_broadcast(&hub->changed);
    }
    while (!hub->failed && takes != (*place != NULL)) { /* until it is there, or was taken */
        pthread_cond_wait(&hub->changed, &hub->lock);
    }
    bool failed = hub->failed;
    if (takes && !failed) {
        memcpy(data, *place, bytes);
        *place = NULL;
        pthread_cond_broadcast(&hub->changed);
    }
    pthread_mutex_unlock(&hub->lock);
    return failed ? CAR_ERROR_IO : CAR_OK;
}

static car_status prepare(car_transport *transport, int highest_tag, int group) {
    car_local *local = car_local_of(transport);
    (void)highest_tag; /* any number can be a tag here */
    local->group = group;
    bool met = open_meeting(local, NULL); /* afterwards the groups of all ranks are known */
    return close_meeting(local, met);
}

static void give_up(car_transport *transport, car_status why) {
    car_hub_give_up_for(car_local_of(transport)->hub, why);
}

/* Makes the other ranks fail in their next call. */
static void abort_ranks(car_transport *transport, int code) {
    (void)code;
    give_up(transport, CAR_ERROR_IO);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void release_end(car_local *local) {
    size_t ranks = (size_t)local->hub->ranks;
    while (local->inbox) {
        car_local_post *next = local->inbox->next;
        car_context_release(local->hub->context, local->inbox, 1, sizeof *next);
        local->inbox = next;
    }
    car_context_release(local->base.context, local->handed, ranks, sizeof *local->handed);
    car_context_release(local->base.context, local->base.machine, ranks, sizeof *local->base.machine);
    car_context_release(local->base.context, local, 1, sizeof *local);
}

static void close_end(car_transport *transport) {
    car_local *local = car_local_of(transport);
    car_hub *hub = local->hub;
    pthread_mutex_lock(&hub->lock);
    if (!hub->failed) {
        meet(hub); /* closing waits until all ranks leave */
    }
    hub->ends[local->base.rank] = NULL;
    pthread_mutex_unlock(&hub->lock);
    pthread_cond_destroy(&local->wake);
    release_end(local);
}

static const car_transport_class in_one_process = {.close = close_end,
                                                   .abort = abort_ranks,
                                                   .prepare = prepare,
                                                   .begin = car_local_begin,
                                                   .start = car_local_start,
                                                   .post = car_local_post_to,
                                                   .end = car_local_end,
                                                   .give_up = give_up,
                                                   .all_gather = all_gather,
                                                   .broadcast = broadcast,
                                                   .hand_over = hand_over};

car_status car_hub_create(car_context *context, int ranks, car_hub **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_hub *hub = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (ranks < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a hub cannot have %d ranks; use at least 1", ranks);
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *hub, &hub));
    hub->context = context;
    hub->ranks = ranks;
    status = car_clock_create_lock(context, &hub->lock, &hub->changed);
    if (status != CAR_OK) {
        car_context_release(context, hub, 1, sizeof *hub);
        return status;
    }
    *out = hub;
    CAR_TRY(car_context_allocate(context, (size_t)ranks, sizeof(car_local *), &hub->ends));
    CAR_TRY(car_context_allocate(context, (size_t)ranks, sizeof(void *), &hub->given));
done:
    if (status != CAR_OK) {
        car_hub_destroy(*out);
        *out = NULL;
    }
    return status;
}

void car_hub_destroy(car_hub *hub) {
    if (!hub) {
        return;
    }
    while (hub->collectives) { /* left over after a failure */
        car_local_collective *next = hub->collectives->next;
        car_context_release(hub->context, hub->collectives, car_local_collective_bytes(hub), 1);
        hub->collectives = next;
    }
    car_context_release(hub->context, hub->given, (size_t)hub->ranks, sizeof(void *));
    car_context_release(hub->context, hub->ends, (size_t)hub->ranks, sizeof(car_local *));
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->lock);
    car_context_release(hub->context, hub, 1, sizeof *hub);
}

void car_hub_give_up_for(car_hub *hub, car_status why) {
    pthread_mutex_lock(&hub->lock);
    hub->reason = hub->reason == CAR_OK ? why : hub->reason; /* the first reason is kept */
    car_hub_fail(hub);
    pthread_mutex_unlock(&hub->lock);
}

void car_hub_give_up(car_hub *hub) {
    if (hub) {
        car_hub_give_up_for(hub, CAR_ERROR_IO);
    }
}

car_status car_hub_reason(car_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    car_status reason = hub->reason;
    pthread_mutex_unlock(&hub->lock);
    return reason;
}

static car_status make_end(car_hub *hub, car_context *context, int rank, car_local **out) {
    size_t ranks = (size_t)hub->ranks;
    car_local *local = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, 1, sizeof *local, &local));
    *out = local;
    local->base = (car_transport){.class = &in_one_process,
                                  .context = context,
                                  .rank = rank,
                                  .size = hub->ranks,
                                  .local_size = hub->ranks,
                                  .machines = 1};
    snprintf(local->base.name, sizeof local->base.name, "threads of one process");
    local->hub = hub;
    CAR_TRY(car_context_allocate(context, ranks, sizeof *local->base.machine, &local->base.machine));
    CAR_TRY(car_context_allocate(context, ranks, sizeof *local->handed, &local->handed));
    status = car_clock_create_lock(context, NULL, &local->wake);
done:
    return status;
}

car_status car_hub_join(car_hub *hub, car_context *context, int rank, car_transport **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, hub);
    CAR_REQUIRE(context, out);
    car_local *local = NULL;
    *out = NULL;
    if (rank < 0 || rank >= hub->ranks) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a hub of %d ranks has no rank %d", hub->ranks, rank);
    }
    car_status status = make_end(hub, context, rank, &local);
    if (status != CAR_OK) {
        if (local) {
            release_end(local);
        }
        car_hub_give_up(hub);
        return status;
    }
    pthread_mutex_lock(&hub->lock);
    hub->ends[rank] = local;
    bool met = meet(hub);
    pthread_mutex_unlock(&hub->lock);
    *out = &local->base;
    return met ? CAR_OK : car_context_fail(context, CAR_ERROR_IO, "another rank could not join");
}
