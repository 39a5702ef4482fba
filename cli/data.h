/* Shared by the files of `carousel data`. */
#ifndef CAR_CLI_DATA_H
#define CAR_CLI_DATA_H

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>

#include "carousel/data.h"
#include "cli.h"

/* Statistics of all images of a dataset. Mean and deviation are over all pixels of the training images, with values
 * from 0 to 1. */
typedef struct car_cli_scan {
    double mean[3], deviation[3];
    int least_width, least_height, most_width, most_height; /* 0 if no image could be read */
} car_cli_scan;

/* Several threads read. The dataset counts problems. */
car_status car_cli_scan_images(car_context *context, car_dataset *dataset, car_cli_scan *out);

/* Shows a progress line on a terminal. Call it with `done` from 0; done = all ends the line. */
void car_cli_show_progress(const char *what, int64_t done, int64_t all);

/* ---- unused.c: files in the dataset's folder that are not used --------------------------------------------------- */

int64_t car_cli_count_unused(const car_dataset *dataset);
void car_cli_print_unused(const car_dataset *dataset);            /* one line with the sum, and one for each reason */
void car_cli_print_unused_line(const car_dataset *dataset);       /* all in one line; nothing if everything is used */
bool car_cli_add_unused(cJSON *root, const car_dataset *dataset); /* adds the array "unused"; false: no memory */

#endif
