/* Text to tokens.
 *
 * Within a word, the pair of neighbours whose merge has the lowest rank is joined first, leftmost first among
 * equals, until no merge applies. The tokens of a word are a linked list, and a heap holds the merges that may
 * apply. So a word of n bytes takes n log n steps, and even a word of a megabyte is fast. Words repeat, so their
 * tokens are cached. */
#include <string.h>

#include "tokenizer/internal.h"
#include "tokenizer/split.h"

enum { KEPT_WORDS = 1 << 18, KEPT_BYTES = 64 };

typedef struct symbol {
    int token, before, behind; /* -1: none */
} symbol;

/* Where the tokens of a cached word are. */
typedef struct kept_word {
    int first, count;
} kept_word;

typedef struct encoder {
    const car_tokenizer *tokenizer;
    car_context *context;
    car_token_sink sink;
    void *user;
    symbol *symbols;
    int symbol_capacity;
    car_heap heap;   /* merges by rank, then by position of the left symbol */
    int32_t *result; /* tokens of one word */
    int result_capacity;
    car_words words;
    kept_word *kept;
    int kept_capacity;
    int32_t *kept_tokens;
    int kept_count, kept_token_capacity;
} encoder;

/* ---- one word -------------------------------------------------------------------------------- */

/* The rank of the merge of a symbol with the next one, or -1. */
static int rank_at(const encoder *e, int place) {
    const symbol *left = &e->symbols[place];
    if (left->token < 0 || left->behind < 0) {
        return -1;
    }
    return car_pairs_find(&e->tokenizer->merges, (car_pair){left->token, e->symbols[left->behind].token});
}

static car_status consider(encoder *e, int place) {
    int rank = place >= 0 ? rank_at(e, place) : -1;
    return rank >= 0 ? car_heap_push(&e->heap, (car_heap_entry){.first = rank, .second = place}) : CAR_OK;
}

static car_status apply_merges(encoder *e) {
    car_status status = CAR_OK;
    while (e->heap.count > 0) {
        car_heap_entry best = car_heap_pop(&e->heap);
        int place = (int)best.second;
        if (rank_at(e, place) != best.first) {
            continue; /* one of the two has been merged meanwhile */
        }
        symbol *left = &e->symbols[place], *right = &e->symbols[left->behind];
        left->token = e->tokenizer->made[best.first];
        left->behind = right->behind;
        right->token = -1;
        if (left->behind >= 0) {
            e->symbols[left->behind].before = place;
        }
        CAR_TRY(consider(e, left->before));
        CAR_TRY(consider(e, place));
    }
done:
    return status;
}

/* Encodes a word into `result`; *count is the number of tokens. */
static car_status encode_word(encoder *e, const unsigned char *bytes, int length, int *count) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(e->context, &e->symbols, &e->symbol_capacity, length, sizeof *e->symbols));
    CAR_TRY(car_context_grow(e->context, &e->result, &e->result_capacity, length, sizeof *e->result));
    for (int i = 0; i < length; i++) {
        e->symbols[i] = (symbol){e->tokenizer->byte_token[bytes[i]], i - 1, i + 1 < length ? i + 1 : -1};
    }
    e->heap.count = 0;
    for (int i = 0; i < length; i++) {
        CAR_TRY(consider(e, i));
    }
    CAR_TRY(apply_merges(e));
    *count = 0;
    for (int i = 0; i >= 0; i = e->symbols[i].behind) {
        e->result[(*count)++] = e->symbols[i].token;
    }
done:
    return status;
}

/* ---- the cache of words --------------------------------------------------------------------------- */

static car_status keep(encoder *e, int number, int count) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(e->context, &e->kept, &e->kept_capacity, number + 1, sizeof *e->kept));
    CAR_TRY(car_context_grow(e->context, &e->kept_tokens, &e->kept_token_capacity, e->kept_count + count,
                             sizeof *e->kept_tokens));
    memcpy(e->kept_tokens + e->kept_count, e->result, (size_t)count * sizeof *e->result);
    e->kept[number] = (kept_word){e->kept_count, count};
    e->kept_count += count;
done:
    return status;
}

static car_status give_word(encoder *e, const unsigned char *bytes, int length) {
    car_status status = CAR_OK;
    int before = e->words.count, number = -1, count = 0;
    if (length > KEPT_BYTES) {
        CAR_TRY(encode_word(e, bytes, length, &count));
        return e->sink(e->user, e->result, count);
    }
    if (before < KEPT_WORDS) {
        CAR_TRY(car_words_add(&e->words, bytes, length, &number));
    } else {
        number = car_words_find(&e->words, bytes, length);
    }
    if (number >= 0 && number < before) {
        const kept_word *known = &e->kept[number];
        return e->sink(e->user, e->kept_tokens + known->first, known->count);
    }
    CAR_TRY(encode_word(e, bytes, length, &count));
    if (number >= 0) {
        CAR_TRY(keep(e, number, count));
    }
    status = e->sink(e->user, e->result, count);
done:
    return status;
}

static car_status give_words(encoder *e, const unsigned char *text, size_t bytes) {
    car_status status = CAR_OK;
    while (bytes > 0) {
        size_t length = car_split_next(text, bytes);
        CAR_TRY(give_word(e, text, (int)length));
        text += length;
        bytes -= length;
    }
done:
    return status;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* The longest added token that the text starts with, or -1. */
static int added_at(const car_tokenizer *t, const unsigned char *text, size_t bytes) {
    int best = -1;
    for (int i = 0; i < t->count; i++) {
        const car_token *token = &t->tokens[i];
        if (token->added && (size_t)token->length <= bytes && token->length > 0 &&
            memcmp(t->bytes + token->first, text, (size_t)token->length) == 0 &&
            (best < 0 || token->length > t->tokens[best].length)) {
            best = i;
        }
    }
    return best;
}

/* Marks the bytes that added tokens start with: only there do we have to search. */
static bool find_beginnings(const car_tokenizer *t, bool begins[256]) {
    bool any = false;
    memset(begins, 0, 256 * sizeof *begins);
    for (int i = 0; i < t->count; i++) {
        if (t->tokens[i].added && t->tokens[i].length > 0) {
            any = begins[t->bytes[t->tokens[i].first]] = true;
        }
    }
    return any;
}

static car_status give_text(encoder *e, const unsigned char *text, size_t bytes) {
    const car_tokenizer *t = e->tokenizer;
    bool begins[256];
    size_t done_to = 0, at = 0;
    car_status status = CAR_OK;
    bool any = find_beginnings(t, begins);
    while (any && at < bytes) {
        int32_t token = begins[text[at]] ? added_at(t, text + at, bytes - at) : -1;
        if (token < 0) {
            at++;
            continue;
        }
        CAR_TRY(give_words(e, text + done_to, at - done_to));
        CAR_TRY(e->sink(e->user, &token, 1));
        done_to = at += (size_t)t->tokens[token].length;
    }
    CAR_TRY(give_words(e, text + done_to, bytes - done_to));
done:
    return status;
}

car_status car_tokenizer_encode(const car_tokenizer *tokenizer, const void *text, size_t bytes, car_token_sink sink,
                                void *user) {
    CAR_REQUIRE(NULL, tokenizer);
    CAR_REQUIRE(tokenizer->context, sink);
    if (bytes > 0) {
        CAR_REQUIRE(tokenizer->context, text);
    }
    car_context *context = tokenizer->context;
    encoder e = {.tokenizer = tokenizer,
                 .context = context,
                 .sink = sink,
                 .user = user,
                 .words = {.context = context},
                 .heap = {.context = context}};
    car_status status = give_text(&e, text, bytes);
    car_context_release(context, e.kept_tokens, (size_t)e.kept_token_capacity, sizeof *e.kept_tokens);
    car_context_release(context, e.kept, (size_t)e.kept_capacity, sizeof *e.kept);
    car_words_free(&e.words);
    car_context_release(context, e.result, (size_t)e.result_capacity, sizeof *e.result);
    car_heap_free(&e.heap);
    car_context_release(context, e.symbols, (size_t)e.symbol_capacity, sizeof *e.symbols);
    return status;
}
