/* Opening and closing the transport over MPI, its communicators, and the blocking calls around the loop. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport/mpi/mpi_internal.h"

enum { PROMISED_TAGS = 32768 }; /* what every MPI has */

car_status car_mpi_check(car_mpi *mpi, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) {
        return CAR_OK;
    }
    MPI_Error_string(code, text, &length);
    return car_context_fail(mpi->base.context, CAR_ERROR_IO, "%s failed: %.*s", what, length, text);
}

/* The first line of what the library says of itself. */
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

car_status car_mpi_duplicate(car_mpi *mpi, const char *name, MPI_Comm *out) {
    car_status status = CAR_OK;
    CAR_TRY(car_mpi_check(mpi, MPI_Comm_dup(mpi->world, out), "MPI_Comm_dup"));
    MPI_Comm_set_name(*out, name);
    MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
done:
    return status;
}

/* Open MPI over TCP gives a large message to the socket as one, and a beat behind it has to wait until all of it has left.
 * In pieces of this size it waits for a few of them. What the user has set stands; other libraries do not look at it. */
static void keep_ways_open(void) {
    setenv("OMPI_MCA_btl_tcp_rdma_pipeline_frag_size", "262144", 0);
}

static car_status join(car_mpi *mpi) {
    int given = 0, initialized = 0;
    car_status status = CAR_OK;
    MPI_Initialized(&initialized);
    if (initialized) {
        return car_context_fail(mpi->base.context, CAR_ERROR_ARGUMENT, "MPI was joined before, in this process");
    }
    keep_ways_open();
    CAR_TRY(car_mpi_check(mpi, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (given < MPI_THREAD_SERIALIZED) {
        status = car_context_fail(mpi->base.context, CAR_ERROR_UNSUPPORTED,
                                  "this MPI cannot be called from a thread beside those that compute "
                                  "(MPI_THREAD_SERIALIZED): use one that was built with threads");
        goto done;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi->base.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi->base.size);
    name_library(mpi);
    CAR_TRY(car_mpi_duplicate(mpi, "carousel control", &mpi->control));
    CAR_TRY(car_mpi_find_machines(mpi));
done:
    return status;
}

static void free_ways(car_mpi *mpi) {
    car_ring_release(mpi);
    for (int c = 0; c < mpi->data_count; c++) {
        MPI_Comm_free(&mpi->data[c]);
    }
    car_context_release(mpi->base.context, mpi->data, (size_t)mpi->data_count, sizeof *mpi->data);
    mpi->data = NULL;
    mpi->data_count = 0;
    if (mpi->sums != MPI_COMM_NULL) {
        MPI_Comm_free(&mpi->sums);
    }
    if (mpi->weights != MPI_COMM_NULL) {
        MPI_Comm_free(&mpi->weights);
    }
    if (mpi->snapshots != MPI_COMM_NULL) {
        MPI_Comm_free(&mpi->snapshots);
    }
}

static void close_job(car_transport *transport) {
    car_mpi *mpi = car_mpi_of(transport);
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized) {
        car_mpi_close_statuses(mpi);
        free_ways(mpi);
        if (mpi->control != MPI_COMM_NULL) {
            MPI_Comm_free(&mpi->control);
        }
        if (mpi->world != MPI_COMM_WORLD) {
            MPI_Comm_free(&mpi->world);
        }
        MPI_Finalize();
    }
    car_mpi_release_flights(mpi->base.context, &mpi->flights);
    car_context_release(mpi->base.context, mpi->base.machine, mpi->base.machine ? (size_t)mpi->base.size : 0,
                        sizeof *mpi->base.machine);
    pthread_cond_destroy(&mpi->changed);
    pthread_mutex_destroy(&mpi->lock);
    car_context_release(mpi->base.context, mpi, 1, sizeof *mpi);
}

static void abort_job(car_transport *transport, int code) {
    (void)transport;
    MPI_Abort(MPI_COMM_WORLD, code);
}

/* ---- ways ------------------------------------------------------------------------------------ */

static int tags_of_library(void) {
    int *highest = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&highest, &found);
    int tags = found && *highest < INT_MAX ? *highest + 1 : found ? INT_MAX : PROMISED_TAGS;
    return tags < PROMISED_TAGS ? PROMISED_TAGS : tags;
}

static car_status split(car_mpi *mpi, int group, const char *name, MPI_Comm *out) {
    car_status status = CAR_OK;
    CAR_TRY(car_mpi_check(mpi, MPI_Comm_split(mpi->world, group, mpi->base.rank, out), "MPI_Comm_split"));
    MPI_Comm_set_name(*out, name);
    MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
done:
    return status;
}

static car_status prepare(car_transport *transport, int highest_tag, int group) {
    car_mpi *mpi = car_mpi_of(transport);
    car_status status = CAR_OK;
    free_ways(mpi);
    mpi->tags = tags_of_library();
    int needed = highest_tag / mpi->tags + 1;
    CAR_TRY(car_context_allocate(mpi->base.context, (size_t)needed, sizeof *mpi->data, &mpi->data));
    for (int c = 0; c < needed; c++) {
        CAR_TRY(car_mpi_duplicate(mpi, "carousel data", &mpi->data[c]));
        mpi->data_count = c + 1;
    }
    CAR_TRY(car_mpi_duplicate(mpi, "carousel snapshots", &mpi->snapshots));
    CAR_TRY(split(mpi, group, "carousel sums", &mpi->sums));
    CAR_TRY(split(mpi, group, "carousel weights", &mpi->weights));
    car_ring_prepare(mpi);
done:
    if (status != CAR_OK && mpi->data && mpi->data_count < needed) {
        /* Free exactly what was allocated. */
        for (int c = 0; c < mpi->data_count; c++) {
            MPI_Comm_free(&mpi->data[c]);
        }
        car_context_release(mpi->base.context, mpi->data, (size_t)needed, sizeof *mpi->data);
        mpi->data = NULL;
        mpi->data_count = 0;
    }
    return status;
}

/* ---- the loop's beginning and end ------------------------------------------------------------ */

static car_status begin(car_transport *transport) {
    car_mpi *mpi = car_mpi_of(transport);
    mpi->ending = mpi->failed = false;
    MPI_Pcontrol(1); /* for those who count: here the loop begins */
    if (pthread_create(&mpi->thread, NULL, car_mpi_run, mpi) != 0) {
        return car_context_fail(mpi->base.context, CAR_ERROR_MEMORY, "could not start the thread of the transport");
    }
    return CAR_OK;
}

static void start(car_transport *transport, car_message *message) {
    car_mpi *mpi = car_mpi_of(transport);
    message->next = NULL;
    pthread_mutex_lock(&mpi->lock);
    if (mpi->last) {
        mpi->last->next = message;
    } else {
        mpi->first = message;
    }
    mpi->last = message;
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
}

static void give_up(car_transport *transport) {
    car_mpi *mpi = car_mpi_of(transport);
    pthread_mutex_lock(&mpi->lock);
    mpi->failed = true;
    pthread_mutex_unlock(&mpi->lock);
}

/* ---- around the loop ------------------------------------------------------------------------- */

bool car_mpi_has_given_up(car_mpi *mpi) {
    pthread_mutex_lock(&mpi->lock);
    bool failed = mpi->failed;
    pthread_mutex_unlock(&mpi->lock);
    return failed;
}

/* Waits for what the main thread has started. Meanwhile ranks hear of each other, so that one that is lost does not make
 * the others wait for ever, and nobody spins on a core that another rank may need. */
static car_status await(car_mpi *mpi, int code, MPI_Request *request, const char *what) {
    enum { BRIEF = 64 };
    car_status status = CAR_OK;
    CAR_TRY(car_mpi_check(mpi, code, what));
    for (int tries = 0;; tries++) {
        int over = 0;
        CAR_TRY(car_mpi_check(mpi, MPI_Test(request, &over, MPI_STATUS_IGNORE), what));
        if (over) {
            return CAR_OK;
        }
        car_mpi_move_statuses(mpi);
        if (car_mpi_has_given_up(mpi)) {
            return CAR_ERROR_IO; /* whoever gave up has said why */
        }
        if (tries > BRIEF) {
            nanosleep(&(struct timespec){.tv_nsec = tries < 16 * BRIEF ? 20000 : 500000}, NULL);
        }
    }
done:
    return status;
}

static car_status poll(car_transport *transport) {
    car_mpi *mpi = car_mpi_of(transport);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    car_mpi_move_statuses(mpi);
    return car_mpi_has_given_up(mpi) ? CAR_ERROR_IO : CAR_OK;
}

/* MPI counts in int: what is longer goes in pieces. */
static const size_t piece = (size_t)1 << 30;

car_status car_mpi_all_gather(car_transport *transport, const void *in, size_t bytes, void *out) {
    car_mpi *mpi = car_mpi_of(transport);
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, mpi->control, &request);
    return await(mpi, code, &request, "MPI_Iallgather");
}

static car_status broadcast(car_transport *transport, int from, void *data, size_t bytes) {
    car_mpi *mpi = car_mpi_of(transport);
    char *at = data;
    car_status status = CAR_OK;
    for (size_t left = bytes; status == CAR_OK && left > 0;) {
        size_t now = left < piece ? left : piece;
        MPI_Request request = MPI_REQUEST_NULL;
        int code = MPI_Ibcast(at, (int)now, MPI_BYTE, from, mpi->control, &request);
        status = await(mpi, code, &request, "MPI_Ibcast");
        at += now;
        left -= now;
    }
    return status;
}

static car_status hand_over(car_transport *transport, int from, int to, void *data, size_t bytes) {
    car_mpi *mpi = car_mpi_of(transport);
    enum { HAND_OVER_TAG = 1 };
    char *at = data;
    car_status status = CAR_OK;
    for (size_t left = from == to ? 0 : bytes; status == CAR_OK && left > 0;) {
        size_t now = left < piece ? left : piece;
        MPI_Request request = MPI_REQUEST_NULL;
        if (mpi->base.rank == from) {
            int code = MPI_Isend(at, (int)now, MPI_BYTE, to, HAND_OVER_TAG, mpi->control, &request);
            status = await(mpi, code, &request, "MPI_Isend");
        } else if (mpi->base.rank == to) {
            int code = MPI_Irecv(at, (int)now, MPI_BYTE, from, HAND_OVER_TAG, mpi->control, &request);
            status = await(mpi, code, &request, "MPI_Irecv");
        }
        at += now;
        left -= now;
    }
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static const car_transport_class over_mpi = {.close = close_job,
                                             .abort = abort_job,
                                             .prepare = prepare,
                                             .begin = begin,
                                             .start = start,
                                             .beat = car_mpi_beat,
                                             .end = end,
                                             .give_up = give_up,
                                             .poll = poll,
                                             .all_gather = car_mpi_all_gather,
                                             .broadcast = broadcast,
                                             .hand_over = hand_over,
                                             .renumber = car_mpi_renumber};

car_status car_transport_open(car_context *context, car_transport **out) {
    car_mpi *mpi = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *mpi, &mpi));
    mpi->base.class = &over_mpi;
    mpi->base.context = context;
    mpi->world = MPI_COMM_WORLD;
    mpi->sums = mpi->weights = mpi->snapshots = mpi->control = MPI_COMM_NULL;
    mpi->in_request = mpi->out_requests[0] = mpi->out_requests[1] = MPI_REQUEST_NULL;
    mpi->beats.in_request = mpi->beats.out_request = MPI_REQUEST_NULL;
    if (pthread_mutex_init(&mpi->lock, NULL) != 0) {
        car_context_release(context, mpi, 1, sizeof *mpi);
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a mutex");
    }
    if (!car_clock_create_condition(&mpi->changed)) {
        pthread_mutex_destroy(&mpi->lock);
        car_context_release(context, mpi, 1, sizeof *mpi);
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a condition");
    }
    CAR_TRY(join(mpi));
    *out = &mpi->base;
    mpi = NULL;
done:
    car_transport_close(mpi ? &mpi->base : NULL);
    return status;
}
