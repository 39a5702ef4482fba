/* The inside of the transport over MPI. */
#ifndef CAR_TRANSPORT_MPI_INTERNAL_H
#define CAR_TRANSPORT_MPI_INTERNAL_H

#include <mpi.h>
#include <pthread.h>

#include "base/base.h"
#include "transport/transport.h"

/* Messages under way and their requests, in two arrays because MPI tests arrays of requests. */
typedef struct car_flights {
    MPI_Request *requests;
    car_message **messages;
    int *indices; /* for MPI_Testsome */
    int count, request_capacity, message_capacity, index_capacity;
} car_flights;

enum { CAR_RING_LANES = 4 };

/* A piece of a sum that goes round. */
typedef struct car_ring_lane {
    car_message *bucket; /* the sum that it is a piece of; NULL = the lane is free */
    float *data, *scratch;
    size_t count;
    int tag, round, pending;
    car_message send, receive;
} car_ring_lane;

/* Sums over all ranks of a group. Used by the transport's thread only. */
typedef struct car_ring {
    int rank, size;            /* in the group */
    car_message *first, *last; /* buckets in line; the first is begun if `taken` > 0 */
    size_t taken, scratch_floats;
    int pieces; /* pieces begun so far */
    car_ring_lane lanes[CAR_RING_LANES];
} car_ring;

/* A small message on its way out. */
typedef struct car_mpi_post {
    struct car_mpi_post *next;
    car_post_kind kind;
    int to, bytes;
    MPI_Request request;
    char data[CAR_STATUS_BYTES];
} car_mpi_post;

typedef struct car_mpi {
    car_transport base; /* first: see car_mpi_of */
    bool entered;       /* MPI was joined for this transport */
    /* Communicators. MPI limits tags, so one of our tags is a communicator of `data` and a tag in it. */
    MPI_Comm world; /* all ranks, in the order of their numbers */
    MPI_Comm *data;
    int data_count, tags;
    MPI_Comm sums, weights; /* collectives, which are matched by their order in a communicator */
    MPI_Comm control;       /* statuses, and what is done outside of the loop */
    MPI_Comm snapshots;

    pthread_t thread;
    car_flights flights; /* the thread's, in the loop */
    car_ring ring;
    car_message *held; /* sends that wait for others, or to pace their links, ordered by `due` */
    /* Small messages; a receive of each kind is always posted. */
    char in[CAR_POST_KINDS][CAR_STATUS_BYTES];
    MPI_Request in_requests[CAR_POST_KINDS];
    car_mpi_post *leaving; /* handed to MPI */
    bool listens;
    int *sent, *due; /* per rank: small messages sent to it; that it has sent to this rank */
    int heard;       /* small messages received from all ranks */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    car_message *first, *last; /* to be started */
    bool ending, failed;       /* failed: nobody may wait for others any more */
    car_mpi_post *posts;       /* to be sent */
} car_mpi;

static inline car_mpi *car_mpi_of(car_transport *transport) {
    return (car_mpi *)transport;
}

/* Fails with MPI's own words. */
car_status car_mpi_check(car_mpi *mpi, int code, const char *what);
/* Whether the transport was given up, so that nobody may wait for others any more. */
bool car_mpi_has_given_up(car_mpi *mpi);
bool car_mpi_give_up(car_mpi *mpi); /* whether it had before */
/* process.c. Joins MPI, unless this process has; and the last call of a transport. */
car_status car_mpi_enter(car_mpi *mpi);
void car_mpi_leave(car_mpi *mpi);
/* A transport was given up; and whether one was, so that none can go on: fails, and gives this one up. */
void car_mpi_note_loss(const car_mpi *mpi);
car_status car_mpi_check_process(car_mpi *mpi);
/* progress.c */
void *car_mpi_run(void *argument);                             /* the thread; a car_mpi */
car_status car_mpi_launch(car_mpi *mpi, car_message *message); /* hands it to MPI */
void car_mpi_release_flights(car_context *context, car_flights *flights);
/* ring.c */
void car_ring_prepare(car_mpi *mpi); /* once there is a communicator of the group */
void car_ring_release(car_mpi *mpi);
car_status car_ring_start(car_mpi *mpi, car_message *bucket);
car_status car_ring_go_on(car_mpi *mpi, car_ring_lane *lane); /* one of its messages has finished */
/* open.c */
car_status car_mpi_await(car_mpi *mpi, int code, MPI_Request *request, const char *what); /* what was just started */
car_status car_mpi_all_gather(car_transport *transport, const void *in, size_t bytes, void *out);
/* machines.c */
car_status car_mpi_renumber(car_transport *transport, bool in_turn);
car_status car_mpi_find_machines(car_mpi *mpi);
/* Makes a copy of the world. */
car_status car_mpi_duplicate(car_mpi *mpi, const char *name, MPI_Comm *out);
/* posts.c. From the first loop on they are moved by the thread while there is one, and by whoever waits for something in
 * between; notes only `in_loop`. True: a note has come. */
car_status car_mpi_post_to(car_transport *transport, car_post_kind kind, int to, const void *data, size_t bytes);
car_status car_mpi_create_posts(car_mpi *mpi);
void car_mpi_open_posts(car_mpi *mpi);
bool car_mpi_move_posts(car_mpi *mpi, bool in_loop);
/* Waits for the other ranks, and for all that they have posted to this one: what comes later than its communicator ends
 * could be taken for a message of the next one. */
car_status car_mpi_drain_posts(car_mpi *mpi);
void car_mpi_close_posts(car_mpi *mpi);
void car_mpi_destroy_posts(car_mpi *mpi);

#endif
