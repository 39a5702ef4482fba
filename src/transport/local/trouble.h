/* Trouble for tests: what a network may do to ranks, done to those of one process.
 *
 * Late: each message is held back by a random time, so those of different peers or tags overtake each other. Of one peer and
 * tag they keep their order, as MPI's do. Sums and broadcasts are held back the same way, and so are beats. Lost: one rank's
 * transport fails, or it falls silent, which is to say that it takes, sends and tells nothing any more; a pause is the same for
 * a while. All is drawn from a seed and from how many messages a rank has begun. */
#ifndef CAR_TRANSPORT_TROUBLE_H
#define CAR_TRANSPORT_TROUBLE_H

#include <stdbool.h>
#include <stdint.h>

#include "carousel/transport.h"

typedef struct car_trouble {
    uint64_t seed;
    double late;      /* seconds that most messages are held back, at most; 0: not at all */
    double very_late; /* the same of one in 16 */
    int slow;         /* the rank whose thread sleeps up to `late` with every message; CAR_NONE: none */
    int pauses;       /* the rank whose thread sleeps once, after `after` messages, */
    double pause;     /* for so many seconds; 0: nobody's */
    int fails;        /* the rank whose transport fails; CAR_NONE: none */
    int silent;       /* the one that falls silent, in the loop; the same */
    int64_t after;    /* messages, and for `fails` also calls around the loop, that it begins before that */
} car_trouble;

/* Before any rank has joined. `trouble` must stay as long as the hub. */
void car_hub_make_trouble(car_hub *hub, const car_trouble *trouble);
/* Whether the failure or the silence has come. After the ranks have ended. */
bool car_hub_was_struck(const car_hub *hub);

#endif
