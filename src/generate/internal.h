/* The inside of a generator, for the files of this folder. */
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
    int length;           /* positions whose keys and values are kept */
    float *keys, *values; /* [depth, positions, width] each */
    /* Of the rows that are being computed: the residual stream, the input of a layer, queries with keys and values,
     * the hidden layer, and for each head its scores. */
    float *x, *y, *qkv, *hidden, *scores;
    int64_t score_count; /* of one head */
    atomic_bool failed;  /* a product could not be computed */
};

#endif
