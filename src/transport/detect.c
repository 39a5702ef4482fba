/* Whether this process was started as a rank, and among how many: launchers leave that in the environment. */
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

int64_t car_transport_launched_processes(const char **variable) {
    /* Open MPI's own word is the last. A Slurm job's number of tasks is there in its script as well. */
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
    *variable = NULL;
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        const char *value = getenv(names[n]);
        long long count = value ? strtoll(value, NULL, 10) : 0;
        if (count > 0) {
            *variable = names[n];
            return count;
        }
    }
    const char *rank = getenv("PMIX_RANK"); /* it has no variable for the size */
    if (rank && strtoll(rank, NULL, 10) > 0) {
        *variable = "PMIX_RANK";
        return strtoll(rank, NULL, 10) + 1;
    }
    return 1;
}

int64_t car_transport_launched_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"};
    for (size_t n = 0; car_transport_is_launched() && n < sizeof names / sizeof names[0]; n++) {
        const char *value = getenv(names[n]);
        if (value && value[0]) {
            return strtoll(value, NULL, 10);
        }
    }
    return 0;
}
