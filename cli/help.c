/* Prints the option table: for --help, for manual pages (--help=man) and for shell completion (--help=list). All three
 * use the same table, so none can be out of date. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "carousel/model.h"
#include "carousel/optimizer.h"
#include "carousel/plan.h"
#include "cli.h"

car_cli_help car_cli_find_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help=man") == 0) {
            return CAR_CLI_HELP_MAN;
        }
        if (strcmp(argv[i], "--help=list") == 0) {
            return CAR_CLI_HELP_LIST;
        }
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return CAR_CLI_HELP_TEXT;
        }
    }
    return CAR_CLI_HELP_NONE;
}

bool car_cli_wants_help(int argc, char **argv) {
    return car_cli_find_help(argc, argv) != CAR_CLI_HELP_NONE;
}

/* ---- for people ------------------------------------------------------------------------------ */

/* " [4]", or "" if there is no default. */
static void describe_default(const car_cli_option *option, char *text, size_t capacity) {
    text[0] = '\0';
    switch (option->kind) {
    case CAR_CLI_INT:
        if (*(const int *)option->target != 0 && *(const int *)option->target >= option->least) {
            snprintf(text, capacity, " [%d]", *(const int *)option->target);
        }
        break;
    case CAR_CLI_AUTO:
        if (*(const int *)option->target == 0) {
            snprintf(text, capacity, " [auto]");
        }
        break;
    case CAR_CLI_REAL:
        if (*(const double *)option->target >= option->least) {
            snprintf(text, capacity, " [%g]", *(const double *)option->target);
        }
        break;
    case CAR_CLI_SEED:
        snprintf(text, capacity, " [%llu]", (unsigned long long)*(const uint64_t *)option->target);
        break;
    case CAR_CLI_TEXT:
        if (*(const char *const *)option->target) {
            snprintf(text, capacity, " [%s]", *(const char *const *)option->target);
        }
        break;
    case CAR_CLI_FLAG:
    case CAR_CLI_LIST:
        break;
    }
}

/* Options of one letter have one dash, as in other programs. */
static const char *dashes_of(const car_cli_option *option) {
    return option->name[1] ? "--" : "-";
}

static void print_text(const car_cli_command *command, const car_cli_option *options, int count) {
    printf("%s\n\nusage: %s\n\noptions, with their defaults in brackets:\n", command->summary, command->synopsis);
    for (int o = 0; o < count; o++) {
        char left[64], by_default[128];
        if (!options[o].help) {
            continue;
        }
        snprintf(left, sizeof left, "%s%s %s", dashes_of(&options[o]), options[o].name,
                 options[o].value ? options[o].value : "");
        describe_default(&options[o], by_default, sizeof by_default);
        printf("  %-24s %s%s\n", left, options[o].help, by_default);
    }
    printf("  %-24s %s\n", "--help", "show this help and exit");
    if (command->footer) {
        printf("\n%s\n", command->footer);
    }
}

/* ---- for the shell: --name, VALUE, possible values, description; separated by tabs ----------- */

static void print_values(const char *option) {
    if (strcmp(option, "rule") == 0) {
        for (int r = 0; r < CAR_RULES; r++) {
            printf("%s ", car_rule_info_of((car_rule)r)->name);
        }
    } else if (strcmp(option, "placement") == 0) {
        for (int p = 0; p < CAR_PLACEMENTS; p++) {
            printf("%s ", car_placement_info_of((car_placement)p)->name);
        }
    } else if (strcmp(option, "optimizer") == 0) {
        for (int k = 0; k < CAR_OPTIMIZERS; k++) {
            printf("%s ", car_optimizer_info_of((car_optimizer_kind)k)->name);
        }
    } else if (strcmp(option, "model") == 0) {
        for (int m = 0; m < car_model_count(); m++) {
            printf("%s ", car_model_info_at(m)->name);
        }
    }
}

static void print_list(const car_cli_option *options, int count) {
    for (int o = 0; o < count; o++) {
        if (options[o].help) {
            printf("%s%s\t%s\t", dashes_of(&options[o]), options[o].name, options[o].value ? options[o].value : "");
            print_values(options[o].name);
            printf("\t%s\n", options[o].help);
        }
    }
    puts("--help\t\t\tshow this help and exit");
}

/* ---- for manual pages, in scdoc's format ----------------------------------------------------- */

static void print_escaped(const char *text) {
    for (; *text; text++) {
        if (strchr("\\*_`<>#[]|+~.-", *text)) {
            putchar('\\');
        }
        putchar(*text);
    }
}

/* Prints each line of the text on its own line. */
static void print_lines(const char *text) {
    while (*text) {
        const char *line = text + strspn(text, " ");
        int length = (int)strcspn(line, "\n");
        char copy[512];
        snprintf(copy, sizeof copy, "%.*s", length, line);
        text = line + length + (line[length] == '\n');
        print_escaped(copy);
        puts(*text ? "++" : "");
    }
}

/* Turns "Trains a model." into the form for an index: "trains a model". */
static void print_purpose(const char *summary) {
    size_t length = strlen(summary), end = length > 0 && summary[length - 1] == '.' ? length - 1 : length;
    char text[512];
    snprintf(text, sizeof text, "%c%.*s", tolower((unsigned char)summary[0]), (int)end - 1, summary + 1);
    print_escaped(text);
}

void car_cli_print_man_head(const char *page, const char *summary, const char *synopsis) {
    printf("%s(1)\n\n# NAME\n\n%s - ", page, page);
    print_purpose(summary);
    puts("\n\n# SYNOPSIS\n");
    print_lines(synopsis);
}

static void print_man_options(const car_cli_option *options, int count) {
    for (int o = 0; o < count; o++) {
        char by_default[128];
        if (!options[o].help) {
            continue;
        }
        describe_default(&options[o], by_default, sizeof by_default);
        if (strcmp(options[o].name, "threads") == 0) {
            by_default[0] = '\0'; /* it depends on the machine that makes the page */
        }
        printf("*%s%s*", dashes_of(&options[o]), options[o].name);
        if (options[o].value) {
            fputs(" _", stdout);
            print_escaped(options[o].value);
            putchar('_');
        }
        fputs("\n\t", stdout);
        print_escaped(options[o].help);
        print_escaped(by_default);
        puts("\n");
    }
}

/* For a subcommand ("data info") prints a section, else the page without its hand-written parts. */
static void print_man(const car_cli_command *command, const car_cli_option *options, int count) {
    if (strchr(command->name, ' ')) {
        char title[64];
        snprintf(title, sizeof title, "OPTIONS OF %s", command->name);
        for (char *c = title; *c; c++) {
            *c = (char)toupper((unsigned char)*c);
        }
        printf("# %s\n\n", title);
        print_escaped(command->summary);
        puts("\n");
    } else {
        char page[64];
        snprintf(page, sizeof page, "carousel-%s", command->name);
        car_cli_print_man_head(page, command->summary, command->synopsis);
        puts("\n# OPTIONS\n\nDefaults are in brackets. *--name=value* is understood as well as *--name value*.\n");
    }
    print_man_options(options, count);
    if (command->footer && !strchr(command->name, ' ')) {
        printf("# NOTES\n\n```\n%s\n```\n\n", command->footer);
    }
}

void car_cli_print_help(car_cli_help form, const car_cli_command *command, const car_cli_option *options, int count) {
    if (form == CAR_CLI_HELP_MAN) {
        print_man(command, options, count);
    } else if (form == CAR_CLI_HELP_LIST) {
        print_list(options, count);
    } else {
        print_text(command, options, count);
    }
}
