/* The interface between the engine and a transport. There are two kinds of transports: over MPI (mpi/) ranks are
 * processes, and in one process (local/) they are groups of threads.
 *
 * Inside the training loop everything is a car_message. Any thread may start one, and the transport's own thread
 * carries it. Over MPI, that thread makes all MPI calls of the loop. It polls: it tests the messages in flight, and
 * sleeps for a moment when nothing has happened. So messages move while kernels run, and compute threads never wait
 * inside MPI.
 *
 * Outside the loop (setting up, checking, gathering) the main thread makes plain blocking calls. */
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
    CAR_MESSAGE_BROADCAST, /* from member `peer` of the group */
    /* Adds up in place at member `peer` of the group. On the other members the contents are undefined afterwards. */
    CAR_MESSAGE_REDUCE,
    CAR_MESSAGE_ALL_REDUCE
} car_message_kind;

/* What a message is part of. Each has its own tags. */
typedef enum car_message_name {
    CAR_MESSAGE_OF_PLAN,
    /* A piece of a snapshot. Its send finishes only when the receive is posted, so pieces do not pile up at the
     * receiver. */
    CAR_MESSAGE_SNAPSHOT
} car_message_name;

/* A message. The caller owns the message and its data, and must not touch either until the message has finished. */
typedef struct car_message {
    car_message_kind kind;
    void *data;
    size_t bytes; /* a multiple of sizeof(float) */
    bool doubles; /* collectives: add doubles instead of floats */
    int peer, tag;
    car_message_name name;
    /* Sends leave in ascending order of this; CAR_MESSAGE_AT_ONCE = not held back for others. */
    int64_t due;
    /* The slot from which on a send is no longer held back to pace its link (pace.h); 0 = never held back. */
    int64_t latest;
    double started, finished; /* set by the transport */
    void *user;
    /* For the transport: */
    struct car_message *next;
    struct car_ring_lane *lane;  /* the lane of the ring that it belongs to; NULL for messages of the caller */
    int pieces;                  /* all-reduce: number of pieces in flight */
    bool whole;                  /* all-reduce: all its pieces were started */
    struct car_message *partner; /* local: the send that matches this receive */
    struct car_local_collective *collective; /* local: the collective that this message completes */
    int from;                                /* local: the sending rank */
    double held;                             /* local, in tests: not delivered before this time */
    bool paced;                              /* it has been held back to pace its link */
} car_message;

#define CAR_MESSAGE_AT_ONCE INT64_MIN
#define CAR_MESSAGE_LAST INT64_MAX /* after all others */

/* Posts: small messages that need no receive, because they call back at the other end. Between two ranks, posts of one
 * kind keep their order. */
typedef enum car_post_kind {
    /* A heartbeat: says where a rank is. A new one is not sent while the last one is still leaving. */
    CAR_POST_STATUS,
    CAR_POST_BEAT, /* see car_transport_beat */
    CAR_POST_NOTE, /* between engines; delivered in the loop only */
    CAR_POST_KINDS
} car_post_kind;

enum { CAR_STATUS_BYTES = 256 }; /* the most bytes of a post */

/* What the transport tells the engine. Its thread makes the calls; in blocking calls around the loop, the caller's
 * thread may do so. */
typedef struct car_transport_events {
    /* A message has finished. NULL: the transport failed, and its context has the error. */
    void (*finished)(void *user, car_message *message);
    /* Called a few times a second, for the watchdog. */
    void (*watch)(void *user);
    /* Called at every poll: true if a status must be sent before it is due. */
    bool (*urgent)(void *user);
    /* Called a few times a second, or when it is urgent: writes a status of at most CAR_STATUS_BYTES and returns its
     * length; 0 = nothing is sent. */
    size_t (*tell)(void *user, char *status);
    /* A status of another rank arrived. At least one arrives every second while that rank lives and is in the loop or
     * in a call around it. From the first loop on, `tell` and `heard` are also called during calls around the loop. */
    void (*heard)(void *user, int rank, const char *status, size_t bytes);
    /* The time that a beat from the rank before names has come; also called during calls around the loop. If several
     * are late, only the last one is reported. */
    void (*beat)(void *user, int64_t run, int64_t number);
    /* A note arrived. It may belong to an earlier loop. */
    void (*noted)(void *user, const void *note, size_t bytes);
    void *user;
} car_transport_events;

/* What this rank has sent in loops since the transport was opened. */
typedef struct car_traffic {
    uint64_t bytes_sent, messages, collectives; /* messages of the plan, and of rings that add up its sums */
    uint64_t statuses;                          /* statuses, beats and notes */
    uint64_t held;                              /* number of messages held back to pace their links */
    uint64_t snapshot_bytes;
} car_traffic;

/* The functions of one kind of transport. The public function of the same name, here or in carousel/transport.h,
 * describes each. */
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
    car_status (*renumber)(car_transport *transport, bool in_turn); /* NULL: numbers make no difference */
} car_transport_class;

/* A beat, sent to the next rank: micro-batch `number` may begin `seconds` after the time `sent` of the sender's
 * clock. */
typedef struct car_beat {
    int64_t run, number;
    double sent, seconds;
} car_beat;

enum { CAR_BEATS_KEPT = 32 };

/* The beats received from the rank before. */
typedef struct car_beats {
    car_beat next; /* the beat whose time has not come yet; none if `due` is 0 */
    double due;    /* its time by this rank's clock */
    /* For the last beats: time of arrival by this rank's clock, minus time of sending by the sender's clock. */
    double apart[CAR_BEATS_KEPT];
    int64_t count;
} car_beats;

/* Every kind of transport has this as its first member. */
struct car_transport {
    const car_transport_class *class;
    car_context *context;
    int rank, size, local_size;
    int *machine, machines; /* machine of each rank; number of machines */
    char name[128];
    car_transport_events events; /* of the current loop, or the last one */
    car_traffic traffic;
    int64_t loops;
    car_pace pace; /* pacing of its links, if the engine asked for it */
    double told;   /* when it last sent a status */
    car_beats beats;
};

/* For implementations of transports. */
/* Count a message that starts; count, once, a message that is held back to pace its link. */
void car_transport_count(car_transport *transport, const car_message *message);
void car_transport_count_held(car_transport *transport, car_message *message);
/* A post has arrived. Call it from one thread at a time, without locks. */
void car_transport_take(car_transport *transport, car_post_kind kind, int from, const void *data, size_t bytes);
/* Makes the callbacks that are due: statuses, the watchdog, beats. The second function returns when the next one is
 * due. */
void car_transport_tend(car_transport *transport);
double car_transport_rests_until(const car_transport *transport, double now);
/* Computes sum += addend for the numbers of a collective. */
void car_message_add(const car_message *collective, void *sum, const void *addend, size_t bytes);
/* Appends a message to a list; inserts a send into a list of held sends, ordered by `due`. */
void car_message_append(car_message **list, car_message *message);
void car_message_hold(car_message **list, car_message *message);

/* ---- the loop -------------------------------------------------------------------------------- */

/* Prepares for messages with tags 0 .. highest_tag, and for collectives among all ranks that give the same group. All
 * ranks call it. */
car_status car_transport_prepare(car_transport *transport, int highest_tag, int group);
/* Paces the links of this rank from the next loop on (pace.h). bytes[r] is what a step of the plan sends to rank r in
 * messages that may be held back. NULL turns pacing off. */
car_status car_transport_pace(car_transport *transport, const double *bytes);
/* For pacing: a task of this slot begins; a step begins on this rank (arguments and result as in car_pace_note_step).
 * Call them in the loop, from one thread at a time. */
void car_transport_note_slot(car_transport *transport, int64_t slot);
bool car_transport_note_step(car_transport *transport, double computed);
/* Begins the loop. Until car_transport_end the transport's thread runs, and the blocking calls around the
 * loop must not be made. */
car_status car_transport_begin(car_transport *transport, const car_transport_events *events);
void car_transport_start(car_transport *transport, car_message *message);
/* Sends a beat to the next rank: micro-batch `number` may begin `seconds` from now. Within a run the numbers must
 * ascend. Call it in the loop. */
void car_transport_beat(car_transport *transport, int64_t run, int64_t number, double seconds);
/* Sends a note to another rank, in the loop. */
car_status car_transport_note(car_transport *transport, int to, const void *note, size_t bytes);
/* Ends the loop. Waits until all messages have finished and the other ranks have ended theirs; with `failed`, abandons
 * the remaining messages instead. */
void car_transport_end(car_transport *transport, bool failed);

/* The number of loops begun so far; it is the same on all ranks. */
int64_t car_transport_loops(const car_transport *transport);
/* Makes no more callbacks until the next loop. */
void car_transport_forget(car_transport *transport);
/* Makes the blocking calls and the end of the loop fail soon, because another rank is lost. Callbacks may call it. */
void car_transport_give_up(car_transport *transport, car_status why);
/* The same for all ranks of a hub, from any thread. The second function returns the reason of the first rank that gave
 * up; CAR_OK = none did. */
void car_hub_give_up_for(car_hub *hub, car_status why);
car_status car_hub_reason(car_hub *hub);

car_traffic car_transport_traffic(const car_transport *transport);

/* ---- around the loop -------------------------------------------------------------------------- */

/* Sends data from one rank to another. Both call it. On other ranks, or if both are the same, it does nothing. */
car_status car_transport_hand_over(car_transport *transport, int from, int to, void *data, size_t bytes);

#endif
