/* The program: finds the command and hands over. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"train", "train a model", car_cli_train},
    {"eval", "evaluate a model's weights", car_cli_eval},
    {"demo", "train one small model by four rules and compare", car_cli_demo},
    {"plan", "show what a run would do and need", car_cli_plan},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *stream) {
    fputs("carousel: training deep networks by cyclic data parallelism\n\n"
          "usage: carousel COMMAND [OPTIONS]\n\ncommands:\n",
          stream);
    for (int c = 0; c < COMMANDS; c++) {
        fprintf(stream, "  %-10s %s\n", commands[c].name, commands[c].summary);
    }
    fputs("\n'carousel COMMAND --help' lists a command's options; 'carousel --version' prints the version.\n", stream);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return CAR_CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return CAR_CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("carousel " CAR_VERSION);
        return CAR_CLI_OK;
    }
    for (int c = 0; c < COMMANDS; c++) {
        if (strcmp(argv[1], commands[c].name) == 0) {
            return commands[c].run(argc - 1, argv + 1);
        }
    }
    return car_cli_fail(CAR_CLI_USAGE, "there is no command '%s'; see 'carousel --help'", argv[1]);
}
