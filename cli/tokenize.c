/* carousel tokenize: converts a text to a file of tokens, with a given tokenizer or one learnt from the text. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "carousel/convention.h"
#include "carousel/tokenizer.h"
#include "cli.h"

enum { DEFAULT_VOCABULARY = 4096 };

typedef struct tokenization {
    const char *text, *output, *merges, *vocab, *given;
    int vocabulary;
    bool header, json;
    car_context *context;
    car_tokenizer *tokenizer;
    char *saved; /* path of the tokenizer's file */
    car_token_counts counts;
} tokenization;

/* ---- options --------------------------------------------------------------------------------- */

static int check_options(const tokenization *t) {
    size_t length = t->output ? strlen(t->output) : 0;
    if (!t->text || !t->output) {
        return car_cli_fail(CAR_CLI_USAGE, "tokenize: %s; see 'carousel tokenize --help'",
                            t->text ? "-o FILE.bin is missing" : "TEXT, the file to tokenize, is missing");
    }
    if (length <= 4 || strcmp(t->output + length - 4, ".bin") != 0) {
        return car_cli_fail(
            CAR_CLI_USAGE,
            "tokenize: -o %s: the file name must end in .bin, which tells tokens:FILE that it has 16-bit tokens",
            t->output);
    }
    if ((t->merges == NULL) != (t->vocab == NULL)) {
        return car_cli_fail(
            CAR_CLI_USAGE,
            "tokenize: --merges and --vocab must be used together; they are the two files of GPT-2's tokenizer");
    }
    if ((t->vocabulary > 0) + (t->merges != NULL) + (t->given != NULL) > 1) {
        return car_cli_fail(CAR_CLI_USAGE,
                            "tokenize: use only one of --vocabulary, --tokenizer, and --merges with --vocab");
    }
    return CAR_CLI_GO_ON;
}

static int read_options(int argc, char **argv, tokenization *t) {
    const car_cli_option options[] = {
        {"output", "FILE.bin", "token file to write; also -o (required)", CAR_CLI_TEXT, &t->output, 0, 0},
        {"vocabulary", "N", "learn a byte-level BPE with N tokens from the text (default: 4096)", CAR_CLI_INT,
         &t->vocabulary, CAR_TOKENIZER_LEAST, CAR_TOKENIZER_FILE_MOST},
        {"tokenizer", "FILE", "use this tokenizer.json (Hugging Face format, byte-level BPE)", CAR_CLI_TEXT, &t->given,
         0, 0},
        {"merges", "FILE", "with --vocab: use GPT-2's merges.txt", CAR_CLI_TEXT, &t->merges, 0, 0},
        {"vocab", "FILE", "with --merges: GPT-2's vocab.json", CAR_CLI_TEXT, &t->vocab, 0, 0},
        {"header", NULL, "write llm.c's header (default: no header, as in nanoGPT)", CAR_CLI_FLAG, &t->header, 0, 0},
        {"json", NULL, "print a JSON object", CAR_CLI_FLAG, &t->json, 0, 0},
    };
    enum { COUNT = sizeof options / sizeof options[0] };
    const car_cli_command command = {
        "tokenize", "Converts a text to tokens for training, with a tokenizer that is learned from the text or given.",
        "carousel tokenize TEXT -o FILE.bin [OPTIONS]",
        "The tokenizer is saved next to FILE.bin as FILE.tokenizer.json. Training with --data tokens:FILE.bin takes "
        "the\n"
        "vocabulary from there, and copies the tokenizer to the run directory."};
    car_cli_write_out(argc, argv, "-o", "--output");
    t->text = car_cli_wants_help(argc, argv) ? NULL : car_cli_take_word(options, COUNT, &argc, argv);
    int code = car_cli_parse(&command, options, COUNT, argc, argv);
    return code == CAR_CLI_GO_ON ? check_options(t) : code;
}

/* ---- work ------------------------------------------------------------------------------------ */

static car_status find_tokenizer(tokenization *t) {
    car_status status = CAR_OK;
    if (t->given) {
        CAR_TRY(car_tokenizer_read(t->context, t->given, &t->tokenizer));
    } else if (t->merges) {
        CAR_TRY(car_tokenizer_read_gpt2(t->context, t->vocab, t->merges, &t->tokenizer));
    } else {
        CAR_TRY(car_tokenizer_train_file(t->context, t->text, t->vocabulary ? t->vocabulary : DEFAULT_VOCABULARY,
                                         &t->tokenizer));
    }
done:
    return status;
}

static car_status tokenize(tokenization *t) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &t->context));
    CAR_TRY(find_tokenizer(t));
    CAR_TRY(car_tokenizer_name_beside(t->context, t->output, &t->saved));
    CAR_TRY(car_tokenizer_encode_file(t->tokenizer, t->text, t->output, t->header, &t->counts));
done:
    return status;
}

static void print_result(const tokenization *t) {
    int size = car_tokenizer_size(t->tokenizer), asked = t->vocabulary ? t->vocabulary : DEFAULT_VOCABULARY;
    double each = t->counts.tokens > 0 ? (double)t->counts.bytes / (double)t->counts.tokens : 0;
    if (!t->given && !t->merges && size < asked) {
        fprintf(
            stderr,
            "carousel: note: no pair of tokens is left that occurs twice, so the vocabulary has %d tokens, not %d\n",
            size, asked);
    }
    if (!t->json) {
        printf("%s: %lld tokens of a vocabulary of %d, %.2f bytes each; tokenizer in %s\n", t->output,
               (long long)t->counts.tokens, size, each, t->saved);
        return;
    }
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "file", t->output);
    cJSON_AddStringToObject(json, "tokenizer", t->saved);
    cJSON_AddNumberToObject(json, "bytes", (double)t->counts.bytes);
    cJSON_AddNumberToObject(json, "tokens", (double)t->counts.tokens);
    cJSON_AddNumberToObject(json, "vocabulary", size);
    char *text = cJSON_Print(json);
    puts(text ? text : "{}");
    cJSON_free(text);
    cJSON_Delete(json);
}

int car_cli_tokenize(int argc, char **argv) {
    tokenization t = {0};
    int code = read_options(argc, argv, &t);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    car_status status = tokenize(&t);
    code = CAR_CLI_OK;
    if (status == CAR_OK) {
        print_result(&t);
    } else {
        code = car_cli_report(t.context, status);
    }
    if (t.context) {
        car_tokenizer_destroy(t.tokenizer);
        car_context_release_text(t.context, t.saved);
        car_context_destroy(t.context);
    }
    return code;
}
