/* The command line. */
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
    int repeat; /* number of gradients to time; 0: none */
} options;

/* Returns 0 to continue. Otherwise an answer was printed, and the result minus 1 is the exit code. */
int options_read(int count, char **arguments, options *out);

#endif
