/* What the files of the transport in one process share. Its ranks are groups of threads.
 *
 * A hub has an end for every rank. One lock guards everything at the hub. In the loop it is held for matching, never
 * while bytes are copied or callbacks run. There each end has a thread, which copies what its rank receives:
 *
 *   rank 0: start(send) ─┐
 *                        ├─► matched ─► rank 1's thread copies, and tells both ranks that it has finished
 *   rank 1: start(recv) ─┘
 */
#ifndef CAR_TRANSPORT_LOCAL_INTERNAL_H
#define CAR_TRANSPORT_LOCAL_INTERNAL_H

#include <pthread.h>

#include "base/base.h"
#include "transport/local/trouble.h"
#include "transport/transport.h"

typedef struct car_local car_local;

/* A post that its receiver has not handled yet. */
typedef struct car_local_post {
    struct car_local_post *next;
    car_post_kind kind;
    int from;
    size_t bytes;
    double held; /* in tests (trouble.h): not delivered before this time */
    char data[CAR_STATUS_BYTES];
} car_local_post;

/* A sum or a broadcast that not all ranks of its group have joined yet. */
typedef struct car_local_collective {
    struct car_local_collective *next;
    /* Its group, and how many ranks have joined it. */
    int group, count;
    int64_t number; /* among the collectives of its group and kind */
    bool broadcast;
    car_message *messages[]; /* for each rank of the hub; NULL = has not joined, or is not in the group */
} car_local_collective;

struct car_hub {
    car_context *context;
    int ranks;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for the blocking calls around the loop */
    car_local **ends;       /* for each rank; after a failure, NULL for ranks that have left */
    car_local_collective *collectives;
    bool failed;                /* no rank may wait for another any more */
    car_status reason;          /* why the first rank gave up */
    const car_trouble *trouble; /* for tests; NULL = none */
    bool struck;                /* see car_hub_was_struck */
    /* A meeting of all ranks: */
    int arrived;
    int64_t meeting;
    const void **given; /* for each rank: the data that it brings */
};

struct car_local {
    car_transport base;
    car_hub *hub;
    int group;
    pthread_t thread;
    /* The thread ends when this rank's messages have finished. The hub's lock guards this, too. */
    bool ending;
    /* Guarded by the hub's lock: */
    pthread_cond_t wake;
    car_message *sends, *receives; /* sends to this rank and its receives, those without a partner; oldest first */
    car_message *matched;          /* what the thread has to do: receives with a partner, complete collectives */
    car_message *held;             /* this rank's sends that are held back to pace their links, ordered by `due` */
    int64_t in_flight;             /* messages of this rank that have not finished */
    int64_t busy;                  /* how many of them are being copied, or are part of a complete collective */
    int64_t collectives[2];        /* how many sums [0] and broadcasts [1] this rank has joined */
    car_local_post *inbox;         /* posts to this rank, oldest first */
    const void **handed;           /* for each rank: data that it hands to this one, outside the loop; NULL = none */
    /* In tests: messages started and random numbers drawn so far, and which trouble has happened. */
    int64_t begun, draws;
    bool broken, silent, paused;
};

static inline car_local *car_local_of(car_transport *transport) {
    return (car_local *)transport;
}

/* loop.c */
car_status car_local_begin(car_transport *transport);
void car_local_start(car_transport *transport, car_message *message);
car_status car_local_post_to(car_transport *transport, car_post_kind kind, int to, const void *data, size_t bytes);
void car_local_end(car_transport *transport, bool failed);

/* hub.c. Hold the hub's lock. car_hub_arrive: this rank arrives at a meeting. All have arrived once hub->meeting
 * differs from the result. */
int64_t car_hub_arrive(car_hub *hub);
void car_hub_fail(car_hub *hub);
size_t car_local_collective_bytes(const car_hub *hub);

/* trouble.c. Call these only if the hub has trouble, except for car_trouble_be_silent. Hold its lock, unless it says
 * otherwise. */
double car_trouble_delay(car_local *local);                    /* a random delay in seconds */
void car_trouble_hold(car_local *local, car_message *message); /* sets the time until which a message is held back */
double car_trouble_wake(const car_local *local, double until); /* `until`, or the earlier end of a hold */
void car_trouble_nap(car_local *local);                        /* call it without the lock */
bool car_trouble_strikes(car_local *local, bool in_loop);      /* this rank starts something; true = it is lost */
car_status car_trouble_explain(const car_local *local);        /* sets the error */
void car_trouble_be_silent(car_local *local); /* if the rank is silent, waits until the hub has failed */

#endif
