/* Whether this process was started as a rank: launchers leave its number in the environment. */
#include <stdlib.h>

#include "carousel/transport.h"

bool car_transport_is_launched(void) {
    /* Open MPI; MPICH, Intel MPI and others with PMI; PMIx, as of Slurm or PRRTE. */
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS"};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        const char *value = getenv(names[n]);
        if (value && value[0]) {
            return true;
        }
    }
    return false;
}
