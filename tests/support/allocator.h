/* An allocator for contexts that counts, checks releases, and fails on demand. */
#ifndef CAR_TESTS_ALLOCATOR_H
#define CAR_TESTS_ALLOCATOR_H

#include <stdbool.h>

#include "carousel/context.h"

typedef struct car_checking {
    long calls;        /* of allocate, including failed ones */
    long fail_at;      /* number of the call that fails, from 1; 0: none */
    bool fail_onwards; /* all later calls fail as well */
    long failures;
    long live_blocks;
    size_t live_bytes;
    long wrong_sizes; /* releases with a wrong size, or of something that is not a block */
} car_checking;

/* Hooks that use `checking`, which must outlive the context. For one thread at a time. */
car_allocator car_checking_hooks(car_checking *checking);

#endif
