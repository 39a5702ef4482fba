/* The inside of the transport between groups of threads of one process.
 *
 * A hub has an end for every rank. One lock guards everything at the hub; it is held for matching, never while bytes are
 * copied or anybody is called back. Each end has a thread in the loop, which copies what its rank receives:
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

/* A small message that its receiver has not handled yet. */
typedef struct car_local_post {
    struct car_local_post *next;
    car_post_kind kind;
    int from;
    size_t bytes;
    double held; /* in trouble: not delivered before this time */
    char data[CAR_STATUS_BYTES];
} car_local_post;

/* Data on the way from one thread to another outside of the loop. */
typedef struct car_local_parcel {
    const void *data; /* NULL: none */
    size_t bytes;
} car_local_parcel;

/* A sum or a broadcast that not all ranks of its group have begun yet. */
typedef struct car_local_collective {
    struct car_local_collective *next;
    int group, count; /* the number of ranks that have begun it */
    int64_t number;   /* among those of its group and kind */
    double held;      /* in trouble: not completed before this time */
    bool broadcast;
    car_message *messages[]; /* per rank of the hub; NULL = has not begun it, or is not in the group */
} car_local_collective;

struct car_hub {
    car_context *context;
    int ranks;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for calls around the loop */
    car_local **ends;       /* per rank; after a failure those of ranks that have left are NULL */
    car_local_collective *collectives;
    bool failed;                /* nobody may wait for others any more */
    car_status reason;          /* of the first rank that gave up */
    const car_trouble *trouble; /* NULL: none */
    bool struck;                /* see car_hub_was_struck */
    /* A meeting of all: */
    int arrived;
    int64_t meeting;
    const void **given; /* per rank: the data that it brings */
};

struct car_local {
    car_transport base;
    car_hub *hub;
    int group;
    pthread_t thread;
    bool ending; /* the thread ends when this rank's messages have finished; guarded by the hub's lock as well */
    /* Guarded by the hub's lock: */
    pthread_cond_t wake;
    car_message *sends, *receives;  /* sends to this rank and receives of it without a partner, first in first out */
    car_message *matched;           /* receives with a partner, to be copied */
    car_message *held;              /* sends of this rank that wait to pace their links, ordered by `due` */
    car_local_collective *complete; /* to be computed by this rank's thread */
    int64_t in_flight;              /* messages of this rank that have not finished */
    int64_t busy;                   /* of them, being copied right now */
    int64_t collectives[2];         /* sums and broadcasts that this rank has begun */
    car_local_post *inbox;          /* first in first out */
    car_local_parcel *parcels;      /* per rank: data handed over to this one */
    /* In trouble: messages begun and random numbers drawn so far, and what has happened. */
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

/* hub.c. Hold the hub's lock. This rank arrives at a meeting; all have arrived once hub->meeting differs from the result. */
int64_t car_hub_arrive(car_hub *hub);
void car_hub_fail(car_hub *hub);

/* trouble.c: only where the hub has trouble. Hold its lock. */
double car_trouble_delay(car_local *local);                       /* seconds, at random */
void car_trouble_hold(car_local *receiver, car_message *receive); /* says until when */
double car_trouble_wake(const car_local *local, double until); /* that time, or the first that something is held to */
void car_trouble_nap(car_local *local);                        /* without the lock */
bool car_trouble_strikes(car_local *local, bool in_loop);      /* this rank begins something; true: it is lost */
car_status car_trouble_explain(const car_local *local);        /* why it has failed */
void car_trouble_be_silent(car_local *local);                  /* until all have failed, if it is */

#endif
