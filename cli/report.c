/* carousel report: writes a page about runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "carousel/report.h"
#include "report.h"

static void log_line(void *user, car_log_level level, const char *line) {
    (void)user;
    car_cli_say(level == CAR_LOG_WARNING ? "note: " : "", line);
}

/* Splits the arguments into directories and the rest, and replaces -o by its long name. `rest` begins with argv[0]. */
static void part_arguments(int argc, char **argv, char **rest, int *rest_count, const char **directories,
                           int *directory_count) {
    rest[(*rest_count)++] = argv[0];
    for (int i = 1; i < argc; i++) {
        bool value = strcmp(argv[i - 1], "-o") == 0 || strcmp(argv[i - 1], "--output") == 0 ||
                     strcmp(argv[i - 1], "--title") == 0 || strcmp(argv[i - 1], "--every") == 0;
        if (i > 1 && value) {
            rest[(*rest_count)++] = argv[i];
        } else if (argv[i][0] != '-') {
            directories[(*directory_count)++] = argv[i];
        } else {
            rest[(*rest_count)++] = strcmp(argv[i], "-o") == 0 ? (char *)"--output" : argv[i];
        }
    }
}

int car_cli_report_write(const car_cli_report_options *o, const char *const *directories, int count, double reload,
                         bool loud) {
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    config.log = loud ? log_line : NULL;
    car_status status = car_context_create(&config, &context);
    if (status == CAR_OK) {
        status = car_report_live_page(context, directories, count, o->title, reload, o->output);
    }
    int code = status == CAR_OK ? CAR_CLI_OK : loud ? car_cli_report(context, status) : CAR_CLI_FAILED;
    car_context_destroy(context);
    return code;
}

static int write_report(const car_cli_report_options *o, const char *const *directories, int count) {
    struct stat file;
    int code = car_cli_report_write(o, directories, count, 0, true);
    if (code == CAR_CLI_OK) {
        printf("%s: %d %s, %.1f MB; open it in a browser\n", o->output, count, count == 1 ? "run" : "runs",
               stat(o->output, &file) == 0 ? (double)file.st_size / 1e6 : 0.0);
    }
    return code;
}

int car_cli_report_runs(int argc, char **argv) {
    car_cli_report_options o = {.every = 2};
    const car_cli_option options[] = {
        {"output", "FILE", "page to write; also -o (default with --live: RUN_DIR/report.html)", CAR_CLI_TEXT, &o.output,
         0, 0},
        {"title", "TEXT", "title of the page (default: the names of the runs)", CAR_CLI_TEXT, &o.title, 0, 0},
        {"live", NULL, "update the page while the runs go on, until they end or you press Ctrl-C", CAR_CLI_FLAG,
         &o.live, 0, 0},
        {"every", "SECONDS", "with --live: interval at which the page is updated, and reloads itself in the browser",
         CAR_CLI_REAL, &o.every, 0.1, 86400},
    };
    enum { OPTIONS = sizeof options / sizeof options[0] };
    const car_cli_command command = {
        "report", "Writes a page about one run, or several side by side, as one HTML file that needs no other files.",
        "carousel report RUN_DIR... -o FILE.html [--title TEXT] [--live]",
        "RUN_DIR is a directory that `carousel train --out RUN_DIR` wrote. What is missing in it is left out with a "
        "note."};
    char **rest = calloc((size_t)argc + 1, sizeof *rest);
    const char **directories = calloc((size_t)argc + 1, sizeof *directories);
    char page[4096];
    int rest_count = 0, count = 0, code = CAR_CLI_FAILED;
    if (!rest || !directories) {
        car_cli_fail(0, "out of memory");
        goto done;
    }
    part_arguments(argc, argv, rest, &rest_count, directories, &count);
    code = car_cli_parse(&command, options, OPTIONS, rest_count, rest);
    if (code != CAR_CLI_GO_ON) {
        goto done;
    }
    size_t length = o.output ? strlen(o.output) : 0;
    if (o.output && (length < 5 || strcmp(o.output + length - 5, ".html") != 0)) {
        code = car_cli_fail(CAR_CLI_USAGE, "report: -o %s: the file name must end in .html", o.output);
        goto done;
    }
    if (o.live && count == 1 && !o.output && strlen(directories[0]) + sizeof "/report.html" <= sizeof page) {
        snprintf(page, sizeof page, "%s/report.html", directories[0]);
        o.output = page;
    }
    if (count == 0 || !o.output) {
        code = car_cli_fail(CAR_CLI_USAGE, "report: %s; see 'carousel report --help'",
                            count == 0 ? "RUN_DIR... is missing" : "-o FILE.html is missing");
        goto done;
    }
    code = o.live ? car_cli_report_live(&o, directories, count) : write_report(&o, directories, count);
done:
    free(directories);
    free(rest);
    return code;
}
