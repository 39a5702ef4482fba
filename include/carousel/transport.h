/* The transport: carries the messages of a run between ranks.
 *
 * A rank is a process that mpirun started, or a group of threads of one process. This header does not expose MPI,
 * and without mpirun MPI is never initialised. A library built without MPI has the same functions, but opening
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

/* Whether an MPI launcher (mpirun, mpiexec, srun) started this process, judging by the environment. */
bool car_transport_is_launched(void);

/* The number of processes that the launcher says it started, and the environment variable that says so (NULL: none).
 * MPI may find a different number if the launcher is not its own. */
int64_t car_transport_launched_processes(const char **variable);

/* The rank that the launcher gave this process, by its environment variables; 0 without a launcher. */
int64_t car_transport_launched_rank(void);

/* Joins the other ranks; all ranks must call it. CAR_ERROR_UNSUPPORTED without MPI. A process may open several
 * transports, one after the other or at once: all ranks open, use and close them in the same order, from one thread
 * at a time. MPI is finalised when the process exits, if all transports are closed. A program that called
 * MPI_Init_thread itself (with MPI_THREAD_SERIALIZED) also finalises MPI itself. */
car_status car_transport_open(car_context *context, car_transport **out);
/* Leaves the others. All ranks must call it; it waits for them. */
void car_transport_close(car_transport *transport);
/* Ends all ranks of the job, including this one, without waiting. Does not return, except with ranks in one process:
 * there the other ranks fail in their next call. */
void car_transport_abort(car_transport *transport, int code);

/* Ranks in one process, each a group of threads: a hub connects one transport per rank. */
typedef struct car_hub car_hub;
/* Creates a hub for `ranks` ranks. */
car_status car_hub_create(car_context *context, int ranks, car_hub **out);
void car_hub_destroy(car_hub *hub); /* after all transports are closed */
/* Makes the transport of one rank, with a context of its own. Waits until all ranks have joined, so call it from a
 * separate thread for each rank. */
car_status car_hub_join(car_hub *hub, car_context *context, int rank, car_transport **out);
/* Makes all ranks that wait for another rank fail soon, because one will not come. Any thread may call it. */
void car_hub_give_up(car_hub *hub);

int car_transport_rank(const car_transport *transport);       /* this process's number, from 0 */
int car_transport_size(const car_transport *transport);       /* number of ranks */
int car_transport_local_size(const car_transport *transport); /* ranks on this machine */
int car_transport_machines(const car_transport *transport);
/* The machine of a rank. Machines are numbered in the order of their lowest rank. */
int car_transport_machine(const car_transport *transport, int rank);
const char *car_transport_name(const car_transport *transport); /* of the MPI library, with its version */

/* Between runs, called by all ranks: `out` receives size() blocks of `bytes` bytes, in the order of ranks. */
car_status car_transport_all_gather(car_transport *transport, const void *in, size_t bytes, void *out);
/* Between runs, called by all ranks: copies `data` from rank `from` to all. */
car_status car_transport_broadcast(car_transport *transport, int from, void *data, size_t bytes);
/* Renumbers the ranks: machine after machine or, with `in_turn`, round-robin over the machines. Rank 0 stays rank 0.
 * All ranks call it before any car_rank is created. Numbers change only where it makes a difference. */
car_status car_transport_renumber(car_transport *transport, bool in_turn);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
