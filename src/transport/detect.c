/* Finds out whether a launcher started this process as a rank, and among how many. Launchers leave that in the
 * environment. */
#include <stdlib.h>

#include "carousel/transport.h"

bool car_transport_is_launched(void) {
    /* Set by Open MPI; by MPICH, Intel MPI and others with PMI; by PMIx, as in Slurm or PRRTE. */
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
    /* Open MPI's own variable wins, so it comes first. SLURM_NTASKS is also set in the script of a job, so it comes
     * last. */
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
    const char *rank = getenv("PMIX_RANK"); /* PMIx has no variable for the number of processes */
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
