/* Shared by the files of `carousel report`. */
#ifndef CAR_CLI_REPORT_H
#define CAR_CLI_REPORT_H

#include "cli.h"

typedef struct car_cli_report_options {
    const char *output, *title;
    double every; /* seconds */
    bool live;
} car_cli_report_options;

/* Writes the page. It reloads itself every `reload` seconds (0 = never). `loud`: print warnings and errors. */
int car_cli_report_write(const car_cli_report_options *options, const char *const *directories, int count,
                         double reload, bool loud);
/* Writes it repeatedly; see report_live.c. Returns the exit code. */
int car_cli_report_live(const car_cli_report_options *options, const char *const *directories, int count);

#endif
