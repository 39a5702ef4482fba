/* Minimises a function of many variables: gradient descent and L-BFGS, with a line search. */
#ifndef INVERT_H
#define INVERT_H

#include <stdbool.h>
#include <stddef.h>

#include "wave.h"

/* The function to minimise. Both callbacks return false to end the search. */
typedef struct objective {
    bool (*loss)(void *user, const real *x, double *loss);
    bool (*gradient)(void *user, const real *x, double *loss, real *gradient);
    /* Called after each iteration; `evaluations` counts calls of both. */
    void (*progress)(void *user, int iteration, double loss, double step, int evaluations);
    void *user;
} objective;

typedef struct search {
    size_t count;
    int iterations;
    bool lbfgs;        /* else gradient descent */
    double first_step; /* largest change of a variable in the first step */
} search;

/* Minimises in place; false if memory ran out or the objective ended the search. It ends early if no step along the
 * gradient reduces the loss. */
bool minimise(const search *s, const objective *o, real *x, double *loss);

#endif
