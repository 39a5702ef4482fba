/* Opening and closing the transport over MPI, its communicators, and the blocking calls around the loop. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport/mpi/mpi_internal.h"

enum { PROMISED_TAGS = 32768 }; /* what every MPI has */

car_status car_transport_check(car_transport *transport, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) {
        return CAR_OK;
    }
    MPI_Error_string(code, text, &length);
    return car_context_fail(transport->context, CAR_ERROR_IO, "%s failed: %.*s", what, length, text);
}

/* The first line of what the library says of itself. */
static void name_library(car_transport *transport) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    size_t end = strcspn(text, ",\n");
    snprintf(transport->name, sizeof transport->name, "%.*s", (int)(end < 120 ? end : 120), text);
    for (char *c = transport->name; *c; c++) {
        *c = *c == '\t' ? ' ' : *c;
    }
}

car_status car_transport_duplicate(car_transport *transport, const char *name, MPI_Comm *out) {
    car_status status = CAR_OK;
    CAR_TRY(car_transport_check(transport, MPI_Comm_dup(transport->world, out), "MPI_Comm_dup"));
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

static car_status join(car_transport *transport) {
    int given = 0, initialized = 0;
    car_status status = CAR_OK;
    MPI_Initialized(&initialized);
    if (initialized) {
        return car_context_fail(transport->context, CAR_ERROR_ARGUMENT, "MPI was joined before, in this process");
    }
    keep_ways_open();
    CAR_TRY(
        car_transport_check(transport, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (given < MPI_THREAD_SERIALIZED) {
        status = car_context_fail(transport->context, CAR_ERROR_UNSUPPORTED,
                                  "this MPI cannot be called from a thread beside those that compute "
                                  "(MPI_THREAD_SERIALIZED): use one that was built with threads");
        goto done;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &transport->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &transport->size);
    name_library(transport);
    CAR_TRY(car_transport_duplicate(transport, "carousel control", &transport->control));
    CAR_TRY(car_transport_find_machines(transport));
done:
    return status;
}

car_status car_transport_open(car_context *context, car_transport **out) {
    car_transport *transport = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *transport, &transport));
    transport->context = context;
    transport->world = MPI_COMM_WORLD;
    transport->sums = transport->weights = transport->control = MPI_COMM_NULL;
    transport->in_request = transport->out_requests[0] = transport->out_requests[1] = MPI_REQUEST_NULL;
    transport->beats.in_request = transport->beats.out_request = MPI_REQUEST_NULL;
    if (pthread_mutex_init(&transport->lock, NULL) != 0) {
        car_context_release(context, transport, 1, sizeof *transport);
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a mutex");
    }
    if (!car_clock_create_condition(&transport->changed)) {
        pthread_mutex_destroy(&transport->lock);
        car_context_release(context, transport, 1, sizeof *transport);
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a condition");
    }
    CAR_TRY(join(transport));
    *out = transport;
    transport = NULL;
done:
    car_transport_close(transport);
    return status;
}

static void free_ways(car_transport *transport) {
    car_ring_release(transport);
    for (int c = 0; c < transport->data_count; c++) {
        MPI_Comm_free(&transport->data[c]);
    }
    car_context_release(transport->context, transport->data, (size_t)transport->data_count, sizeof *transport->data);
    transport->data = NULL;
    transport->data_count = 0;
    if (transport->sums != MPI_COMM_NULL) {
        MPI_Comm_free(&transport->sums);
    }
    if (transport->weights != MPI_COMM_NULL) {
        MPI_Comm_free(&transport->weights);
    }
}

void car_transport_close(car_transport *transport) {
    if (!transport) {
        return;
    }
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized) {
        car_transport_close_statuses(transport);
        free_ways(transport);
        if (transport->control != MPI_COMM_NULL) {
            MPI_Comm_free(&transport->control);
        }
        if (transport->world != MPI_COMM_WORLD) {
            MPI_Comm_free(&transport->world);
        }
        MPI_Finalize();
    }
    car_transport_release_flights(transport->context, &transport->flights);
    car_context_release(transport->context, transport->machine, transport->machine ? (size_t)transport->size : 0,
                        sizeof *transport->machine);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->lock);
    car_context_release(transport->context, transport, 1, sizeof *transport);
}

void car_transport_abort(car_transport *transport, int code) {
    (void)transport;
    MPI_Abort(MPI_COMM_WORLD, code);
}

int car_transport_rank(const car_transport *transport) {
    return transport->rank;
}
int car_transport_size(const car_transport *transport) {
    return transport->size;
}
int car_transport_local_size(const car_transport *transport) {
    return transport->local_size;
}
int car_transport_machines(const car_transport *transport) {
    return transport->machines;
}
int car_transport_machine(const car_transport *transport, int rank) {
    return transport->machine[rank];
}
const char *car_transport_name(const car_transport *transport) {
    return transport->name;
}
car_traffic car_transport_traffic(const car_transport *transport) {
    return transport->traffic;
}

/* ---- ways ------------------------------------------------------------------------------------ */

static int tags_of_library(void) {
    int *highest = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&highest, &found);
    int tags = found && *highest < INT_MAX ? *highest + 1 : found ? INT_MAX : PROMISED_TAGS;
    return tags < PROMISED_TAGS ? PROMISED_TAGS : tags;
}

static car_status split(car_transport *transport, int group, const char *name, MPI_Comm *out) {
    car_status status = CAR_OK;
    CAR_TRY(car_transport_check(transport, MPI_Comm_split(transport->world, group, transport->rank, out),
                                "MPI_Comm_split"));
    MPI_Comm_set_name(*out, name);
    MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
done:
    return status;
}

car_status car_transport_prepare(car_transport *transport, int highest_tag, int group) {
    car_status status = CAR_OK;
    free_ways(transport);
    transport->tags = tags_of_library();
    int needed = highest_tag / transport->tags + 1;
    CAR_TRY(car_context_allocate(transport->context, (size_t)needed, sizeof *transport->data, &transport->data));
    for (int c = 0; c < needed; c++) {
        CAR_TRY(car_transport_duplicate(transport, "carousel data", &transport->data[c]));
        transport->data_count = c + 1;
    }
    CAR_TRY(split(transport, group, "carousel sums", &transport->sums));
    CAR_TRY(split(transport, group, "carousel weights", &transport->weights));
    car_ring_prepare(transport);
done:
    if (status != CAR_OK && transport->data && transport->data_count < needed) {
        /* Free exactly what was allocated. */
        for (int c = 0; c < transport->data_count; c++) {
            MPI_Comm_free(&transport->data[c]);
        }
        car_context_release(transport->context, transport->data, (size_t)needed, sizeof *transport->data);
        transport->data = NULL;
        transport->data_count = 0;
    }
    return status;
}

/* ---- the loop's beginning and end ------------------------------------------------------------ */

car_status car_transport_begin(car_transport *transport, const car_transport_events *events) {
    transport->events = *events;
    transport->ending = transport->failed = false;
    transport->loops++;
    MPI_Pcontrol(1); /* for those who count: here the loop begins */
    if (pthread_create(&transport->thread, NULL, car_transport_run, transport) != 0) {
        return car_context_fail(transport->context, CAR_ERROR_MEMORY, "could not start the thread of the transport");
    }
    return CAR_OK;
}

void car_transport_start(car_transport *transport, car_message *message) {
    message->next = NULL;
    pthread_mutex_lock(&transport->lock);
    if (transport->last) {
        transport->last->next = message;
    } else {
        transport->first = message;
    }
    transport->last = message;
    pthread_cond_signal(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
}

void car_transport_end(car_transport *transport, bool failed) {
    pthread_mutex_lock(&transport->lock);
    transport->ending = true;
    transport->failed = transport->failed || failed;
    pthread_cond_signal(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
    pthread_join(transport->thread, NULL);
}

int64_t car_transport_loops(const car_transport *transport) {
    return transport->loops;
}

void car_transport_forget(car_transport *transport) {
    transport->events = (car_transport_events){0};
}

void car_transport_give_up(car_transport *transport) {
    pthread_mutex_lock(&transport->lock);
    transport->failed = true;
    pthread_mutex_unlock(&transport->lock);
}

/* ---- around the loop ------------------------------------------------------------------------- */

bool car_transport_has_given_up(car_transport *transport) {
    pthread_mutex_lock(&transport->lock);
    bool failed = transport->failed;
    pthread_mutex_unlock(&transport->lock);
    return failed;
}

/* Waits for what the main thread has started. Meanwhile ranks hear of each other, so that one that is lost does not make
 * the others wait for ever, and nobody spins on a core that another rank may need. */
static car_status await(car_transport *transport, int code, MPI_Request *request, const char *what) {
    enum { BRIEF = 64 };
    car_status status = CAR_OK;
    CAR_TRY(car_transport_check(transport, code, what));
    for (int tries = 0;; tries++) {
        int over = 0;
        CAR_TRY(car_transport_check(transport, MPI_Test(request, &over, MPI_STATUS_IGNORE), what));
        if (over) {
            return CAR_OK;
        }
        car_transport_move_statuses(transport);
        if (car_transport_has_given_up(transport)) {
            return CAR_ERROR_IO; /* whoever gave up has said why */
        }
        if (tries > BRIEF) {
            nanosleep(&(struct timespec){.tv_nsec = tries < 16 * BRIEF ? 20000 : 500000}, NULL);
        }
    }
done:
    return status;
}

car_status car_transport_poll(car_transport *transport) {
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    car_transport_move_statuses(transport);
    return car_transport_has_given_up(transport) ? CAR_ERROR_IO : CAR_OK;
}

/* MPI counts in int: what is longer goes in pieces. */
static const size_t piece = (size_t)1 << 30;

car_status car_transport_all_gather(car_transport *transport, const void *in, size_t bytes, void *out) {
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, transport->control, &request);
    return await(transport, code, &request, "MPI_Iallgather");
}

car_status car_transport_broadcast(car_transport *transport, int from, void *data, size_t bytes) {
    char *at = data;
    car_status status = CAR_OK;
    for (size_t left = bytes; status == CAR_OK && left > 0;) {
        size_t now = left < piece ? left : piece;
        MPI_Request request = MPI_REQUEST_NULL;
        int code = MPI_Ibcast(at, (int)now, MPI_BYTE, from, transport->control, &request);
        status = await(transport, code, &request, "MPI_Ibcast");
        at += now;
        left -= now;
    }
    return status;
}

car_status car_transport_hand_over(car_transport *transport, int from, int to, void *data, size_t bytes) {
    enum { HAND_OVER_TAG = 1 };
    char *at = data;
    car_status status = CAR_OK;
    for (size_t left = from == to ? 0 : bytes; status == CAR_OK && left > 0;) {
        size_t now = left < piece ? left : piece;
        MPI_Request request = MPI_REQUEST_NULL;
        if (transport->rank == from) {
            int code = MPI_Isend(at, (int)now, MPI_BYTE, to, HAND_OVER_TAG, transport->control, &request);
            status = await(transport, code, &request, "MPI_Isend");
        } else if (transport->rank == to) {
            int code = MPI_Irecv(at, (int)now, MPI_BYTE, from, HAND_OVER_TAG, transport->control, &request);
            status = await(transport, code, &request, "MPI_Irecv");
        }
        at += now;
        left -= now;
    }
    return status;
}
