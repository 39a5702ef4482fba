/* carousel export: a trained model as a folder that other libraries open. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/folder.h"
#include "base/output.h"
#include "cli.h"
#include "language.h"

typedef struct exporting {
    car_language_model model;
    const char *typed, *format;
    char output[CAR_LANGUAGE_PATH]; /* what was typed, without slashes at its end */
    char *parent, *temporary;       /* where it is made before it gets its name */
} exporting;

static int read_options(int argc, char **argv, exporting *e) {
    const car_cli_option options[] = {
        {"output", "DIR", "the folder to write; also -o (required)", CAR_CLI_TEXT, &e->typed, 0, 0},
        {"format", "KIND", "huggingface: config.json, model.safetensors and the tokenizer's files", CAR_CLI_TEXT,
         &e->format, 0, 0},
        {"tokenizer", "FILE", "a tokenizer.json (that of the model)", CAR_CLI_TEXT, &e->model.tokenizer_path, 0, 0},
        {"heads", "N", "heads of attention, for a file of weights alone (those of the model)", CAR_CLI_INT,
         &e->model.heads, 1, 1 << 12},
    };
    enum { COUNT = sizeof options / sizeof options[0] };
    const car_cli_command command = {"export", "Writes a language model as a folder that other libraries open.",
                                     "carousel export RUN -o DIR [OPTIONS]",
                                     "RUN is what 'carousel generate' takes. DIR must not exist, or be empty."};
    car_cli_write_out(argc, argv, "-o", "--output");
    e->model.place = car_cli_wants_help(argc, argv) ? NULL : car_cli_take_word(options, COUNT, &argc, argv);
    int code = car_cli_parse(&command, options, COUNT, argc, argv);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    if (!e->model.place || !e->typed || !*e->typed) {
        return car_cli_fail(CAR_CLI_USAGE, "export: %s; see 'carousel export --help'",
                            e->model.place ? "where to? -o DIR is missing" : "which model?");
    }
    if (strcmp(e->format, "huggingface") != 0) {
        return car_cli_fail(CAR_CLI_USAGE, "export: there is no format '%s', but huggingface", e->format);
    }
    return CAR_CLI_GO_ON;
}

static car_status name_output(exporting *e) {
    size_t length = strlen(e->typed);
    while (length > 1 && e->typed[length - 1] == '/') {
        length--;
    }
    if (length >= sizeof e->output) {
        return car_context_fail(e->model.context, CAR_ERROR_IO, "the path %s is too long", e->typed);
    }
    memcpy(e->output, e->typed, length);
    return CAR_OK;
}

/* The library's own class for GPT-2 would add tokens of its own; this one takes tokenizer.json as it is. */
static car_status write_tokenizer(exporting *e) {
    enum { WHOLE, VOCABULARY, MERGES, SETTINGS, FILES };
    static const char *const names[FILES] = {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"};
    char paths[FILES][CAR_LANGUAGE_PATH + 32], settings[256];
    const car_tokenizer *tokenizer = e->model.tokenizer;
    bool ends = car_tokenizer_end_of_text(tokenizer) >= 0;
    car_status status = CAR_OK;
    for (int f = 0; f < FILES; f++) {
        snprintf(paths[f], sizeof paths[f], "%.*s/%s", CAR_LANGUAGE_PATH, e->temporary, names[f]);
    }
    snprintf(settings, sizeof settings,
             "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"model_max_length\": %d%s}\n",
             car_generator_sizes(e->model.generator).positions,
             ends ? ", \"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<|endoftext|>\"" : "");
    CAR_TRY(car_tokenizer_write(tokenizer, paths[WHOLE]));
    CAR_TRY(car_tokenizer_write_gpt2(tokenizer, paths[VOCABULARY], paths[MERGES]));
    CAR_TRY(car_output_write_text(e->model.context, paths[SETTINGS], settings));
done:
    return status;
}

/* An empty directory may be there already: it is replaced. Anything else stays as it is. */
static car_status check_output(const exporting *e) {
    struct stat found;
    DIR *folder = opendir(e->output);
    bool empty = folder != NULL;
    for (const struct dirent *entry; empty && (entry = readdir(folder)) != NULL;) {
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    }
    if (folder) {
        closedir(folder);
    }
    if (empty || stat(e->output, &found) != 0) {
        return CAR_OK;
    }
    return car_context_fail(e->model.context, CAR_ERROR_IO, "%s exists already; name another folder, or remove it",
                            e->output);
}

/* The folder gets its name when all is in it. */
static car_status run(exporting *e) {
    car_context *context = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &e->model.context));
    context = e->model.context;
    CAR_TRY(name_output(e));
    CAR_TRY(check_output(e));
    CAR_TRY(car_language_open(&e->model));
    CAR_TRY(car_folder_of(context, e->output, &e->parent));
    CAR_TRY(car_folder_make(context, e->parent));
    const char *slash = strrchr(e->output, '/');
    CAR_TRY(car_folder_temporary(context, e->parent, slash ? slash + 1 : e->output, &e->temporary));
    if (strlen(e->temporary) >= CAR_LANGUAGE_PATH) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", e->output);
    }
    CAR_TRY(car_folder_make(context, e->temporary));
    CAR_TRY(write_tokenizer(e));
    CAR_TRY(car_generator_export(e->model.generator, e->temporary, car_tokenizer_end_of_text(e->model.tokenizer)));
    if (rename(e->temporary, e->output) != 0) {
        status = car_context_fail(context, CAR_ERROR_IO, "could not name %s: %s", e->output, strerror(errno));
        goto done;
    }
    CAR_TRY(car_folder_sync(context, e->parent));
done:
    if (status != CAR_OK && e->temporary) {
        car_folder_remove(e->temporary);
    }
    return status;
}

int car_cli_export(int argc, char **argv) {
    exporting e = {.format = "huggingface", .model.threads = 1};
    int code = read_options(argc, argv, &e);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    car_status status = run(&e);
    code = CAR_CLI_OK;
    if (status == CAR_OK) {
        const car_gpt2_sizes s = car_generator_sizes(e.model.generator);
        printf("%s: GPT-2 with %d layers of width %d, %d heads, vocabulary %d, context %d, and its tokenizer\n",
               e.output, s.depth, s.width, s.heads, s.vocabulary, s.positions);
    } else {
        code = car_cli_report(e.model.context, status);
    }
    if (e.model.context) {
        car_context_release_text(e.model.context, e.temporary);
        car_context_release_text(e.model.context, e.parent);
        car_language_close(&e.model);
        car_context_destroy(e.model.context);
    }
    return code;
}
