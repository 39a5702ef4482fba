/* Link pacing: a rank sends at no more than 1.1 times the mean rate that the plan needs. This spreads what a stage produces
 * at once over the time that the plan gives it. There is one rate for everything that the rank sends, because all of it
 * shares the rank's link. Messages that are due first go first.
 *
 * The rate is the rank's bytes of a step, which the engine knows from the plan, over the time of recent steps. Some messages
 * are never held back: those of the first steps, those whose slot has come, and all messages once the loop ends. A message
 * is held for a part of a step at most, because the debt of its bucket is limited.
 *
 * If the network is the bottleneck, nothing is held back: a link that is always busy has no bursts to spread, and every
 * byte that waits makes the step longer. The sign is that ranks compute during a small part of a step only.
 *
 * The engine says where it is with car_transport_note_slot; the transport's thread asks the rest. */
#ifndef CAR_TRANSPORT_PACE_H
#define CAR_TRANSPORT_PACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "carousel/context.h"
#include "transport/bucket.h"

struct car_message;

enum { CAR_PACE_STEPS = 4 }; /* that count as recent */

/* What a step took. */
typedef struct car_pace_step {
    double seconds, computing; /* computing: how long a thread of the rank computed, on average */
} car_pace_step;

typedef struct car_pace {
    int links;         /* number of ranks; 0 = no pacing */
    double *bytes;     /* per rank: bytes that a step sends to it; 0 = never held back */
    double all;        /* the total of `bytes` */
    car_bucket bucket; /* used by the transport's thread */
    double step;       /* seconds of a step that its rate was computed from; also the thread's */
    /* Used by the engine: */
    int64_t begun;   /* steps begun in this loop */
    double since;    /* when the last of them began */
    double computed; /* seconds that the rank had computed by then */
    car_pace_step recent[CAR_PACE_STEPS];
    /* From the engine to the transport: */
    _Atomic int64_t slot;
    _Atomic double
        seconds; /* that a step takes; 0 = hold nothing back: it is not known yet, or the network is the bottleneck */
} car_pace;

/* The state for one pass over the waiting messages. It must not change during the pass: of two messages with one tag, the
 * second must not leave before the first. */
typedef struct car_pace_moment {
    double now;
    int64_t slot;
    bool all; /* nothing is held back */
} car_pace_moment;

/* `pace` must be all zero. */
car_status car_pace_create(car_pace *pace, car_context *context, const double *bytes, int ranks);
void car_pace_destroy(car_pace *pace, car_context *context);
void car_pace_rewind(car_pace *pace); /* before a loop */
void car_pace_note_slot(car_pace *pace, int64_t slot);
/* A step begins. `computed`: seconds that each thread of the rank has computed since the loop began, on average. Returns
 * true if the network is the bottleneck by far: ranks compute for less than half of a step. */
bool car_pace_note_step(car_pace *pace, double now, double computed);

/* For the implementations of transports: whether a send is paced at all; the state for a pass, `ending` if the loop ends;
 * whether a send may leave; it leaves. */
bool car_pace_applies(const car_pace *pace, const struct car_message *send);
car_pace_moment car_pace_look(car_pace *pace, double now, bool ending);
bool car_pace_may_leave(const car_pace *pace, const car_pace_moment *moment, const struct car_message *send);
void car_pace_take(car_pace *pace, const struct car_message *send, double now);

#endif
