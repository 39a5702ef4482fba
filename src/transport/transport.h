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
#include "transport/pace.h"

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
    CAR_MESSAGE_SNAPSHOT /* a piece of one; a send is finished when its receive was posted, so none piles up */
} car_message_name;

/* A message of floats. The caller owns message and data, and must not touch either until it has finished. */
typedef struct car_message {
    car_message_kind kind;
    void *data;
    size_t bytes; /* a multiple of sizeof(float) */
    bool doubles; /* of sums: doubles instead of floats */
    int peer, tag;
    car_message_name name;
    int64_t due; /* sends leave in this order; CAR_MESSAGE_AT_ONCE = not held back for others */
    int64_t
        latest; /* the slot from which on a send is no longer held back to pace its link (pace.h); 0 = never held back */
    double started, finished; /* times, set by the transport */
    void *user;
    /* The transport's: */
    struct car_message *next;
    struct car_ring_lane *lane;  /* the lane of a ring that it is part of; NULL for messages of the caller */
    int pieces;                  /* of an all-reduce: pieces under way */
    bool whole;                  /* of an all-reduce: all pieces were started */
    struct car_message *partner; /* local: the send that matches this receive */
    int from;                    /* local: the sending rank */
    double held;                 /* local, in trouble: not delivered before this time */
    bool paced;                  /* it was held back to pace its link */
} car_message;

#define CAR_MESSAGE_AT_ONCE INT64_MIN
#define CAR_MESSAGE_LAST INT64_MAX /* behind all others */

/* Small messages that need no receive: the other end is called back. Those of one kind keep their order between two
 * ranks. */
typedef enum car_post_kind {
    CAR_POST_STATUS, /* where a rank is; not sent while the last one has not left */
    CAR_POST_BEAT,   /* see car_transport_beat */
    CAR_POST_NOTE,   /* of the engine; delivered in the loop only */
    CAR_POST_KINDS
} car_post_kind;

enum { CAR_STATUS_BYTES = 256 }; /* of a small message, at most */

/* Callbacks, made by the transport's thread. */
typedef struct car_transport_events {
    void (*finished)(void *user, car_message *message);
    /* A few times a second: the watchdog. */
    void (*watch)(void *user);
    /* Whether a status should be sent before it is due. Called at every poll. */
    bool (*urgent)(void *user);
    /* A few times a second, or when it is urgent: writes a status of at most CAR_STATUS_BYTES and returns its length; 0 =
     * nothing is sent. */
    size_t (*tell)(void *user, char *status);
    /* The status of another rank. One comes at least every second while that rank lives and is in the loop or in a call around
     * it. From the first loop on, `tell` and `heard` are also called during calls around the loop. */
    void (*heard)(void *user, int rank, const char *status, size_t bytes);
    /* The time of a beat from the rank before has come; also during calls around the loop. If several are late, only the last
     * is reported. */
    void (*beat)(void *user, int64_t run, int64_t number);
    /* A note was received, perhaps one of an earlier loop. */
    void (*noted)(void *user, const void *note, size_t bytes);
    void *user;
} car_transport_events;

/* What this rank sent in the loop since the transport was opened. */
typedef struct car_traffic {
    uint64_t bytes_sent, messages, collectives; /* of the plan, and of rings for its sums */
    uint64_t statuses;                          /* statuses, beats and notes */
    uint64_t held;                              /* messages that were held back to pace their links */
    uint64_t snapshot_bytes;                    /* bytes of snapshots */
} car_traffic;

/* A kind of transport. The function of the same name below says what each one does. */
typedef struct car_transport_class {
    void (*close)(car_transport *transport);
    void (*abort)(car_transport *transport, int code);
    car_status (*prepare)(car_transport *transport, int highest_tag, int group);
    car_status (*begin)(car_transport *transport);
    void (*start)(car_transport *transport, car_message *message);
    car_status (*post)(car_transport *transport, car_post_kind kind, int to, const void *data, size_t bytes);
    void (*end)(car_transport *transport, bool failed);
    void (*give_up)(car_transport *transport, car_status why);
    car_status (*all_gather)(car_transport *transport, const void *in, size_t bytes, void *out);
    car_status (*broadcast)(car_transport *transport, int from, void *data, size_t bytes);
    car_status (*hand_over)(car_transport *transport, int from, int to, void *data, size_t bytes);
    car_status (*renumber)(car_transport *transport, bool in_turn); /* NULL: one number is as good as another */
} car_transport_class;

/* A beat to the next rank: micro-batch `number` may begin `seconds` after `sent`, by the sender's clock. */
typedef struct car_beat {
    int64_t run, number;
    double sent, seconds;
} car_beat;

enum { CAR_BEATS_KEPT = 32 };

/* Beats received from the rank before. */
typedef struct car_beats {
    car_beat next;                /* the one whose time has not come yet; none if `due` is 0 */
    double due;                   /* its time by our clock */
    double apart[CAR_BEATS_KEPT]; /* time of arrival by our clock less time of sending by theirs, of the last beats */
    int64_t count;
} car_beats;

/* The base of every kind: its first member. */
struct car_transport {
    const car_transport_class *class;
    car_context *context;
    int rank, size, local_size;
    int *machine, machines; /* of each rank; how many */
    char name[128];
    car_transport_events events; /* of this loop, or of the last one */
    car_traffic traffic;
    int64_t loops;
    car_pace pace; /* pacing of its links, if the engine has asked for it */
    double told;   /* time of the last status */
    car_beats beats;
};

/* For the implementations of transports: */
/* Counts a message that begins; counts a message that is held back to pace its link, once. */
void car_transport_count(car_transport *transport, const car_message *message);
void car_transport_count_held(car_transport *transport, car_message *message);
/* A small message was received. Called by one thread at a time, without locks. */
void car_transport_take(car_transport *transport, car_post_kind kind, int from, const void *data, size_t bytes);
/* Makes the callbacks whose time has come: statuses, the watchdog, beats; and the time of the next one. */
void car_transport_tend(car_transport *transport);
double car_transport_rests_until(const car_transport *transport, double now);
/* Puts a send into a list of waiting ones, ordered by `due`. */
void car_message_hold(car_message **list, car_message *message);

/* ---- the loop -------------------------------------------------------------------------------- */

/* Prepares for messages with tags 0 .. highest_tag, and for collectives among the ranks that give the same group. All ranks
 * call it. */
car_status car_transport_prepare(car_transport *transport, int highest_tag, int group);
/* Paces the links of this rank from the next loop on (pace.h). bytes[r]: what a step of the plan sends to rank r in messages
 * that may be held back. NULL: no pacing. */
car_status car_transport_pace(car_transport *transport, const double *bytes);
/* For pacing, in the loop, one thread at a time: a task of this slot begins; a step begins on this rank (`computed` as in
 * car_pace_note_step). */
void car_transport_note_slot(car_transport *transport, int64_t slot);
void car_transport_note_step(car_transport *transport, double computed);
/* From here to _end the transport's thread runs, and nothing but car_transport_start may be called. */
car_status car_transport_begin(car_transport *transport, const car_transport_events *events);
void car_transport_start(car_transport *transport, car_message *message);
/* Sends the next rank a beat whose time is `seconds` from now. Numbers only grow within a run. In the loop. */
void car_transport_beat(car_transport *transport, int64_t run, int64_t number, double seconds);
/* Sends a note to another rank, in the loop. */
car_status car_transport_note(car_transport *transport, int to, const void *note, size_t bytes);
/* Ends the thread. All messages must have finished; with `failed`, the remaining ones are abandoned. */
void car_transport_end(car_transport *transport, bool failed);

/* The number of loops begun so far, the same on all ranks. */
int64_t car_transport_loops(const car_transport *transport);
/* No more callbacks until the next loop. */
void car_transport_forget(car_transport *transport);
/* Makes the calls below and the end of the loop fail soon, because another rank is lost. Called from a callback. */
void car_transport_give_up(car_transport *transport, car_status why);
/* The same for all ranks of a hub, from any thread; and the reason of the first one that gave up, CAR_OK = none did. */
void car_hub_give_up_for(car_hub *hub, car_status why);
car_status car_hub_reason(car_hub *hub);

car_traffic car_transport_traffic(const car_transport *transport);

/* ---- around it ------------------------------------------------------------------------------- */

/* Sends data from one rank to another. Called by both; for other ranks, or if they are the same, it does nothing. */
car_status car_transport_hand_over(car_transport *transport, int from, int to, void *data, size_t bytes);

#endif
