/* The arena: exact accounts, alignment, joined neighbours, best fit, the limit, and nobody's bytes in another's. */
#include "carousel/arena.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"

enum { LINE = 64 }; /* alignment of blocks */

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif

typedef struct fixture {
    car_context *context;
    car_arena *arena;
} fixture;

static fixture fixed;

static int set_up(void **state) {
    fixed = (fixture){0};
    *state = &fixed;
    return car_context_create(NULL, &fixed.context) == CAR_OK &&
                   car_arena_create(fixed.context, 0, &fixed.arena) == CAR_OK
               ? 0
               : -1;
}

static int tear_down(void **state) {
    fixture *f = *state;
    car_arena_destroy(f->arena);
    car_context_destroy(f->context);
    return 0;
}

static void *get(car_arena *arena, car_memory category, size_t bytes) {
    void *block = NULL;
    assert_int_equal(car_arena_allocate(arena, category, bytes, &block), CAR_OK);
    assert_int_equal((uintptr_t)block % LINE, 0);
    return block;
}

static void expect_nothing_live(const car_arena *arena) {
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        assert_int_equal(car_arena_live(arena, (car_memory)c), 0);
    }
}

/* All of the extent is one hole: a block of that size fits without going further. */
static void expect_one_hole(car_arena *arena) {
    size_t extent = car_arena_extent(arena);
    car_arena_release(arena, get(arena, CAR_MEMORY_MESSAGES, extent));
    assert_int_equal(car_arena_extent(arena), extent);
}

/* ---- accounts ------------------------------------------------------------------------------------------ */

static void categories_have_texts(void **state) {
    (void)state;
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        assert_true(strlen(car_memory_text((car_memory)c)) > 0);
        for (int d = 0; d < c; d++) {
            assert_string_not_equal(car_memory_text((car_memory)c), car_memory_text((car_memory)d));
        }
    }
    assert_string_equal(car_memory_text(CAR_MEMORY_WEIGHTS), "weights");
    assert_non_null(car_memory_text(CAR_MEMORY_CATEGORIES));
}

/* To the byte as asked for, each category for itself. */
static void live_and_peak_are_exact(void **state) {
    car_arena *arena = ((fixture *)*state)->arena;
    void *weights = get(arena, CAR_MEMORY_WEIGHTS, 1001);
    void *first = get(arena, CAR_MEMORY_ACTIVATIONS, 7), *second = get(arena, CAR_MEMORY_ACTIVATIONS, 130);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_WEIGHTS), 1001);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_ACTIVATIONS), 137);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_GRADIENTS), 0);
    car_arena_release(arena, first);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_ACTIVATIONS), 130);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS), 137);
    first = get(arena, CAR_MEMORY_ACTIVATIONS, 6);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS), 137);
    void *third = get(arena, CAR_MEMORY_ACTIVATIONS, 2);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS), 138);
    car_arena_release(arena, first);
    car_arena_release(arena, second);
    car_arena_release(arena, third);
    car_arena_release(arena, weights);
    expect_nothing_live(arena);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS), 138);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_WEIGHTS), 1001);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_WORKSPACE), 0);
}

static void nothing_costs_nothing(void **state) {
    car_arena *arena = ((fixture *)*state)->arena;
    void *block = *state; /* anything but NULL */
    assert_int_equal(car_arena_allocate(arena, CAR_MEMORY_WEIGHTS, 0, &block), CAR_OK);
    assert_null(block);
    car_arena_release(arena, NULL);
    assert_int_equal(car_arena_extent(arena), 0);
    expect_nothing_live(arena);
}

/* ---- holes --------------------------------------------------------------------------------------------- */

/* In every order of freeing four neighbours. */
static void neighbours_are_joined(void **state) {
    car_arena *arena = ((fixture *)*state)->arena;
    enum { BLOCKS = 4, ORDERS = 24 };
    for (int order = 0; order < ORDERS; order++) {
        void *blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = get(arena, CAR_MEMORY_GRADIENTS, 1000 + 100 * (size_t)i);
        }
        int rest = order;
        for (int left = BLOCKS; left > 0; left--) {
            int next = rest % left; /* the next-th of those that are left */
            rest /= left;
            for (int i = 0; i < BLOCKS; i++) {
                if (blocks[i] && next-- == 0) {
                    car_arena_release(arena, blocks[i]);
                    blocks[i] = NULL;
                    break;
                }
            }
        }
        expect_nothing_live(arena);
        expect_one_hole(arena);
    }
    assert_int_equal(car_arena_extent(arena), 1024 + 1152 + 1216 + 1344);
}

/* Of the holes that are large enough the smallest, wherever it lies. */
static void best_fit_is_taken(void **state) {
    car_arena *arena = ((fixture *)*state)->arena;
    static const size_t sizes[] = {4096, 1024, 2048, 512, 8192};
    enum { HOLES = sizeof sizes / sizeof sizes[0] };
    void *holes[HOLES], *fences[HOLES];
    for (int i = 0; i < HOLES; i++) {
        holes[i] = get(arena, CAR_MEMORY_WEIGHTS, sizes[i]);
        fences[i] = get(arena, CAR_MEMORY_WEIGHTS, LINE);
    }
    for (int i = 0; i < HOLES; i++) {
        car_arena_release(arena, holes[i]);
    }
    size_t extent = car_arena_extent(arena);
    assert_ptr_equal(get(arena, CAR_MEMORY_WEIGHTS, 1500), holes[2]);
    assert_ptr_equal(get(arena, CAR_MEMORY_WEIGHTS, 1024), holes[1]);               /* exactly */
    assert_ptr_equal(get(arena, CAR_MEMORY_WEIGHTS, 300), (char *)holes[2] + 1536); /* 512 were left there */
    assert_ptr_equal(get(arena, CAR_MEMORY_WEIGHTS, 513), holes[0]);
    assert_ptr_equal(get(arena, CAR_MEMORY_WEIGHTS, 8000), holes[4]);
    assert_int_equal(car_arena_extent(arena), extent);
    char *beyond = get(arena, CAR_MEMORY_WEIGHTS, 9000); /* fits nowhere */
    assert_true(beyond > (char *)fences[HOLES - 1]);
    assert_true(car_arena_extent(arena) >= extent + 9000);
}

/* The free end of the range is part of what the next large block gets. */
static void free_end_is_extended(void **state) {
    car_arena *arena = ((fixture *)*state)->arena;
    void *fence = get(arena, CAR_MEMORY_WEIGHTS, 100);
    void *last = get(arena, CAR_MEMORY_WEIGHTS, 1000);
    car_arena_release(arena, last);
    assert_ptr_equal(get(arena, CAR_MEMORY_WEIGHTS, 5000), last);
    assert_int_equal(car_arena_extent(arena), 128 + 5056);
    car_arena_release(arena, fence);
}

/* The place of a large block holds as many small ones as their sizes say. */
static void multiples_fit(void **state) {
    car_arena *arena = ((fixture *)*state)->arena;
    void *large = get(arena, CAR_MEMORY_ACTIVATIONS, 3 * 4096);
    get(arena, CAR_MEMORY_WEIGHTS, LINE);
    car_arena_release(arena, large);
    size_t extent = car_arena_extent(arena);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(get(arena, CAR_MEMORY_ACTIVATIONS, 4096), (char *)large + 4096 * i);
    }
    assert_int_equal(car_arena_extent(arena), extent);
}

/* Blocks come and go as in training steps: from the second on nothing new is touched. */
static void steady_pattern_does_not_grow(void **state) {
    car_arena *arena = ((fixture *)*state)->arena;
    enum { BLOCKS = 40, STEPS = 50 };
    void *blocks[BLOCKS];
    size_t extent = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = get(arena, CAR_MEMORY_ACTIVATIONS, 1 + (size_t)(car_random_u64(1, (uint64_t)i) % 50000));
            if (i % 3 == 2) { /* not all live to the end */
                car_arena_release(arena, blocks[i - 1]);
                blocks[i - 1] = NULL;
            }
        }
        for (int i = BLOCKS - 1; i >= 0; i--) {
            car_arena_release(arena, blocks[i]);
        }
        if (step == 0) {
            extent = car_arena_extent(arena);
        }
        assert_int_equal(car_arena_extent(arena), extent);
    }
    assert_true(extent < 2 * car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS));
    expect_one_hole(arena);
}

/* ---- running out --------------------------------------------------------------------------------------- */

static void expect_refusal(car_context *context, car_arena *arena, size_t bytes, const char *part) {
    void *block = context; /* anything but NULL */
    assert_int_equal(car_arena_allocate(arena, CAR_MEMORY_OPTIMIZER, bytes, &block), CAR_ERROR_MEMORY);
    assert_null(block);
    assert_non_null(strstr(car_context_error(context), part));
    assert_non_null(strstr(car_context_error(context), "optimizer"));
    car_context_clear_error(context);
}

static void limit_counts_all_categories(void **state) {
    car_context *context = ((fixture *)*state)->context;
    car_arena *arena = NULL;
    assert_int_equal(car_arena_create(context, 1000, &arena), CAR_OK);
    void *weights = get(arena, CAR_MEMORY_WEIGHTS, 600), *activations = get(arena, CAR_MEMORY_ACTIVATIONS, 300);
    size_t extent = car_arena_extent(arena);
    expect_refusal(context, arena, 101, "101 bytes");
    expect_refusal(context, arena, 101, "900 bytes in use");
    expect_refusal(context, arena, 101, "limit 1000");
    expect_refusal(context, arena, SIZE_MAX, "optimizer"); /* no sum may wrap */
    expect_refusal(context, arena, SIZE_MAX - 100, "optimizer");
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_OPTIMIZER), 0);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_OPTIMIZER), 0);
    assert_int_equal(car_arena_extent(arena), extent);

    /* To the last byte, and again after a release. */
    void *rest = get(arena, CAR_MEMORY_OPTIMIZER, 100);
    expect_refusal(context, arena, 1, "optimizer");
    car_arena_release(arena, activations);
    activations = get(arena, CAR_MEMORY_ACTIVATIONS, 300);
    memset(weights, 1, 600);
    memset(activations, 2, 300);
    memset(rest, 3, 100);
    car_arena_release(arena, weights);
    car_arena_release(arena, activations);
    car_arena_release(arena, rest);
    expect_nothing_live(arena);
    car_arena_destroy(arena);
}

/* Without a limit of ours there is that of the addresses. It is only touched at its ends, so it costs nothing; but
 * AddressSanitizer would mark each of its bytes. */
static void addresses_end(void **state) {
#ifdef HAS_ASAN
    (void)state;
    skip();
#else
    fixture *f = *state;
    void *all = NULL;
    for (size_t bytes = (size_t)1 << 46; !all && bytes > LINE; bytes /= 2) {
        car_context_clear_error(f->context);
        if (car_arena_allocate(f->arena, CAR_MEMORY_WEIGHTS, bytes, &all) != CAR_OK) {
            assert_null(all);
            assert_string_not_equal(car_context_error(f->context), "");
        }
    }
    assert_non_null(all);
    car_context_clear_error(f->context);
    expect_refusal(f->context, f->arena, 1, "optimizer");
    expect_refusal(f->context, f->arena, 100000, "optimizer");
    car_arena_release(f->arena, all);
    car_arena_release(f->arena, get(f->arena, CAR_MEMORY_OPTIMIZER, 100000));
    expect_nothing_live(f->arena);
#endif
}

/* ---- stress -------------------------------------------------------------------------------------------- */

enum { SLOTS = 200, OPERATIONS = 20000, STRESS_THREADS = 4, LARGEST = 6000 };

typedef struct held {
    unsigned char *data;
    size_t bytes;
    unsigned char mark;
    car_memory category;
} held;

typedef struct stress {
    car_arena *arena;
    uint64_t key;
    int operations;
    held slots[SLOTS];
    size_t live[CAR_MEMORY_CATEGORIES]; /* own account */
    int faults;
} stress;

/* No assertions: they do not work off the main thread. */
static void drop_block(stress *s, held *slot) {
    for (size_t i = 0; i < slot->bytes; i++) {
        s->faults += slot->data[i] != slot->mark;
    }
    car_arena_release(s->arena, slot->data);
    s->live[slot->category] -= slot->bytes;
    *slot = (held){0};
}

static void take_block(stress *s, held *slot, uint64_t number) {
    void *block = NULL;
    size_t bytes = 1 + (size_t)(number >> 16) % ((number >> 8) % 4 == 0 ? LARGEST : LARGEST / 16);
    slot->category = (car_memory)(number % CAR_MEMORY_CATEGORIES);
    if (car_arena_allocate(s->arena, slot->category, bytes, &block) != CAR_OK || (uintptr_t)block % LINE != 0) {
        s->faults++;
        return;
    }
    slot->data = block;
    slot->bytes = bytes;
    slot->mark = (unsigned char)(number >> 40);
    s->live[slot->category] += bytes;
    memset(block, slot->mark, bytes);
}

static void *run_stress(void *argument) {
    stress *s = argument;
    for (int i = 0; i < s->operations; i++) {
        uint64_t number = car_random_u64(s->key, (uint64_t)i);
        held *slot = &s->slots[(number >> 48) % SLOTS];
        if (slot->data) {
            drop_block(s, slot);
        } else {
            take_block(s, slot, number);
        }
    }
    return NULL;
}

static void drop_everything(stress *s) {
    for (int i = 0; i < SLOTS; i++) {
        if (s->slots[i].data) {
            drop_block(s, &s->slots[i]);
        }
    }
}

/* A message that has arrived is what it carried: the account changes, the block, its bytes and the total do not. */
static void assigned_blocks_change_accounts(void **state) {
    car_context *context = ((fixture *)*state)->context;
    car_arena *arena = NULL;
    const car_arena_event *events = NULL;
    assert_int_equal(car_arena_create(context, 1000, &arena), CAR_OK);
    char *block = get(arena, CAR_MEMORY_MESSAGES, 300);
    void *other = get(arena, CAR_MEMORY_GRADIENTS, 200);
    size_t extent = car_arena_extent(arena);
    memset(block, 5, 300);
    assert_int_equal(car_arena_record(arena, CAR_MEMORY_GRADIENTS, 10), CAR_OK);
    car_arena_assign(arena, block, CAR_MEMORY_GRADIENTS);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_MESSAGES), 0);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_GRADIENTS), 500);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_MESSAGES), 300);
    assert_int_equal(car_arena_peak(arena, CAR_MEMORY_GRADIENTS), 500);
    car_arena_assign(arena, block, CAR_MEMORY_GRADIENTS); /* it is that already */
    car_arena_assign(arena, NULL, CAR_MEMORY_GRADIENTS);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_GRADIENTS), 500);
    assert_int_equal(car_arena_events(arena, &events), 1);
    assert_int_equal(events[0].live, 500);
    assert_int_equal(car_arena_extent(arena), extent);
    expect_refusal(context, arena, 501, "500 bytes in use");
    for (int b = 0; b < 300; b++) {
        assert_int_equal(block[b], 5);
    }
    car_arena_release(arena, block); /* from its new account */
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_GRADIENTS), 200);
    assert_int_equal(car_arena_live(arena, CAR_MEMORY_MESSAGES), 0);
    car_arena_release(arena, other);
    car_arena_destroy(arena);
}

/* How many of the pages that lie wholly in a block are resident. */
static size_t resident_pages(const char *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), count = 0;
    uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page, end = ((uintptr_t)memory + bytes) / page * page;
    unsigned char resident[1024];
    assert_true((end - begin) / page <= sizeof resident);
    assert_int_equal(mincore((void *)begin, end - begin, resident), 0);
    for (size_t p = 0; p < (end - begin) / page; p++) {
        count += resident[p] & 1;
    }
    return count;
}

/* Pages of small blocks go back too, once they have become a large hole. */
static void holes_return_pages_if_told(void **state) {
    enum { PIECES = 16, PIECE = 1 << 16, ALL = PIECES * PIECE, RETURNED = 1 << 17 };
    car_arena *arena = ((fixture *)*state)->arena;
    void *pieces[PIECES], *guard = NULL;
    for (int told = 0; told < 2; told++) {
        car_arena_return_pages(arena, told ? RETURNED : 0);
        for (int p = 0; p < PIECES; p++) {
            assert_int_equal(car_arena_allocate(arena, CAR_MEMORY_ACTIVATIONS, PIECE, &pieces[p]), CAR_OK);
            memset(pieces[p], 1, PIECE);
        }
        assert_int_equal(car_arena_allocate(arena, CAR_MEMORY_WEIGHTS, PIECE, &guard), CAR_OK);
        memset(guard, 2, PIECE);
        size_t before = resident_pages(pieces[0], ALL);
        assert_true(before >= ALL / 4096 - 1);
        for (int p = 0; p < PIECES; p++) {
            car_arena_release(arena, pieces[p]);
        }
        /* At both ends less than a piece may stay. */
        size_t after = resident_pages(pieces[0], ALL);
        assert_true(told ? after < 2 * RETURNED / 4096 : after == before);
        for (int b = 0; b < PIECE; b++) {
            assert_int_equal(((char *)guard)[b], 2);
        }
        car_arena_release(arena, guard);
    }
}

static void random_blocks_keep_their_bytes(void **state) {
    static stress s;
    s = (stress){.arena = ((fixture *)*state)->arena, .key = 11, .operations = OPERATIONS / 10};
    for (int part = 0; part < 10; part++) {
        s.key++;
        run_stress(&s);
        for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
            assert_int_equal(car_arena_live(s.arena, (car_memory)c), s.live[c]);
            assert_true(car_arena_peak(s.arena, (car_memory)c) >= s.live[c]);
        }
    }
    drop_everything(&s);
    assert_int_equal(s.faults, 0);
    expect_nothing_live(s.arena);
    expect_one_hole(s.arena);
}

static void threads_keep_their_bytes(void **state) {
    static stress all[STRESS_THREADS];
    car_arena *arena = ((fixture *)*state)->arena;
    pthread_t threads[STRESS_THREADS];
    size_t expected[CAR_MEMORY_CATEGORIES] = {0};
    for (int t = 0; t < STRESS_THREADS; t++) {
        all[t] = (stress){.arena = arena, .key = 100 + (uint64_t)t, .operations = OPERATIONS / STRESS_THREADS};
        assert_int_equal(pthread_create(&threads[t], NULL, run_stress, &all[t]), 0);
    }
    for (int t = 0; t < STRESS_THREADS; t++) {
        pthread_join(threads[t], NULL);
        for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
            expected[c] += all[t].live[c];
        }
    }
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        assert_int_equal(car_arena_live(arena, (car_memory)c), expected[c]);
    }
    for (int t = 0; t < STRESS_THREADS; t++) {
        drop_everything(&all[t]); /* also: blocks are released by another thread than took them */
        assert_int_equal(all[t].faults, 0);
    }
    expect_nothing_live(arena);
    expect_one_hole(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(categories_have_texts),
        cmocka_unit_test_setup_teardown(live_and_peak_are_exact, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_costs_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(neighbours_are_joined, set_up, tear_down),
        cmocka_unit_test_setup_teardown(best_fit_is_taken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(free_end_is_extended, set_up, tear_down),
        cmocka_unit_test_setup_teardown(multiples_fit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(steady_pattern_does_not_grow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(limit_counts_all_categories, set_up, tear_down),
        cmocka_unit_test_setup_teardown(assigned_blocks_change_accounts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(holes_return_pages_if_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(random_blocks_keep_their_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(threads_keep_their_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(addresses_end, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
