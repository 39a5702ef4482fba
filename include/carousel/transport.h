/* The transport: what carries the messages of a run between ranks.
 *
 * A rank is a process that mpirun started. Nothing of MPI shows here, and outside of mpirun nothing of it
 * is touched. A library that was built without MPI has these functions too: opening fails. */
#ifndef CAROUSEL_TRANSPORT_H
#define CAROUSEL_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct car_transport car_transport;

/* Whether a launcher of MPI (mpirun, mpiexec, srun) started this process, by what it leaves in the environment. */
bool car_transport_is_launched(void);

/* How many processes the launcher says that it started, and the variable that says so (NULL: none does). That MPI finds as
 * many is not certain: it may be another launcher than MPI's own. */
int64_t car_transport_launched_processes(const char **variable);

/* Joins the other ranks. At most once in a process; every rank must do it. CAR_ERROR_UNSUPPORTED without MPI. */
car_status car_transport_open(car_context *context, car_transport **out);
/* Leaves them; every rank must do it, and waits for the others to. */
void car_transport_close(car_transport *transport);
/* Ends all ranks of the job, this one included, without waiting for anybody. Does not return. */
void car_transport_abort(car_transport *transport, int code);

int car_transport_rank(const car_transport *transport);
int car_transport_size(const car_transport *transport);
int car_transport_local_size(const car_transport *transport); /* ranks on this machine */
int car_transport_machines(const car_transport *transport);
int car_transport_machine(const car_transport *transport, int rank); /* of a rank; they are numbered by their lowest */
const char *car_transport_name(const car_transport *transport);      /* of the library, with its version */

#ifdef __cplusplus
}
#endif
#endif
