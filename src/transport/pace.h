/* Links that are paced: a rank sends at no more than 1.1 times the mean rate that the plan needs, so what a stage makes at
 * once is spread over the time that the plan gives it. It is one rate for all that the rank sends, because that shares its
 * link: what is due first goes first, and what has time gives way to it.
 *
 * The rate is the rank's bytes of a step, which the engine knows from the plan, over what recent steps took. The first steps
 * are not held back, nor is a message whose slot has come, nor anything once the loop ends. A message is never held for
 * longer than a part of a step: its bucket has a limit of debt.
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

typedef struct car_pace {
    int links;         /* number of ranks; 0 = no pacing */
    double *bytes;     /* per rank: bytes that a step sends to it; 0 = never held back */
    double all;        /* the total of `bytes` */
    car_bucket bucket; /* used by the transport's thread */
    double step;       /* seconds of a step that its rate was computed from; also the thread's */
    /* Used by the engine: */
    int64_t begun; /* steps begun in this loop */
    double since;  /* when the last of them began */
    double recent[CAR_PACE_STEPS];
    /* From the engine to the transport: */
    _Atomic int64_t slot;
    _Atomic double seconds; /* that a step takes; 0 = not known yet */
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
void car_pace_note_step(car_pace *pace, double now);

/* For the implementations of transports: whether a send is paced at all; the state for a pass, `ending` if the loop ends;
 * whether a send may leave; it leaves. */
bool car_pace_applies(const car_pace *pace, const struct car_message *send);
car_pace_moment car_pace_look(car_pace *pace, double now, bool ending);
bool car_pace_may_leave(const car_pace *pace, const car_pace_moment *moment, const struct car_message *send);
void car_pace_take(car_pace *pace, const struct car_message *send, double now);

#endif
