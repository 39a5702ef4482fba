/* Opens and closes the transport over MPI. Also its communicators, and the blocking calls around the loop. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "transport/mpi/mpi_internal.h"

enum { PROMISED_TAGS = 32768 }; /* every MPI has at least this many */

car_status car_mpi_check(car_mpi *mpi, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) {
        return CAR_OK;
    }
    MPI_Error_string(code, text, &length);
    return car_context_fail(mpi->base.context, CAR_ERROR_IO, "%s failed: %.*s", what, length, text);
}

/* Names the library by the beginning of its version text. */
static void name_library(car_mpi *mpi) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    size_t end = strcspn(text, ",\n");
    snprintf(mpi->base.name, sizeof mpi->base.name, "%.*s", (int)(end < 120 ? end : 120), text);
    for (char *c = mpi->base.name; *c; c++) {
        *c = *c == '\t' ? ' ' : *c;
    }
}

car_status car_mpi_open_way(car_mpi *mpi, int group, const char *name, MPI_Comm *out) {
    bool all = group == CAR_MPI_ALL;
    int code = all ? MPI_Comm_dup(mpi->world, out) : MPI_Comm_split(mpi->world, group, mpi->base.rank, out);
    car_status status = CAR_OK;
    CAR_TRY(car_mpi_check(mpi, code, all ? "MPI_Comm_dup" : "MPI_Comm_split"));
    MPI_Comm_set_name(*out, name);
    MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
done:
    return status;
}

/* Joins MPI, with communicators of its own, because the process may have other transports. */
static car_status join(car_mpi *mpi) {
    car_status status = CAR_OK;
    CAR_TRY(car_mpi_enter(mpi));
    mpi->world = MPI_COMM_WORLD;
    CAR_TRY(car_mpi_open_way(mpi, CAR_MPI_ALL, "carousel world", &mpi->world));
    MPI_Comm_rank(mpi->world, &mpi->base.rank);
    MPI_Comm_size(mpi->world, &mpi->base.size);
    name_library(mpi);
    CAR_TRY(car_mpi_open_way(mpi, CAR_MPI_ALL, "carousel control", &mpi->control));
    CAR_TRY(car_mpi_create_posts(mpi));
    CAR_TRY(car_mpi_find_machines(mpi));
done:
    mpi->failed = status != CAR_OK && mpi->entered; /* other ranks may be waiting for this one */
    return status;
}

static void free_way(MPI_Comm *way) {
    if (*way != MPI_COMM_NULL) {
        MPI_Comm_free(way);
    }
}

static void free_ways(car_mpi *mpi) {
    car_ring_release(mpi);
    for (int c = 0; c < mpi->data_count; c++) {
        free_way(&mpi->data[c]);
    }
    car_context_release(mpi->base.context, mpi->data, (size_t)mpi->data_count, sizeof *mpi->data);
    mpi->data = NULL;
    mpi->data_count = 0;
    free_way(&mpi->sums);
    free_way(&mpi->weights);
    free_way(&mpi->snapshots);
}

/* Frees the communicators, unless another rank may be lost. Then freeing could wait for that rank, and late messages
 * would find their buffers gone. */
static void free_communicators(car_mpi *mpi) {
    mpi->failed = mpi->failed || car_mpi_check_process(mpi) != CAR_OK || car_mpi_drain_posts(mpi) != CAR_OK;
    if (mpi->failed && mpi->base.size != 1) {
        return;
    }
    car_mpi_close_posts(mpi);
    free_ways(mpi);
    free_way(&mpi->control);
    if (mpi->world != MPI_COMM_WORLD) {
        free_way(&mpi->world);
    }
}

static void close_job(car_transport *transport) {
    car_mpi *mpi = car_mpi_of(transport);
    if (mpi->entered) {
        free_communicators(mpi);
        car_mpi_leave(mpi);
    }
    car_ring_release(mpi);
    car_context_release(mpi->base.context, mpi->data, (size_t)mpi->data_count, sizeof *mpi->data);
    car_mpi_release_flights(mpi->base.context, &mpi->flights);
    car_mpi_destroy_posts(mpi);
    car_context_release(mpi->base.context, mpi->base.machine, (size_t)mpi->base.size, sizeof *mpi->base.machine);
    pthread_cond_destroy(&mpi->changed);
    pthread_mutex_destroy(&mpi->lock);
    car_context_release(mpi->base.context, mpi, 1, sizeof *mpi);
}

/* Waits a moment first. MPICH's mpirun kills the ranks at once, sometimes before it has read the message that says why.
 * Without the pause one message in six was lost. */
static void abort_job(car_transport *transport, int code) {
    (void)transport;
    car_clock_sleep(0.2);
    MPI_Abort(MPI_COMM_WORLD, code);
}

/* ---- communicators --------------------------------------------------------------------------- */

static int tags_of_library(void) {
    int *highest = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&highest, &found);
    int tags = found && *highest < INT_MAX ? *highest + 1 : found ? INT_MAX : PROMISED_TAGS;
    return tags < PROMISED_TAGS ? PROMISED_TAGS : tags;
}

static car_status prepare(car_transport *transport, int highest_tag, int group) {
    car_mpi *mpi = car_mpi_of(transport);
    car_status status = CAR_OK;
    free_ways(mpi);
    mpi->tags = tags_of_library();
    int needed = highest_tag / mpi->tags + 1;
    CAR_TRY(car_context_allocate(mpi->base.context, (size_t)needed, sizeof *mpi->data, &mpi->data));
    for (; mpi->data_count < needed; mpi->data_count++) {
        mpi->data[mpi->data_count] = MPI_COMM_NULL;
    }
    for (int c = 0; c < needed; c++) {
        CAR_TRY(car_mpi_open_way(mpi, CAR_MPI_ALL, "carousel data", &mpi->data[c]));
    }
    CAR_TRY(car_mpi_open_way(mpi, CAR_MPI_ALL, "carousel snapshots", &mpi->snapshots));
    CAR_TRY(car_mpi_open_way(mpi, group, "carousel sums", &mpi->sums));
    CAR_TRY(car_mpi_open_way(mpi, group, "carousel weights", &mpi->weights));
    car_ring_prepare(mpi);
done:
    return status;
}

/* ---- the loop's beginning and end ------------------------------------------------------------ */

static car_status begin(car_transport *transport) {
    car_mpi *mpi = car_mpi_of(transport);
    car_status status = car_mpi_check_process(mpi);
    if (status != CAR_OK) {
        return status;
    }
    mpi->ending = mpi->failed = false;
    MPI_Pcontrol(1); /* tells a profiler that the loop begins */
    if (pthread_create(&mpi->thread, NULL, car_mpi_run, mpi) != 0) {
        return car_context_fail(mpi->base.context, CAR_ERROR_MEMORY, "could not start the thread of the transport");
    }
    return CAR_OK;
}

static void start(car_transport *transport, car_message *message) {
    car_mpi *mpi = car_mpi_of(transport);
    pthread_mutex_lock(&mpi->lock);
    car_message_append(&mpi->new, message);
    pthread_cond_signal(&mpi->changed);
    pthread_mutex_unlock(&mpi->lock);
}

static void end(car_transport *transport, bool failed) {
    car_mpi *mpi = car_mpi_of(transport);
    pthread_mutex_lock(&mpi->lock);
    mpi->ending = true;
    mpi->failed = mpi->failed || failed;
    pthread_cond_signal(&mpi->changed);
    pthread_mutex_unlock(&mpi->lock);
    pthread_join(mpi->thread, NULL);
    if (failed) {
        car_mpi_note_loss(mpi);
    }
}

bool car_mpi_give_up(car_mpi *mpi) {
    pthread_mutex_lock(&mpi->lock);
    bool before = mpi->failed;
    mpi->failed = true;
    pthread_mutex_unlock(&mpi->lock);
    return before;
}

static void give_up(car_transport *transport, car_status why) {
    (void)why; /* other processes report their own reasons */
    car_mpi_give_up(car_mpi_of(transport));
    car_mpi_note_loss(car_mpi_of(transport));
}

/* ---- around the loop ------------------------------------------------------------------------- */

bool car_mpi_has_given_up(car_mpi *mpi) {
    pthread_mutex_lock(&mpi->lock);
    bool failed = mpi->failed;
    pthread_mutex_unlock(&mpi->lock);
    return failed;
}

/* Waits for a request of the main thread. Meanwhile it exchanges statuses, so that a lost rank is noticed. Between
 * tests it sleeps, because another rank may need the core. */
car_status car_mpi_await(car_mpi *mpi, int code, MPI_Request *request, const char *what) {
    enum { BRIEF = 64 };
    car_status status = CAR_OK;
    CAR_TRY(car_mpi_check(mpi, code, what));
    for (int tries = 0;; tries++) {
        int over = 0;
        CAR_TRY(car_mpi_check(mpi, MPI_Test(request, &over, MPI_STATUS_IGNORE), what));
        if (over) {
            return CAR_OK;
        }
        car_mpi_move_posts(mpi, false);
        if (car_mpi_has_given_up(mpi)) {
            return CAR_ERROR_IO; /* the error was set when it was given up */
        }
        CAR_TRY(car_mpi_check_process(mpi));
        if (tries > BRIEF) {
            car_clock_sleep(tries < 16 * BRIEF ? 20e-6 : 500e-6);
        }
    }
done:
    return status;
}

/* MPI counts in int, so longer data is sent in pieces of this size. */
static const size_t piece = (size_t)1 << 30;

car_status car_mpi_all_gather(car_transport *transport, const void *in, size_t bytes, void *out) {
    car_mpi *mpi = car_mpi_of(transport);
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, mpi->control, &request);
    return car_mpi_await(mpi, code, &request, "MPI_Iallgather");
}

/* Sends data from one rank to another, or to all if `to` is CAR_MPI_ALL. All ranks that take part call it. */
static car_status carry(car_mpi *mpi, int from, int to, char *data, size_t bytes) {
    enum { HAND_OVER_TAG = 1 };
    car_status status = CAR_OK;
    for (size_t at = 0; status == CAR_OK && at < bytes; at += piece) {
        int now = (int)(bytes - at < piece ? bytes - at : piece), code = MPI_SUCCESS;
        MPI_Request request = MPI_REQUEST_NULL;
        if (to == CAR_MPI_ALL) {
            code = MPI_Ibcast(data + at, now, MPI_BYTE, from, mpi->control, &request);
        } else if (mpi->base.rank == from) {
            code = MPI_Isend(data + at, now, MPI_BYTE, to, HAND_OVER_TAG, mpi->control, &request);
        } else {
            code = MPI_Irecv(data + at, now, MPI_BYTE, from, HAND_OVER_TAG, mpi->control, &request);
        }
        status = car_mpi_await(mpi, code, &request, to == CAR_MPI_ALL ? "MPI_Ibcast" : "sending data");
    }
    return status;
}

static car_status broadcast(car_transport *transport, int from, void *data, size_t bytes) {
    return carry(car_mpi_of(transport), from, CAR_MPI_ALL, data, bytes);
}

static car_status hand_over(car_transport *transport, int from, int to, void *data, size_t bytes) {
    bool concerned = from != to && (transport->rank == from || transport->rank == to);
    return concerned ? carry(car_mpi_of(transport), from, to, data, bytes) : CAR_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static const car_transport_class over_mpi = {.close = close_job,
                                             .abort = abort_job,
                                             .prepare = prepare,
                                             .begin = begin,
                                             .start = start,
                                             .post = car_mpi_post_to,
                                             .end = end,
                                             .give_up = give_up,
                                             .all_gather = car_mpi_all_gather,
                                             .broadcast = broadcast,
                                             .hand_over = hand_over,
                                             .renumber = car_mpi_renumber};

car_status car_transport_open(car_context *context, car_transport **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_mpi *mpi = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *mpi, &mpi));
    mpi->base.class = &over_mpi;
    mpi->base.context = context;
    mpi->world = mpi->sums = mpi->weights = mpi->snapshots = mpi->control = MPI_COMM_NULL;
    for (int kind = 0; kind < CAR_POST_KINDS; kind++) {
        mpi->in_requests[kind] = MPI_REQUEST_NULL;
    }
    status = car_clock_create_lock(context, &mpi->lock, &mpi->changed);
    if (status != CAR_OK) {
        car_context_release(context, mpi, 1, sizeof *mpi);
        return status;
    }
    CAR_TRY(join(mpi));
    *out = &mpi->base;
    mpi = NULL;
done:
    car_transport_close(mpi ? &mpi->base : NULL);
    return status;
}
