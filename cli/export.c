/* carousel export: writes a trained model as a folder that other libraries can open. */
#include <stdio.h>
#include <string.h>

#include "carousel/convention.h"
#include "cli.h"
#include "language.h"

typedef struct exporting {
    car_cli_language model;
    const char *typed, *format;
} exporting;

static int read_options(int argc, char **argv, exporting *e) {
    const car_cli_option options[] = {
        {"output", "DIR", "directory to write; also -o (required)", CAR_CLI_TEXT, &e->typed, 0, 0},
        {"format", "KIND", "output format: config.json, model.safetensors and the tokenizer's files", CAR_CLI_TEXT,
         &e->format, 0, 0},
        {"tokenizer", "FILE", "tokenizer.json to use (default: the model's)", CAR_CLI_TEXT, &e->model.config.tokenizer,
         0, 0},
        {"heads", "N", "attention heads, if RUN is only a file of weights (default: the model's)", CAR_CLI_INT,
         &e->model.config.heads, 1, 1 << 12},
    };
    enum { COUNT = sizeof options / sizeof options[0] };
    const car_cli_command command = {"export", "Writes a language model as a directory that other libraries can read.",
                                     "carousel export RUN -o DIR [OPTIONS]",
                                     "RUN is the same as for 'carousel generate'. DIR must be new or empty."};
    car_cli_write_out(argc, argv, "-o", "--output");
    e->model.place = car_cli_wants_help(argc, argv) ? NULL : car_cli_take_word(options, COUNT, &argc, argv);
    int code = car_cli_parse(&command, options, COUNT, argc, argv);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    if (!e->model.place || !e->typed || !*e->typed) {
        return car_cli_fail(CAR_CLI_USAGE, "export: %s; see 'carousel export --help'",
                            e->model.place ? "-o DIR is missing" : "RUN, the model to export, is missing");
    }
    if (strcmp(e->format, "huggingface") != 0) {
        return car_cli_fail(CAR_CLI_USAGE, "export: there is no format '%s'; the only one is huggingface", e->format);
    }
    return CAR_CLI_GO_ON;
}

static car_status run(exporting *e) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &e->model.context));
    CAR_TRY(car_cli_open_language(&e->model));
    CAR_TRY(car_language_export(e->model.language, e->typed));
done:
    return status;
}

int car_cli_export(int argc, char **argv) {
    exporting e = {.format = "huggingface"};
    int code = read_options(argc, argv, &e);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    car_status status = run(&e);
    code = CAR_CLI_OK;
    if (status == CAR_OK) {
        const car_gpt2_sizes s = car_generator_sizes(car_language_generator(e.model.language));
        printf("%s: GPT-2 with %d layers of width %d, %d heads, vocabulary %d, context %d, and its tokenizer\n",
               e.typed, s.depth, s.width, s.heads, s.vocabulary, s.positions);
    } else {
        code = car_cli_report(e.model.context, status);
    }
    if (e.model.context) {
        car_language_close(e.model.language);
        car_context_destroy(e.model.context);
    }
    return code;
}
