/* The inside of a tokenizer, for the files of this folder. */
#ifndef CAR_TOKENIZER_INTERNAL_H
#define CAR_TOKENIZER_INTERNAL_H

#include "base/output.h"
#include "carousel/tokenizer.h"
#include "tokenizer/lookup.h"
#include "tokenizer/unicode.h"

/* The bytes of a token: a piece of the tokenizer's `bytes`. */
typedef struct car_token {
    int first, length;
    bool added; /* found in the text as it stands, before words are cut; not made by merges */
} car_token;

struct car_tokenizer {
    car_context *context;
    unsigned char *bytes;
    int byte_count, byte_capacity;
    car_token *tokens;
    int count, capacity;
    int byte_token[256]; /* the token of each byte */
    car_pairs merges;    /* in the order of their ranks */
    int *made;           /* what each merge makes */
    int made_capacity;
    int end_of_text; /* -1: none */
};

/* Empty, without a token. */
car_status car_tokenizer_create(car_context *context, car_tokenizer **out);
/* Appends a token with these bytes, which may be the tokenizer's own. */
car_status car_tokenizer_add_token(car_tokenizer *tokenizer, const unsigned char *bytes, int length, bool added);
/* Appends a merge. CAR_ERROR_FORMAT if it is there already. */
car_status car_tokenizer_add_merge(car_tokenizer *tokenizer, car_pair pair, int made);
/* Finds what the tokens decide: the tokens of bytes (CAR_ERROR_FORMAT if one is missing) and the end of a text. */
car_status car_tokenizer_settle(car_tokenizer *tokenizer, const char *source);

/* GPT-2 writes bytes as characters, so that tokens can be printed: those that show something stand for themselves,
 * the others are the characters from U+0100 on. */
uint32_t car_alphabet_character(unsigned char byte);
int car_alphabet_byte(uint32_t character); /* -1: not one of them */
/* The bytes in the order of their characters, which is that of GPT-2's first 256 tokens. */
void car_alphabet_order(unsigned char bytes[256]);

#endif
