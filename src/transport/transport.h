/* What the engine asks of a transport. There are two kinds: over MPI (mpi/), where ranks are processes, and in one process
 * (local/), where they are groups of threads.
 *
 * Inside the training loop everything is a car_message: it is started by any thread, and carried by the
 * transport's own thread, which makes all calls of MPI there. That thread polls: it tests what is under way,
 * and sleeps for a moment when nothing has happened. So messages move while kernels run, and compute threads
 * never wait inside of MPI.
 *
 * Outside of the loop (setting up, checking, gathering) plain blocking calls are made by the main thread. */
#ifndef CAR_TRANSPORT_H
#define CAR_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carousel/transport.h"

typedef enum car_message_kind {
    CAR_MESSAGE_SEND,
    CAR_MESSAGE_RECEIVE,
    CAR_MESSAGE_BROADCAST, /* from `peer`, a rank of the group */
    CAR_MESSAGE_REDUCE, /* sums floats in place at `peer`, a rank of the group; elsewhere contents are undefined after */
    CAR_MESSAGE_ALL_REDUCE
} car_message_kind;

/* What a message belongs to; each has tags of its own. */
typedef enum car_message_name {
    CAR_MESSAGE_OF_PLAN,
    CAR_MESSAGE_NOTE,    /* small, counted with statuses */
    CAR_MESSAGE_SNAPSHOT /* a piece of one; a send is finished when its receive was posted, so none piles up */
} car_message_name;

/* Floats on their way. The caller owns message and data, and leaves both alone until it is finished. */
typedef struct car_message {
    car_message_kind kind;
    void *data;
    size_t bytes; /* a multiple of sizeof(float) */
    bool doubles; /* of sums: they are, not floats */
    int peer, tag;
    car_message_name name;
    int64_t due; /* of sends: those that are due first are sent first; CAR_MESSAGE_AT_ONCE: not to be held back */
    double started, finished; /* when; set by the transport */
    void *user;
    /* The transport's. */
    struct car_message *next;
    struct car_ring_lane *lane;  /* of which this is a part; NULL for messages of the caller's */
    int pieces;                  /* of a sum over all: under way */
    bool whole;                  /* the same: none is left to start */
    struct car_message *partner; /* in one process: of a receive, the send that it gets */
    int from;                    /* in one process: the rank that sends it */
    double held;                 /* in one process, in trouble: not to be delivered before */
} car_message;

#define CAR_MESSAGE_AT_ONCE INT64_MIN
#define CAR_MESSAGE_LAST INT64_MAX /* behind all others */

enum { CAR_STATUS_BYTES = 256 }; /* of what ranks tell each other about themselves */

/* What the transport's thread calls back. */
typedef struct car_transport_events {
    void (*finished)(void *user, car_message *message);
    /* A few times a second, whether or not anything can be told: to look after the others. */
    void (*watch)(void *user);
    /* Whether there is something to tell that should leave before that. Called at every poll. */
    bool (*urgent)(void *user);
    /* A few times a second, or when it is urgent, if the last has left. Writes what there is to tell, at most CAR_STATUS_BYTES, and returns the length; 0: nothing. */
    size_t (*tell)(void *user, char *status);
    /* What another rank told; between its statuses there is at most a second while it lives, and is in the loop or in one
     * of the calls around it. Both are called in those, too, from the first loop on. */
    void (*heard)(void *user, int rank, const char *status, size_t bytes);
    /* The time of a beat of the rank before this one has come; also in those calls. Of several that are late, only the
     * last. */
    void (*beat)(void *user, int64_t run, int64_t number);
    void *user;
} car_transport_events;

/* What was done in the loop since the transport was opened. */
typedef struct car_traffic {
    uint64_t bytes_sent, messages, collectives; /* of the plan, and of rings for its sums, by this rank */
    uint64_t statuses;                          /* sent to other ranks besides, beats and notes among them */
    uint64_t snapshot_bytes;                    /* of snapshots, the same */
} car_traffic;

/* A kind of transport: what each function has to do stands below, at the function of that name. */
typedef struct car_transport_class {
    void (*close)(car_transport *transport);
    void (*abort)(car_transport *transport, int code);
    car_status (*prepare)(car_transport *transport, int highest_tag, int group);
    car_status (*begin)(car_transport *transport);
    void (*start)(car_transport *transport, car_message *message);
    void (*beat)(car_transport *transport, int64_t run, int64_t number, double seconds);
    void (*end)(car_transport *transport, bool failed);
    void (*give_up)(car_transport *transport);
    car_status (*poll)(car_transport *transport);
    car_status (*all_gather)(car_transport *transport, const void *in, size_t bytes, void *out);
    car_status (*broadcast)(car_transport *transport, int from, void *data, size_t bytes);
    car_status (*hand_over)(car_transport *transport, int from, int to, void *data, size_t bytes);
    car_status (*renumber)(car_transport *transport, bool in_turn);
} car_transport_class;

/* What every kind has, and begins with. */
struct car_transport {
    const car_transport_class *class;
    car_context *context;
    int rank, size, local_size;
    int *machine, machines; /* of each rank; how many */
    char name[128];
    car_transport_events events; /* of this loop, or of the last one */
    car_traffic traffic;
    int64_t loops;
};

/* For the kinds of transports: counts a message that begins. */
void car_transport_count(car_transport *transport, const car_message *message);

/* ---- the loop -------------------------------------------------------------------------------- */

/* Readies the ways that messages take: tags 0 .. highest_tag, and for collectives the ranks that give the same group.
 * All ranks call it. */
car_status car_transport_prepare(car_transport *transport, int highest_tag, int group);
/* From here to _end the transport's thread runs, and nothing but car_transport_start may be called. */
car_status car_transport_begin(car_transport *transport, const car_transport_events *events);
void car_transport_start(car_transport *transport, car_message *message);
/* The next rank shall have a beat with this number, which only grows within a run, that many seconds from now. In the
 * loop. */
void car_transport_beat(car_transport *transport, int64_t run, int64_t number, double seconds);
/* Ends the thread. All messages must be finished, unless `failed`: then what is left is given up. */
void car_transport_end(car_transport *transport, bool failed);

/* How often it was begun: the same on all ranks. */
int64_t car_transport_loops(const car_transport *transport);
/* Outside of the loop, by the main thread: naps for a moment and hears what there is to hear. */
car_status car_transport_poll(car_transport *transport);
/* Nobody is called back any more, until the next loop. */
void car_transport_forget(car_transport *transport);
/* Makes the calls below, and what waits for the end of the loop, fail soon: another rank is lost. From a callback. */
void car_transport_give_up(car_transport *transport);

car_traffic car_transport_traffic(const car_transport *transport);

/* ---- around it ------------------------------------------------------------------------------- */

/* `out` gets size() pieces of `bytes` bytes, in order of ranks. */
car_status car_transport_all_gather(car_transport *transport, const void *in, size_t bytes, void *out);
car_status car_transport_broadcast(car_transport *transport, int from, void *data, size_t bytes);
/* Numbers the ranks anew: machine after machine, or in turn over the machines. The first stays the first. All ranks call
 * it, before car_transport_prepare. Other numbers than the launcher's are only given where that makes a difference. */
car_status car_transport_renumber(car_transport *transport, bool in_turn);
/* Called by both ends, with one rank at each; nothing to do for others or if both are one. */
car_status car_transport_hand_over(car_transport *transport, int from, int to, void *data, size_t bytes);

#endif
