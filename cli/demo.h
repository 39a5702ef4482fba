/* What the files of `carousel demo` share. */
#ifndef CAR_CLI_DEMO_H
#define CAR_CLI_DEMO_H

#include "cli.h"

enum { CAR_DEMO_COLUMNS = 64, CAR_DEMO_PATH = 4096 };

/* What came out of one run. */
typedef struct car_demo_result {
    double samples_per_s;
    double idle;        /* share of the threads' time without a task */
    double activations; /* bytes at the peak, all workers together */
    double burst;       /* bytes sent in the busiest slot of a step; 0: nothing was sent */
    double planned_activations, planned_burst;
    double loss_first, loss_evaluated; /* of training at first; of other samples at the end */
    double accuracy;                   /* of the next token */
    double curve[CAR_DEMO_COLUMNS];    /* bytes of activations over a few steps, the largest of each column */
    int curve_steps;
} car_demo_result;

/* Runs `carousel train ARGUMENTS` in a process of its own and reads what it wrote into `directory`/`name`. `arguments`
 * has a NULL at its end. Returns CAR_CLI_OK, or the code to exit with after a message. */
int car_demo_run(const char *directory, const char *name, const char *const *arguments, car_demo_result *out);

/* A directory for what the runs write, and its end. */
int car_demo_open(char directory[CAR_DEMO_PATH]);
void car_demo_close(const char *directory);

#endif
