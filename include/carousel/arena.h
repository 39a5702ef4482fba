/* The arena: where everything of a run lives that is more than bookkeeping.
 *
 * One reserved range of addresses, cut into blocks by best fit; a freed block is joined with its
 * neighbours and serves whoever asks next, so the pages of one worker become those of another.
 * Live and peak bytes are exact, per category. All calls may come from any thread. */
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
    X(CAR_MEMORY_WEIGHTS, "weights")     /* parameters and forms derived from them */     \
    X(CAR_MEMORY_GRADIENTS, "gradients") /* of parameters */                              \
    X(CAR_MEMORY_OPTIMIZER, "optimizer")                                                  \
    X(CAR_MEMORY_ACTIVATIONS, "activations") /* of a micro-batch, and their gradients */  \
    X(CAR_MEMORY_MESSAGES, "messages")                                                    \
    X(CAR_MEMORY_WORKSPACE, "workspace") /* scratch of a thread while it runs a kernel */ \
    X(CAR_MEMORY_SNAPSHOT, "snapshot")   /* copies for checkpoints and evaluation */

typedef enum car_memory {
#define CAR_MEMORY_ENUM(category, text) category,
    CAR_MEMORY_LIST(CAR_MEMORY_ENUM)
#undef CAR_MEMORY_ENUM
        CAR_MEMORY_CATEGORIES
} car_memory;

const char *car_memory_text(car_memory category);

/* `limit`: bytes that may be in use at once, 0 for as many as the address range holds. */
car_status car_arena_create(car_context *context, size_t limit, car_arena **out);
/* The same with at most so many bytes of addresses: for several arenas where ulimit -v leaves few. 0: as many as it
 * can. */
car_status car_arena_create_reserving(car_context *context, size_t limit, size_t most, car_arena **out);
void car_arena_destroy(car_arena *arena); /* all blocks go with it */

/* A block aligned to 64; its contents are undefined. bytes = 0 gives NULL. */
car_status car_arena_allocate(car_arena *arena, car_memory category, size_t bytes, void **out);
/* NULL is allowed. Returns how many bytes had been asked for. */
size_t car_arena_release(car_arena *arena, void *memory);
/* From now on, holes give what they have of aligned pieces of `piece` bytes (a power of two, 4096 or more) back to the
 * system, which costs page faults when they are used again: few if pieces are of 2 MB, since then huge pages are asked
 * for. For processes that share a machine and need their memory at different times. 0: they are kept, as at first. */
void car_arena_return_pages(car_arena *arena, size_t piece);
/* Counts a block under another category from now on: a message that has arrived is what it carried. */
void car_arena_assign(car_arena *arena, void *memory, car_memory category);

/* Bytes asked for and not released, now and at most so far; and the extent of the range ever used,
 * which bounds what is resident. */
size_t car_arena_live(const car_arena *arena, car_memory category);
size_t car_arena_peak(const car_arena *arena, car_memory category);
size_t car_arena_extent(const car_arena *arena);
size_t car_arena_reserved(const car_arena *arena); /* addresses: what it can have at most */
/* The mean over time of the live bytes, from the category's first allocation to its last change. */
double car_arena_mean(const car_arena *arena, car_memory category);

/* A record of every change of one category: when, and how much is alive then. */
typedef struct car_arena_event {
    double seconds; /* since recording began */
    size_t live;
} car_arena_event;

/* Begins to record, forgetting what was recorded. At most `capacity` events are kept: the later ones are dropped. */
car_status car_arena_record(car_arena *arena, car_memory category, int capacity);
/* The events so far; valid until the next car_arena_record or destroy, while nobody allocates. */
int car_arena_events(const car_arena *arena, const car_arena_event **out);

/* Tells somebody of every change, in order, beginning with what is alive now. Called with the arena's lock, so it must
 * be short and leave the arena alone. NULL: nobody any more. */
typedef void (*car_arena_watcher)(void *user, car_memory category, double when, size_t live);
void car_arena_watch(car_arena *arena, car_arena_watcher watcher, void *user);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
