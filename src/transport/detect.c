/* Finds out whether a launcher started this process as a rank, and among how many. Launchers leave that in the
 * environment. */
#include <stdlib.h>

#include "carousel/transport.h"

/* The value of the first of these variables that is set and not empty; NULL if none is. The list ends with NULL. */
static const char *find(const char *const *names) {
    for (; *names; names++) {
        const char *value = getenv(*names);
        if (value && value[0]) {
            return value;
        }
    }
    return NULL;
}

bool car_transport_is_launched(void) {
    /* Set by Open MPI; by MPICH, Intel MPI and others with PMI; by PMIx, as in Slurm or PRRTE. */
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS", NULL};
    return find(names) != NULL;
}

int64_t car_transport_launched_processes(const char **variable) {
    /* Open MPI's own variable wins, so it comes first. SLURM_NTASKS is also set in the script of a job, so it comes
     * last. PMIx has no variable for the number of processes; a rank is one less. */
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
                                        "PMIX_RANK"};
    enum { NAMES = sizeof names / sizeof names[0], PMIX = NAMES - 1 };
    for (int n = 0; n < NAMES; n++) {
        const char *value = getenv(names[n]);
        long long count = value ? strtoll(value, NULL, 10) : 0;
        if (count > 0) {
            *variable = names[n];
            return count + (n == PMIX);
        }
    }
    *variable = NULL;
    return 1;
}

int64_t car_transport_launched_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", NULL};
    const char *value = car_transport_is_launched() ? find(names) : NULL;
    return value ? strtoll(value, NULL, 10) : 0;
}
