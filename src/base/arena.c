/* The arena: best fit over one reserved range of addresses, with exact accounts per category.
 *
 * The range is reserved once and never moves. Pages become resident when first touched and are then reused, because
 * best fit prefers a hole to the untouched end. Descriptions of blocks are stored elsewhere, not in front of them:
 * tensor sizes are often multiples of one another, and with headers the space of a large tensor could not hold
 * several small ones. Blocks are linked in address order, so that a freed one finds its neighbours. Where several
 * processes share a machine, holes may return their pages: see car_arena_return_pages.
 *
 *   base                                extent              reserved
 *   | block | free | block | block | free |   never touched    | */
#include "carousel/arena.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/available.h"
#include "base/base.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CAR_ARENA_POISON 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define CAR_ARENA_POISON 1
#endif
#ifdef CAR_ARENA_POISON
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

enum {
    UNIT = 64,   /* a cache line: blocks are aligned to it, and their sizes are multiples of it */
    CHUNK = 256, /* block descriptions that are allocated at once */
};

/* Address space is free, so ask for plenty, and for less where the system is strict. */
static const size_t first_reservation = (size_t)1 << 40;
static const size_t last_reservation = (size_t)1 << 24;
static const size_t huge_page = (size_t)1 << 21;

typedef struct block {
    char *memory;
    struct block *previous, *next;           /* in address order */
    struct block *previous_free, *next_free; /* while free; for unused descriptions: the next one */
    struct block *next_in_row;               /* in the table of used blocks */
    size_t space;                            /* a multiple of UNIT */
    size_t asked;                            /* bytes the user asked for; 0 while free */
    size_t touched;                          /* while free: bytes whose pages may be resident */
    car_memory category;
    bool used;
} block;

typedef struct chunk {
    struct chunk *next;
    block blocks[CHUNK];
} chunk;

enum { ROWS = 1024 }; /* rows of the table; a run has some hundreds of blocks */

struct car_arena {
    car_context *context;
    pthread_mutex_t lock;
    char *base;
    size_t reserved, extent, limit;
    size_t piece; /* holes return pages in pieces of this many bytes; 0: never */
    block *last;  /* in address order */
    block *free_; /* unordered; there are few */
    block *used[ROWS];
    block *spare; /* unused block descriptions */
    chunk *chunks;
    size_t live_total;
    size_t live[CAR_MEMORY_CATEGORIES], peak[CAR_MEMORY_CATEGORIES];
    /* For the mean: bytes times seconds until the last change. */
    double area[CAR_MEMORY_CATEGORIES], first_change[CAR_MEMORY_CATEGORIES], last_change[CAR_MEMORY_CATEGORIES];
    car_arena_event *events;
    int event_count, event_capacity;
    car_memory recorded;
    double record_start;
    car_arena_watcher watcher;
    void *watcher_user;
};

const char *car_memory_text(car_memory category) {
    static const char *const texts[] = {
#define MEMORY_TEXT(code, text) text,
        CAR_MEMORY_LIST(MEMORY_TEXT)
#undef MEMORY_TEXT
    };
    return category < CAR_MEMORY_CATEGORIES ? texts[category] : "unknown";
}

/* Where address space is limited, reserves at most half of what is left: stacks, kernels and the allocator need
 * some, too. */
static size_t choose_reservation(size_t most) {
    uint64_t left = car_available_addresses();
    size_t bytes = most > 0 && most < first_reservation ? most : first_reservation;
    return left / 2 < bytes ? (size_t)(left / 2) : bytes;
}

car_status car_arena_create(car_context *context, size_t limit, car_arena **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    return car_arena_create_reserving(context, limit, 0, out);
}

car_status car_arena_create_reserving(car_context *context, size_t limit, size_t most, car_arena **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    *out = NULL;
    car_arena *arena = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *arena, &arena);
    if (status != CAR_OK) {
        return status;
    }
    arena->context = context;
    arena->limit = limit;
    void *range = MAP_FAILED;
    for (size_t bytes = choose_reservation(most) / huge_page * huge_page;
         bytes >= last_reservation && range == MAP_FAILED; bytes = bytes / 2 / huge_page * huge_page) {
        range = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        arena->reserved = bytes;
    }
    if (range == MAP_FAILED) {
        car_context_release(context, arena, 1, sizeof *arena);
        return car_context_fail(context, CAR_ERROR_MEMORY,
                                "could not reserve %zu bytes of address space; check ulimit -v", last_reservation);
    }
    if (pthread_mutex_init(&arena->lock, NULL) != 0) {
        munmap(range, arena->reserved);
        car_context_release(context, arena, 1, sizeof *arena);
        return car_context_fail(context, CAR_ERROR_MEMORY, "could not create a mutex");
    }
    arena->base = range;
    *out = arena;
    return CAR_OK;
}

void car_arena_destroy(car_arena *arena) {
    if (!arena) {
        return;
    }
    ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->extent);
    munmap(arena->base, arena->reserved);
    pthread_mutex_destroy(&arena->lock);
    while (arena->chunks) {
        chunk *gone = arena->chunks;
        arena->chunks = gone->next;
        car_context_release(arena->context, gone, 1, sizeof *gone);
    }
    car_context_release(arena->context, arena->events, (size_t)arena->event_capacity, sizeof *arena->events);
    car_context_release(arena->context, arena, 1, sizeof *arena);
}

/* ---- blocks; call these with the lock held --------------------------------------------------- */

/* Makes sure that there is a description for the next block; an allocation needs at most one. */
static car_status prepare(car_arena *arena) {
    chunk *more = NULL;
    if (arena->spare) {
        return CAR_OK;
    }
    car_status status = car_context_allocate(arena->context, 1, sizeof *more, &more);
    if (status != CAR_OK) {
        return status;
    }
    more->next = arena->chunks;
    arena->chunks = more;
    for (int i = 0; i < CHUNK; i++) {
        more->blocks[i].next_free = arena->spare;
        arena->spare = &more->blocks[i];
    }
    return CAR_OK;
}

static block *describe(car_arena *arena) {
    block *b = arena->spare;
    arena->spare = b->next_free;
    return b;
}

static void forget(car_arena *arena, block *b) {
    b->next_free = arena->spare;
    arena->spare = b;
}

static block **row_of(car_arena *arena, const char *memory) {
    return &arena->used[car_random_mix((uint64_t)(memory - arena->base)) % ROWS];
}

static void note_used(car_arena *arena, block *b) {
    block **row = row_of(arena, b->memory);
    b->used = true;
    b->next_in_row = *row;
    *row = b;
}

/* The used block at this address; `take` removes it from the table. */
static block *find_used(car_arena *arena, const void *memory, bool take) {
    block **place = row_of(arena, memory);
    while ((*place)->memory != memory) {
        place = &(*place)->next_in_row;
    }
    block *b = *place;
    if (take) {
        *place = b->next_in_row;
    }
    return b;
}

static void link_free(car_arena *arena, block *b) {
    b->used = false;
    b->asked = 0;
    b->previous_free = NULL;
    b->next_free = arena->free_;
    if (arena->free_) {
        arena->free_->previous_free = b;
    }
    arena->free_ = b;
}

static void unlink_free(car_arena *arena, block *b) {
    if (b->previous_free) {
        b->previous_free->next_free = b->next_free;
    } else {
        arena->free_ = b->next_free;
    }
    if (b->next_free) {
        b->next_free->previous_free = b->previous_free;
    }
}

/* Joins b with the block after it. */
static void swallow_next(car_arena *arena, block *b) {
    block *gone = b->next;
    b->space += gone->space;
    b->touched += gone->touched;
    b->next = gone->next;
    if (b->next) {
        b->next->previous = b;
    } else {
        arena->last = b;
    }
    forget(arena, gone);
}

static block *best_fit(const car_arena *arena, size_t space) {
    block *best = NULL;
    for (block *b = arena->free_; b; b = b->next_free) {
        /* Of equal holes the lower one, so that the choice does not depend on the order of freeing. */
        if (b->space >= space &&
            (!best || b->space < best->space || (b->space == best->space && b->memory < best->memory))) {
            best = b;
        }
    }
    return best;
}

/* Makes a new block at the end of the used range, or extends the last block if that is free. */
static block *extend(car_arena *arena, size_t space) {
    block *last = arena->last;
    if (last && !last->used) {
        size_t more = space - last->space; /* best_fit has found that it is too small */
        if (more > arena->reserved - arena->extent) {
            return NULL;
        }
        ASAN_UNPOISON_MEMORY_REGION(arena->base + arena->extent, more);
        arena->extent += more;
        last->space = space;
        unlink_free(arena, last);
        return last;
    }
    if (space > arena->reserved - arena->extent) {
        return NULL;
    }
    block *b = describe(arena);
    *b = (block){.memory = arena->base + arena->extent, .previous = last, .space = space};
    if (last) {
        last->next = b;
    }
    arena->last = b;
    arena->extent += space;
    return b;
}

/* Turns the rest of a hole into a separate hole. */
static void split(car_arena *arena, block *b, size_t space) {
    if (b->space == space) {
        return;
    }
    block *rest = describe(arena);
    *rest = (block){.memory = b->memory + space, .previous = b, .next = b->next, .space = b->space - space};
    if (b->next) {
        b->next->previous = rest;
    } else {
        arena->last = rest;
    }
    rest->touched = b->touched < rest->space ? b->touched : rest->space;
    b->next = rest;
    b->space = space;
    link_free(arena, rest);
}

/* Records a change of the live bytes of a category. */
static void book(car_arena *arena, car_memory category, size_t live) {
    double now = car_clock_seconds();
    if (arena->first_change[category] == 0) {
        arena->first_change[category] = now;
    } else {
        arena->area[category] += (double)arena->live[category] * (now - arena->last_change[category]);
    }
    arena->last_change[category] = now;
    arena->live[category] = live;
    if (live > arena->peak[category]) {
        arena->peak[category] = live;
    }
    if (category == arena->recorded && arena->event_count < arena->event_capacity) {
        arena->events[arena->event_count++] = (car_arena_event){now - arena->record_start, live};
    }
    if (arena->watcher) {
        arena->watcher(arena->watcher_user, category, now, live);
    }
}

/* Returns the whole pieces of a hole to the system, once after each release. The remainders at its ends stay. */
static void return_hole(car_arena *arena, block *b) {
    size_t piece = arena->piece;
    if (piece == 0 || b->touched < piece) {
        return;
    }
    uintptr_t begin = car_round_up((uintptr_t)b->memory, piece);
    uintptr_t end = ((uintptr_t)b->memory + b->space) / piece * piece;
    if (begin < end) {
        madvise((void *)begin, end - begin, MADV_DONTNEED); /* if it fails, the pages just stay resident */
        b->touched = 0;
    }
}

car_status car_arena_allocate(car_arena *arena, car_memory category, size_t bytes, void **out) {
    CAR_REQUIRE(NULL, arena);
    CAR_REQUIRE(NULL, out);
    *out = NULL;
    if (bytes == 0) {
        return CAR_OK;
    }
    if (bytes > arena->reserved) {
        return car_context_fail(arena->context, CAR_ERROR_MEMORY,
                                "%zu bytes of %s do not fit into the reserved address space", bytes,
                                car_memory_text(category));
    }
    size_t space = car_round_up(bytes, UNIT);
    pthread_mutex_lock(&arena->lock);
    size_t live_total = arena->live_total;
    block *b = NULL;
    car_status status = prepare(arena);
    if (status != CAR_OK) {
        pthread_mutex_unlock(&arena->lock);
        return status;
    }
    if (arena->limit == 0 || bytes + live_total <= arena->limit) {
        b = best_fit(arena, space);
        if (b) {
            unlink_free(arena, b);
            split(arena, b, space);
        } else {
            b = extend(arena, space);
        }
    }
    if (b) {
        note_used(arena, b);
        b->asked = bytes;
        b->category = category;
        arena->live_total += bytes;
        book(arena, category, arena->live[category] + bytes);
        ASAN_UNPOISON_MEMORY_REGION(b->memory, b->space);
        *out = b->memory;
    }
    pthread_mutex_unlock(&arena->lock);
    if (!*out) {
        return car_context_fail(arena->context, CAR_ERROR_MEMORY,
                                "out of memory: %zu bytes of %s requested, %zu bytes in use, limit %zu bytes", bytes,
                                car_memory_text(category), live_total, arena->limit ? arena->limit : arena->reserved);
    }
    return CAR_OK;
}

size_t car_arena_release(car_arena *arena, void *memory) {
    if (!memory) {
        return 0;
    }
    pthread_mutex_lock(&arena->lock);
    block *b = find_used(arena, memory, true);
    size_t asked = b->asked;
    arena->live_total -= asked;
    book(arena, b->category, arena->live[b->category] - asked);
    ASAN_POISON_MEMORY_REGION(b->memory, b->space);
    b->touched = b->space;
    if (b->next && !b->next->used) {
        unlink_free(arena, b->next);
        swallow_next(arena, b);
    }
    if (b->previous && !b->previous->used) {
        b = b->previous;
        unlink_free(arena, b);
        swallow_next(arena, b);
    }
    link_free(arena, b);
    return_hole(arena, b);
    pthread_mutex_unlock(&arena->lock);
    return asked;
}

void car_arena_return_pages(car_arena *arena, size_t piece) {
    pthread_mutex_lock(&arena->lock);
    arena->piece = piece;
    if (piece > 0 && piece % huge_page == 0) {
        madvise(arena->base, arena->reserved, MADV_HUGEPAGE); /* one page fault per huge page, not per 4 kB */
    }
    pthread_mutex_unlock(&arena->lock);
}

void car_arena_assign(car_arena *arena, void *memory, car_memory category) {
    if (!memory) {
        return;
    }
    pthread_mutex_lock(&arena->lock);
    block *b = find_used(arena, memory, false);
    if (b->category != category) {
        book(arena, b->category, arena->live[b->category] - b->asked);
        b->category = category;
        book(arena, category, arena->live[category] + b->asked);
    }
    pthread_mutex_unlock(&arena->lock);
}

/* ---- accounts -------------------------------------------------------------------------------- */

static size_t read_locked(const car_arena *arena, const size_t *value) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&arena->lock;
    pthread_mutex_lock(lock);
    size_t copy = *value;
    pthread_mutex_unlock(lock);
    return copy;
}

size_t car_arena_live(const car_arena *arena, car_memory category) {
    return read_locked(arena, &arena->live[category]);
}

size_t car_arena_peak(const car_arena *arena, car_memory category) {
    return read_locked(arena, &arena->peak[category]);
}

size_t car_arena_extent(const car_arena *arena) {
    return read_locked(arena, &arena->extent);
}

size_t car_arena_reserved(const car_arena *arena) {
    return arena->reserved;
}

double car_arena_mean(const car_arena *arena, car_memory category) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&arena->lock;
    pthread_mutex_lock(lock);
    double span = arena->last_change[category] - arena->first_change[category];
    double mean = span > 0 ? arena->area[category] / span : (double)arena->live[category];
    pthread_mutex_unlock(lock);
    return mean;
}

car_status car_arena_record(car_arena *arena, car_memory category, int capacity) {
    CAR_REQUIRE(NULL, arena);
    car_arena_event *events = NULL;
    car_status status = car_context_allocate(arena->context, (size_t)capacity, sizeof *events, &events);
    if (status != CAR_OK) {
        return status;
    }
    pthread_mutex_lock(&arena->lock);
    car_arena_event *old = arena->events;
    int old_capacity = arena->event_capacity;
    arena->events = events;
    arena->event_capacity = capacity;
    arena->event_count = 0;
    arena->recorded = category;
    arena->record_start = car_clock_seconds();
    pthread_mutex_unlock(&arena->lock);
    car_context_release(arena->context, old, (size_t)old_capacity, sizeof *old);
    return CAR_OK;
}

int car_arena_events(const car_arena *arena, const car_arena_event **out) {
    *out = arena->events;
    return arena->event_count;
}

void car_arena_watch(car_arena *arena, car_arena_watcher watcher, void *user) {
    pthread_mutex_lock(&arena->lock);
    arena->watcher = watcher;
    arena->watcher_user = user;
    double now = car_clock_seconds();
    for (int c = 0; watcher && c < CAR_MEMORY_CATEGORIES; c++) {
        watcher(user, (car_memory)c, now, arena->live[c]);
    }
    pthread_mutex_unlock(&arena->lock);
}
