/* Posts: small messages that need no receive and are not part of the plan. This file has what all transports do with
 * them.
 *
 *   status   a heartbeat, a few times a second, from the first loop on. Each rank sends it to rank 0, which shows
 *            progress and watches all ranks, and to the rank after it, so that rank 0 is watched too
 *   beat     from each rank to the next one: the time at which the next micro-batch may begin
 *   note     from the engine of one rank to that of another
 *
 * A beat is sent before its time, and may be delayed by large messages in front of it. The delay is found without a
 * common clock. Take our time of arrival minus the sender's time of sending: it is the same for all beats, plus the
 * delay of each. The smallest difference of the last beats is the one without delay. So the time of a late beat counts
 * from when it should have arrived. */
#include <string.h>

#include "base/base.h"
#include "transport/transport.h"

static const double interval = 0.25; /* seconds between two statuses */

/* ---- sending --------------------------------------------------------------------------------- */

car_status car_transport_note(car_transport *transport, int to, const void *note, size_t bytes) {
    return transport->class->post(transport, CAR_POST_NOTE, to, note, bytes);
}

void car_transport_beat(car_transport *transport, int64_t run, int64_t number, double seconds) {
    const car_beat beat = {run, number, car_clock_seconds(), seconds};
    transport->class->post(transport, CAR_POST_BEAT, (transport->rank + 1) % transport->size, &beat, sizeof beat);
}

static void tell(car_transport *t) {
    char status[CAR_STATUS_BYTES];
    size_t bytes = t->events.tell(t->events.user, status);
    int next = (t->rank + 1) % t->size;
    if (bytes > 0 && t->rank != 0) {
        t->class->post(t, CAR_POST_STATUS, 0, status, bytes);
    }
    if (bytes > 0 && next != 0) {
        t->class->post(t, CAR_POST_STATUS, next, status, bytes);
    }
}

/* ---- receiving -------------------------------------------------------------------------------- */

/* The time, by our clock, that a beat names which has just arrived. */
static double time_of(car_beats *beats, const car_beat *beat, double now) {
    beats->apart[beats->count++ % CAR_BEATS_KEPT] = now - beat->sent;
    int known = beats->count < CAR_BEATS_KEPT ? (int)beats->count : CAR_BEATS_KEPT;
    double least = beats->apart[0];
    for (int b = 1; b < known; b++) {
        least = beats->apart[b] < least ? beats->apart[b] : least;
    }
    return beat->sent + least + beat->seconds;
}

void car_transport_take(car_transport *transport, car_post_kind kind, int from, const void *data, size_t bytes) {
    const car_transport_events *events = &transport->events;
    if (kind == CAR_POST_STATUS && events->heard) {
        events->heard(events->user, from, data, bytes);
    } else if (kind == CAR_POST_NOTE && events->noted) {
        events->noted(events->user, data, bytes);
    } else if (kind == CAR_POST_BEAT && bytes == sizeof transport->beats.next) {
        memcpy(&transport->beats.next, data, bytes);
        transport->beats.due = time_of(&transport->beats, &transport->beats.next, car_clock_seconds());
    }
}

/* ---- periodic calls --------------------------------------------------------------------------- */

static bool is_urgent(const car_transport *t) {
    return t->size > 1 && t->events.urgent(t->events.user);
}

void car_transport_tend(car_transport *transport) {
    const car_transport_events *events = &transport->events;
    double now = car_clock_seconds();
    bool regular = now - transport->told >= interval;
    if (transport->beats.due > 0 && now >= transport->beats.due && events->beat) {
        transport->beats.due = 0;
        events->beat(events->user, transport->beats.next.run, transport->beats.next.number);
    }
    if (regular) {
        transport->told = now;
        events->watch(events->user);
    }
    if (transport->size > 1 && (regular || is_urgent(transport))) {
        tell(transport);
    }
}

double car_transport_rests_until(const car_transport *transport, double now) {
    double until = is_urgent(transport) ? now + 0.001 : transport->told + interval;
    return transport->beats.due > 0 && transport->beats.due < until ? transport->beats.due : until;
}
