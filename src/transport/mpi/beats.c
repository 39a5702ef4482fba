/* Beats: a number that each rank tells the next one, as soon as it can, so that they keep their distance.
 *
 * They are no part of the plan, whose messages carry what is computed, and a few bytes. Nobody waits in here: what could
 * not be sent yet is replaced by what came after it. */
#include <string.h>

#include "transport/mpi/mpi_internal.h"

enum { BEAT_TAG = 3 };

static void listen(car_transport *transport) {
    int before = (transport->rank + transport->size - 1) % transport->size;
    MPI_Irecv(transport->beat_in, 2, MPI_INT64_T, before, BEAT_TAG, transport->control, &transport->beat_in_request);
}

void car_transport_open_beats(car_transport *transport) {
    listen(transport);
}

static void hear(car_transport *transport) {
    int arrived = 0;
    while (MPI_Test(&transport->beat_in_request, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) {
        transport->events.beat(transport->events.user, transport->beat_in[0], transport->beat_in[1]);
        listen(transport);
    }
}

/* The beat that waits, if its time has come. */
static bool take(car_transport *transport) {
    pthread_mutex_lock(&transport->lock);
    bool due = transport->beat_when > 0 && car_clock_seconds() >= transport->beat_when;
    if (due) {
        memcpy(transport->beat_out, transport->beat, sizeof transport->beat_out);
        transport->beat_when = 0;
    }
    pthread_mutex_unlock(&transport->lock);
    return due;
}

void car_transport_move_beats(car_transport *transport) {
    int sent = 0;
    hear(transport);
    if (MPI_Test(&transport->beat_out_request, &sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && sent && take(transport)) {
        MPI_Isend(transport->beat_out, 2, MPI_INT64_T, (transport->rank + 1) % transport->size, BEAT_TAG,
                  transport->control, &transport->beat_out_request);
        transport->traffic.statuses++;
    }
}

void car_transport_beat(car_transport *transport, int64_t run, int64_t number, double when) {
    pthread_mutex_lock(&transport->lock);
    transport->beat[0] = run;
    transport->beat[1] = number;
    transport->beat_when = when;
    pthread_cond_signal(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
}

void car_transport_close_beats(car_transport *transport) {
    if (transport->beat_out_request != MPI_REQUEST_NULL) {
        MPI_Request_free(&transport->beat_out_request); /* small: it is in the library's buffers */
    }
    if (transport->beat_in_request != MPI_REQUEST_NULL) {
        MPI_Cancel(&transport->beat_in_request);
        MPI_Wait(&transport->beat_in_request, MPI_STATUS_IGNORE);
    }
}
