/* The transport: what carries the messages of a run between ranks.
 *
 * A rank is a process that mpirun started, or a group of threads of one process. Nothing of MPI shows here, and
 * outside of mpirun nothing of it is touched. A library that was built without MPI has these functions too: opening
 * fails. */
#ifndef CAROUSEL_TRANSPORT_H
#define CAROUSEL_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_transport car_transport;

/* Whether a launcher of MPI (mpirun, mpiexec, srun) started this process, by what it leaves in the environment. */
bool car_transport_is_launched(void);

/* How many processes the launcher says that it started, and the variable that says so (NULL: none does). That MPI
 * finds as many is not certain: it may be another launcher than MPI's own. */
int64_t car_transport_launched_processes(const char **variable);

/* The rank that the launcher gave this process, by its variables; 0 if there is none. */
int64_t car_transport_launched_rank(void);

/* Joins the other ranks; every rank must do it. CAR_ERROR_UNSUPPORTED without MPI. A process may do it again, also while
 * another transport is open: all ranks open, use and close them in the same order, from one thread at a time. MPI itself
 * is left when the process exits, if all transports were closed. A program that has called MPI_Init_thread with
 * MPI_THREAD_SERIALIZED leaves it itself. */
car_status car_transport_open(car_context *context, car_transport **out);
/* Leaves them; every rank must do it, and waits for the others to. */
void car_transport_close(car_transport *transport);
/* Ends all ranks of the job, this one included, without waiting for anybody. Does not return, except in one process,
 * where the others fail with their next call. */
void car_transport_abort(car_transport *transport, int code);

/* Ranks in one process, each a group of threads: a hub, and a transport for each rank. */
typedef struct car_hub car_hub;
car_status car_hub_create(car_context *context, int ranks, car_hub **out);
void car_hub_destroy(car_hub *hub); /* after all transports were closed */
/* The transport of one rank, with a context of the rank's own. Waits until all ranks have joined, so each does it from
 * a thread of its own. */
car_status car_hub_join(car_hub *hub, car_context *context, int rank, car_transport **out);
/* Makes whoever waits for another rank fail soon: one of them will not come. From any thread. */
void car_hub_give_up(car_hub *hub);

int car_transport_rank(const car_transport *transport);
int car_transport_size(const car_transport *transport);
int car_transport_local_size(const car_transport *transport); /* ranks on this machine */
int car_transport_machines(const car_transport *transport);
int car_transport_machine(const car_transport *transport, int rank); /* of a rank; they are numbered by their lowest */
const char *car_transport_name(const car_transport *transport);      /* of the library, with its version */

/* Between runs, called by all ranks. `out` gets size() pieces of `bytes` bytes, in order of ranks; or `data` becomes
 * that of rank `from`. */
car_status car_transport_all_gather(car_transport *transport, const void *in, size_t bytes, void *out);
car_status car_transport_broadcast(car_transport *transport, int from, void *data, size_t bytes);
/* Numbers the ranks anew: machine after machine, or in turn over the machines. The first stays the first. All ranks
 * call it, before any car_rank is created. Other numbers than the launcher's are only given where that makes a
 * difference. */
car_status car_transport_renumber(car_transport *transport, bool in_turn);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
