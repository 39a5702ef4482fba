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
                            t->text ? "where to? -o FILE.bin is missing" : "which text?");
    }
    if (length <= 4 || strcmp(t->output + length - 4, ".bin") != 0) {
        return car_cli_fail(CAR_CLI_USAGE,
                            "tokenize: -o %s: the name must end in .bin, by which tokens:FILE knows 16-bit tokens",
                            t->output);
    }
    if ((t->merges == NULL) != (t->vocab == NULL)) {
        return car_cli_fail(CAR_CLI_USAGE, "tokenize: --merges and --vocab go together: GPT-2's two files");
    }
    if ((t->vocabulary > 0) + (t->merges != NULL) + (t->given != NULL) > 1) {
        return car_cli_fail(CAR_CLI_USAGE,
                            "tokenize: --vocabulary learns a tokenizer, --merges with --vocab and --tokenizer give "
                            "one: use one of the three");
    }
    return CAR_CLI_GO_ON;
}

static int read_options(int argc, char **argv, tokenization *t) {
    const car_cli_option options[] = {
        {"output", "FILE.bin", "the file of tokens to write; also -o (required)", CAR_CLI_TEXT, &t->output, 0, 0},
        {"vocabulary", "N", "learn a byte-level BPE of so many tokens from the text (4096)", CAR_CLI_INT,
         &t->vocabulary, CAR_TOKENIZER_LEAST, CAR_TOKENIZER_FILE_MOST},
        {"tokenizer", "FILE", "use this tokenizer.json (Hugging Face's; byte-level BPE)", CAR_CLI_TEXT, &t->given, 0,
         0},
        {"merges", "FILE", "with --vocab: use GPT-2's merges.txt", CAR_CLI_TEXT, &t->merges, 0, 0},
        {"vocab", "FILE", "with --merges: GPT-2's vocab.json", CAR_CLI_TEXT, &t->vocab, 0, 0},
        {"header", NULL, "begin the file with llm.c's header; else it is bare, as nanoGPT's", CAR_CLI_FLAG, &t->header,
         0, 0},
        {"json", NULL, "print a JSON object", CAR_CLI_FLAG, &t->json, 0, 0},
    };
    enum { COUNT = sizeof options / sizeof options[0] };
    const car_cli_command command = {
        "tokenize", "Turns a text into tokens to train on, by a tokenizer that is learnt from it or given.",
        "carousel tokenize TEXT -o FILE.bin [OPTIONS]",
        "The tokenizer is saved beside FILE.bin as FILE.tokenizer.json; training with --data tokens:FILE.bin takes "
        "the\n"
        "vocabulary from there and copies it into the run directory."};
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
        fprintf(stderr, "carousel: note: no pair occurs twice any more: the vocabulary has %d tokens, not %d\n", size,
                asked);
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
