/* Internals of a tokenizer, for the files in this folder. */
#ifndef CAR_TOKENIZER_INTERNAL_H
#define CAR_TOKENIZER_INTERNAL_H

#include "base/output.h"
#include "carousel/tokenizer.h"
#include "tokenizer/lookup.h"
#include "tokenizer/unicode.h"

/* The bytes of a token: a range of the tokenizer's `bytes`. */
typedef struct car_token {
    int first, length;
    bool added; /* matched in the text before it is split into words; not made by merges */
} car_token;

struct car_tokenizer {
    car_context *context;
    unsigned char *bytes;
    int byte_count, byte_capacity;
    car_token *tokens;
    int count, capacity;
    int byte_token[256]; /* the token of each byte */
    car_pairs merges;    /* in the order of their ranks */
    int *made;           /* the token that each merge makes */
    int made_capacity;
    int end_of_text; /* -1: none */
};

/* Creates a tokenizer without tokens. */
car_status car_tokenizer_create(car_context *context, car_tokenizer **out);
/* Appends a token with these bytes, which may point into the tokenizer's own. */
car_status car_tokenizer_add_token(car_tokenizer *tokenizer, const unsigned char *bytes, int length, bool added);
/* Appends a merge. CAR_ERROR_FORMAT if it exists already. */
car_status car_tokenizer_add_merge(car_tokenizer *tokenizer, car_pair pair, int made);
/* Completes a tokenizer after its tokens were added: finds the tokens of single bytes (CAR_ERROR_FORMAT if one is
 * missing) and the end of text. */
car_status car_tokenizer_settle(car_tokenizer *tokenizer, const char *source);

/* GPT-2 writes bytes as printable characters. Printable bytes stand for themselves; the others use the characters
 * from U+0100 on. */
uint32_t car_alphabet_character(unsigned char byte);
int car_alphabet_byte(uint32_t character); /* -1 if it is not one of them */
/* The bytes in the order of their characters, which is the order of GPT-2's first 256 tokens. */
void car_alphabet_order(unsigned char bytes[256]);

#endif
