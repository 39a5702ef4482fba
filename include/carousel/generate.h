/* Generating text: a GPT-2 whose keys and values are kept, so that each further token costs one token's work.
 *
 * Reads weights from a safetensors file with Hugging Face's names, ours or PyTorch's, of any size of the family: width,
 * depth, vocabulary and positions are those of the tensors. Logits equal those of the model's graph but for rounding.
 * One thread at a time may use a generator; it has helpers of its own, and its bits do not depend on their number. */
#ifndef CAROUSEL_GENERATE_H
#define CAROUSEL_GENERATE_H

#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_generator car_generator;

typedef struct car_generator_config {
    int heads;   /* the one size that the tensors do not tell */
    int threads; /* that compute, the caller's among them */
    double eps;  /* of layer normalisation */
} car_generator_config;

car_generator_config car_generator_config_default(void); /* heads 0: must be set; 1 thread; 1e-5 */

typedef struct car_gpt2_sizes {
    int vocabulary, positions, width, depth, heads, inner; /* inner: width of the hidden layer of an MLP */
} car_gpt2_sizes;

/* CAR_ERROR_FORMAT if the file is not a GPT-2's, with the first tensor that is missing or does not fit. */
car_status car_generator_open(car_context *context, const char *path, const car_generator_config *config,
                              car_generator **out);
void car_generator_close(car_generator *generator);
car_gpt2_sizes car_generator_sizes(const car_generator *generator);

/* Appends tokens to those that are kept. `logits` (vocabulary floats; may be NULL) are those of what follows the last.
 * CAR_ERROR_ARGUMENT for a token outside of the vocabulary, or more tokens than there are positions; nothing is kept of
 * them then. */
car_status car_generator_feed(car_generator *generator, const int32_t *tokens, int count, float *logits);
int car_generator_length(const car_generator *generator);        /* tokens that are kept */
void car_generator_rewind(car_generator *generator, int length); /* forgets those behind */

/* Writes the model as Hugging Face has it: DIRECTORY/config.json and DIRECTORY/model.safetensors. `end_of_text` is the
 * token that ends a text, or -1. */
car_status car_generator_export(const car_generator *generator, const char *directory, int end_of_text);

/* ---- choosing the next token ----------------------------------------------------------------- */

typedef struct car_sampling {
    double temperature; /* 0: the best one, always */
    int top_k;          /* of the best so many; 0: of all */
    double top_p;       /* of the best that together have this probability; 1: of all */
    uint64_t seed;
} car_sampling;

typedef struct car_sampler car_sampler;

car_status car_sampler_create(car_context *context, int vocabulary, const car_sampling *sampling, car_sampler **out);
void car_sampler_destroy(car_sampler *sampler);
/* The token that draw number `draw` gives, a function of the seed, the number and the logits alone.
 * CAR_ERROR_NOT_FINITE if a logit is not a number. */
car_status car_sampler_choose(car_sampler *sampler, const float *logits, int64_t draw, int *token);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
