/* The transport's thread: starts the messages that were handed in, tests those in flight, and sleeps when nothing
 * happens.
 *
 * It sleeps rather than spins, because kernels need the cores. A message waits at most the length of a nap for its next
 * step, which is little compared with the slots in which it has to arrive. */
#include "transport/mpi/mpi_internal.h"

static const double shortest_nap = 20e-6, longest_nap = 250e-6;

/* ---- starting -------------------------------------------------------------------------------- */

static int start(car_mpi *mpi, car_message *message, MPI_Request *request) {
    int count = (int)(message->bytes / sizeof(float));
    bool snapshot = message->name == CAR_MESSAGE_SNAPSHOT;
    int way = message->tag > 0 && !message->lane && !snapshot ? message->tag / mpi->tags : 0;
    int tag = message->tag > 0 ? message->tag % mpi->tags : 0;
    MPI_Comm data = snapshot ? mpi->snapshots : message->lane ? mpi->sums : mpi->data[way];
    switch (message->kind) {
    case CAR_MESSAGE_SEND:
        return (snapshot ? MPI_Issend : MPI_Isend)(message->data, count, MPI_FLOAT, message->peer, tag, data, request);
    case CAR_MESSAGE_RECEIVE:
        return MPI_Irecv(message->data, count, MPI_FLOAT, message->peer, tag, data, request);
    case CAR_MESSAGE_BROADCAST:
        return MPI_Ibcast(message->data, count, MPI_FLOAT, message->peer, mpi->weights, request);
    default: {
        bool root = mpi->ring.rank == message->peer;
        return MPI_Ireduce(root ? MPI_IN_PLACE : message->data, root ? message->data : NULL,
                           message->doubles ? count / 2 : count, message->doubles ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM,
                           message->peer, mpi->sums, request);
    }
    }
}

void car_mpi_release_flights(car_context *context, car_flights *flights) {
    car_context_release(context, flights->requests, (size_t)flights->request_capacity, sizeof *flights->requests);
    car_context_release(context, flights->messages, (size_t)flights->message_capacity, sizeof *flights->messages);
    car_context_release(context, flights->indices, (size_t)flights->index_capacity, sizeof *flights->indices);
    *flights = (car_flights){0};
}

car_status car_mpi_launch(car_mpi *mpi, car_message *message) {
    car_context *context = mpi->base.context;
    car_flights *flights = &mpi->flights;
    int more = flights->count + 1;
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(context, &flights->requests, &flights->request_capacity, more, sizeof(MPI_Request)));
    CAR_TRY(car_context_grow(context, &flights->messages, &flights->message_capacity, more, sizeof(car_message *)));
    CAR_TRY(car_context_grow(context, &flights->indices, &flights->index_capacity, more, sizeof(int)));
    CAR_TRY(car_mpi_check(mpi, start(mpi, message, &flights->requests[flights->count]), "starting a message"));
    flights->messages[flights->count++] = message;
done:
    return status;
}

/* ---- the order of sends ----------------------------------------------------------------------- */

/* A rank's sends share its link, and two sends one after another arrive no later than two at the same time. So MPI gets
 * only a few at a time: two, so that one is always ready to go. */
enum { SENDS_AT_ONCE = 2 };

/* True if a send may start. A send that is due before all those in flight is never held back, because their receivers
 * may wait for it. Pieces of snapshots do not count as in flight, because rank 0 may post their receives late. Nor are
 * pieces held back for each other, because rank 0 posts their receives in an order of its own. */
static bool may_go(const car_mpi *mpi, const car_message *message) {
    int under_way = 0;
    int64_t earliest = INT64_MAX;
    for (int f = 0; f < mpi->flights.count; f++) {
        const car_message *other = mpi->flights.messages[f];
        bool counts = other->due != CAR_MESSAGE_AT_ONCE && other->due != CAR_MESSAGE_LAST;
        if (other->kind == CAR_MESSAGE_SEND && !other->lane && counts) {
            under_way++;
            earliest = other->due < earliest ? other->due : earliest;
        }
    }
    return under_way < SENDS_AT_ONCE || message->due < earliest;
}

/* Starts held sends in the order in which they are due. A send that is held back to pace its link lets others pass, but
 * none with its own tag: those are due later and wait for the same link. */
static car_status release_held(car_mpi *mpi, bool ending, bool *moved) {
    car_pace *pace = &mpi->base.pace;
    const car_pace_moment moment = car_pace_look(pace, mpi->held ? car_clock_seconds() : 0, ending);
    car_status status = CAR_OK;
    for (car_message **place = &mpi->held; *place && may_go(mpi, *place);) {
        car_message *message = *place;
        if (!car_pace_may_leave(pace, &moment, message)) {
            car_transport_count_held(&mpi->base, message);
            place = &message->next;
            continue;
        }
        *place = message->next;
        car_pace_take(pace, message, moment.now);
        CAR_TRY(car_mpi_launch(mpi, message));
        *moved = true;
    }
done:
    return status;
}

/* ---- new messages ----------------------------------------------------------------------------- */

/* Tells a profiler which messages the engine hands in, and when (MPI_Pcontrol). */
static void tell_profiler(const car_message *message) {
    bool to_all = message->kind == CAR_MESSAGE_ALL_REDUCE;
    if (to_all || (message->kind == CAR_MESSAGE_SEND && message->name == CAR_MESSAGE_OF_PLAN)) {
        MPI_Pcontrol(2, (long long)message->bytes, to_all ? -1 : message->tag);
        MPI_Pcontrol(1);
    }
}

static car_status start_message(car_mpi *mpi, car_message *message) {
    message->started = car_clock_seconds();
    message->lane = NULL;
    message->paced = false;
    car_transport_count(&mpi->base, message);
    tell_profiler(message);
    if (message->kind == CAR_MESSAGE_ALL_REDUCE) {
        return car_ring_start(mpi, message);
    }
    bool waits = message->due != CAR_MESSAGE_AT_ONCE || car_pace_applies(&mpi->base.pace, message);
    if (message->kind == CAR_MESSAGE_SEND && waits) {
        car_message_hold(&mpi->held, message);
        return CAR_OK;
    }
    return car_mpi_launch(mpi, message);
}

/* ---- testing --------------------------------------------------------------------------------- */

/* Removes finished messages from the arrays, and keeps the order of the others. */
static void close_up(car_flights *flights) {
    int kept = 0;
    for (int f = 0; f < flights->count; f++) {
        if (flights->messages[f]) {
            flights->messages[kept] = flights->messages[f];
            flights->requests[kept++] = flights->requests[f];
        }
    }
    flights->count = kept;
}

static car_status test_messages(car_mpi *mpi, bool *moved) {
    car_flights *flights = &mpi->flights;
    int finished = 0;
    car_status status = CAR_OK;
    if (flights->count == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_mpi_check(
        mpi, MPI_Testsome(flights->count, flights->requests, &finished, flights->indices, MPI_STATUSES_IGNORE),
        "transferring messages"));
    double now = finished > 0 ? car_clock_seconds() : 0;
    for (int f = 0; f < finished; f++) {
        car_message *message = flights->messages[flights->indices[f]];
        flights->messages[flights->indices[f]] = NULL;
        if (message->lane) {
            CAR_TRY(car_ring_go_on(mpi, message->lane));
            continue;
        }
        message->finished = now;
        mpi->base.events.finished(mpi->base.events.user, message);
    }
    if (finished > 0) {
        close_up(flights);
        *moved = true;
    }
done:
    return status;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Returns the list of messages that were handed in. If there are none, it waits for at most `nap` seconds. *ending: no
 * more messages will come. *over: nothing is left to do. */
static car_message *take_new(car_mpi *mpi, double nap, bool *ending, bool *over) {
    pthread_mutex_lock(&mpi->lock);
    if (!mpi->new && !mpi->ending && nap > 0) {
        car_clock_wait(&mpi->changed, &mpi->lock, nap);
    }
    car_message *list = mpi->new;
    mpi->new = NULL;
    *ending = mpi->ending;
    bool idle = !list && !mpi->held && mpi->flights.count == 0 && !mpi->posts;
    *over = mpi->ending && (mpi->failed || idle);
    pthread_mutex_unlock(&mpi->lock);
    return list;
}

/* Waits for the other ranks. The loop is over for this rank, but others may still be at work and expect its
 * statuses. */
static void wait_for_others(car_mpi *mpi) {
    MPI_Request all = MPI_REQUEST_NULL;
    int over = 0;
    MPI_Pcontrol(0);
    MPI_Ibarrier(mpi->control, &all);
    while (!over && MPI_Test(&all, &over, MPI_STATUS_IGNORE) == MPI_SUCCESS && !over) {
        car_mpi_move_posts(mpi, false);
        if (car_mpi_has_given_up(mpi)) {
            return;
        }
        car_clock_sleep(0.001);
    }
}

void *car_mpi_run(void *argument) {
    car_mpi *mpi = argument;
    car_status status = CAR_OK;
    double nap = 0;
    bool ending = false, over = false;
    car_mpi_open_posts(mpi);
    while (status == CAR_OK) {
        bool moved = false;
        car_message *message = take_new(mpi, nap, &ending, &over);
        if (over) {
            break;
        }
        while (message && status == CAR_OK) {
            car_message *next = message->next; /* the engine may reuse the message once it has finished */
            status = start_message(mpi, message);
            message = next;
            moved = true;
        }
        if (status == CAR_OK) {
            status = test_messages(mpi, &moved);
        }
        if (status == CAR_OK) {
            status = release_held(mpi, ending, &moved);
        }
        moved = car_mpi_move_posts(mpi, true) || moved;
        nap = moved ? 0 : nap > 0 ? nap * 1.5 : shortest_nap;
        nap = nap < longest_nap ? nap : longest_nap;
    }
    if (status != CAR_OK) {
        mpi->base.events.finished(mpi->base.events.user, NULL); /* the context has the error */
    } else if (!car_mpi_has_given_up(mpi)) {
        wait_for_others(mpi);
    }
    return NULL;
}
