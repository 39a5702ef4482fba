/* Tokenizers: byte-level byte-pair encoding, as in GPT-2.
 *
 * A text is split into words by GPT-2's rule (a space belongs to the word after it). Each word is a sequence of
 * bytes, and merges join neighbouring tokens until none applies. Every byte is a token, so any text can be encoded,
 * and decoding returns the same bytes. A tokenizer is immutable: any number of threads may use it. */
#ifndef CAROUSEL_TOKENIZER_H
#define CAROUSEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    CAR_TOKENIZER_LEAST = 256,
    CAR_TOKENIZER_MOST = 1 << 20,
    CAR_TOKENIZER_FILE_MOST = 1 << 16 /* for a file of 16-bit tokens */
};

typedef struct car_tokenizer car_tokenizer;

/* A tokenizer whose tokens are the 256 bytes: what tokens:FILE uses for a text. */
car_status car_tokenizer_create_bytes(car_context *context, car_tokenizer **out);

/* Learns merges from a text until there are `vocabulary` tokens (256 or more), or no pair occurs twice. Each merge
 * joins the most frequent pair; among equals, the one with the smaller left token, then the smaller right token. */
car_status car_tokenizer_train(car_context *context, const void *text, size_t bytes, int vocabulary,
                               car_tokenizer **out);
/* The same from a file. CAR_ERROR_FORMAT if it is empty. */
car_status car_tokenizer_train_file(car_context *context, const char *path, int vocabulary, car_tokenizer **out);

/* Reads Hugging Face's tokenizer.json, if it is a byte-level BPE with GPT-2's way of splitting words.
 * CAR_ERROR_FORMAT for malformed files, CAR_ERROR_UNSUPPORTED for other kinds of tokenizers. */
car_status car_tokenizer_read(car_context *context, const char *path, car_tokenizer **out);
/* Reads GPT-2's vocab.json and merges.txt. */
car_status car_tokenizer_read_gpt2(car_context *context, const char *vocabulary, const char *merges,
                                   car_tokenizer **out);
/* Finds the tokenizer in a directory: tokenizer.json, or vocab.json with merges.txt. *out is NULL if there is
 * neither. */
car_status car_tokenizer_find(car_context *context, const char *directory, car_tokenizer **out);

/* Writes tokenizer.json. The file appears only when complete. */
car_status car_tokenizer_write(const car_tokenizer *tokenizer, const char *path);
/* Writes GPT-2's vocab.json and merges.txt. */
car_status car_tokenizer_write_gpt2(const car_tokenizer *tokenizer, const char *vocabulary, const char *merges);
void car_tokenizer_destroy(car_tokenizer *tokenizer);

int car_tokenizer_size(const car_tokenizer *tokenizer); /* tokens are 0 to size - 1 */
/* The token that ends a text, "<|endoftext|>", or -1 if there is none. */
int car_tokenizer_end_of_text(const car_tokenizer *tokenizer);

/* Receives tokens in order, some at a time. Any result but CAR_OK ends the encoding and becomes its result. */
typedef car_status (*car_token_sink)(void *user, const int32_t *tokens, int count);
/* Encodes a text. Any bytes can be encoded. */
car_status car_tokenizer_encode(const car_tokenizer *tokenizer, const void *text, size_t bytes, car_token_sink sink,
                                void *user);

typedef struct car_token_counts {
    int64_t bytes, tokens;
} car_token_counts;
/* Encodes a text file into a file of 16-bit tokens, NAME.bin, for data tokens:NAME.bin. With `header` it starts with
 * llm.c's header; otherwise it is bare, like nanoGPT's. The tokenizer is written beside it as NAME.tokenizer.json.
 * Each file appears only when complete. CAR_ERROR_UNSUPPORTED for more than 65536 tokens, CAR_ERROR_FORMAT if the
 * text is empty. */
car_status car_tokenizer_encode_file(const car_tokenizer *tokenizer, const char *text, const char *tokens, bool header,
                                     car_token_counts *out);
/* The path NAME.tokenizer.json that belongs to a token file. Release it with car_context_release_text
 * (convention.h). */
car_status car_tokenizer_name_beside(car_context *context, const char *tokens, char **out);
/* Reads the tokenizer from that path; *out is NULL if there is none. */
car_status car_tokenizer_find_beside(car_context *context, const char *tokens, car_tokenizer **out);

/* The bytes of a token, owned by the tokenizer; they may be part of a character. NULL if there is no such token. */
const unsigned char *car_tokenizer_decode(const car_tokenizer *tokenizer, int token, int *length);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
