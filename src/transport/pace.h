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
    int links;         /* ranks; 0: nothing is paced */
    double *bytes;     /* per rank: of a step, to it; 0: never held back */
    double all;        /* their sum */
    car_bucket bucket; /* the transport's */
    double step;       /* seconds that its rate is of; the same */
    /* The engine's: */
    int64_t begun; /* steps in this loop */
    double since;  /* when the last of them began */
    double recent[CAR_PACE_STEPS];
    /* From the engine to the transport: */
    _Atomic int64_t slot;
    _Atomic double seconds; /* of a step; 0: not known yet */
} car_pace;

/* What holds for one look through the messages that wait: of two with one tag, the second must not be found free when the
 * first was not. */
typedef struct car_pace_moment {
    double now;
    int64_t slot;
    bool all; /* nothing is held back */
} car_pace_moment;

/* Of one that is zero. */
car_status car_pace_create(car_pace *pace, car_context *context, const double *bytes, int ranks);
void car_pace_destroy(car_pace *pace, car_context *context);
void car_pace_rewind(car_pace *pace); /* before a loop */
void car_pace_note_slot(car_pace *pace, int64_t slot);
void car_pace_note_step(car_pace *pace, double now);

/* For a kind of transport: whether a send waits for its turn at all; the moment, `ending` if the loop ends; whether a send
 * may leave; and that it does. */
bool car_pace_applies(const car_pace *pace, const struct car_message *send);
car_pace_moment car_pace_look(car_pace *pace, double now, bool ending);
bool car_pace_may_leave(const car_pace *pace, const car_pace_moment *moment, const struct car_message *send);
void car_pace_take(car_pace *pace, const struct car_message *send, double now);

#endif
