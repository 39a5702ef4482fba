/* The loop of a rank in one process: messages, collectives, posts, and the thread that moves them. */
#include <math.h>
#include <string.h>

#include "transport/local/local_internal.h"

/* Messages that are held back until this time or earlier may be delivered now. */
static double held_until(const car_local *local) {
    return local->hub->trouble ? car_clock_seconds() : INFINITY;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Removes the first message of a list with this sender, and with the tag and name of `like`. NULL if there is none. */
static car_message *take(car_message **list, int from, const car_message *like) {
    for (; *list; list = &(*list)->next) {
        car_message *message = *list;
        if (message->from == from && message->tag == like->tag && message->name == like->name) {
            *list = message->next;
            message->next = NULL;
            return message;
        }
    }
    return NULL;
}

/* Gives a rank's thread a message to move: a receive with a partner, or the one that completes a collective. */
static void give(car_local *local, car_message *message) {
    if (local->hub->trouble) {
        car_trouble_hold(local, message);
    }
    car_message_append(&local->matched, message);
    pthread_cond_signal(&local->wake);
}

static void start_send(car_local *local, car_message *message) {
    car_local *to = local->hub->ends[message->peer];
    car_message *receive = take(&to->receives, local->base.rank, message);
    message->from = local->base.rank;
    if (receive) {
        receive->partner = message;
        give(to, receive);
    } else {
        car_message_append(&to->sends, message);
    }
}

/* Starts the held sends that pacing lets leave. */
static void release_held(car_local *local) {
    car_pace *pace = &local->base.pace;
    const car_pace_moment moment = car_pace_look(pace, local->held ? car_clock_seconds() : 0, local->ending);
    for (car_message **place = &local->held; *place && !local->hub->failed;) {
        car_message *message = *place;
        if (!car_pace_may_leave(pace, &moment, message)) {
            car_transport_count_held(&local->base, message);
            place = &message->next;
            continue;
        }
        *place = message->next;
        car_pace_take(pace, message, moment.now);
        start_send(local, message);
    }
}

static void start_message(car_local *local, car_message *message) {
    if (message->kind == CAR_MESSAGE_SEND) {
        if (car_pace_applies(&local->base.pace, message)) {
            car_message_hold(&local->held, message);
            pthread_cond_signal(&local->wake);
        } else {
            start_send(local, message);
        }
        return;
    }
    message->partner = take(&local->sends, message->peer, message);
    message->from = message->peer;
    if (message->partner) {
        give(local, message);
    } else {
        car_message_append(&local->receives, message);
    }
}

/* ---- collectives ------------------------------------------------------------------------------ */

size_t car_local_collective_bytes(const car_hub *hub) {
    return sizeof(car_local_collective) + (size_t)hub->ranks * sizeof(car_message *);
}

static int group_size(const car_hub *hub, int group) {
    int size = 0;
    for (int r = 0; r < hub->ranks; r++) {
        size += hub->ends[r]->group == group;
    }
    return size;
}

/* The place of the collective that this rank joins: the next one of its group and kind. The first rank to join creates
 * it; the place is empty if it cannot. */
static car_local_collective **find_collective(car_local *local, bool broadcast) {
    car_hub *hub = local->hub;
    car_local_collective **place = &hub->collectives, *c = *place;
    int64_t number = local->collectives[broadcast]++;
    while (c && (c->group != local->group || c->broadcast != broadcast || c->number != number)) {
        place = &c->next;
        c = *place;
    }
    if (!c && car_context_allocate(hub->context, car_local_collective_bytes(hub), 1, place) == CAR_OK) {
        c = *place;
        c->group = local->group;
        c->broadcast = broadcast;
        c->number = number;
    }
    return place;
}

static void start_collective(car_local *local, car_message *message) {
    car_hub *hub = local->hub;
    car_local_collective **place = find_collective(local, message->kind == CAR_MESSAGE_BROADCAST), *c = *place;
    if (!c) {
        car_hub_fail(hub);
        return;
    }
    c->messages[local->base.rank] = message;
    if (++c->count < group_size(hub, local->group)) {
        return;
    }
    *place = c->next;
    for (int r = 0; r < hub->ranks; r++) {
        hub->ends[r]->busy += c->messages[r] != NULL;
    }
    message->collective = c;
    message->from = local->base.rank;
    give(local, message); /* the last rank to join computes it */
}

void car_local_start(car_transport *transport, car_message *message) {
    car_local *local = car_local_of(transport);
    pthread_mutex_lock(&local->hub->lock);
    message->started = car_clock_seconds();
    message->paced = false;
    local->in_flight++;
    car_transport_count(transport, message);
    if (local->hub->failed || (local->hub->trouble && car_trouble_strikes(local, true))) {
        pthread_cond_signal(&local->wake); /* the message is lost; wakes the thread, which has to notice */
    } else if (message->kind == CAR_MESSAGE_SEND || message->kind == CAR_MESSAGE_RECEIVE) {
        start_message(local, message);
    } else {
        start_collective(local, message);
    }
    pthread_mutex_unlock(&local->hub->lock);
}

/* ---- copying and adding ----------------------------------------------------------------------- */

/* Tells a rank that its message has finished. Call it without the lock; it takes the lock to count the message. */
static void finish(car_local *local, car_message *message, double now) {
    message->finished = now;
    local->base.events.finished(local->base.events.user, message);
    pthread_mutex_lock(&local->hub->lock);
    local->in_flight--;
    local->busy--;
    pthread_cond_signal(&local->wake);
    pthread_mutex_unlock(&local->hub->lock);
}

static void copy(car_local *local, car_message *receive) {
    car_message *send = receive->partner;
    car_local *from = local->hub->ends[send->from];
    from->busy++;
    local->busy++;
    pthread_mutex_unlock(&local->hub->lock);
    memcpy(receive->data, send->data, receive->bytes < send->bytes ? receive->bytes : send->bytes);
    if (local->hub->trouble) {
        car_trouble_nap(local);
    }
    double now = car_clock_seconds();
    finish(from, send, now);
    finish(local, receive, now);
    pthread_mutex_lock(&local->hub->lock);
}

/* A sum is added up at the first rank, in the order of ranks, whichever joined first. A broadcast comes from member
 * `peer`; the members of a group are numbered in the order of their ranks. Either way all other ranks get a copy. */
static void compute(const car_local_collective *c, int ranks) {
    car_message *source = NULL;
    for (int r = 0, member = 0; r < ranks; r++) {
        car_message *message = c->messages[r];
        if (!message) {
            continue;
        }
        if (!c->broadcast && source) {
            car_message_add(message, source->data, message->data, message->bytes);
        } else if (!c->broadcast || member == message->peer) {
            source = message;
        }
        member++;
    }
    for (int r = 0; source && r < ranks; r++) {
        if (c->messages[r] && c->messages[r] != source) {
            memcpy(c->messages[r]->data, source->data, source->bytes);
        }
    }
}

static void complete(car_local *local, car_local_collective *c) {
    car_hub *hub = local->hub;
    pthread_mutex_unlock(&hub->lock);
    compute(c, hub->ranks);
    double now = car_clock_seconds();
    for (int r = 0; r < hub->ranks; r++) {
        if (c->messages[r]) {
            finish(hub->ends[r], c->messages[r], now);
        }
    }
    pthread_mutex_lock(&hub->lock);
    car_context_release(hub->context, c, car_local_collective_bytes(hub), 1);
}

/* ---- posts ------------------------------------------------------------------------------------ */

/* The last post of a kind from a rank in the inbox. */
static const car_local_post *find_last(const car_local *to, car_post_kind kind, int from) {
    const car_local_post *last = NULL;
    for (const car_local_post *post = to->inbox; post; post = post->next) {
        last = post->kind == kind && post->from == from ? post : last;
    }
    return last;
}

/* Puts a post into the inbox of another rank. Hold the lock. */
static car_status put(car_local *local, car_post_kind kind, car_local *to, const void *data, size_t bytes) {
    car_hub *hub = local->hub;
    const car_local_post *last = find_last(to, kind, local->base.rank);
    car_local_post *new = NULL, **place = &to->inbox;
    if (kind == CAR_POST_STATUS && last) {
        return CAR_OK; /* the receiver does not listen, and the watchdogs will notice */
    }
    car_status status = car_context_allocate(hub->context, 1, sizeof *new, &new);
    if (status != CAR_OK) {
        return status;
    }
    *new = (car_local_post){.kind = kind, .from = local->base.rank, .bytes = bytes};
    memcpy(new->data, data, bytes);
    if (hub->trouble && kind != CAR_POST_STATUS) {
        new->held = fmax(car_clock_seconds() + car_trouble_delay(local), last ? last->held : 0);
    }
    while (*place) {
        place = &(*place)->next;
    }
    *place = new;
    local->base.traffic.statuses++;
    pthread_cond_signal(&to->wake);
    return CAR_OK;
}

car_status car_local_post_to(car_transport *transport, car_post_kind kind, int to, const void *data, size_t bytes) {
    car_local *local = car_local_of(transport);
    car_hub *hub = local->hub;
    pthread_mutex_lock(&hub->lock);
    bool lost = hub->failed || (kind == CAR_POST_NOTE && hub->trouble && car_trouble_strikes(local, true));
    car_status status = lost ? CAR_OK : put(local, kind, hub->ends[to], data, bytes);
    pthread_cond_signal(&local->wake); /* in case this rank was lost just now */
    pthread_mutex_unlock(&hub->lock);
    return status;
}

/* Delivers the posts in the inbox; notes only in the loop. Hold the lock; it is released meanwhile. */
static void hear(car_local *local, bool in_loop) {
    pthread_mutex_unlock(&local->hub->lock);
    car_transport_tend(&local->base);
    pthread_mutex_lock(&local->hub->lock);
    double now = held_until(local);
    for (car_local_post **place = &local->inbox; *place;) {
        car_local_post *post = *place;
        if (post->held > now || (post->kind == CAR_POST_NOTE && !in_loop)) {
            place = &post->next;
            continue;
        }
        *place = post->next;
        pthread_mutex_unlock(&local->hub->lock);
        car_transport_take(&local->base, post->kind, post->from, post->data, post->bytes);
        pthread_mutex_lock(&local->hub->lock);
        car_context_release(local->hub->context, post, 1, sizeof *post);
        place = &local->inbox; /* the list may have changed meanwhile */
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Sleeps until there is something to do, at most until the next status or beat is due. */
static void doze(car_local *local) {
    double now = car_clock_seconds(), until = car_transport_rests_until(&local->base, now);
    until = local->held ? now + 0.001 : until;
    until = local->hub->trouble ? car_trouble_wake(local, until) : until;
    car_clock_wait(&local->wake, &local->hub->lock, until - now);
}

/* The place of the first message in the list that is not held back, or the list's end. The clock is read once for the
 * whole list: of two messages that are held until the same time, the second must not leave before the first. */
static car_message **find_matched(car_local *local) {
    double now = held_until(local);
    car_message **place = &local->matched;
    while (*place && (*place)->held > now) {
        place = &(*place)->next;
    }
    return place;
}

static bool move_one(car_local *local) {
    car_message **place = find_matched(local), *message = *place;
    if (!message) {
        return false;
    }
    *place = message->next;
    if (message->kind == CAR_MESSAGE_RECEIVE) {
        copy(local, message);
    } else {
        complete(local, message->collective);
    }
    return true;
}

/* True if the loop is over for this rank's thread. */
static bool is_over(const car_local *local) {
    return local->hub->failed || (local->ending && local->in_flight == 0);
}

/* Waits for the other ranks, which may still be at work and expect statuses of this one. */
static void wait_for_others(car_local *local) {
    car_hub *hub = local->hub;
    int64_t meeting = car_hub_arrive(hub);
    while (hub->meeting == meeting && !hub->failed) {
        hear(local, false);
        if (hub->meeting == meeting && !hub->failed) {
            doze(local);
        }
    }
}

static void *run(void *argument) {
    car_local *local = argument;
    car_hub *hub = local->hub;
    pthread_mutex_lock(&hub->lock);
    while (!is_over(local)) {
        release_held(local);
        bool moved = move_one(local);
        hear(local, true);
        if (!moved && !*find_matched(local) && !is_over(local)) {
            doze(local);
        }
        car_trouble_be_silent(local); /* if this rank is silent */
    }
    bool failed = hub->failed;
    if (local->broken) {
        car_trouble_explain(local);
    }
    if (!failed) {
        wait_for_others(local);
    }
    pthread_mutex_unlock(&hub->lock);
    if (failed) {
        local->base.events.finished(local->base.events.user, NULL); /* the context has the error */
    }
    return NULL;
}

car_status car_local_begin(car_transport *transport) {
    car_local *local = car_local_of(transport);
    pthread_mutex_lock(&local->hub->lock);
    local->ending = false;
    pthread_mutex_unlock(&local->hub->lock);
    if (pthread_create(&local->thread, NULL, run, local) != 0) {
        return car_context_fail(transport->context, CAR_ERROR_MEMORY, "could not start the thread of the transport");
    }
    return CAR_OK;
}

/* Drops a complete collective that nobody will compute. */
static void abandon(car_hub *hub, car_local_collective *c) {
    for (int r = 0; r < hub->ranks; r++) {
        if (c->messages[r] && hub->ends[r]) {
            hub->ends[r]->busy--;
            pthread_cond_signal(&hub->ends[r]->wake);
        }
    }
    car_context_release(hub->context, c, car_local_collective_bytes(hub), 1);
}

/* After a failure: makes sure that no rank touches a message of this rank again. */
static void withdraw(car_local *local) {
    car_hub *hub = local->hub;
    for (int r = 0; r < hub->ranks; r++) {
        car_local *end = hub->ends[r];
        for (car_message *m = end ? end->matched : NULL; m; m = m->next) {
            if (m->kind != CAR_MESSAGE_RECEIVE) {
                abandon(hub, m->collective);
            }
        }
        if (end) {
            end->sends = end->receives = end->matched = end->held = NULL;
        }
    }
    while (local->busy > 0) {
        pthread_cond_wait(&local->wake, &hub->lock);
    }
}

void car_local_end(car_transport *transport, bool failed) {
    car_local *local = car_local_of(transport);
    car_hub *hub = local->hub;
    pthread_mutex_lock(&hub->lock);
    local->ending = true;
    if (failed) {
        car_hub_fail(hub);
    }
    pthread_cond_signal(&local->wake);
    pthread_mutex_unlock(&hub->lock);
    pthread_join(local->thread, NULL);
    pthread_mutex_lock(&hub->lock);
    if (hub->failed) {
        withdraw(local);
    }
    pthread_mutex_unlock(&hub->lock);
}
