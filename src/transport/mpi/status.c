/* Statuses: what ranks tell each other about themselves while they train, a few times a second.
 *
 * Each rank tells rank 0, which shows progress and knows where everybody is, and the rank after it, so that
 * rank 0 is watched as well. From the first loop on they are moved by the thread while there is one, and by whoever waits
 * for something in between. They are no part of the plan, have a communicator of their own, and nobody waits in here
 * for them: while one has not left, the next is not made. */
#include <string.h>

#include "transport/mpi/mpi_internal.h"

enum { STATUS_TAG = 2 };

static const double interval = 0.25;

static void listen(car_transport *transport) {
    MPI_Irecv(transport->in, CAR_STATUS_BYTES, MPI_BYTE, MPI_ANY_SOURCE, STATUS_TAG, transport->control,
              &transport->in_request);
}

void car_transport_open_statuses(car_transport *transport) {
    if (transport->size > 1 && !transport->listens) {
        listen(transport);
        car_transport_open_beats(transport);
        transport->listens = true;
    }
}

static void hear(car_transport *transport) {
    for (;;) {
        int arrived = 0, bytes = 0;
        MPI_Status status;
        if (MPI_Test(&transport->in_request, &arrived, &status) != MPI_SUCCESS || !arrived) {
            return;
        }
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        transport->events.heard(transport->events.user, status.MPI_SOURCE, transport->in, (size_t)bytes);
        listen(transport);
    }
}

static void tell(car_transport *transport) {
    int listeners[2] = {0, (transport->rank + 1) % transport->size}, sent = 0;
    MPI_Status statuses[2];
    MPI_Testall(2, transport->out_requests, &sent, statuses);
    if (!sent) {
        return; /* somebody does not listen: that is for those who watch to notice */
    }
    size_t bytes = transport->events.tell(transport->events.user, transport->out);
    for (int l = 0; bytes > 0 && l < 2; l++) {
        bool twice = l == 1 && listeners[1] == 0;
        if (listeners[l] != transport->rank && !twice) {
            MPI_Isend(transport->out, (int)bytes, MPI_BYTE, listeners[l], STATUS_TAG, transport->control,
                      &transport->out_requests[l]);
            transport->traffic.statuses++;
        }
    }
}

void car_transport_move_statuses(car_transport *transport) {
    bool alone = transport->size == 1; /* it has nobody to hear, but looks after itself */
    if ((!transport->listens && !alone) || !transport->events.heard) {
        return;
    }
    if (!alone) {
        hear(transport);
        car_transport_move_beats(transport);
    }
    double now = car_clock_seconds();
    bool regular = now - transport->told >= interval;
    if (regular) {
        transport->told = now;
        transport->events.watch(transport->events.user);
    }
    if (!alone && (regular || transport->events.urgent(transport->events.user))) {
        tell(transport);
    }
}

void car_transport_close_statuses(car_transport *transport) {
    if (!transport->listens) {
        return;
    }
    transport->listens = false;
    car_transport_close_beats(transport);
    for (int l = 0; l < 2; l++) {
        if (transport->out_requests[l] != MPI_REQUEST_NULL) {
            MPI_Request_free(&transport->out_requests[l]); /* small: it is in the library's buffers */
        }
    }
    if (transport->in_request != MPI_REQUEST_NULL) {
        MPI_Cancel(&transport->in_request);
        MPI_Wait(&transport->in_request, MPI_STATUS_IGNORE);
    }
}
