/* The order of samples in an epoch: a permutation that depends on the seed and the epoch alone. */
#ifndef CAR_ORDER_H
#define CAR_ORDER_H

#include "base/base.h"

/* Number of permutations kept. Threads that read ahead may already be in the next epoch, or the one after it if
 * epochs have only a few steps. */
enum { CAR_ORDER_EPOCHS = 3 };

typedef struct car_order car_order;

/* CAR_ERROR_ARGUMENT for more than 2^32 - 1 samples, as numbers are stored in four bytes. */
car_status car_order_create(car_context *context, uint64_t seed, int64_t samples, car_order **out);
void car_order_destroy(car_order *order);

/* The samples at positions first .. first + count - 1 of an epoch, all below the number of samples. Thread-safe: the
 * first caller for an epoch makes its permutation, others wait. */
car_status car_order_get(car_order *order, int64_t epoch, int64_t first, int count, int64_t *out);

size_t car_order_bytes(car_order *order); /* of the stored permutations */

#endif
