/* Shared by the files of `carousel demo`. */
#ifndef CAR_CLI_DEMO_H
#define CAR_CLI_DEMO_H

#include "cli.h"

enum { CAR_DEMO_COLUMNS = 64, CAR_DEMO_PATH = 4096 };

/* Results of one run. */
typedef struct car_demo_result {
    double samples_per_s;
    double idle;        /* share of the threads' time without a task */
    double activations; /* peak bytes of all workers together */
    double burst;       /* bytes sent in the busiest slot of a step; 0 if nothing was sent */
    double planned_activations, planned_burst;
    double loss_first, loss_evaluated; /* training loss at the start; evaluation loss at the end */
    double accuracy;                   /* of the next token */
    double curve[CAR_DEMO_COLUMNS];    /* bytes of activations over a few steps; the maximum of each column */
    int curve_steps;
} car_demo_result;

/* Runs `carousel train ARGUMENTS` in its own process and reads its results from `directory`/`name`. `arguments` ends
 * with NULL. Returns CAR_CLI_OK, or the exit code after a message. */
int car_demo_run(const char *directory, const char *name, const char *const *arguments, car_demo_result *out);

/* Create and remove the directory for the runs' files. */
int car_demo_open(char directory[CAR_DEMO_PATH]);
void car_demo_close(const char *directory);

#endif
