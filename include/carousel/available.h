/* How much memory this process can still take: what the machine has free, and what its control group allows. */
#ifndef CAROUSEL_AVAILABLE_H
#define CAROUSEL_AVAILABLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_available {
    uint64_t machine; /* bytes free without swapping; UINT64_MAX if unknown */
    /* Bytes left in the tightest control group, counting its caches as free; UINT64_MAX if unlimited. */
    uint64_t group;
    uint64_t group_id; /* identifies that group: equal for processes that share it; 0 if none */
} car_available;

/* Reads the current state from /proc and the mounted control groups (version 1 and 2). */
car_available car_available_find(void);

/* Bytes of memory installed in the machine, free or not; 0 if unknown. */
uint64_t car_available_physical(void);

/* Bytes of address space that `ulimit -v` leaves this process; UINT64_MAX if unlimited. */
uint64_t car_available_addresses(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
