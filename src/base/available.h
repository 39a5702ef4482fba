/* How much memory there is for this process to take: what the machine has left, and what its control group leaves it. */
#ifndef CAR_BASE_AVAILABLE_H
#define CAR_BASE_AVAILABLE_H

#include <stdint.h>

typedef struct car_available {
    uint64_t machine;  /* bytes, without swapping; UINT64_MAX: not known */
    uint64_t group;    /* bytes that the tightest control group leaves, caches counted as free; UINT64_MAX: no limit */
    uint64_t group_id; /* which group that is: equal for processes that share it; 0: none */
} car_available;

/* Reads /proc and the mounted control groups, version 1 and 2, below `root`: "" but for tests. */
car_available car_available_find(const char *root);

/* Addresses that ulimit -v leaves this process; UINT64_MAX: no limit. */
uint64_t car_available_addresses(void);

#endif
