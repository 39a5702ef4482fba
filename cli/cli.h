/* Shared by all commands: options, messages, exit codes. */
#ifndef CAR_CLI_H
#define CAR_CLI_H

#include <stdbool.h>

#include "carousel/context.h"

/* Exit codes, with the usual meaning of 1 and 2. */
enum {
    CAR_CLI_OK = 0,
    CAR_CLI_FAILED = 1,
    CAR_CLI_USAGE = 2,
    CAR_CLI_LOST = 3,        /* a rank was lost: a restart may resume from the last checkpoint */
    CAR_CLI_INTERRUPTED = 4, /* ended early by a signal; everything is saved */
    CAR_CLI_GO_ON = -1       /* not an exit code: the command goes on */
};

typedef enum car_cli_kind {
    CAR_CLI_FLAG, /* bool; takes no value */
    CAR_CLI_INT,  /* int */
    CAR_CLI_AUTO, /* int, or `auto`, which is 0 */
    CAR_CLI_REAL, /* double */
    CAR_CLI_SEED, /* uint64_t */
    CAR_CLI_TEXT, /* const char *, pointing into argv */
    CAR_CLI_LIST  /* car_cli_list: may be repeated. The command line replaces the list of a configuration file */
} car_cli_kind;

enum { CAR_CLI_LIST_LENGTH = 32 };
typedef struct car_cli_list {
    int count;
    const char *items[CAR_CLI_LIST_LENGTH];
} car_cli_list;

typedef struct car_cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* name of the value in --help */
    const char *help;  /* NULL hides the option from --help */
    car_cli_kind kind;
    void *target;       /* holds the default; overwritten if the option is given */
    double least, most; /* inclusive bounds of numbers */
} car_cli_option;

/* Rows of an option table for commands with a model; `shape` is a car_model_config. */
#define CAR_CLI_SHAPE_OPTIONS(shape)                                                                              \
    {"seq-len", "T", "tokens per sample (default: the model's)", CAR_CLI_INT, &(shape).seq_len, 1, 1 << 24},      \
        {"width", "W",    "width of an mlp or a transformer (default: the model's)", CAR_CLI_INT, &(shape).width, \
         1,       1 << 20},                                                                                       \
        {"depth",                                                                                                 \
         "L",                                                                                                     \
         "hidden layers of an mlp, or blocks of a transformer (default: the model's)",                            \
         CAR_CLI_INT,                                                                                             \
         &(shape).depth,                                                                                          \
         1,                                                                                                       \
         1 << 12},                                                                                                \
        {"heads", "N",    "attention heads of a transformer (default: the model's)", CAR_CLI_INT, &(shape).heads, \
         1,       1 << 12},                                                                                       \
    {                                                                                                             \
        "vocabulary", "N", "vocabulary size of a token model (default: the tokenizer's, else the model's)",       \
            CAR_CLI_INT, &(shape).vocabulary, 1, 1 << 24                                                          \
    }

typedef struct car_cli_command {
    const char *name, *summary, *synopsis;
    const char *footer; /* printed after the options, or NULL */
} car_cli_command;

/* Parses `--name value` and `--name=value`. Returns CAR_CLI_GO_ON, or the exit code. Prints --help itself, to standard
 * output. Errors go to standard error and say what to do. */
int car_cli_parse(const car_cli_command *command, const car_cli_option *options, int count, int argc, char **argv);

/* ---- help.c: output of --help ---------------------------------------------------------------- */

typedef enum car_cli_help {
    CAR_CLI_HELP_NONE, /* not asked for */
    CAR_CLI_HELP_TEXT, /* --help, -h: for people */
    CAR_CLI_HELP_LIST, /* --help=list: for shell completion; one line per option or command, separated by tabs */
    CAR_CLI_HELP_MAN   /* --help=man: the generated parts of a manual page, for scdoc */
} car_cli_help;

car_cli_help car_cli_find_help(int argc, char **argv);
bool car_cli_wants_help(int argc, char **argv);
void car_cli_print_help(car_cli_help form, const car_cli_command *command, const car_cli_option *options, int count);
/* Prints title, name and synopsis of a manual page. */
void car_cli_print_man_head(const char *page, const char *summary, const char *synopsis);

/* For configuration files. The first finds an option by name, or NULL. The second checks and stores a value as if it
 * came from the command line; it returns false after a message. */
const car_cli_option *car_cli_find_option(const car_cli_option *options, int count, const char *name, size_t length);
bool car_cli_store(const car_cli_command *command, const car_cli_option *option, const char *value);
/* The value of an option on the command line, the last one if repeated; NULL if not given. */
const char *car_cli_peek(int argc, char **argv, const char *name);

/* Removes the first argument that is neither an option nor an option's value from argv and returns it; NULL if there is
 * none. */
const char *car_cli_take_word(const car_cli_option *options, int count, int *argc, char **argv);

/* Replaces the short form of an option by the long one, in place: -o by --output. */
void car_cli_write_out(int argc, char **argv, const char *brief, const char *whole);

/* Returns CAR_CLI_GO_ON if the model exists, even if it can only be planned; else CAR_CLI_USAGE after a message, which
 * lists such models too if `planned`. */
int car_cli_check_model(const char *command, const char *name, bool planned);

/* Reads two finite numbers with a separator between them and nothing after. */
bool car_cli_read_pair(const char *text, char separator, double *first, double *second);

/* Writes a line for each model, for the end of a help text. */
void car_cli_list_models(char *text, size_t capacity);
/* Adds rules, placements and optimizers. */
void car_cli_list_choices(char *text, size_t capacity);
/* Adds advice on which rule and placement to choose. */
void car_cli_add_advice(char *text, size_t capacity);
/* Adds the models that can only be planned. */
void car_cli_list_paper_models(char *text, size_t capacity);

/* Prints "carousel: PREFIX TEXT" to standard error. Names in the text may come from anywhere, so control characters and
 * invalid UTF-8 are shown as \xNN. */
void car_cli_say(const char *prefix, const char *text);
/* The same with a format; returns `code`, so that a command can return it. */
int car_cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The exit code for a status: CAR_CLI_USAGE for wrong arguments and names. */
int car_cli_code_of(car_status status);
/* Prints the context's message for a status of the library, and returns the exit code. */
int car_cli_report(const car_context *context, car_status status);
/* Adds what to do, such as which option to give, to the context's message. Returns `status`. */
car_status car_cli_add_hint(car_context *context, car_status status, const char *hint);

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
int car_cli_report_runs(int argc, char **argv); /* `carousel report`; car_cli_report prints failures */

#endif
