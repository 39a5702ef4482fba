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

static void listen(car_mpi *mpi) {
    MPI_Irecv(mpi->in, CAR_STATUS_BYTES, MPI_BYTE, MPI_ANY_SOURCE, STATUS_TAG, mpi->control, &mpi->in_request);
}

void car_mpi_open_statuses(car_mpi *mpi) {
    if (mpi->base.size > 1 && !mpi->listens) {
        listen(mpi);
        car_mpi_open_beats(mpi);
        mpi->listens = true;
    }
}

static void hear(car_mpi *mpi) {
    for (;;) {
        int arrived = 0, bytes = 0;
        MPI_Status status;
        if (MPI_Test(&mpi->in_request, &arrived, &status) != MPI_SUCCESS || !arrived) {
            return;
        }
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        mpi->base.events.heard(mpi->base.events.user, status.MPI_SOURCE, mpi->in, (size_t)bytes);
        listen(mpi);
    }
}

static void tell(car_mpi *mpi) {
    int listeners[2] = {0, (mpi->base.rank + 1) % mpi->base.size}, sent = 0;
    MPI_Status statuses[2];
    MPI_Testall(2, mpi->out_requests, &sent, statuses);
    if (!sent) {
        return; /* somebody does not listen: that is for those who watch to notice */
    }
    size_t bytes = mpi->base.events.tell(mpi->base.events.user, mpi->out);
    for (int l = 0; bytes > 0 && l < 2; l++) {
        bool twice = l == 1 && listeners[1] == 0;
        if (listeners[l] != mpi->base.rank && !twice) {
            MPI_Isend(mpi->out, (int)bytes, MPI_BYTE, listeners[l], STATUS_TAG, mpi->control, &mpi->out_requests[l]);
            mpi->base.traffic.statuses++;
        }
    }
}

void car_mpi_move_statuses(car_mpi *mpi) {
    bool alone = mpi->base.size == 1; /* it has nobody to hear, but looks after itself */
    if ((!mpi->listens && !alone) || !mpi->base.events.heard) {
        return;
    }
    if (!alone) {
        hear(mpi);
        car_mpi_move_beats(mpi);
    }
    double now = car_clock_seconds();
    bool regular = now - mpi->told >= interval;
    if (regular) {
        mpi->told = now;
        mpi->base.events.watch(mpi->base.events.user);
    }
    if (!alone && (regular || mpi->base.events.urgent(mpi->base.events.user))) {
        tell(mpi);
    }
}

void car_mpi_close_statuses(car_mpi *mpi) {
    if (!mpi->listens) {
        return;
    }
    mpi->listens = false;
    car_mpi_close_beats(mpi);
    for (int l = 0; l < 2; l++) {
        if (mpi->out_requests[l] != MPI_REQUEST_NULL) {
            MPI_Request_free(&mpi->out_requests[l]); /* small: it is in the library's buffers */
        }
    }
    if (mpi->in_request != MPI_REQUEST_NULL) {
        MPI_Cancel(&mpi->in_request);
        MPI_Wait(&mpi->in_request, MPI_STATUS_IGNORE);
    }
}
