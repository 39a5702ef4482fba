/* What the files of `carousel data` share. */
#ifndef CAR_CLI_DATA_H
#define CAR_CLI_DATA_H

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>

#include "carousel/data.h"
#include "cli.h"

/* What looking at every image of a dataset finds. Pixels count from 0 to 1; mean and deviation are of the training
 * images, all pixels alike. */
typedef struct car_cli_scan {
    double mean[3], deviation[3];
    int least_width, least_height, most_width, most_height; /* 0: no image could be read */
} car_cli_scan;

/* Several threads read; problems are counted by the dataset. */
car_status car_cli_scan_images(car_context *context, car_dataset *dataset, car_cli_scan *out);

/* A line about how far it is, on a terminal; `done` from 0, and once more when done = all, which ends the line. */
void car_cli_show_progress(const char *what, int64_t done, int64_t all);

/* ---- unused.c: what lies in the dataset's folder and is not used ------------------------------------------------- */

int64_t car_cli_count_unused(const car_dataset *dataset);
void car_cli_print_unused(const car_dataset *dataset);            /* a line with the sum, one for each reason */
void car_cli_print_unused_line(const car_dataset *dataset);       /* all in one line; nothing if all is used */
bool car_cli_add_unused(cJSON *root, const car_dataset *dataset); /* "unused", an array; false without memory */

#endif
