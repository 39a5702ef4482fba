/* The program: finds the command and hands over. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"train", "train a model", car_cli_train},
    {"eval", "evaluate a model's weights", car_cli_eval},
    {"demo", "train one small model by four rules and compare", car_cli_demo},
    {"launch", "start the ranks of a training run over MPI", car_cli_launch},
    {"plan", "show what a run would do and need", car_cli_plan},
    {"report", "write a page about runs", car_cli_report_runs},
    {"data", "look at a dataset, or pack it for fast epochs", car_cli_data},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *stream) {
    fputs("carousel: training deep networks by cyclic data parallelism\n\n"
          "usage: carousel COMMAND [OPTIONS]\n\ncommands:\n",
          stream);
    for (int c = 0; c < COMMANDS; c++) {
        fprintf(stream, "  %-10s %s\n", commands[c].name, commands[c].summary);
    }
    fputs("\n'carousel COMMAND --help' lists a command's options; 'carousel --version' prints the version.\n"
          "\nexit codes: 0 done, 1 failed, 2 command line, 3 a rank was lost, 4 ended early by a signal\n",
          stream);
}

/* Readers look at a mapped file's length before they use it; this is for a file that is cut in the very moment. */
static void on_lost_page(int number) {
    static const char line[] = "carousel: a file became shorter while it was being read; start again with the whole "
                               "file\n";
    (void)number;
    ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    (void)written; /* there is nobody else to tell */
    _exit(CAR_CLI_FAILED);
}

static void set_up_signals(void) {
    struct sigaction lost_page = {.sa_handler = on_lost_page}, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGBUS, &lost_page, NULL);
    sigaction(SIGXFSZ, &ignored, NULL); /* a file that may not grow further is an error of writing, with a message */
}

int main(int argc, char **argv) {
    set_up_signals();
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
