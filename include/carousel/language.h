/* A trained language model with its tokenizer, from wherever it lies, to generate with (generate.h, tokenizer.h) and to
 * export.
 *
 *     car_language_open(context, "runs/shakespeare", NULL, &language)
 *     car_language_generator(language), car_language_tokenizer(language)
 *
 *   a run of `carousel train`    config.json (ours), weights.safetensors, tokenizer.json
 *   a checkpoint of it           weights.safetensors; the rest is two folders above
 *   a folder of Hugging Face's   config.json (theirs), model.safetensors, tokenizer.json or vocab.json and merges.txt
 *   a file of weights            what is beside it of these, or what the configuration says */
#ifndef CAROUSEL_LANGUAGE_H
#define CAROUSEL_LANGUAGE_H

#include "carousel/generate.h"
#include "carousel/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_language car_language;

/* Zero, or NULL, means what stands in brackets. */
typedef struct car_language_config {
    int heads;             /* of its attention (what is beside the weights or in them says it) */
    int threads;           /* that compute, the caller's among them (1) */
    const char *tokenizer; /* path of a tokenizer.json (the model's own) */
} car_language_config;

/* `config` may be NULL. CAR_ERROR_IO if there are no weights, CAR_ERROR_UNSUPPORTED if they are not a language model's,
 * CAR_ERROR_ARGUMENT if nothing says how many heads it has, CAR_ERROR_SHAPE if its tokenizer has more tokens than it. On
 * failure *out is NULL. */
car_status car_language_open(car_context *context, const char *place, const car_language_config *config,
                             car_language **out);
void car_language_close(car_language *language); /* NULL is allowed */

/* Both are the language's own. The tokenizer is NULL if the place has none; a vocabulary of 256 is that of bytes. */
car_generator *car_language_generator(car_language *language);
const car_tokenizer *car_language_tokenizer(const car_language *language);
/* Where its tokenizer was looked for. */
const char *car_language_folder(const car_language *language);
/* Tokens in a sequence that it was trained on; 0: nothing says. */
int car_language_sequence(const car_language *language);

/* Writes it as a folder that Hugging Face's library opens: config.json, model.safetensors, and the tokenizer's files. The
 * folder gets its name when all is in it. It must not exist, or be empty: CAR_ERROR_IO. CAR_ERROR_ARGUMENT without a
 * tokenizer. */
car_status car_language_export(const car_language *language, const char *directory);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
