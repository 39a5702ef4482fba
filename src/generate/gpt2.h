/* The weights of a GPT-2, as one block of floats.
 *
 * The matrices of the blocks are kept as [out, in], so that each output value reads one contiguous run of memory:
 * generating a token means reading all weights once. Files have them as [in, out]. */
#ifndef CAR_GENERATE_GPT2_H
#define CAR_GENERATE_GPT2_H

#include "base/base.h"
#include "carousel/arena.h"
#include "carousel/generate.h"

/* The parameters of one block, in the order of their names in gpt2.c. */
enum {
    CAR_GPT2_LN_1,
    CAR_GPT2_LN_1_BIAS,
    CAR_GPT2_ATTENTION,
    CAR_GPT2_ATTENTION_BIAS,
    CAR_GPT2_ATTENTION_OUT,
    CAR_GPT2_ATTENTION_OUT_BIAS,
    CAR_GPT2_LN_2,
    CAR_GPT2_LN_2_BIAS,
    CAR_GPT2_MLP,
    CAR_GPT2_MLP_BIAS,
    CAR_GPT2_MLP_OUT,
    CAR_GPT2_MLP_OUT_BIAS,
    CAR_GPT2_BLOCK_PARAMS
};
/* The parameters outside of the blocks. */
enum { CAR_GPT2_TOKENS, CAR_GPT2_POSITIONS, CAR_GPT2_LN_F, CAR_GPT2_LN_F_BIAS, CAR_GPT2_OUTER_PARAMS };

typedef struct car_gpt2 {
    car_context *context;
    car_gpt2_sizes sizes;
    car_arena *arena; /* holds everything; its huge pages make reading twice as fast */
    float *values;    /* all weights */
    const float *outer[CAR_GPT2_OUTER_PARAMS];
    const float *(*blocks)[CAR_GPT2_BLOCK_PARAMS];
} car_gpt2;

/* Starts zeroed. Release it, even after a failure. */
car_status car_gpt2_read(car_context *context, const char *path, int heads, car_gpt2 *out);
void car_gpt2_release(car_gpt2 *model);
/* Writes the tensors to a safetensors file. */
car_status car_gpt2_write(const car_gpt2 *model, const char *path);

#endif
