/* The program: finds the command and calls it. */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "carousel/available.h"
#include "carousel/version.h"
#include "cli.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
    bool logs; /* its output only shows progress; its results are files */
} commands[] = {
    {"train", "train a model", car_cli_train, true},
    {"eval", "evaluate a run or a model's weights", car_cli_eval, false},
    {"predict", "classify images with a model", car_cli_predict, false},
    {"demo", "measure on this machine where the cycle wins and where it does not", car_cli_demo, false},
    {"launch", "start a training run over MPI, and restart it after failures", car_cli_launch, true},
    {"plan", "show what a run would do and need, without running it", car_cli_plan, false},
    {"report", "write an HTML page about runs", car_cli_report_runs, false},
    {"tokenize", "convert a text to tokens for training", car_cli_tokenize, false},
    {"generate", "continue a text with a language model", car_cli_generate, false},
    {"export", "write a language model in a format that other libraries read", car_cli_export, false},
    {"data", "inspect a dataset, or pack it for fast epochs", car_cli_data, false},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *stream) {
    fputs("carousel: training deep networks with cyclic data parallelism\n"
          "\n"
          "usage: carousel COMMAND [OPTIONS]\n"
          "\n"
          "commands:\n",
          stream);
    for (int c = 0; c < COMMANDS; c++) {
        fprintf(stream, "  %-10s %s\n", commands[c].name, commands[c].summary);
    }
    fputs("\n"
          "'carousel COMMAND --help' lists a command's options; 'carousel --version' prints the version.\n"
          "\n"
          "exit codes: 0 done, 1 failed, 2 wrong command line, 3 a rank was lost, 4 ended early by a signal\n",
          stream);
}

/* Prints the commands for shell completion, or the generated parts of the manual page. */
static void print_commands(car_cli_help form) {
    if (form == CAR_CLI_HELP_MAN) {
        car_cli_print_man_head("carousel", "Training deep networks with cyclic data parallelism.",
                               "carousel COMMAND [OPTIONS]");
        puts("\n# COMMANDS\n");
    }
    for (int c = 0; c < COMMANDS; c++) {
        const char *name = commands[c].name, *summary = commands[c].summary;
        if (form == CAR_CLI_HELP_MAN) {
            printf("*carousel-%s*(1)\n\t%s\n\n", name, summary);
        } else {
            printf("%s\t\t\t%s\n", name, summary);
        }
    }
}

/* Readers check a mapped file's length before they use it. This handles a file that shrinks right after the check. */
static void on_lost_page(int number) {
    static const char line[] = "carousel: a file became shorter while it was being read; start again with the whole "
                               "file\n";
    (void)number;
    ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    (void)written; /* nothing else can be done */
    _exit(CAR_CLI_FAILED);
}

static void set_up_signals(void) {
    struct sigaction lost_page = {.sa_handler = on_lost_page}, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGBUS, &lost_page, NULL);
    sigaction(SIGXFSZ, &ignored, NULL); /* a file at its size limit is then a write error with a message */
}

/* Checks that all output was written: on a full disk an answer would be lost silently. */
static int check_output(int code, bool logs) {
    bool failed = ferror(stdout) != 0; /* of an earlier write, whose errno is lost */
    int error = fflush(stdout) == 0 ? 0 : errno;
    if (!error && !failed) {
        return code;
    }
    car_cli_fail(0, "%scould not write to standard output%s%s", logs ? "warning: " : "", error ? ": " : "",
                 error ? strerror(error) : "");
    return code == CAR_CLI_OK && !logs ? CAR_CLI_FAILED : code;
}

/* If addresses are limited (ulimit -v), the allocator must not reserve 64 MB of them for every thread. */
static void spare_addresses(void) {
    if (car_available_addresses() != UINT64_MAX) {
        mallopt(M_ARENA_MAX, 1);
    }
}

int main(int argc, char **argv) {
    set_up_signals();
    spare_addresses();
    if (argc < 2) {
        print_usage(stderr);
        return CAR_CLI_USAGE;
    }
    car_cli_help help = car_cli_find_help(2, argv);
    if (help == CAR_CLI_HELP_LIST || help == CAR_CLI_HELP_MAN) {
        print_commands(help);
        return check_output(CAR_CLI_OK, false);
    }
    if (help == CAR_CLI_HELP_TEXT || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return check_output(CAR_CLI_OK, false);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("carousel %s\n", car_version());
        return check_output(CAR_CLI_OK, false);
    }
    for (int c = 0; c < COMMANDS; c++) {
        if (strcmp(argv[1], commands[c].name) == 0) {
            bool logs = commands[c].logs && !car_cli_wants_help(argc - 1, argv + 1);
            return check_output(commands[c].run(argc - 1, argv + 1), logs);
        }
    }
    return car_cli_fail(CAR_CLI_USAGE, "there is no command '%s'; see 'carousel --help'", argv[1]);
}
