/* Internals of a generator, for the files in this folder. */
#ifndef CAR_GENERATE_INTERNAL_H
#define CAR_GENERATE_INTERNAL_H

#include <stdatomic.h>

#include "generate/gpt2.h"
#include "generate/team.h"
#include "kernels/vector/vector.h"

struct car_generator {
    car_context *context;
    car_gpt2 model;
    car_team *team;
    const car_vector *vector;
    double eps;
    int length;           /* positions whose keys and values are cached */
    float *keys, *values; /* [depth, positions, width] each */
    /* Buffers for the current rows: residual stream, input of a layer, queries with keys and values, hidden layer,
     * and scores of each head. */
    float *x, *y, *qkv, *hidden, *scores;
    int64_t score_count; /* per head */
    atomic_bool failed;  /* a product failed */
};

#endif
