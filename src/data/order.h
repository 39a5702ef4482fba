/* The order of an epoch: a permutation of the samples that depends on the seed and the epoch alone. */
#ifndef CAR_ORDER_H
#define CAR_ORDER_H

#include "base/base.h"

/* Permutations that are kept. Those who read ahead may be in the next epoch already, and may wrap around it once more
 * where an epoch is a few steps. */
enum { CAR_ORDER_EPOCHS = 3 };

typedef struct car_order car_order;

/* CAR_ERROR_ARGUMENT beyond 2^32 - 1 samples: numbers of samples are kept in four bytes. */
car_status car_order_create(car_context *context, uint64_t seed, int64_t samples, car_order **out);
void car_order_destroy(car_order *order);

/* The samples at positions first .. first + count - 1 of the epoch, all below the number of samples. From any thread;
 * the first to ask for an epoch makes its permutation, others wait meanwhile. */
car_status car_order_get(car_order *order, int64_t epoch, int64_t first, int count, int64_t *out);

size_t car_order_bytes(car_order *order); /* of the permutations that are kept */

#endif
