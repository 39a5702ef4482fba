/* How much memory there is for this process to take: what the machine has left, and what its control group leaves it. */
#ifndef CAROUSEL_AVAILABLE_H
#define CAROUSEL_AVAILABLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_available {
    uint64_t machine;  /* bytes, without swapping; UINT64_MAX: not known */
    uint64_t group;    /* bytes that the tightest control group leaves, caches counted as free; UINT64_MAX: no limit */
    uint64_t group_id; /* which group that is: equal for processes that share it; 0: none */
} car_available;

/* As it is now: from /proc and the mounted control groups, version 1 and 2. */
car_available car_available_find(void);

/* Bytes of memory that the machine has, free or not; 0: not known. */
uint64_t car_available_physical(void);

/* Bytes of addresses that ulimit -v leaves this process; UINT64_MAX: no limit. */
uint64_t car_available_addresses(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
