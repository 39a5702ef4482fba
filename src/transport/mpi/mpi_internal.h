/* The inside of the transport over MPI. */
#ifndef CAR_TRANSPORT_MPI_INTERNAL_H
#define CAR_TRANSPORT_MPI_INTERNAL_H

#include <mpi.h>
#include <pthread.h>

#include "base/base.h"
#include "transport/transport.h"

/* A message under way beside its request: two arrays, because MPI tests arrays of requests. */
typedef struct car_flights {
    MPI_Request *requests;
    car_message **messages;
    int *indices; /* for MPI_Testsome */
    MPI_Status *statuses;
    int count, capacity;
} car_flights;

enum { CAR_RING_LANES = 4 };

/* A piece of a sum that goes round. */
typedef struct car_ring_lane {
    car_message *bucket; /* NULL: free */
    float *data, *scratch;
    size_t count;
    int tag, round, pending;
    car_message send, receive;
} car_ring_lane;

/* Sums over all ranks of a group. The thread's. */
typedef struct car_ring {
    int rank, size;            /* in the group */
    car_message *first, *last; /* buckets in line; the first is begun if `taken` > 0 */
    size_t taken, scratch_floats;
    int pieces; /* begun so far */
    car_ring_lane lanes[CAR_RING_LANES];
} car_ring;

/* What a rank tells the next one: that its time for `number` comes `seconds` after `sent`, by the sender's clock. */
typedef struct car_beat {
    int64_t run, number;
    double sent, seconds;
} car_beat;

enum { CAR_BEATS_KEPT = 32 };

/* One receive always posted, one send at most. The thread's. */
typedef struct car_beats {
    car_beat in, out;
    MPI_Request in_request, out_request;
    car_beat next;                /* has come, and its time has not; none if `due` is 0 */
    double due;                   /* by our clock */
    double apart[CAR_BEATS_KEPT]; /* what lay between our clock and the sender's, of the last ones */
    int64_t count;
} car_beats;

typedef struct car_mpi {
    car_transport base; /* first: see car_mpi_of */
    /* Ways. Tags are only promised up to some number, so a tag is a communicator and a tag in it. */
    MPI_Comm world; /* all ranks, in the order of their numbers */
    MPI_Comm *data;
    int data_count, tags;
    MPI_Comm sums, weights; /* collectives, which are matched by their order in a communicator */
    MPI_Comm control;       /* statuses, and what is done outside of the loop */
    MPI_Comm snapshots;

    pthread_t thread;
    car_flights flights; /* the thread's, in the loop */
    car_ring ring;
    car_message *held; /* sends that wait for others to be on their way, in the order in which they are due */
    /* Statuses: one receive always posted, one send to each listener at most. */
    char in[CAR_STATUS_BYTES], out[CAR_STATUS_BYTES];
    MPI_Request in_request, out_requests[2];
    double told;
    car_beats beats;
    bool listens; /* statuses are heard and told */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    car_message *first, *last; /* to be started */
    bool ending, failed;       /* failed: nobody should wait for others any more */
    car_beat beat;             /* to be sent, */
    bool beat_waits;           /* if there is one */
} car_mpi;

static inline car_mpi *car_mpi_of(car_transport *transport) {
    return (car_mpi *)transport;
}

/* Fails with MPI's own words. */
car_status car_mpi_check(car_mpi *mpi, int code, const char *what);
/* Whether nobody should wait for others any more. */
bool car_mpi_has_given_up(car_mpi *mpi);
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
car_status car_mpi_all_gather(car_transport *transport, const void *in, size_t bytes, void *out);
/* machines.c */
car_status car_mpi_renumber(car_transport *transport, bool in_turn);
car_status car_mpi_find_machines(car_mpi *mpi);
/* Makes a copy of the world. */
car_status car_mpi_duplicate(car_mpi *mpi, const char *name, MPI_Comm *out);
void car_mpi_beat(car_transport *transport, int64_t run, int64_t number, double seconds);
/* beats.c: as statuses, which open, move and close them */
void car_mpi_open_beats(car_mpi *mpi);
void car_mpi_move_beats(car_mpi *mpi);
void car_mpi_close_beats(car_mpi *mpi);
/* status.c */
void car_mpi_open_statuses(car_mpi *mpi);
void car_mpi_move_statuses(car_mpi *mpi);
void car_mpi_close_statuses(car_mpi *mpi);

#endif
