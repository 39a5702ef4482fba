/* Beats: a time that each rank tells the next one, so that they keep their distance.
 *
 * They are no part of the plan, whose messages carry what is computed, and a few bytes. Nobody waits in here: what could
 * not be sent yet is replaced by what came after it.
 *
 * A beat leaves before its time, and may have to wait behind large messages on its way. What that took is found without
 * a clock that all share: our time of arrival less the sender's time of sending is the same for all beats, but for what
 * each one has waited; the least of the last ones has not waited. So one that comes late counts from when it would have
 * come. */
#include "transport/mpi/mpi_internal.h"

enum { BEAT_TAG = 3 };

static void listen(car_mpi *mpi) {
    int before = (mpi->base.rank + mpi->base.size - 1) % mpi->base.size;
    MPI_Irecv(&mpi->beats.in, sizeof mpi->beats.in, MPI_BYTE, before, BEAT_TAG, mpi->control, &mpi->beats.in_request);
}

void car_mpi_open_beats(car_mpi *mpi) {
    listen(mpi);
}

/* When a beat is due by our clock, that came now. */
static double time_of(car_beats *beats, const car_beat *beat, double now) {
    beats->apart[beats->count++ % CAR_BEATS_KEPT] = now - beat->sent;
    int known = beats->count < CAR_BEATS_KEPT ? (int)beats->count : CAR_BEATS_KEPT;
    double least = beats->apart[0];
    for (int b = 1; b < known; b++) {
        least = beats->apart[b] < least ? beats->apart[b] : least;
    }
    return beat->sent + least + beat->seconds;
}

static void hear(car_mpi *mpi) {
    car_beats *beats = &mpi->beats;
    int arrived = 0;
    while (MPI_Test(&beats->in_request, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) {
        beats->next = beats->in;
        beats->due = time_of(beats, &beats->in, car_clock_seconds());
        listen(mpi);
    }
    if (beats->due > 0 && car_clock_seconds() >= beats->due) {
        beats->due = 0;
        mpi->base.events.beat(mpi->base.events.user, beats->next.run, beats->next.number);
    }
}

/* The beat that is to be sent, if there is one. */
static bool take(car_mpi *mpi) {
    pthread_mutex_lock(&mpi->lock);
    bool waits = mpi->beat_waits;
    mpi->beats.out = mpi->beat;
    mpi->beat_waits = false;
    pthread_mutex_unlock(&mpi->lock);
    return waits;
}

void car_mpi_move_beats(car_mpi *mpi) {
    car_beats *beats = &mpi->beats;
    int sent = 0;
    hear(mpi);
    if (MPI_Test(&beats->out_request, &sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && sent && take(mpi)) {
        MPI_Isend(&beats->out, sizeof beats->out, MPI_BYTE, (mpi->base.rank + 1) % mpi->base.size, BEAT_TAG,
                  mpi->control, &beats->out_request);
        mpi->base.traffic.statuses++;
    }
}

void car_mpi_beat(car_transport *transport, int64_t run, int64_t number, double seconds) {
    car_mpi *mpi = car_mpi_of(transport);
    pthread_mutex_lock(&mpi->lock);
    mpi->beat = (car_beat){run, number, car_clock_seconds(), seconds};
    mpi->beat_waits = true;
    pthread_cond_signal(&mpi->changed);
    pthread_mutex_unlock(&mpi->lock);
}

void car_mpi_close_beats(car_mpi *mpi) {
    car_beats *beats = &mpi->beats;
    if (beats->out_request != MPI_REQUEST_NULL) {
        MPI_Request_free(&beats->out_request); /* small: it is in the library's buffers */
    }
    if (beats->in_request != MPI_REQUEST_NULL) {
        MPI_Cancel(&beats->in_request);
        MPI_Wait(&beats->in_request, MPI_STATUS_IGNORE);
    }
}
