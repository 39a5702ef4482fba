/* Options: each command has one table for parsing, checking and --help. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "carousel/model.h"
#include "carousel/optimizer.h"
#include "carousel/plan.h"
#include "carousel/utf8.h"
#include "cli.h"

void car_cli_say(const char *prefix, const char *text) {
    size_t room = 4 * strlen(text) + 1; /* \\xNN for every byte */
    char *shown = malloc(room);
    if (shown) {
        car_utf8_show(text, true, shown, room);
    }
    fprintf(stderr, "carousel: %s%s\n", prefix, shown ? shown : "out of memory for a message");
    free(shown);
}

int car_cli_fail(int code, const char *format, ...) {
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    car_cli_say("", length >= 0 ? text : format);
    free(length >= 0 ? text : NULL);
    return code;
}

int car_cli_code_of(car_status status) {
    bool typed = status == CAR_ERROR_UNKNOWN_NAME || status == CAR_ERROR_ARGUMENT;
    return status == CAR_OK ? CAR_CLI_OK : typed ? CAR_CLI_USAGE : CAR_CLI_FAILED;
}

/* True if a message of the library names an option here, as in "use placement pipeline". */
static bool names_option(const char *text, size_t at) {
    static const char *const before[] = {"use ", "leave out ", "; ", "("};
    static const char *const options[] = {"placement ", "zero-copies ", "sum-order ",
                                          "recompute",  "reset-head ",  "resume-step "};
    bool advice = false, known = false;
    for (size_t b = 0; b < sizeof before / sizeof *before; b++) {
        size_t length = strlen(before[b]);
        advice = advice || (at >= length && strncmp(text + at - length, before[b], length) == 0);
    }
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        known = known || strncmp(text + at, options[o], strlen(options[o])) == 0;
    }
    return advice && known;
}

int car_cli_report(const car_context *context, car_status status) {
    const char *message = context ? car_context_error(context) : "";
    const char *text = message[0] ? message : car_status_text(status);
    char shown[2048];
    size_t used = 0;
    for (size_t at = 0; text[at] && used + 3 < sizeof shown; at++) {
        if (names_option(text, at)) {
            shown[used++] = '-';
            shown[used++] = '-';
        }
        shown[used++] = text[at];
    }
    shown[used] = '\0';
    return car_cli_fail(car_cli_code_of(status), "%s", shown);
}

car_status car_cli_add_hint(car_context *context, car_status status, const char *hint) {
    char message[1024];
    snprintf(message, sizeof message, "%s", car_context_error(context));
    car_context_clear_error(context);
    return car_context_fail(context, status, "%s; %s", message, hint);
}

bool car_cli_read_pair(const char *text, char separator, double *first, double *second) {
    char *end = NULL;
    *first = strtod(text, &end);
    if (end == text || *end != separator) {
        return false;
    }
    const char *rest = end + 1;
    *second = strtod(rest, &end);
    return end != rest && *end == '\0' && isfinite(*first) && isfinite(*second);
}

/* ---- lists at the end of help texts ---------------------------------------------------------- */

void car_cli_list_models(char *text, size_t capacity) {
    size_t used = (size_t)snprintf(text, capacity, "models:");
    for (int m = 0; m < car_model_count() && used < capacity; m++) {
        used += (size_t)snprintf(text + used, capacity - used, "\n  %-12s %s", car_model_info_at(m)->name,
                                 car_model_info_at(m)->summary);
    }
}

/* Appends a line to a text of `used` characters. */
static void add_title(char *text, size_t capacity, size_t *used, const char *title) {
    if (*used < capacity) {
        *used += (size_t)snprintf(text + *used, capacity - *used, "\n%s", title);
    }
}

static void add_choice(char *text, size_t capacity, size_t *used, const char *name, const char *summary) {
    if (*used < capacity) {
        *used += (size_t)snprintf(text + *used, capacity - *used, "\n  %-12s %s", name, summary);
    }
}

void car_cli_list_choices(char *text, size_t capacity) {
    size_t used = strlen(text);
    add_title(text, capacity, &used, "rules:");
    for (int r = 0; r < CAR_RULES; r++) {
        const car_rule_info *rule = car_rule_info_of((car_rule)r);
        add_choice(text, capacity, &used, rule->name, rule->summary);
    }
    add_title(text, capacity, &used, "placements:");
    for (int p = 0; p < CAR_PLACEMENTS; p++) {
        const car_placement_info *placement = car_placement_info_of((car_placement)p);
        add_choice(text, capacity, &used, placement->name, placement->summary);
    }
    add_title(text, capacity, &used, "optimizers:");
    for (int k = 0; k < CAR_OPTIMIZERS; k++) {
        const car_optimizer_info *optimizer = car_optimizer_info_of((car_optimizer_kind)k);
        add_choice(text, capacity, &used, optimizer->name, optimizer->summary);
    }
}

void car_cli_add_advice(char *text, size_t capacity) {
    size_t used = strlen(text);
    add_title(
        text, capacity, &used,
        "choosing a rule and a placement:\n"
        "  one device, or speed matters less   --rule accumulate: least memory, no delay\n"
        "  one machine, little memory          --rule cdp-v2: about half of dp's activations\n"
        "  the model fits on each device       --placement replica --rule cdp-v2: no collectives, smaller bursts\n"
        "  the model does not fit              --placement zero (weights travel) or pipeline (cut by layers)\n"
        "  other pipelines, to compare         --placement pipeline --rule gpipe, 1f1b or 2bw\n"
        "  many devices                        --placement grid: N(N+1)/2 devices, where dp needs N x N");
}

void car_cli_list_paper_models(char *text, size_t capacity) {
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, capacity - used, "\nmodels that can only be planned:");
    for (int m = 0; m < car_model_paper_count() && used < capacity; m++) {
        used += (size_t)snprintf(text + used, capacity - used, "\n  %-12s %s", car_model_paper_at(m)->name,
                                 car_model_paper_at(m)->summary);
    }
}

int car_cli_check_model(const char *command, const char *name, bool planned) {
    char known[512] = "";
    size_t used = 0;
    if (car_model_find(name)) {
        return CAR_CLI_GO_ON;
    }
    for (int m = 0; m < car_model_count() && used < sizeof known; m++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", m ? ", " : "", car_model_info_at(m)->name);
    }
    for (int m = 0; planned && m < car_model_paper_count() && used < sizeof known; m++) {
        used += (size_t)snprintf(known + used, sizeof known - used, ", %s", car_model_paper_at(m)->name);
    }
    return car_cli_fail(CAR_CLI_USAGE, "%s: there is no model '%.64s'; the models are %s", command, name, known);
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* One letter stands for a short form, which car_cli_write_out wrote out. */
static const char *dashes_of(const char *name) {
    return strlen(name) == 1 ? "-" : "--";
}

static bool refuse(const car_cli_command *command, const char *name, const char *value, const char *why) {
    car_cli_fail(0, "%s: %s%s %s: %s", command->name, dashes_of(name), name, value, why);
    return false;
}

static bool store_number(const car_cli_command *command, const car_cli_option *option, const char *value) {
    char *end = NULL;
    errno = 0;
    double number = option->kind == CAR_CLI_REAL ? strtod(value, &end) : (double)strtoll(value, &end, 10);
    char bounds[96];
    snprintf(bounds, sizeof bounds, "must be %s%s from %.10g to %.10g", option->kind == CAR_CLI_AUTO ? "auto or " : "",
             option->kind == CAR_CLI_REAL ? "a number" : "a whole number", option->least, option->most);
    if (end == value || *end || errno == ERANGE || !isfinite(number) || number < option->least ||
        number > option->most) {
        return refuse(command, option->name, value, bounds);
    }
    if (option->kind == CAR_CLI_REAL) {
        *(double *)option->target = number;
    } else {
        *(int *)option->target = (int)number;
    }
    return true;
}

static bool store_seed(const car_cli_command *command, const car_cli_option *option, const char *value) {
    char *end = NULL;
    errno = 0;
    unsigned long long seed = strtoull(value, &end, 10);
    if (end == value || *end || errno == ERANGE || value[0] == '-') {
        return refuse(command, option->name, value, "must be a whole number from 0 to 2^64 - 1");
    }
    *(uint64_t *)option->target = seed;
    return true;
}

static bool store_item(const car_cli_command *command, const car_cli_option *option, const char *value) {
    car_cli_list *list = option->target;
    if (list->count == CAR_CLI_LIST_LENGTH) {
        return refuse(command, option->name, value, "this option was given too often");
    }
    list->items[list->count++] = value;
    return true;
}

bool car_cli_store(const car_cli_command *command, const car_cli_option *option, const char *value) {
    switch (option->kind) {
    case CAR_CLI_AUTO:
        if (strcmp(value, "auto") == 0) {
            *(int *)option->target = 0;
            return true;
        }
        return store_number(command, option, value);
    case CAR_CLI_INT:
    case CAR_CLI_REAL:
        return store_number(command, option, value);
    case CAR_CLI_SEED:
        return store_seed(command, option, value);
    case CAR_CLI_TEXT:
        *(const char **)option->target = value;
        return true;
    case CAR_CLI_LIST:
        return store_item(command, option, value);
    case CAR_CLI_FLAG:
        *(bool *)option->target = true;
        return true;
    }
    return false;
}

const car_cli_option *car_cli_find_option(const car_cli_option *options, int count, const char *name, size_t length) {
    for (int o = 0; o < count; o++) {
        if (strlen(options[o].name) == length && strncmp(options[o].name, name, length) == 0) {
            return &options[o];
        }
    }
    return NULL;
}

/* Parses one argument, and the next if that is its value. Moves *index past what it used. */
static bool parse_one(const car_cli_command *command, const car_cli_option *options, int count, int argc, char **argv,
                      int *index) {
    const char *argument = argv[*index];
    if (strncmp(argument, "--", 2) != 0 || argument[2] == '\0') {
        car_cli_fail(0, "%s: '%s' is not an option; see 'carousel %s --help'", command->name, argument, command->name);
        return false;
    }
    const char *name = argument + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const car_cli_option *option = car_cli_find_option(options, count, name, length);
    if (!option) {
        car_cli_fail(0, "%s: there is no option --%.*s; see 'carousel %s --help'", command->name, (int)length, name,
                     command->name);
        return false;
    }
    if (option->kind == CAR_CLI_FLAG) {
        (*index)++;
        return equals ? refuse(command, option->name, equals + 1, "takes no value")
                      : car_cli_store(command, option, "");
    }
    const char *value = equals ? equals + 1 : *index + 1 < argc ? argv[*index + 1] : NULL;
    if (!value) {
        car_cli_fail(0, "%s: %s%s requires a value: %s", command->name, dashes_of(option->name), option->name,
                     option->value);
        return false;
    }
    *index += equals ? 1 : 2;
    return car_cli_store(command, option, value);
}

const char *car_cli_peek(int argc, char **argv, const char *name) {
    const char *found = NULL;
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || strncmp(argv[i] + 2, name, length) != 0) {
            continue;
        }
        const char *behind = argv[i] + 2 + length;
        found = *behind == '='                    ? behind + 1
                : *behind == '\0' && i + 1 < argc ? argv[i + 1]
                : *behind == '\0'                 ? ""
                                                  : found;
    }
    return found;
}

const char *car_cli_take_word(const car_cli_option *options, int count, int *argc, char **argv) {
    for (int i = 1; i < *argc; i++) {
        if (argv[i][0] != '-') {
            const char *word = argv[i];
            memmove(&argv[i], &argv[i + 1], (size_t)(*argc - i - 1) * sizeof *argv);
            --*argc;
            return word;
        }
        const char *name = argv[i] + strspn(argv[i], "-");
        const car_cli_option *option = car_cli_find_option(options, count, name, strlen(name));
        i += option && option->kind != CAR_CLI_FLAG; /* skip its value */
    }
    return NULL;
}

void car_cli_write_out(int argc, char **argv, const char *brief, const char *whole) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], brief) == 0) {
            argv[i] = (char *)(uintptr_t)whole; /* argv is not written to */
        }
    }
}

int car_cli_parse(const car_cli_command *command, const car_cli_option *options, int count, int argc, char **argv) {
    car_cli_help help = car_cli_find_help(argc, argv);
    if (help != CAR_CLI_HELP_NONE) {
        car_cli_print_help(help, command, options, count);
        return CAR_CLI_OK;
    }
    for (int o = 0; o < count; o++) {
        if (options[o].kind == CAR_CLI_LIST && car_cli_peek(argc, argv, options[o].name)) {
            ((car_cli_list *)options[o].target)->count = 0;
        }
    }
    for (int i = 1; i < argc;) {
        if (!parse_one(command, options, count, argc, argv, &i)) {
            return CAR_CLI_USAGE;
        }
    }
    return CAR_CLI_GO_ON;
}
