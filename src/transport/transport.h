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

/* Floats on their way. The caller owns message and data, and leaves both alone until it is finished. */
typedef struct car_message {
    car_message_kind kind;
    void *data;
    size_t bytes; /* a multiple of sizeof(float) */
    bool doubles; /* of sums: they are, not floats */
    int peer, tag;
    car_message_name name;
    int64_t due;    /* of sends: those that are due first are sent first; CAR_MESSAGE_AT_ONCE: not to be held back */
    int64_t latest; /* of sends: the slot from which on it is not held back to pace its link (pace.h); 0: it never is */
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
    bool paced;                  /* it was held back to pace its link */
} car_message;

#define CAR_MESSAGE_AT_ONCE INT64_MIN
#define CAR_MESSAGE_LAST INT64_MAX /* behind all others */

/* Small messages that need no receive: the other end is called back. Those of one kind keep their order between two
 * ranks. */
typedef enum car_post_kind {
    CAR_POST_STATUS, /* what a rank says about itself; left out while the last one has not left */
    CAR_POST_BEAT,   /* see car_transport_beat */
    CAR_POST_NOTE,   /* the engine's; taken in the loop only */
    CAR_POST_KINDS
} car_post_kind;

enum { CAR_STATUS_BYTES = 256 }; /* of any of them, at most */

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
    /* A note has come, perhaps one of an earlier loop. */
    void (*noted)(void *user, const void *note, size_t bytes);
    void *user;
} car_transport_events;

/* What was done in the loop since the transport was opened. */
typedef struct car_traffic {
    uint64_t bytes_sent, messages, collectives; /* of the plan, and of rings for its sums, by this rank */
    uint64_t statuses;                          /* sent to other ranks besides, beats and notes among them */
    uint64_t held;                              /* of the messages: held back to pace their links */
    uint64_t snapshot_bytes;                    /* of snapshots, the same */
} car_traffic;

/* A kind of transport: what each function has to do stands below, at the function of that name. */
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

/* What a rank tells the next one: that its time for `number` comes `seconds` after `sent`, by the sender's clock. */
typedef struct car_beat {
    int64_t run, number;
    double sent, seconds;
} car_beat;

enum { CAR_BEATS_KEPT = 32 };

/* Beats that came from the rank before. */
typedef struct car_beats {
    car_beat next;                /* its time has not come yet; none if `due` is 0 */
    double due;                   /* by our clock */
    double apart[CAR_BEATS_KEPT]; /* what lay between our clock and the sender's, of the last ones */
    int64_t count;
} car_beats;

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
    car_pace pace; /* of its links; nothing is paced unless the engine asks for it */
    double told;   /* when the last status was made */
    car_beats beats;
};

/* For the kinds of transports: counts a message that begins. */
void car_transport_count(car_transport *transport, const car_message *message);
/* The same: that one is held back to pace its link; each once. */
void car_transport_count_held(car_transport *transport, car_message *message);
/* The same: one of the small messages has come. By one thread at a time, without locks. */
void car_transport_take(car_transport *transport, car_post_kind kind, int from, const void *data, size_t bytes);
/* The same: calls back whoever has something to tell or to look after, and when the time of a beat has come; and until when
 * there is nothing to do in here. */
void car_transport_tend(car_transport *transport);
double car_transport_rests_until(const car_transport *transport, double now);
/* The same: puts a send into a list of those that wait, in the order in which they are due. */
void car_message_hold(car_message **list, car_message *message);

/* ---- the loop -------------------------------------------------------------------------------- */

/* Readies the ways that messages take: tags 0 .. highest_tag, and for collectives the ranks that give the same group.
 * All ranks call it. */
car_status car_transport_prepare(car_transport *transport, int highest_tag, int group);
/* Paces the links of this rank from the next loop on (pace.h): `bytes` is per rank what a step of the plan sends to it, of
 * messages that may be held back. NULL: nothing is paced. */
car_status car_transport_pace(car_transport *transport, const double *bytes);
/* For that, in the loop, one thread at a time: a task of this slot begins, `first` if it is the first of its step here. */
void car_transport_note_slot(car_transport *transport, int64_t slot, bool first);
/* From here to _end the transport's thread runs, and nothing but car_transport_start may be called. */
car_status car_transport_begin(car_transport *transport, const car_transport_events *events);
void car_transport_start(car_transport *transport, car_message *message);
/* The next rank shall have a beat with this number, which only grows within a run, that many seconds from now. In the
 * loop. */
void car_transport_beat(car_transport *transport, int64_t run, int64_t number, double seconds);
/* Sends a note to another rank, in the loop. */
car_status car_transport_note(car_transport *transport, int to, const void *note, size_t bytes);
/* Ends the thread. All messages must be finished, unless `failed`: then what is left is given up. */
void car_transport_end(car_transport *transport, bool failed);

/* How often it was begun: the same on all ranks. */
int64_t car_transport_loops(const car_transport *transport);
/* Nobody is called back any more, until the next loop. */
void car_transport_forget(car_transport *transport);
/* Makes the calls below, and what waits for the end of the loop, fail soon: another rank is lost. From a callback. */
void car_transport_give_up(car_transport *transport, car_status why);
/* The same for all ranks of a hub, from any thread; and why the first one of all these did, CAR_OK: nobody. */
void car_hub_give_up_for(car_hub *hub, car_status why);
car_status car_hub_reason(car_hub *hub);

car_traffic car_transport_traffic(const car_transport *transport);

/* ---- around it ------------------------------------------------------------------------------- */

/* Called by both ends, with one rank at each; nothing to do for others or if both are one. */
car_status car_transport_hand_over(car_transport *transport, int from, int to, void *data, size_t bytes);

#endif
