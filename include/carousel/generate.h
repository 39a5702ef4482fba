/* Text generation with a GPT-2. A KV cache keeps the keys and values of earlier tokens, so each new token costs the
 * work of one token.
 *
 * Weights come from a safetensors file with Hugging Face's names, written by Carousel or PyTorch. Any size of the
 * family works: width, depth, vocabulary and positions follow from the tensors. The logits equal those of the
 * model's graph up to rounding. A generator is for one thread at a time. It has helper threads of its own; their
 * number does not change the bits. */
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
    int heads;   /* number of attention heads, which the tensors do not tell */
    int threads; /* threads that compute, including the caller's */
    double eps;  /* of the layer norms */
} car_generator_config;

car_generator_config car_generator_config_default(void); /* heads 0 (must be set), 1 thread, eps 1e-5 */

typedef struct car_gpt2_sizes {
    /* `inner`: width of an MLP's hidden layer. */
    int vocabulary, positions, width, depth, heads, inner;
} car_gpt2_sizes;

/* Loads a model. CAR_ERROR_FORMAT if the file is not a GPT-2; the message names the first tensor that is missing or
 * has a wrong shape. */
car_status car_generator_open(car_context *context, const char *path, const car_generator_config *config,
                              car_generator **out);
void car_generator_close(car_generator *generator);
/* The model's sizes. */
car_gpt2_sizes car_generator_sizes(const car_generator *generator);

/* Appends tokens to the sequence. `logits` receives the prediction for the token after the last: vocabulary floats,
 * may be NULL. CAR_ERROR_ARGUMENT for a token outside of the vocabulary, or a sequence longer than the positions;
 * the sequence is then unchanged. */
car_status car_generator_feed(car_generator *generator, const int32_t *tokens, int count, float *logits);
int car_generator_length(const car_generator *generator);        /* tokens in the sequence */
void car_generator_rewind(car_generator *generator, int length); /* shortens the sequence to `length` tokens */

/* Writes the model in Hugging Face's form: DIRECTORY/config.json and DIRECTORY/model.safetensors. `end_of_text` is
 * the token that ends a text, or -1. */
car_status car_generator_export(const car_generator *generator, const char *directory, int end_of_text);

/* ---- choosing the next token ----------------------------------------------------------------- */

typedef struct car_sampling {
    double temperature; /* 0: always take the most probable token */
    int top_k;          /* choose among the k most probable; 0: among all */
    double top_p;       /* choose among the most probable that together reach this probability; 1: among all */
    uint64_t seed;
} car_sampling;

typedef struct car_sampler car_sampler;

/* The settings are copied. CAR_ERROR_ARGUMENT if they are out of range. */
car_status car_sampler_create(car_context *context, int vocabulary, const car_sampling *sampling, car_sampler **out);
void car_sampler_destroy(car_sampler *sampler);
/* Chooses a token. The result depends only on the seed, the number `draw` and the logits. CAR_ERROR_NOT_FINITE if a
 * logit is NaN. */
car_status car_sampler_choose(car_sampler *sampler, const float *logits, int64_t draw, int *token);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
