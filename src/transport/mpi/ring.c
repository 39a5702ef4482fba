/* The all-reduce of dp: a sum over all ranks of a group, made of messages to the next rank in a ring.
 *
 * A bucket is the message of one all-reduce. It is cut into pieces of at most PIECE_FLOATS, and a piece into as many
 * chunks as there are ranks. Chunks travel round the ring twice. The first time, each rank adds what it has to the
 * chunk that arrives and passes it on, until each rank has the complete sum of one chunk. The second time, the complete
 * sums are passed on. With G ranks, every rank sends 2 (G-1)/G of the bucket, which is the least possible.
 *
 *   G = 3, rank r   round 0         1           2               3
 *   sends chunk     r               r-1         r+1 (complete)  r
 *   gets chunk      r-1, adds       r-2, adds   r               r-1
 *
 * All ranks start pieces in the same order, up to CAR_RING_LANES at a time. So one piece is added up while another is
 * in flight, and the first bucket is still the first to finish. MPI's own collectives may choose a tree for large sums,
 * whose root sends and receives several times as much. Which one they choose is a setting of each library. */
#include "transport/mpi/mpi_internal.h"

enum { PIECE_FLOATS = 1 << 20, RING_TAGS = 30000 };

/* ---- chunks ---------------------------------------------------------------------------------- */

static size_t chunk_begin(const car_ring *ring, const car_ring_lane *lane, int chunk) {
    size_t unit = lane->bucket->doubles ? sizeof(double) / sizeof(float) : 1; /* in units of floats */
    return lane->count / unit * (size_t)chunk / (size_t)ring->size * unit;
}

static int wrap(const car_ring *ring, int chunk) {
    return (chunk % ring->size + ring->size) % ring->size;
}

/* The chunk that a lane sends in its current round; and the one that it receives. */
static int sent_chunk(const car_ring *ring, const car_ring_lane *lane) {
    bool adding = lane->round < ring->size - 1;
    return wrap(ring, adding ? ring->rank - lane->round : ring->rank + 1 - (lane->round - (ring->size - 1)));
}

static int got_chunk(const car_ring *ring, const car_ring_lane *lane) {
    return wrap(ring, sent_chunk(ring, lane) - 1);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static car_message part(const car_ring_lane *lane, car_message_kind kind, float *data, size_t floats, int peer) {
    return (car_message){.kind = kind,
                         .data = data,
                         .bytes = floats * sizeof(float),
                         .peer = peer,
                         .tag = lane->tag,
                         .lane = (car_ring_lane *)lane};
}

static car_status start_round(car_mpi *mpi, car_ring_lane *lane) {
    const car_ring *ring = &mpi->ring;
    bool adding = lane->round < ring->size - 1;
    int out = sent_chunk(ring, lane), in = got_chunk(ring, lane);
    size_t out_begin = chunk_begin(ring, lane, out), in_begin = chunk_begin(ring, lane, in);
    car_status status = CAR_OK;
    lane->receive = part(lane, CAR_MESSAGE_RECEIVE, adding ? lane->scratch : lane->data + in_begin,
                         chunk_begin(ring, lane, in + 1) - in_begin, wrap(ring, ring->rank - 1));
    lane->send = part(lane, CAR_MESSAGE_SEND, lane->data + out_begin, chunk_begin(ring, lane, out + 1) - out_begin,
                      wrap(ring, ring->rank + 1));
    lane->pending = 2;
    CAR_TRY(car_mpi_launch(mpi, &lane->receive));
    CAR_TRY(car_mpi_launch(mpi, &lane->send));
    mpi->base.traffic.messages++;
    mpi->base.traffic.bytes_sent += lane->send.bytes;
done:
    return status;
}

static void add_chunk(const car_ring *ring, car_ring_lane *lane) {
    int chunk = got_chunk(ring, lane);
    size_t begin = chunk_begin(ring, lane, chunk), end = chunk_begin(ring, lane, chunk + 1);
    car_message_add(lane->bucket, lane->data + begin, lane->scratch, (end - begin) * sizeof(float));
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Begins the next piece of the first waiting bucket on a free lane. */
static car_status begin_piece(car_mpi *mpi, car_ring_lane *lane) {
    car_ring *ring = &mpi->ring;
    car_message *bucket = ring->waiting;
    size_t floats = bucket->bytes / sizeof(float), left = floats - ring->taken;
    car_status status = CAR_OK;
    lane->bucket = bucket;
    lane->data = (float *)bucket->data + ring->taken;
    lane->count = left < PIECE_FLOATS ? left : PIECE_FLOATS;
    lane->tag = ring->pieces++ % RING_TAGS;
    lane->round = 0;
    bucket->pieces++;
    ring->taken += lane->count;
    if (ring->taken == floats) {
        ring->waiting = bucket->next;
        ring->taken = 0;
        bucket->whole = true;
    }
    if (!lane->scratch) {
        CAR_TRY(car_context_allocate(mpi->base.context, ring->scratch_floats, sizeof(float), &lane->scratch));
    }
    status = start_round(mpi, lane);
done:
    return status;
}

static car_status fill_lanes(car_mpi *mpi) {
    car_ring *ring = &mpi->ring;
    car_status status = CAR_OK;
    for (int l = 0; l < CAR_RING_LANES && ring->waiting; l++) {
        if (!ring->lanes[l].bucket) {
            CAR_TRY(begin_piece(mpi, &ring->lanes[l]));
        }
    }
done:
    return status;
}

car_status car_ring_start(car_mpi *mpi, car_message *bucket) {
    car_ring *ring = &mpi->ring;
    bucket->pieces = 0;
    bucket->whole = false;
    if (ring->size == 1 || bucket->bytes == 0) {
        mpi->base.events.finished(mpi->base.events.user, bucket);
        return CAR_OK;
    }
    car_message_append(&ring->waiting, bucket);
    return fill_lanes(mpi);
}

car_status car_ring_go_on(car_mpi *mpi, car_ring_lane *lane) {
    car_ring *ring = &mpi->ring;
    if (--lane->pending > 0) {
        return CAR_OK;
    }
    if (lane->round < ring->size - 1) {
        add_chunk(ring, lane);
    }
    if (++lane->round < 2 * (ring->size - 1)) {
        return start_round(mpi, lane);
    }
    car_message *bucket = lane->bucket;
    lane->bucket = NULL;
    if (--bucket->pieces == 0 && bucket->whole) {
        bucket->finished = car_clock_seconds();
        mpi->base.events.finished(mpi->base.events.user, bucket);
    }
    return fill_lanes(mpi);
}

void car_ring_prepare(car_mpi *mpi) {
    car_ring *ring = &mpi->ring;
    *ring = (car_ring){0};
    MPI_Comm_rank(mpi->sums, &ring->rank);
    MPI_Comm_size(mpi->sums, &ring->size);
    ring->scratch_floats = PIECE_FLOATS / (size_t)ring->size + 2;
}

void car_ring_release(car_mpi *mpi) {
    car_ring *ring = &mpi->ring;
    for (int l = 0; l < CAR_RING_LANES; l++) {
        car_context_release(mpi->base.context, ring->lanes[l].scratch, ring->scratch_floats, sizeof(float));
        ring->lanes[l].scratch = NULL;
    }
}
