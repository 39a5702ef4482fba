/* carousel generate: continues a text with a language model, token by token. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "carousel/utf8.h"
#include "cli.h"
#include "language.h"

enum { MOST_PROMPT = 16 << 20 };

/* Why it ended, with the names in --json. */
typedef enum ending { ENOUGH, CONTEXT_FULL, END_OF_TEXT } ending;
static const char *const ending_names[] = {"tokens", "context", "end_of_text"};

typedef struct generation {
    car_cli_language model;
    car_generator *generator;       /* owned by the model */
    const car_tokenizer *tokenizer; /* owned by the model */
    car_sampling sampling;
    const char *prompt;
    int wanted;
    bool json;
    char *typed; /* the prompt, if read from standard input */
    size_t prompt_bytes;
    int32_t *tokens; /* those of the prompt, then the generated ones */
    int count, capacity, prompt_tokens;
    char *text; /* the generated text */
    int bytes, byte_capacity, shown;
    float *logits;
    int vocabulary;
    car_sampler *sampler;
    ending end;
    double seconds;
} generation;

/* ---- options --------------------------------------------------------------------------------- */

static int check_options(const generation *g) {
    if (!g->model.place) {
        return car_cli_fail(CAR_CLI_USAGE, "generate: RUN is missing. Name a run directory, a Hugging Face model "
                                           "directory or a file of weights; see 'carousel generate --help'");
    }
    return CAR_CLI_GO_ON;
}

static int read_options(int argc, char **argv, generation *g) {
    const car_cli_option options[] = {
        {"prompt", "TEXT", "text to continue; - reads it from standard input", CAR_CLI_TEXT, &g->prompt, 0, 0},
        {"tokens", "N", "maximum number of tokens to generate", CAR_CLI_INT, &g->wanted, 1, 1 << 24},
        {"temperature", "T", "sampling temperature: lower is more predictable; 0 = always the most likely token",
         CAR_CLI_REAL, &g->sampling.temperature, 0, 1e6},
        {"top-k", "K", "sample from the K most likely tokens; 0 = from all", CAR_CLI_INT, &g->sampling.top_k, 0,
         1 << 24},
        {"top-p", "P", "sample from the most likely tokens that together have probability P", CAR_CLI_REAL,
         &g->sampling.top_p, 1e-9, 1},
        {"seed", "N", "random seed for sampling", CAR_CLI_SEED, &g->sampling.seed, 0, 0},
        {"threads", "P", "compute threads", CAR_CLI_INT, &g->model.config.threads, 1, 256},
        {"tokenizer", "FILE", "tokenizer.json to use (default: the model's)", CAR_CLI_TEXT, &g->model.config.tokenizer,
         0, 0},
        {"heads", "N", "attention heads, if RUN is only a file of weights (default: the model's)", CAR_CLI_INT,
         &g->model.config.heads, 1, 1 << 12},
        {"json", NULL, "print a JSON object at the end", CAR_CLI_FLAG, &g->json, 0, 0},
    };
    enum { COUNT = sizeof options / sizeof options[0] };
    const car_cli_command command = {
        "generate", "Continues a text with a language model.", "carousel generate RUN --prompt TEXT [OPTIONS]",
        "RUN is the directory of a run or a checkpoint, a Hugging Face model directory with config.json and\n"
        "model.safetensors, or a safetensors file. Generation stops after --tokens tokens, at the end of a text, or\n"
        "when the model's context is full."};
    g->model.place = car_cli_wants_help(argc, argv) ? NULL : car_cli_take_word(options, COUNT, &argc, argv);
    int code = car_cli_parse(&command, options, COUNT, argc, argv);
    return code == CAR_CLI_GO_ON ? check_options(g) : code;
}

/* ---- the prompt ------------------------------------------------------------------------------ */

static car_status read_prompt(generation *g) {
    if (!g->prompt || strcmp(g->prompt, "-") != 0) {
        g->prompt_bytes = g->prompt ? strlen(g->prompt) : 0;
        return CAR_OK;
    }
    g->typed = malloc(MOST_PROMPT + 1);
    if (!g->typed) {
        return car_context_fail(g->model.context, CAR_ERROR_MEMORY, "out of memory for the prompt");
    }
    g->prompt_bytes = fread(g->typed, 1, MOST_PROMPT + 1, stdin);
    if (ferror(stdin) || g->prompt_bytes > MOST_PROMPT) {
        return car_context_fail(g->model.context, CAR_ERROR_IO, "could not read the prompt from standard input: %s",
                                ferror(stdin) ? strerror(errno) : "it is longer than 16 MB");
    }
    g->prompt = g->typed;
    return CAR_OK;
}

static car_status take_tokens(void *user, const int32_t *tokens, int count) {
    generation *g = user;
    car_status status = car_context_grow(g->model.context, &g->tokens, &g->capacity, g->count + count, sizeof *tokens);
    if (status == CAR_OK) {
        memcpy(g->tokens + g->count, tokens, (size_t)count * sizeof *tokens);
        g->count += count;
    }
    return status;
}

/* Without a prompt, starts after an end-of-text token. */
static car_status encode_prompt(generation *g) {
    car_context *context = g->model.context;
    int32_t end = car_tokenizer_end_of_text(g->tokenizer);
    int positions = car_generator_sizes(g->generator).positions;
    car_status status = CAR_OK;
    CAR_TRY(read_prompt(g));
    if (g->prompt_bytes > 0) {
        CAR_TRY(car_tokenizer_encode(g->tokenizer, g->prompt, g->prompt_bytes, take_tokens, g));
    } else if (end >= 0) {
        CAR_TRY(take_tokens(g, &end, 1));
    } else {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "the tokenizer has no <|endoftext|> token to start with; give a --prompt");
    }
    g->prompt_tokens = g->count;
    if (g->count > positions) {
        status = car_context_fail(context, CAR_ERROR_ARGUMENT,
                                  "the prompt has %d tokens, but the model's context is %d; use a shorter prompt",
                                  g->count, positions);
    }
done:
    return status;
}

/* ---- generating ------------------------------------------------------------------------------ */

/* Prints complete characters only, or at the end everything. Malformed bytes are printed unchanged. */
static void show(generation *g, bool all) {
    const unsigned char *text = (const unsigned char *)g->text;
    int end = g->shown;
    while (end < g->bytes) {
        int length = car_utf8_length(text + end, (size_t)(g->bytes - end));
        if (length < 0 && !all) {
            break;
        }
        end += length > 0 ? length : 1;
    }
    fwrite(g->text + g->shown, 1, (size_t)(end - g->shown), stdout);
    fflush(stdout);
    g->shown = end;
}

static car_status add_token(generation *g, int32_t token) {
    int length = 0;
    const unsigned char *bytes = car_tokenizer_decode(g->tokenizer, token, &length);
    car_status status = CAR_OK;
    CAR_TRY(take_tokens(g, &token, 1));
    CAR_TRY(car_context_grow(g->model.context, &g->text, &g->byte_capacity, g->bytes + length, 1));
    memcpy(g->text + g->bytes, bytes, (size_t)length);
    g->bytes += length;
    if (!g->json) {
        show(g, false);
    }
done:
    return status;
}

static car_status run(generation *g) {
    car_generator *generator = g->generator;
    int positions = car_generator_sizes(generator).positions, token = 0;
    double start = car_clock_seconds();
    car_status status = CAR_OK;
    if (!g->json && g->prompt_bytes > 0) {
        fwrite(g->prompt, 1, g->prompt_bytes, stdout);
        fflush(stdout);
    }
    CAR_TRY(car_generator_feed(generator, g->tokens, g->count, g->logits));
    for (int n = 0; n < g->wanted; n++) {
        CAR_TRY(car_sampler_choose(g->sampler, g->logits, n, &token));
        if (token == car_tokenizer_end_of_text(g->tokenizer)) {
            g->end = END_OF_TEXT;
            break;
        }
        CAR_TRY(add_token(g, token));
        if (n + 1 < g->wanted && car_generator_length(generator) == positions) {
            g->end = CONTEXT_FULL;
            break;
        }
        if (n + 1 < g->wanted) {
            CAR_TRY(car_generator_feed(generator, &(int32_t){token}, 1, g->logits));
        }
    }
done:
    g->seconds = car_clock_seconds() - start;
    return status;
}

static car_status generate(generation *g) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &g->model.context));
    CAR_TRY(car_cli_open_language(&g->model));
    g->generator = car_language_generator(g->model.language);
    g->tokenizer = car_language_tokenizer(g->model.language);
    CAR_TRY(encode_prompt(g));
    g->vocabulary = car_generator_sizes(g->generator).vocabulary;
    CAR_TRY(car_context_allocate(g->model.context, (size_t)g->vocabulary, sizeof *g->logits, &g->logits));
    /* A model's vocabulary may be larger than its tokenizer's. */
    CAR_TRY(car_sampler_create(g->model.context, car_tokenizer_size(g->tokenizer), &g->sampling, &g->sampler));
    CAR_TRY(run(g));
done:
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* JSON is UTF-8: malformed bytes become U+FFFD. */
static void add_text(cJSON *json, const char *name, const char *text, size_t bytes) {
    char *sound = malloc(3 * bytes + 1);
    size_t used = 0;
    for (size_t at = 0, length = 0; sound && at < bytes; at += length) {
        int known = car_utf8_length((const unsigned char *)text + at, bytes - at);
        length = known > 0 ? (size_t)known : 1;
        memcpy(sound + used, known > 0 ? text + at : "\xEF\xBF\xBD", known > 0 ? length : 3);
        used += known > 0 ? length : 3;
    }
    if (sound) {
        sound[used] = '\0';
        cJSON_AddStringToObject(json, name, sound);
    }
    free(sound);
}

static void print_json(const generation *g) {
    int made = g->count - g->prompt_tokens;
    cJSON *json = cJSON_CreateObject();
    add_text(json, "prompt", g->prompt ? g->prompt : "", g->prompt_bytes);
    add_text(json, "text", g->text ? g->text : "", (size_t)g->bytes);
    cJSON_AddItemToObject(json, "prompt_tokens", cJSON_CreateIntArray(g->tokens, g->prompt_tokens));
    cJSON_AddItemToObject(json, "tokens", cJSON_CreateIntArray(g->tokens + g->prompt_tokens, made));
    cJSON_AddStringToObject(json, "ended_by", ending_names[g->end]);
    cJSON_AddNumberToObject(json, "tokens_per_s", g->seconds > 0 ? made / g->seconds : 0);
    char *text = cJSON_Print(json);
    puts(text ? text : "{}");
    cJSON_free(text);
    cJSON_Delete(json);
}

static void conclude(generation *g) {
    if (g->json) {
        print_json(g);
        return;
    }
    show(g, true);
    putchar('\n');
    fflush(stdout);
    int trained = car_language_sequence(g->model.language);
    if (trained > 0 && g->count > trained) {
        fprintf(stderr, "carousel: note: the run was trained on sequences of %d tokens, but this text has %d\n",
                trained, g->count);
    }
    if (g->end == CONTEXT_FULL) {
        fprintf(stderr, "carousel: note: ended after %d tokens: the model's context of %d tokens is full\n",
                g->count - g->prompt_tokens, car_generator_sizes(g->generator).positions);
    }
}

int car_cli_generate(int argc, char **argv) {
    generation g = {.model.config.threads = car_cli_language_threads(),
                    .sampling = {.temperature = 0.8, .top_p = 1, .seed = 1},
                    .wanted = 100};
    int code = read_options(argc, argv, &g);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    car_status status = generate(&g);
    car_context *context = g.model.context;
    code = CAR_CLI_OK;
    if (status == CAR_OK) {
        conclude(&g);
    } else {
        code = car_cli_report(context, status);
    }
    if (context) {
        car_sampler_destroy(g.sampler);
        car_context_release(context, g.logits, g.logits ? (size_t)g.vocabulary : 0, sizeof *g.logits);
        car_context_release(context, g.text, (size_t)g.byte_capacity, 1);
        car_context_release(context, g.tokens, (size_t)g.capacity, sizeof *g.tokens);
        car_language_close(g.model.language);
        car_context_destroy(context);
    }
    free(g.typed);
    return code;
}
