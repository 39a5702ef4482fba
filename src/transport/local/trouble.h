/* Trouble for tests: does to the ranks of one process what a network may do.
 *
 * Late: each message is held back for a random time, so messages of different peers or tags overtake each other. Those
 * with the same peer and tag keep their order, as with MPI. Sums, broadcasts, beats and notes are held back the same
 * way. Lost: the transport of one rank fails, or the rank falls silent, which means that it receives and sends nothing
 * any more, not even statuses. A pause is the same for a while. Everything is drawn from a seed and from the number of
 * messages that a rank has started. */
#ifndef CAR_TRANSPORT_TROUBLE_H
#define CAR_TRANSPORT_TROUBLE_H

#include <stdbool.h>
#include <stdint.h>

#include "carousel/transport.h"

typedef struct car_trouble {
    uint64_t seed;
    double late;      /* most messages are held back for up to this many seconds; 0 = not at all */
    double very_late; /* the same for one message in 16 */
    int slow;         /* the thread of this rank sleeps up to `late` with every message; CAR_NONE = no rank */
    /* The thread of rank `pauses` sleeps once, for `pause` seconds, after `after` messages; 0 seconds = no pause. */
    int pauses;
    double pause;
    int fails;  /* the transport of this rank fails; CAR_NONE = no rank */
    int silent; /* this rank falls silent, in the loop; CAR_NONE = no rank */
    /* How many messages, and for `fails` also blocking calls, the rank starts before that. */
    int64_t after;
} car_trouble;

/* Call it before any rank has joined. `trouble` must outlive the hub. */
void car_hub_make_trouble(car_hub *hub, const car_trouble *trouble);
/* True if the failure, the silence or the pause has happened. Call it after the ranks have ended. */
bool car_hub_was_struck(const car_hub *hub);

#endif
