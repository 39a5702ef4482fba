/* Collects the records of several ranks on rank 0, and aligns their clocks.
 *
 *   rank 0   ---ask----o-----------now--->        offset = r's time - middle of (asked, answered)
 *   rank r             |answers with its time     known to half of the round trip; the fastest exchange counts */
#include <math.h>
#include <string.h>

#include "recorder/recorder.h"
#include "transport/transport.h"

enum { EXCHANGES = 32 };

/* ---- aligning the clocks ---------------------------------------------------------------------- */

/* Called by rank 0 and by rank `other`; rank 0 measures the offset of the other's clock. */
static car_status exchange(car_transport *transport, int other, double *offset, double *round_trip) {
    car_status status = CAR_OK;
    for (int e = 0; e < EXCHANGES; e++) {
        double asked = car_clock_seconds(), there = 0;
        CAR_TRY(car_transport_hand_over(transport, 0, other, &asked, sizeof asked));
        there = car_clock_seconds();
        CAR_TRY(car_transport_hand_over(transport, other, 0, &there, sizeof there));
        double trip = car_clock_seconds() - asked;
        if (e == 0 || trip < *round_trip) {
            *round_trip = trip;
            *offset = there - (asked + trip / 2);
        }
    }
done:
    return status;
}

car_status car_recorder_align(car_recorder *recorder, car_transport *transport) {
    CAR_REQUIRE(NULL, recorder);
    CAR_REQUIRE(recorder->context, transport);
    int rank = car_transport_rank(transport), size = car_transport_size(transport);
    car_journal *own = recorder->journals;
    car_status status = CAR_OK;
    own->rank = rank;
    for (int r = 1; r < size; r++) {
        double known[2] = {0, 0};
        if (rank == 0 || rank == r) {
            CAR_TRY(exchange(transport, r, &known[0], &known[1]));
        }
        CAR_TRY(car_transport_hand_over(transport, 0, r, known, sizeof known));
        if (rank == r) { /* an offset within the error counts as none: on one machine there is none */
            own->offset = fabs(known[0]) > known[1] / 2 ? known[0] : 0;
            own->round_trip = known[1];
        }
    }
done:
    return status;
}

/* ---- gathering -------------------------------------------------------------------------------- */

/* Sent before a journal. All ranks run the same program, so the arrays that follow are copied as they are in memory. */
typedef struct header {
    int tracks;
    int64_t lost;
    double offset, round_trip;
} header;

static void shift(car_journal *journal) {
    for (int p = 0; p < journal->track_count; p++) {
        const car_track *track = &journal->tracks[p];
        for (int s = 0; s < track->span_count; s++) {
            car_span *span = &track->spans[s];
            span->start -= journal->offset;
            span->end -= journal->offset;
            span->posted -= span->posted != 0 ? journal->offset : 0;
            span->arrived -= span->arrived != 0 ? journal->offset : 0;
        }
        for (int n = 0; n < track->note_count; n++) {
            track->notes[n].start -= journal->offset;
            track->notes[n].end -= journal->offset;
        }
    }
    for (int c = 0; c < journal->change_count; c++) {
        journal->changes[c].when -= journal->offset;
    }
}

/* Called by rank 0 and by `from`: hands over an array, the sender's to an empty one of rank 0's. */
static car_status hand_over_array(car_recorder *recorder, car_transport *transport, int from, void *array, int *count,
                                  int *capacity, size_t size) {
    void *data = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_transport_hand_over(transport, from, 0, count, sizeof *count));
    if (car_transport_rank(transport) == 0) {
        CAR_TRY(car_context_grow(recorder->context, array, capacity, *count, size));
    }
    memcpy(&data, array, sizeof data);
    CAR_TRY(car_transport_hand_over(transport, from, 0, data, (size_t)*count * size));
done:
    return status;
}

static car_status hand_over_journal(car_recorder *recorder, car_transport *transport, int from, car_journal *journal) {
    header h = {journal->track_count, journal->lost, journal->offset, journal->round_trip};
    car_status status = CAR_OK;
    CAR_TRY(car_transport_hand_over(transport, from, 0, &h, sizeof h));
    if (car_transport_rank(transport) == 0) {
        *journal = (car_journal){.rank = from, .lost = h.lost, .offset = h.offset, .round_trip = h.round_trip};
        CAR_TRY(car_context_allocate(recorder->context, (size_t)h.tracks, sizeof(car_track), &journal->tracks));
        journal->track_count = h.tracks;
    }
    CAR_TRY(hand_over_array(recorder, transport, from, &journal->changes, &journal->change_count,
                            &journal->change_capacity, sizeof *journal->changes));
    for (int p = 0; p < h.tracks; p++) {
        car_track *track = &journal->tracks[p];
        track->recorder = recorder;
        CAR_TRY(hand_over_array(recorder, transport, from, &track->spans, &track->span_count, &track->span_capacity,
                                sizeof *track->spans));
        CAR_TRY(hand_over_array(recorder, transport, from, &track->notes, &track->note_count, &track->note_capacity,
                                sizeof *track->notes));
        CAR_TRY(car_transport_hand_over(transport, from, 0, &track->lost, sizeof track->lost));
    }
done:
    return status;
}

car_status car_recorder_gather(car_recorder *recorder, car_transport *transport) {
    CAR_REQUIRE(NULL, recorder);
    CAR_REQUIRE(recorder->context, transport);
    int rank = car_transport_rank(transport), size = car_transport_size(transport);
    car_status status = CAR_OK;
    if (rank != 0) {
        return hand_over_journal(recorder, transport, rank, recorder->journals);
    }
    car_journal *journals = NULL;
    CAR_TRY(car_context_allocate(recorder->context, (size_t)size, sizeof *journals, &journals));
    journals[0] = recorder->journals[0];
    car_context_release(recorder->context, recorder->journals, 1, sizeof *journals);
    recorder->journals = journals;
    recorder->journal_count = size;
    for (int r = 1; r < size; r++) {
        CAR_TRY(hand_over_journal(recorder, transport, r, &journals[r]));
        shift(&journals[r]);
    }
done:
    return status;
}
