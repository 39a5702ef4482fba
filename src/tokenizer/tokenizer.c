/* The contents of a tokenizer, and decoding tokens to bytes. */
#include <string.h>

#include "tokenizer/internal.h"

/* ---- the alphabet ---------------------------------------------------------------------------- */

static bool shows(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t car_alphabet_character(unsigned char byte) {
    uint32_t hidden = 0;
    for (int b = 0; b < byte; b++) {
        hidden += !shows(b);
    }
    return shows(byte) ? byte : 256 + hidden;
}

int car_alphabet_byte(uint32_t character) {
    if (character < 256) {
        return shows((int)character) ? (int)character : -1;
    }
    for (int b = 0; b < 256; b++) {
        if (!shows(b) && character-- == 256) {
            return b;
        }
    }
    return -1;
}

void car_alphabet_order(unsigned char bytes[256]) {
    int count = 0;
    for (int hidden = 0; hidden < 2; hidden++) {
        for (int b = 0; b < 256; b++) {
            if (shows(b) == (hidden == 0)) {
                bytes[count++] = (unsigned char)b;
            }
        }
    }
}

/* ---- creating -------------------------------------------------------------------------------- */

car_status car_tokenizer_create(car_context *context, car_tokenizer **out) {
    car_status status = car_context_allocate(context, 1, sizeof **out, out);
    if (status == CAR_OK) {
        **out = (car_tokenizer){.context = context, .merges = {.context = context}, .end_of_text = -1};
    }
    return status;
}

void car_tokenizer_destroy(car_tokenizer *tokenizer) {
    if (!tokenizer) {
        return;
    }
    car_context *context = tokenizer->context;
    car_context_release(context, tokenizer->made, (size_t)tokenizer->made_capacity, sizeof *tokenizer->made);
    car_pairs_free(&tokenizer->merges);
    car_context_release(context, tokenizer->tokens, (size_t)tokenizer->capacity, sizeof *tokenizer->tokens);
    car_context_release(context, tokenizer->bytes, (size_t)tokenizer->byte_capacity, 1);
    car_context_release(context, tokenizer, 1, sizeof *tokenizer);
}

car_status car_tokenizer_add_token(car_tokenizer *t, const unsigned char *bytes, int length, bool added) {
    car_status status = CAR_OK;
    if (t->count == CAR_TOKENIZER_MOST || length > INT32_MAX / 4 - t->byte_count) {
        return car_context_fail(t->context, CAR_ERROR_UNSUPPORTED, "a tokenizer can have at most %d tokens and 512 MB",
                                CAR_TOKENIZER_MOST);
    }
    /* Growing may move the bytes that `bytes` points to. */
    bool own = t->byte_count > 0 && bytes >= t->bytes && bytes < t->bytes + t->byte_count;
    ptrdiff_t place = own ? bytes - t->bytes : 0;
    CAR_TRY(car_context_grow(t->context, &t->bytes, &t->byte_capacity, t->byte_count + length, 1));
    CAR_TRY(car_context_grow(t->context, &t->tokens, &t->capacity, t->count + 1, sizeof *t->tokens));
    memcpy(t->bytes + t->byte_count, own ? t->bytes + place : bytes, (size_t)length);
    t->tokens[t->count++] = (car_token){t->byte_count, length, added};
    t->byte_count += length;
done:
    return status;
}

car_status car_tokenizer_add_merge(car_tokenizer *t, car_pair pair, int made) {
    int number = 0, before = t->merges.count;
    car_status status = CAR_OK;
    CAR_TRY(car_pairs_add(&t->merges, pair, &number));
    if (number < before) {
        return car_context_fail(t->context, CAR_ERROR_FORMAT, "merge %d repeats merge %d", before + 1, number + 1);
    }
    CAR_TRY(car_context_grow(t->context, &t->made, &t->made_capacity, number + 1, sizeof *t->made));
    t->made[number] = made;
done:
    return status;
}

car_status car_tokenizer_settle(car_tokenizer *t, const char *source) {
    static const char end[] = "<|endoftext|>";
    memset(t->byte_token, -1, sizeof t->byte_token);
    for (int i = 0; i < t->count; i++) {
        const car_token *token = &t->tokens[i];
        if (token->length == 1 && !token->added) {
            t->byte_token[t->bytes[token->first]] = i;
        } else if (token->length == sizeof end - 1 && memcmp(t->bytes + token->first, end, sizeof end - 1) == 0) {
            t->end_of_text = i;
        }
    }
    for (int b = 0; b < 256; b++) {
        if (t->byte_token[b] < 0) {
            return car_context_fail(t->context, CAR_ERROR_FORMAT,
                                    "%s: its vocabulary has no token for byte 0x%02x, so it cannot encode every text; "
                                    "a byte-level tokenizer needs one for each byte",
                                    source, b);
        }
    }
    return CAR_OK;
}

car_status car_tokenizer_create_bytes(car_context *context, car_tokenizer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_tokenizer *t = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_tokenizer_create(context, &t));
    for (int b = 0; b < 256; b++) {
        CAR_TRY(car_tokenizer_add_token(t, &(unsigned char){(unsigned char)b}, 1, false));
    }
    CAR_TRY(car_tokenizer_settle(t, "bytes"));
    *out = t;
    t = NULL;
done:
    car_tokenizer_destroy(t);
    return status;
}

/* ---- queries --------------------------------------------------------------------------------- */

int car_tokenizer_size(const car_tokenizer *tokenizer) {
    return tokenizer ? tokenizer->count : 0;
}

int car_tokenizer_end_of_text(const car_tokenizer *tokenizer) {
    return tokenizer ? tokenizer->end_of_text : -1;
}

const unsigned char *car_tokenizer_decode(const car_tokenizer *t, int token, int *length) {
    bool known = t && token >= 0 && token < t->count;
    if (length) {
        *length = known ? t->tokens[token].length : 0;
    }
    if (!known) {
        return NULL;
    }
    return t->bytes + t->tokens[token].first;
}
