/* A trained language model with its tokenizer, loaded from a run, a checkpoint or a file, for generating and
 * exporting (see generate.h and tokenizer.h).
 *
 *     car_language_open(context, "runs/shakespeare", NULL, &language)
 *     car_language_generator(language), car_language_tokenizer(language)
 *
 *   `place` can be             where the parts are
 *   a run of `carousel train`  config.json (ours), tokenizer.json, and the first there is of best.safetensors,
 *                              average.safetensors and weights.safetensors
 *   a checkpoint of a run      weights.safetensors; the rest is two folders up
 *   a Hugging Face folder      config.json (theirs), model.safetensors, tokenizer.json or vocab.json and merges.txt
 *   a weights file             whatever of these is beside it, or what the configuration says */
#ifndef CAROUSEL_LANGUAGE_H
#define CAROUSEL_LANGUAGE_H

#include "carousel/generate.h"
#include "carousel/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_language car_language;

/* Zero or NULL selects the value in brackets. */
typedef struct car_language_config {
    int heads;             /* attention heads (as stored with the weights) */
    int threads;           /* threads that compute, including the caller's (1) */
    const char *tokenizer; /* path of a tokenizer.json (the model's own) */
} car_language_config;

/* Opens a model. `config` may be NULL. CAR_ERROR_IO if there are no weights, CAR_ERROR_UNSUPPORTED if they are not
 * those of a language model, CAR_ERROR_ARGUMENT if the number of heads is unknown, CAR_ERROR_SHAPE if the tokenizer
 * has more tokens than the model. On failure *out is NULL. */
car_status car_language_open(car_context *context, const char *place, const car_language_config *config,
                             car_language **out);
void car_language_close(car_language *language); /* NULL is allowed */

/* Both are owned by the language. The tokenizer is NULL if none was found; a vocabulary of 256 then means bytes. */
car_generator *car_language_generator(car_language *language);
const car_tokenizer *car_language_tokenizer(const car_language *language);
/* The folder in which the tokenizer was looked for. */
const char *car_language_folder(const car_language *language);
/* The file of the weights. */
const char *car_language_path(const car_language *language);
/* Length of the sequences that it was trained on, in tokens; 0 if unknown. */
int car_language_sequence(const car_language *language);

/* Writes a folder that Hugging Face's library can open: config.json, model.safetensors and the tokenizer's files.
 * The folder appears only when complete. CAR_ERROR_IO if it exists and is not empty; CAR_ERROR_ARGUMENT without a
 * tokenizer. */
car_status car_language_export(const car_language *language, const char *directory);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
