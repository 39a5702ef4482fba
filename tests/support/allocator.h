/* An allocator for contexts that counts, checks what it is given back, and fails on demand. */
#ifndef CAR_TESTS_ALLOCATOR_H
#define CAR_TESTS_ALLOCATOR_H

#include <stdbool.h>

#include "carousel/context.h"

typedef struct car_checking {
    long calls;        /* of allocate, failed ones included */
    long fail_at;      /* the number of the call that fails, counted from 1; 0: none does */
    bool fail_onwards; /* and all calls after it */
    long failures;
    long live_blocks;
    size_t live_bytes;
    long wrong_sizes; /* releases that gave another size than was allocated, or a block that is none */
} car_checking;

/* Hooks that use `checking`, which must outlive the context. For one thread at a time. */
car_allocator car_checking_hooks(car_checking *checking);

#endif
