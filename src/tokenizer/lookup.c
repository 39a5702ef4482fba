/* Hash tables with open addressing, and a heap: see lookup.h. */
#include "tokenizer/lookup.h"

#include <string.h>

enum { FIRST_SIZE = 64 };

/* Whether entry `number` of a table equals the key. */
typedef bool (*same_function)(const void *table, int number, const void *key);
typedef uint32_t (*hash_function)(const void *table, int number);

/* The bucket that holds the key, or the free one where it belongs. The table is never full. */
static int seek(const car_buckets *buckets, uint32_t hash, same_function same, const void *table, const void *key) {
    uint32_t mask = (uint32_t)buckets->size - 1, at = hash & mask;
    while (buckets->number[at] >= 0 && !same(table, buckets->number[at], key)) {
        at = (at + 1) & mask;
    }
    return (int)at;
}

/* Makes room for one more than `count` entries. */
static car_status make_room(car_context *context, car_buckets *buckets, int count, hash_function hash_of,
                            const void *table) {
    if (count < buckets->size / 2) {
        return CAR_OK;
    }
    car_buckets larger = {.size = buckets->size ? 2 * buckets->size : FIRST_SIZE};
    car_status status = car_context_allocate(context, (size_t)larger.size, sizeof(int), &larger.number);
    if (status != CAR_OK) {
        return status;
    }
    memset(larger.number, -1, (size_t)larger.size * sizeof(int));
    for (int n = 0; n < count; n++) {
        uint32_t mask = (uint32_t)larger.size - 1, at = hash_of(table, n) & mask;
        while (larger.number[at] >= 0) {
            at = (at + 1) & mask;
        }
        larger.number[at] = n;
    }
    car_context_release(context, buckets->number, (size_t)buckets->size, sizeof(int));
    *buckets = larger;
    return CAR_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

static uint32_t hash_bytes(const unsigned char *bytes, int length) {
    uint64_t hash = (uint64_t)length;
    for (int i = 0; i < length; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001B3U;
    }
    return (uint32_t)(car_random_mix(hash) >> 32);
}

static bool same_word(const void *table, int number, const void *key) {
    const car_word *a = &((const car_words *)table)->words[number], *b = key;
    return a->hash == b->hash && a->length == b->length && memcmp(a->bytes, b->bytes, (size_t)a->length) == 0;
}

static uint32_t hash_of_word(const void *table, int number) {
    return ((const car_words *)table)->words[number].hash;
}

int car_words_find(const car_words *words, const unsigned char *bytes, int length) {
    const car_word key = {bytes, length, hash_bytes(bytes, length)};
    return words->buckets.size ? words->buckets.number[seek(&words->buckets, key.hash, same_word, words, &key)] : -1;
}

car_status car_words_add(car_words *words, const unsigned char *bytes, int length, int *number) {
    const car_word key = {bytes, length, hash_bytes(bytes, length)};
    car_status status = CAR_OK;
    CAR_TRY(make_room(words->context, &words->buckets, words->count, hash_of_word, words));
    int at = seek(&words->buckets, key.hash, same_word, words, &key);
    *number = words->buckets.number[at];
    if (*number < 0) {
        CAR_TRY(
            car_context_grow(words->context, &words->words, &words->capacity, words->count + 1, sizeof *words->words));
        words->words[words->count] = key;
        *number = words->buckets.number[at] = words->count++;
    }
done:
    return status;
}

void car_words_free(car_words *words) {
    car_context_release(words->context, words->buckets.number, (size_t)words->buckets.size, sizeof(int));
    car_context_release(words->context, words->words, (size_t)words->capacity, sizeof *words->words);
    *words = (car_words){.context = words->context};
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static uint32_t hash_pair(car_pair pair) {
    return (uint32_t)(car_random_mix((uint64_t)(uint32_t)pair.left << 32 | (uint32_t)pair.right) >> 32);
}

static bool same_pair(const void *table, int number, const void *key) {
    const car_pair *a = &((const car_pairs *)table)->pairs[number], *b = key;
    return a->left == b->left && a->right == b->right;
}

static uint32_t hash_of_pair(const void *table, int number) {
    return hash_pair(((const car_pairs *)table)->pairs[number]);
}

int car_pairs_find(const car_pairs *pairs, car_pair pair) {
    return pairs->buckets.size ? pairs->buckets.number[seek(&pairs->buckets, hash_pair(pair), same_pair, pairs, &pair)]
                               : -1;
}

car_status car_pairs_add(car_pairs *pairs, car_pair pair, int *number) {
    car_status status = CAR_OK;
    CAR_TRY(make_room(pairs->context, &pairs->buckets, pairs->count, hash_of_pair, pairs));
    int at = seek(&pairs->buckets, hash_pair(pair), same_pair, pairs, &pair);
    *number = pairs->buckets.number[at];
    if (*number < 0) {
        CAR_TRY(
            car_context_grow(pairs->context, &pairs->pairs, &pairs->capacity, pairs->count + 1, sizeof *pairs->pairs));
        pairs->pairs[pairs->count] = pair;
        *number = pairs->buckets.number[at] = pairs->count++;
    }
done:
    return status;
}

void car_pairs_free(car_pairs *pairs) {
    car_context_release(pairs->context, pairs->buckets.number, (size_t)pairs->buckets.size, sizeof(int));
    car_context_release(pairs->context, pairs->pairs, (size_t)pairs->capacity, sizeof *pairs->pairs);
    *pairs = (car_pairs){.context = pairs->context};
}

/* ---- the heap -------------------------------------------------------------------------------- */

static bool comes_first(car_heap_entry a, car_heap_entry b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
}

car_status car_heap_push(car_heap *heap, car_heap_entry entry) {
    car_status status =
        car_context_grow(heap->context, &heap->entries, &heap->capacity, heap->count + 1, sizeof *heap->entries);
    if (status != CAR_OK) {
        return status;
    }
    int at = heap->count++;
    for (; at > 0 && comes_first(entry, heap->entries[(at - 1) / 2]); at = (at - 1) / 2) {
        heap->entries[at] = heap->entries[(at - 1) / 2];
    }
    heap->entries[at] = entry;
    return CAR_OK;
}

car_heap_entry car_heap_pop(car_heap *heap) {
    car_heap_entry *entries = heap->entries, top = entries[0], last = entries[--heap->count];
    int at = 0, child = 1;
    while (child < heap->count) {
        child += child + 1 < heap->count && comes_first(entries[child + 1], entries[child]);
        if (!comes_first(entries[child], last)) {
            break;
        }
        entries[at] = entries[child];
        at = child;
        child = 2 * at + 1;
    }
    entries[at] = last;
    return top;
}

void car_heap_free(car_heap *heap) {
    car_context_release(heap->context, heap->entries, (size_t)heap->capacity, sizeof *heap->entries);
    *heap = (car_heap){.context = heap->context};
}
