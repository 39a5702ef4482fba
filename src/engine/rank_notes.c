/* Notes: small messages between ranks, in addition to the plan's, which need no receive. Each belongs to a run, and a
 * late note of an earlier run is ignored. rank_steps.c sends losses and squares; rank_stop.c sends what ends a run
 * early. */
#include <string.h>

#include "engine/rank_internal.h"

car_status car_rank_send_note(car_rank *rank, int to, car_rank_note note) {
    car_status status = CAR_OK;
    note.run = rank->run;
    for (int r = 0; status == CAR_OK && r < rank->devices; r++) {
        if (r == to || (to == CAR_NONE && r != rank->device)) {
            status = car_transport_note(rank->transport, r, &note, sizeof note);
        }
    }
    return status;
}

static car_status hear(car_rank *rank, const car_rank_note *note) {
    bool made = note->step >= 0 && note->step < rank->limit; /* otherwise an early end has dropped the step */
    switch (note->kind) {
    case CAR_NOTE_SQUARE:
        return made && rank->measures && note->index >= 0 && note->index < rank->stages
                   ? car_rank_note_square(rank, note->step, note->index, note->value)
                   : CAR_OK;
    case CAR_NOTE_LOSS:
        return made && rank->device == 0 && note->index >= 0 && note->index < rank->batches
                   ? car_rank_keep_loss(rank, note->step, note->index, note->value)
                   : CAR_OK;
    default:
        return car_rank_hear_of_end(rank, note);
    }
}

void car_rank_hear_note(void *user, const void *data, size_t bytes) {
    car_rank *rank = user;
    car_rank_note note;
    car_status status = CAR_OK;
    pthread_mutex_lock(&rank->lock);
    if (bytes != sizeof note) {
        status = car_context_fail(rank->context, CAR_ERROR_IO,
                                  "received a note of an unexpected size, %zu bytes: the ranks run different builds, "
                                  "or the network is broken",
                                  bytes);
    } else {
        memcpy(&note, data, sizeof note);
        status = note.run == rank->run ? hear(rank, &note) : CAR_OK;
    }
    car_rank_fail(rank, status);
    pthread_cond_broadcast(&rank->changed);
    pthread_mutex_unlock(&rank->lock);
}
