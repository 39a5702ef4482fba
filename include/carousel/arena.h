/* The arena: the memory of a run. Everything large lives here: weights, gradients, activations, messages.
 *
 * An arena reserves one range of addresses and cuts it into blocks, best fit first. A freed block is merged with its
 * neighbours, so memory that one worker releases is reused by the next. Live and peak bytes are exact and counted
 * per category. All functions are thread-safe. */
#ifndef CAROUSEL_ARENA_H
#define CAROUSEL_ARENA_H

#include <stddef.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_arena car_arena;

#define CAR_MEMORY_LIST(X)                                                                \
    X(CAR_MEMORY_WEIGHTS, "weights")     /* parameters, and copies derived from them */   \
    X(CAR_MEMORY_GRADIENTS, "gradients") /* gradients of parameters, and their sums */    \
    X(CAR_MEMORY_OPTIMIZER, "optimizer")                                                  \
    X(CAR_MEMORY_ACTIVATIONS, "activations") /* of micro-batches, with their gradients */ \
    X(CAR_MEMORY_MESSAGES, "messages")                                                    \
    X(CAR_MEMORY_WORKSPACE, "workspace") /* scratch of a thread while it runs a kernel */ \
    X(CAR_MEMORY_SNAPSHOT, "snapshot")   /* copies for checkpoints and evaluation */

typedef enum car_memory {
#define CAR_MEMORY_ENUM(category, text) category,
    CAR_MEMORY_LIST(CAR_MEMORY_ENUM)
#undef CAR_MEMORY_ENUM
        CAR_MEMORY_CATEGORIES
} car_memory;

/* The category's name, e.g. "weights". */
const char *car_memory_text(car_memory category);

/* Creates an arena. At most `limit` bytes may be in use at once; 0 means no limit but the reserved range. */
car_status car_arena_create(car_context *context, size_t limit, car_arena **out);
/* As car_arena_create, but reserves at most `most` bytes of addresses (0: as many as possible). Use it for several
 * arenas in one process when `ulimit -v` is low. */
car_status car_arena_create_reserving(car_context *context, size_t limit, size_t most, car_arena **out);
void car_arena_destroy(car_arena *arena); /* frees all blocks; NULL is allowed */

/* Allocates a block aligned to 64 bytes, with undefined contents. For 0 bytes *out is NULL. */
car_status car_arena_allocate(car_arena *arena, car_memory category, size_t bytes, void **out);
/* Frees a block and returns the size it was allocated with. NULL is allowed. */
size_t car_arena_release(car_arena *arena, void *memory);
/* Lets free blocks return their pages to the system, in aligned units of `piece` bytes (a power of two, at least
 * 4096). Use it when processes share a machine and peak at different times. Returned pages cost page faults when
 * they are used again; with 2 MB units, which request huge pages, these are few. 0 keeps all pages, the default. */
void car_arena_return_pages(car_arena *arena, size_t piece);
/* Counts a block under another category from now on, e.g. when a message has arrived and becomes a weight. */
void car_arena_assign(car_arena *arena, void *memory, car_memory category);

/* Bytes allocated now. */
size_t car_arena_live(const car_arena *arena, car_memory category);
/* The most bytes allocated at once so far. */
size_t car_arena_peak(const car_arena *arena, car_memory category);
/* Bytes of the range ever touched: an upper bound for the arena's resident memory. */
size_t car_arena_extent(const car_arena *arena);
size_t car_arena_reserved(const car_arena *arena); /* bytes of addresses that were reserved */
/* Average of the live bytes over time, from the category's first allocation to its last change. */
double car_arena_mean(const car_arena *arena, car_memory category);

/* One change of the recorded category: when it happened, and the bytes alive after it. */
typedef struct car_arena_event {
    double seconds; /* since recording began */
    size_t live;
} car_arena_event;

/* Starts recording one category and drops what was recorded before. Keeps the first `capacity` events. */
car_status car_arena_record(car_arena *arena, car_memory category, int capacity);
/* Returns the number of events so far and points *out at them. Valid until the next car_arena_record or destroy, as
 * long as no thread allocates meanwhile. */
int car_arena_events(const car_arena *arena, const car_arena_event **out);

/* Receives every change of every category, in order. It is called with the arena's lock held: be quick, and do not
 * call the arena. `when` is in seconds of car_clock_seconds(). */
typedef void (*car_arena_watcher)(void *user, car_memory category, double when, size_t live);
/* Sets the watcher, which first receives what is alive now. NULL removes it. */
void car_arena_watch(car_arena *arena, car_arena_watcher watcher, void *user);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
