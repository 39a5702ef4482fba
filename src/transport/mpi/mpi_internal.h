/* What the files of the transport over MPI share. */
#ifndef CAR_TRANSPORT_MPI_INTERNAL_H
#define CAR_TRANSPORT_MPI_INTERNAL_H

#include <mpi.h>
#include <pthread.h>

#include "base/base.h"
#include "transport/transport.h"

/* Messages in flight and their requests. These are two arrays, because MPI tests arrays of requests. */
typedef struct car_flights {
    MPI_Request *requests;
    car_message **messages;
    int *indices; /* for MPI_Testsome */
    int count, request_capacity, message_capacity, index_capacity;
} car_flights;

enum { CAR_RING_LANES = 4 };

/* A lane carries one piece of a sum round the ring. */
typedef struct car_ring_lane {
    car_message *bucket; /* the sum that the piece belongs to; NULL = the lane is free */
    float *data, *scratch;
    size_t count;
    int tag, round, pending;
    car_message send, receive;
} car_ring_lane;

/* All-reduces over the ranks of a group. Only the transport's thread uses this. */
typedef struct car_ring {
    int rank, size;       /* this rank's number in the group, and the group's size */
    car_message *waiting; /* buckets; the first one has begun if `taken` > 0 */
    size_t taken, scratch_floats;
    int pieces; /* number of pieces begun so far */
    car_ring_lane lanes[CAR_RING_LANES];
} car_ring;

/* A post that is being sent. */
typedef struct car_mpi_post {
    struct car_mpi_post *next;
    car_post_kind kind;
    int to, bytes;
    MPI_Request request;
    char data[CAR_STATUS_BYTES];
} car_mpi_post;

typedef struct car_mpi {
    car_transport base; /* must come first, see car_mpi_of */
    bool entered;       /* car_mpi_enter succeeded, so car_mpi_leave must follow */
    /* Communicators. MPI limits tags, so a tag of ours stands for one of the communicators `data` and a tag in it. */
    MPI_Comm world; /* all ranks, in the order of their numbers */
    MPI_Comm *data;
    int data_count, tags;
    MPI_Comm sums, weights; /* for collectives, which MPI matches by their order in a communicator */
    MPI_Comm control;       /* for posts, and for blocking calls around the loop */
    MPI_Comm snapshots;

    pthread_t thread;
    car_flights flights; /* only the thread uses it, in the loop */
    car_ring ring;
    car_message *held; /* sends that wait for earlier ones or to pace their links, ordered by `due` */
    /* Posts; a receive of each kind is always posted. */
    char in[CAR_POST_KINDS][CAR_STATUS_BYTES];
    MPI_Request in_requests[CAR_POST_KINDS];
    car_mpi_post *leaving; /* posts that were handed to MPI */
    bool listens;
    /* For each rank: number of posts sent to it; number of posts that it has sent to this rank. */
    int *sent, *due;
    int heard; /* number of posts received from all ranks */

    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    car_message *new;    /* messages to be started */
    bool ending, failed; /* failed: this rank may not wait for others any more */
    car_mpi_post *posts; /* posts to be sent */
} car_mpi;

static inline car_mpi *car_mpi_of(car_transport *transport) {
    return (car_mpi *)transport;
}

/* Returns a failure with MPI's message, unless the code is MPI_SUCCESS. */
car_status car_mpi_check(car_mpi *mpi, int code, const char *what);
/* True if the transport was given up, so that this rank may not wait for others any more. */
bool car_mpi_has_given_up(car_mpi *mpi);
bool car_mpi_give_up(car_mpi *mpi); /* returns true if it was given up before */
/* process.c. The first function joins MPI, unless this process has done so. The second is the last call of a
 * transport. */
car_status car_mpi_enter(car_mpi *mpi);
void car_mpi_leave(car_mpi *mpi);
/* The first function notes that a transport of this process was given up. The second fails, and gives this transport
 * up, if any was: then none can go on. */
void car_mpi_note_loss(const car_mpi *mpi);
car_status car_mpi_check_process(car_mpi *mpi);
/* progress.c */
void *car_mpi_run(void *argument);                             /* the transport's thread; the argument is a car_mpi */
car_status car_mpi_launch(car_mpi *mpi, car_message *message); /* hands a message to MPI */
void car_mpi_release_flights(car_context *context, car_flights *flights);
/* ring.c */
void car_ring_prepare(car_mpi *mpi); /* call it when the communicators exist */
void car_ring_release(car_mpi *mpi);
car_status car_ring_start(car_mpi *mpi, car_message *bucket);
car_status car_ring_go_on(car_mpi *mpi, car_ring_lane *lane); /* one of the lane's messages has finished */
/* open.c */
enum { CAR_MPI_ALL = -1 }; /* instead of a rank or a group: all ranks */
/* Makes a communicator of the ranks that give the same group. */
car_status car_mpi_open_way(car_mpi *mpi, int group, const char *name, MPI_Comm *out);
/* Waits for a request that was just started with this code. */
car_status car_mpi_await(car_mpi *mpi, int code, MPI_Request *request, const char *what);
car_status car_mpi_all_gather(car_transport *transport, const void *in, size_t bytes, void *out);
/* machines.c */
car_status car_mpi_renumber(car_transport *transport, bool in_turn);
car_status car_mpi_find_machines(car_mpi *mpi);
/* posts.c. From the first loop on, the thread moves posts while it runs; in between, blocking calls do so while they
 * wait. Notes are moved only `in_loop`. car_mpi_move_posts returns true if a note arrived. */
car_status car_mpi_post_to(car_transport *transport, car_post_kind kind, int to, const void *data, size_t bytes);
car_status car_mpi_create_posts(car_mpi *mpi);
void car_mpi_open_posts(car_mpi *mpi);
bool car_mpi_move_posts(car_mpi *mpi, bool in_loop);
/* Waits for the other ranks, and for all posts that they have sent to this one. A post that arrived after its
 * communicator was freed could be taken for a message of the next communicator. */
car_status car_mpi_drain_posts(car_mpi *mpi);
void car_mpi_close_posts(car_mpi *mpi);
void car_mpi_destroy_posts(car_mpi *mpi);

#endif
