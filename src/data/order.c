/* The order of samples in an epoch: a Fisher-Yates shuffle, with random numbers of (seed, epoch). */
#include "data/order.h"

#include <assert.h>
#include <pthread.h>

typedef struct permutation {
    uint32_t *samples; /* NULL: not made yet */
    int64_t epoch;
    uint64_t used; /* the last request that used it */
} permutation;

struct car_order {
    car_context *context;
    uint64_t key;
    int64_t samples;
    pthread_mutex_t lock; /* guards the fields below */
    uint64_t requests;
    permutation kept[CAR_ORDER_EPOCHS];
};

car_status car_order_create(car_context *context, uint64_t seed, int64_t samples, car_order **out) {
    car_order *order = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (samples < 1 || samples > UINT32_MAX) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "cannot shuffle %lld samples, only 1 to %lld; read them in order instead",
                                (long long)samples, (long long)UINT32_MAX);
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *order, &order));
    *order = (car_order){.context = context, .key = car_random_key(seed, "order"), .samples = samples};
    if (pthread_mutex_init(&order->lock, NULL) != 0) {
        status = car_context_fail(context, CAR_ERROR_MEMORY, "could not create a mutex");
        goto done;
    }
    *out = order;
    order = NULL;
done:
    car_context_release(context, order, 1, sizeof *order);
    return status;
}

void car_order_destroy(car_order *order) {
    if (!order) {
        return;
    }
    for (int i = 0; i < CAR_ORDER_EPOCHS; i++) {
        car_context_release(order->context, order->kept[i].samples, (size_t)order->samples, sizeof(uint32_t));
    }
    pthread_mutex_destroy(&order->lock);
    car_context_release(order->context, order, 1, sizeof *order);
}

/* A uniform number below `range`: the upper half of a product with 32 random bits, drawn again in the few cases that
 * would bias the result. */
static uint32_t draw_below(uint64_t key, uint64_t *counter, uint32_t range) {
    uint32_t excess = (uint32_t)-range % range; /* 2^32 modulo range */
    for (;;) {
        uint64_t product = (car_random_u64(key, (*counter)++) >> 32) * range;
        if ((uint32_t)product >= excess) {
            return (uint32_t)(product >> 32);
        }
    }
}

static void shuffle(const car_order *order, permutation *p) {
    uint64_t key = car_random_u64(order->key, (uint64_t)p->epoch), counter = 0;
    uint32_t count = (uint32_t)order->samples;
    for (uint32_t i = 0; i < count; i++) {
        p->samples[i] = i;
    }
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = draw_below(key, &counter, i + 1), held = p->samples[i];
        p->samples[i] = p->samples[j];
        p->samples[j] = held;
    }
}

/* The epoch's permutation. A new one replaces the least recently used. The lock is held. */
static car_status find_permutation(car_order *order, int64_t epoch, permutation **out) {
    permutation *oldest = &order->kept[0];
    car_status status = CAR_OK;
    for (int i = 0; i < CAR_ORDER_EPOCHS; i++) {
        permutation *p = &order->kept[i];
        if (p->samples && p->epoch == epoch) {
            *out = p;
            return CAR_OK;
        }
        oldest = p->used < oldest->used ? p : oldest;
    }
    if (!oldest->samples) {
        CAR_TRY(car_context_allocate(order->context, (size_t)order->samples, sizeof(uint32_t), &oldest->samples));
    }
    oldest->epoch = epoch;
    shuffle(order, oldest);
    *out = oldest;
done:
    return status;
}

car_status car_order_get(car_order *order, int64_t epoch, int64_t first, int count, int64_t *out) {
    permutation *p = NULL;
    car_status status = CAR_OK;
    assert(first >= 0 && count >= 0 && count <= order->samples - first);
    pthread_mutex_lock(&order->lock);
    CAR_TRY(find_permutation(order, epoch, &p));
    p->used = ++order->requests;
    for (int i = 0; i < count; i++) {
        out[i] = p->samples[first + i];
    }
done:
    pthread_mutex_unlock(&order->lock);
    return status;
}

size_t car_order_bytes(car_order *order) {
    size_t bytes = 0;
    pthread_mutex_lock(&order->lock);
    for (int i = 0; i < CAR_ORDER_EPOCHS; i++) {
        bytes += order->kept[i].samples ? (size_t)order->samples * sizeof(uint32_t) : 0;
    }
    pthread_mutex_unlock(&order->lock);
    return bytes;
}
