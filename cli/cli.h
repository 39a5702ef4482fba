/* What the commands of the program share: options, messages, exit codes. */
#ifndef CAR_CLI_H
#define CAR_CLI_H

#include <stdbool.h>

#include "carousel/context.h"

/* Exit codes, as users of git and curl know them. */
enum {
    CAR_CLI_OK = 0,
    CAR_CLI_FAILED = 1,
    CAR_CLI_USAGE = 2,
    CAR_CLI_LOST = 3,        /* a rank of a job was lost: another start may go on from the last checkpoint */
    CAR_CLI_INTERRUPTED = 4, /* ended early by a signal; what was to be saved is saved */
    CAR_CLI_GO_ON = -1       /* not one: nothing to exit for */
};

typedef enum car_cli_kind {
    CAR_CLI_FLAG, /* bool; takes no value */
    CAR_CLI_INT,  /* int */
    CAR_CLI_AUTO, /* the same, or `auto`, which is 0 */
    CAR_CLI_REAL, /* double */
    CAR_CLI_SEED, /* uint64_t */
    CAR_CLI_TEXT, /* const char *, pointing into argv */
    CAR_CLI_LIST  /* car_cli_list: may be given several times. What is typed replaces what a configuration has */
} car_cli_kind;

enum { CAR_CLI_LIST_LENGTH = 32 };
typedef struct car_cli_list {
    int count;
    const char *items[CAR_CLI_LIST_LENGTH];
} car_cli_list;

typedef struct car_cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* what help calls its value */
    const char *help;  /* NULL: not shown */
    car_cli_kind kind;
    void *target;       /* written when the option is given; holds the default before */
    double least, most; /* bounds of numbers, both included */
} car_cli_option;

/* Rows of an option table that every command with a model has; `shape` is a car_model_config. */
#define CAR_CLI_SHAPE_OPTIONS(shape)                                                                                 \
    {"seq-len", "T", "tokens in a sample (the model's own)", CAR_CLI_INT, &(shape).seq_len, 1, 1 << 24},             \
        {"width", "W",    "of a variant of mlp or a transformer (the model's own)", CAR_CLI_INT, &(shape).width,     \
         1,       1 << 20},                                                                                          \
        {"depth", "L", "its hidden layers or blocks (the model's own)", CAR_CLI_INT, &(shape).depth, 1, 1 << 12},    \
        {"heads", "N", "of a transformer's attention (the model's own)", CAR_CLI_INT, &(shape).heads, 1, 1 << 12}, { \
        "vocabulary", "N", "tokens that a token model knows (its tokenizer's, or its own)", CAR_CLI_INT,             \
            &(shape).vocabulary, 1, 1 << 24                                                                          \
    }

typedef struct car_cli_command {
    const char *name, *summary, *synopsis;
    const char *footer; /* after the options, or NULL */
} car_cli_command;

/* Returns CAR_CLI_GO_ON, or the code to exit with. Reads `--name value` and `--name=value`. Answers --help itself (to standard output). What is wrong
 * goes to standard error with the way out. */
int car_cli_parse(const car_cli_command *command, const car_cli_option *options, int count, int argc, char **argv);

/* ---- help.c: what --help prints ---- */

typedef enum car_cli_help {
    CAR_CLI_HELP_NONE, /* not asked for */
    CAR_CLI_HELP_TEXT, /* --help, -h: for people */
    CAR_CLI_HELP_LIST, /* --help=list: for the shell's completion; a line an option or command, with tabs between */
    CAR_CLI_HELP_MAN   /* --help=man: a manual page's parts that follow from the table, for scdoc */
} car_cli_help;

car_cli_help car_cli_find_help(int argc, char **argv);
bool car_cli_wants_help(int argc, char **argv);
void car_cli_print_help(car_cli_help form, const car_cli_command *command, const car_cli_option *options, int count);
/* Title, name and synopsis of a manual page. */
void car_cli_print_man_head(const char *page, const char *summary, const char *synopsis);

/* For configurations in files: the option of a name, NULL if there is none; and a value checked and stored as if it
 * had been typed, false after a message. */
const car_cli_option *car_cli_find_option(const car_cli_option *options, int count, const char *name, size_t length);
bool car_cli_store(const car_cli_command *command, const car_cli_option *option, const char *value);
/* What was typed behind an option, the last if there are several; NULL if it was not. */
const char *car_cli_peek(int argc, char **argv, const char *name);

/* Takes the first argument that is neither an option nor an option's value out of argv; NULL if there is none. */
const char *car_cli_take_word(const car_cli_option *options, int count, int *argc, char **argv);

/* Writes the short form of an option out, in place: -o is --output. */
void car_cli_write_out(int argc, char **argv, const char *brief, const char *whole);

/* CAR_CLI_GO_ON if there is a model of this name, also one that can only be planned; else CAR_CLI_USAGE after a
 * message. */
int car_cli_check_model(const char *command, const char *name);

/* Two finite numbers with a separator between them and nothing behind. */
bool car_cli_read_pair(const char *text, char separator, double *first, double *second);

/* The models, a line each, for the end of a help text. */
void car_cli_list_models(char *text, size_t capacity);
/* Adds the rules, the placements and the optimizers. */
void car_cli_list_choices(char *text, size_t capacity);
/* Adds which rule and placement to take. */
void car_cli_add_advice(char *text, size_t capacity);
/* Adds those that can only be planned. */
void car_cli_list_paper_models(char *text, size_t capacity);

/* "carousel: PREFIX TEXT" on standard error. Names in it may come from anywhere, so control characters, and what is no
 * UTF-8, are shown as \xNN. */
void car_cli_say(const char *prefix, const char *text);
/* The same, formatted; returns `code`, so that a command can return it. */
int car_cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The exit code for a status: CAR_CLI_USAGE for arguments and names that were typed wrong. */
int car_cli_code_of(car_status status);
/* The same for a status of the library, with the context's message. */
int car_cli_report(const car_context *context, car_status status);

/* The commands; argv[0] is the command's name. */
int car_cli_train(int argc, char **argv);
int car_cli_eval(int argc, char **argv);
int car_cli_predict(int argc, char **argv);
int car_cli_demo(int argc, char **argv);
int car_cli_plan(int argc, char **argv);
int car_cli_launch(int argc, char **argv);
int car_cli_data(int argc, char **argv);
int car_cli_tokenize(int argc, char **argv);
int car_cli_generate(int argc, char **argv);
int car_cli_export(int argc, char **argv);
int car_cli_report_runs(int argc, char **argv); /* `carousel report`; car_cli_report is about failures */

#endif
