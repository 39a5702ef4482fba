/* Learns merges from a text.
 *
 * The text is split into words, and equal words are counted. Each pair of neighbouring tokens has a count over all
 * words and a list of the words that contain it. So a merge visits only those words, and updates the counts of the
 * neighbours there. A heap orders the pairs by count. Its entries may be outdated: a pair that has become rarer is
 * pushed again with its true count when it comes up; one that has become more frequent already has a newer entry. */
#include <string.h>

#include "tokenizer/internal.h"
#include "tokenizer/split.h"

/* A word of the text as tokens: a range of `symbols`. */
typedef struct entry {
    int first, length;
    int64_t count;
} entry;

/* A word that contains a pair; a linked list, newest first. */
typedef struct occurrence {
    int word, next;
} occurrence;

typedef struct tally {
    int64_t count;
    int newest; /* occurrence, -1: none */
} tally;

enum { MOST_SYMBOLS = 1 << 28 };

typedef struct learner {
    car_context *context;
    car_tokenizer *tokenizer;
    car_words words;
    entry *entries; /* per word */
    int entry_capacity;
    int *symbols;
    int symbol_count, symbol_capacity;
    car_pairs pairs;
    tally *tallies; /* per pair */
    int tally_capacity;
    occurrence *occurrences;
    int occurrence_count, occurrence_capacity;
    car_heap heap;
} learner;

/* ---- counting -------------------------------------------------------------------------------- */

static car_status count_words(learner *l, const unsigned char *text, size_t bytes) {
    car_status status = CAR_OK;
    while (bytes > 0) {
        size_t length = car_split_next(text, bytes);
        int number = 0, before = l->words.count;
        CAR_TRY(car_words_add(&l->words, text, (int)length, &number));
        CAR_TRY(car_context_grow(l->context, &l->entries, &l->entry_capacity, number + 1, sizeof *l->entries));
        if (number == before) {
            if (length > (size_t)(MOST_SYMBOLS - l->symbol_count)) {
                return car_context_fail(
                    l->context, CAR_ERROR_UNSUPPORTED,
                    "the distinct words of the text take more than 256 MB; learn from a part of the text");
            }
            CAR_TRY(car_context_grow(l->context, &l->symbols, &l->symbol_capacity, l->symbol_count + (int)length,
                                     sizeof *l->symbols));
            l->entries[number] = (entry){.first = l->symbol_count, .length = (int)length};
            for (size_t i = 0; i < length; i++) {
                l->symbols[l->symbol_count++] = l->tokenizer->byte_token[text[i]];
            }
        }
        l->entries[number].count++;
        text += length;
        bytes -= length;
    }
done:
    return status;
}

/* More frequent pairs first, then the smaller left token, then the smaller right one. */
static car_status push(learner *l, int number) {
    const car_pair *pair = &l->pairs.pairs[number];
    return car_heap_push(&l->heap,
                         (car_heap_entry){-l->tallies[number].count,
                                          (int64_t)((uint64_t)pair->left << 32 | (uint32_t)pair->right), number});
}

/* Changes the count of a pair, which occurs in this word. */
static car_status note(learner *l, car_pair pair, int64_t change, int word) {
    int number = 0, before = l->pairs.count;
    car_status status = CAR_OK;
    CAR_TRY(car_pairs_add(&l->pairs, pair, &number));
    CAR_TRY(car_context_grow(l->context, &l->tallies, &l->tally_capacity, number + 1, sizeof *l->tallies));
    tally *t = &l->tallies[number];
    if (number == before) {
        *t = (tally){.newest = -1};
    }
    t->count += change;
    if (change > 0 && (t->newest < 0 || l->occurrences[t->newest].word != word)) {
        CAR_TRY(car_context_grow(l->context, &l->occurrences, &l->occurrence_capacity, l->occurrence_count + 1,
                                 sizeof *l->occurrences));
        l->occurrences[l->occurrence_count] = (occurrence){word, t->newest};
        t->newest = l->occurrence_count++;
    }
    if (change > 0) {
        CAR_TRY(push(l, number));
    }
done:
    return status;
}

static car_status count_pairs(learner *l) {
    car_status status = CAR_OK;
    for (int w = 0; w < l->words.count; w++) {
        const entry *word = &l->entries[w];
        const int *symbols = l->symbols + word->first;
        for (int i = 0; i + 1 < word->length; i++) {
            CAR_TRY(note(l, (car_pair){symbols[i], symbols[i + 1]}, word->count, w));
        }
    }
done:
    return status;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Joins the pair wherever it occurs in a word, from left to right, and updates the counts of neighbouring pairs. */
static car_status merge_in_word(learner *l, int w, car_pair pair, int made) {
    entry *word = &l->entries[w];
    int *symbols = l->symbols + word->first, length = 0;
    int64_t count = word->count;
    car_status status = CAR_OK;
    for (int i = 0; i < word->length; i++) {
        if (i + 1 == word->length || symbols[i] != pair.left || symbols[i + 1] != pair.right) {
            symbols[length++] = symbols[i];
            continue;
        }
        if (length > 0) { /* the token before may be a new one */
            CAR_TRY(note(l, (car_pair){symbols[length - 1], pair.left}, -count, w));
            CAR_TRY(note(l, (car_pair){symbols[length - 1], made}, count, w));
        }
        if (i + 2 < word->length) {
            CAR_TRY(note(l, (car_pair){pair.right, symbols[i + 2]}, -count, w));
            CAR_TRY(note(l, (car_pair){made, symbols[i + 2]}, count, w));
        }
        symbols[length++] = made;
        i++;
    }
    word->length = length;
done:
    return status;
}

static car_status merge(learner *l, int number) {
    car_tokenizer *t = l->tokenizer;
    car_pair pair = l->pairs.pairs[number];
    const car_token left = t->tokens[pair.left], right = t->tokens[pair.right];
    int made = t->count;
    car_status status = CAR_OK;
    /* The two are not adjacent in `bytes`: append a copy of the left one, then of the right one. */
    CAR_TRY(car_tokenizer_add_token(t, t->bytes + left.first, left.length, false));
    CAR_TRY(car_tokenizer_add_token(t, t->bytes + right.first, right.length, false));
    t->count--;
    t->tokens[made].length += right.length;
    CAR_TRY(car_tokenizer_add_merge(t, pair, made));
    for (int at = l->tallies[number].newest; at >= 0; at = l->occurrences[at].next) {
        CAR_TRY(merge_in_word(l, l->occurrences[at].word, pair, made));
    }
    l->tallies[number].count = 0;
done:
    return status;
}

static car_status learn(learner *l, int vocabulary) {
    car_status status = CAR_OK;
    while (l->tokenizer->count < vocabulary && l->heap.count > 0) {
        car_heap_entry best = car_heap_pop(&l->heap);
        int64_t now = l->tallies[best.value].count;
        if (now < 2) {
            continue; /* a pair that occurs once is not worth a token */
        }
        if (now == -best.first) {
            CAR_TRY(merge(l, best.value));
        } else if (now < -best.first) { /* if it is more frequent now, a newer entry exists */
            CAR_TRY(push(l, best.value));
        }
    }
done:
    return status;
}

/* ---- training -------------------------------------------------------------------------------- */

static car_status add_bytes(car_tokenizer *tokenizer) {
    unsigned char order[256];
    car_status status = CAR_OK;
    car_alphabet_order(order);
    for (int b = 0; b < 256; b++) {
        CAR_TRY(car_tokenizer_add_token(tokenizer, &order[b], 1, false));
    }
    CAR_TRY(car_tokenizer_settle(tokenizer, "the alphabet"));
done:
    return status;
}

static void release(learner *l) {
    car_heap_free(&l->heap);
    car_context_release(l->context, l->occurrences, (size_t)l->occurrence_capacity, sizeof *l->occurrences);
    car_context_release(l->context, l->tallies, (size_t)l->tally_capacity, sizeof *l->tallies);
    car_pairs_free(&l->pairs);
    car_context_release(l->context, l->symbols, (size_t)l->symbol_capacity, sizeof *l->symbols);
    car_context_release(l->context, l->entries, (size_t)l->entry_capacity, sizeof *l->entries);
    car_words_free(&l->words);
}

car_status car_tokenizer_train(car_context *context, const void *text, size_t bytes, int vocabulary,
                               car_tokenizer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    if (bytes > 0) {
        CAR_REQUIRE(context, text);
    }
    learner l = {
        .context = context, .words = {.context = context}, .pairs = {.context = context}, .heap = {.context = context}};
    car_status status = CAR_OK;
    *out = NULL;
    if (vocabulary < CAR_TOKENIZER_LEAST || vocabulary > CAR_TOKENIZER_MOST) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a vocabulary of %d tokens is out of range; use %d to %d",
                                vocabulary, CAR_TOKENIZER_LEAST, CAR_TOKENIZER_MOST);
    }
    CAR_TRY(car_tokenizer_create(context, &l.tokenizer));
    CAR_TRY(add_bytes(l.tokenizer));
    CAR_TRY(count_words(&l, text, bytes));
    CAR_TRY(count_pairs(&l));
    CAR_TRY(learn(&l, vocabulary));
    *out = l.tokenizer;
    l.tokenizer = NULL;
done:
    release(&l);
    car_tokenizer_destroy(l.tokenizer);
    return status;
}
