/* What the command line says. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>

typedef struct options {
    int size, steps, stages, checkpoints; /* of the simulation */
    int workers, accumulate, threads;
    const char *rule, *placement;
    bool lbfgs;
    int iterations;
    const char *out, *plan; /* files, NULL: none */
    bool check, taylor;
    int repeat; /* gradients that are timed; 0: none */
} options;

/* 0 to go on; otherwise an answer was printed, and this plus -1 is the exit code. */
int options_read(int count, char **arguments, options *out);

#endif
