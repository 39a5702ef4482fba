/* MPI in this process. A process can join and leave MPI only once. So the first transport that is opened joins it, and
 * MPI is left when the process exits. A transport has only communicators of its own.
 *
 *   joined ── transport ── transport ─┬─ exit: MPI_Finalize, which waits for the other ranks
 *                └───── transport ────┘
 *
 * MPI is not left if that could wait forever: while a transport is open, or after one was given up. The launcher then
 * sees a process that ended without leaving, and ends the others. For the same reason no other transport continues
 * after one was given up: ranks that wait in the failed one would never reach it. */
#include <stdlib.h>

#include "transport/mpi/mpi_internal.h"

/* The process has one MPI, however many contexts there are. */
static struct {
    pthread_mutex_t lock;
    bool joined_here; /* false: the program called MPI_Init itself, and leaves it itself */
    int open;         /* number of open transports */
    bool given_up;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void leave_at_exit(void) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && process.open == 0 && !process.given_up) {
        MPI_Finalize();
    }
}

/* Settings of Open MPI over TCP. Values that the user has set are kept; other libraries ignore them.
 *
 * - It writes a large message to the socket in one go, and a beat after it waits until all of it has left. With pieces
 *   of this size the beat waits only for a few of them.
 * - A single connection does not keep a link busy all the time: BBR, for one, sends next to nothing for 0.2 s in every
 *   10 s to measure the delay. With two connections to each rank the other one goes on. */
static void keep_ways_open(void) {
    setenv("OMPI_MCA_btl_tcp_rdma_pipeline_frag_size", "262144", 0);
    setenv("OMPI_MCA_btl_tcp_links", "2", 0);
}

/* Joins MPI if this process has not done so. Hold the lock. */
static car_status join_once(car_mpi *mpi) {
    int given = MPI_THREAD_SINGLE, initialized = 0, finalized = 0;
    car_status status = CAR_OK;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized || process.given_up) {
        return car_context_fail(mpi->base.context, CAR_ERROR_UNSUPPORTED, "%s, and a process can use MPI only once",
                                finalized ? "MPI was already finalized" : "a run over MPI has failed in this process");
    }
    if (initialized) {
        MPI_Query_thread(&given);
    } else {
        keep_ways_open();
        CAR_TRY(car_mpi_check(mpi, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread"));
        process.joined_here = atexit(leave_at_exit) == 0;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* some errors of requests are reported there */
    }
    if (given < MPI_THREAD_SERIALIZED) {
        status = car_context_fail(
            mpi->base.context, CAR_ERROR_UNSUPPORTED,
            "this MPI cannot be called from a separate communication thread: %s (MPI_THREAD_SERIALIZED is needed)",
            initialized && !process.joined_here ? "call MPI_Init_thread instead of MPI_Init"
                                                : "use an MPI that was built with thread support");
    }
done:
    return status;
}

car_status car_mpi_enter(car_mpi *mpi) {
    pthread_mutex_lock(&process.lock);
    car_status status = join_once(mpi);
    mpi->entered = status == CAR_OK;
    process.open += mpi->entered;
    pthread_mutex_unlock(&process.lock);
    return status;
}

void car_mpi_leave(car_mpi *mpi) {
    pthread_mutex_lock(&process.lock);
    process.open -= mpi->entered;
    process.given_up = process.given_up || (mpi->failed && mpi->base.size != 1); /* if alone, no rank waits for it */
    mpi->entered = false;
    pthread_mutex_unlock(&process.lock);
}

void car_mpi_note_loss(const car_mpi *mpi) {
    pthread_mutex_lock(&process.lock);
    process.given_up = process.given_up || mpi->base.size != 1;
    pthread_mutex_unlock(&process.lock);
}

car_status car_mpi_check_process(car_mpi *mpi) {
    pthread_mutex_lock(&process.lock);
    bool lost = process.given_up && mpi->base.size != 1;
    pthread_mutex_unlock(&process.lock);
    if (!lost) {
        return CAR_OK;
    }
    bool own = car_mpi_give_up(mpi);
    return own ? CAR_ERROR_IO /* the error was set when it was given up */
               : car_context_fail(mpi->base.context, CAR_ERROR_IO,
                                  "another run over MPI has failed in this process, and other ranks may be waiting for "
                                  "it: exit, so that the launcher ends them");
}
