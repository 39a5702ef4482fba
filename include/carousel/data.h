/* Data: where the samples of a run come from. */
#ifndef CAROUSEL_DATA_H
#define CAROUSEL_DATA_H

#include <stdint.h>

#include "carousel/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Synthetic samples: a task that can be learnt, of any shape, without a file.
 *
 * Images: each class is a pattern of a few waves in every channel; a sample is its class's pattern,
 * shifted by a random number of pixels, under noise. Tokens: a fixed successor for every token, which
 * is followed four times out of five. A sample depends on the seed and its number alone. */
typedef struct car_synthetic {
    uint64_t seed;
    car_domain domain;
    car_model_config config; /* as resolved: batch, sizes, classes or vocabulary */
} car_synthetic;

/* Writes one micro-batch, samples first .. first + batch - 1. `inputs` is [batch, channels, size, size]
 * floats or [batch, seq_len] int32; `labels` int32, [batch] or [batch, seq_len]. */
void car_synthetic_batch(const car_synthetic *source, uint64_t first, void *inputs, int32_t *labels);

#ifdef __cplusplus
}
#endif
#endif
