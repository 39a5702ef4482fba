/* Containers for encoding and training: hash tables of words and of token pairs, which number their entries in order
 * of insertion, and a heap. */
#ifndef CAR_LOOKUP_H
#define CAR_LOOKUP_H

#include "base/base.h"

/* The buckets of a hash table, which hold entry numbers. */
typedef struct car_buckets {
    int *number; /* -1: free */
    int size;    /* a power of two, at least twice the count */
} car_buckets;

typedef struct car_word {
    const unsigned char *bytes; /* not copied: must stay valid */
    int length;
    uint32_t hash;
} car_word;

/* Starts as {.context = context}. */
typedef struct car_words {
    car_context *context;
    car_word *words;
    int count, capacity;
    car_buckets buckets;
} car_words;

int car_words_find(const car_words *words, const unsigned char *bytes, int length); /* -1 if absent */
/* Adds the word unless it exists; *number is its number in both cases. */
car_status car_words_add(car_words *words, const unsigned char *bytes, int length, int *number);
void car_words_free(car_words *words);

typedef struct car_pair {
    int left, right;
} car_pair;

/* Starts as {.context = context}. */
typedef struct car_pairs {
    car_context *context;
    car_pair *pairs;
    int count, capacity;
    car_buckets buckets;
} car_pairs;

int car_pairs_find(const car_pairs *pairs, car_pair pair);
car_status car_pairs_add(car_pairs *pairs, car_pair pair, int *number);
void car_pairs_free(car_pairs *pairs);

/* A heap entry: the smallest `first` comes out first, and among equals the smallest `second`. */
typedef struct car_heap_entry {
    int64_t first, second;
    int value;
} car_heap_entry;

/* Starts as {.context = context}. */
typedef struct car_heap {
    car_context *context;
    car_heap_entry *entries;
    int count, capacity;
} car_heap;

car_status car_heap_push(car_heap *heap, car_heap_entry entry);
car_heap_entry car_heap_pop(car_heap *heap); /* must not be empty */
void car_heap_free(car_heap *heap);

#endif
