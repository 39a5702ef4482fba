/* Reads tokenizers from files: Hugging Face's tokenizer.json, and GPT-2's vocab.json with merges.txt.
 *
 * Nothing that would change tokens is ignored: unsupported settings are refused by name. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mapped.h"
#include "tokenizer/internal.h"

enum { MOST_TOKEN_BYTES = 1 << 20 };

/* Where a token was found: in the vocabulary, or in the list of added tokens. */
typedef struct origin {
    const cJSON *item;
    bool added;
} origin;

typedef struct reading {
    car_context *context;
    const char *path;
    car_tokenizer *tokenizer;
    origin *origins; /* per token */
    int count;
    car_words words; /* bytes of the tokens that merges may use */
    int *word_token; /* per word */
    int word_token_capacity;
    unsigned char *scratch[2]; /* each holds the bytes of a token */
    int scratch_capacity[2];
} reading;

static car_status malformed(const reading *r, const char *what) {
    return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s: %s", r->path, what);
}

static void release(reading *r) {
    for (int s = 0; s < 2; s++) {
        car_context_release(r->context, r->scratch[s], (size_t)r->scratch_capacity[s], 1);
    }
    car_context_release(r->context, r->word_token, (size_t)r->word_token_capacity, sizeof *r->word_token);
    car_words_free(&r->words);
    car_context_release(r->context, r->origins, (size_t)r->count, sizeof *r->origins);
    car_tokenizer_destroy(r->tokenizer);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Converts characters of the alphabet to bytes in scratch[s]. *length is -1 if a character is not in the alphabet. */
static car_status to_bytes(reading *r, int s, const char *text, size_t bytes, int *length) {
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    car_status status = CAR_OK;
    *length = 0;
    if (bytes > MOST_TOKEN_BYTES) {
        return malformed(r, "a token is longer than 1 MB");
    }
    CAR_TRY(car_context_grow(r->context, &r->scratch[s], &r->scratch_capacity[s], (int)bytes, 1));
    while (at < end && *length >= 0) {
        int character = car_utf8_length(at, (size_t)(end - at));
        int byte = character > 0 ? car_alphabet_byte(car_unicode_get(at, character)) : -1;
        if (byte >= 0) {
            r->scratch[s][(*length)++] = (unsigned char)byte;
            at += character;
        } else {
            *length = -1;
        }
    }
done:
    return status;
}

static car_status place_origin(reading *r, const char *name, const cJSON *number, const cJSON *item, bool added) {
    int n = cJSON_IsNumber(number) && number->valuedouble == (double)number->valueint ? number->valueint : -1;
    if (n < 0 || n >= r->count) {
        return car_context_fail(r->context, CAR_ERROR_FORMAT,
                                "%s: token '%.60s' must have a number from 0 to %d, because there are %d tokens",
                                r->path, name, r->count - 1, r->count);
    }
    if (r->origins[n].item && r->origins[n].added >= added) {
        return car_context_fail(r->context, CAR_ERROR_FORMAT,
                                "%s: token '%.60s' has number %d, which another token has too", r->path, name, n);
    }
    r->origins[n] = (origin){item, added};
    return CAR_OK;
}

static car_status check_added(const reading *r, const cJSON *item) {
    static const char *const switches[] = {"lstrip", "rstrip", "single_word"};
    const char *content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
    if (!content || !*content || strlen(content) > MOST_TOKEN_BYTES) {
        return malformed(r, "an added token has no \"content\"");
    }
    for (size_t s = 0; s < sizeof switches / sizeof *switches; s++) {
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, switches[s]))) {
            return car_context_fail(r->context, CAR_ERROR_UNSUPPORTED,
                                    "%s: added token '%.60s' has \"%s\", which is not supported", r->path, content,
                                    switches[s]);
        }
    }
    return CAR_OK;
}

/* The number of tokens. Added tokens may also be in the vocabulary; since numbers have no gaps, the largest tells
 * how many there are. */
static int count_tokens(const cJSON *added, int size) {
    const cJSON *item = NULL;
    int count = size, most = size + cJSON_GetArraySize(added);
    cJSON_ArrayForEach(item, added) {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(item, "id");
        bool larger = cJSON_IsNumber(number) && number->valuedouble >= count && number->valuedouble < most;
        count = larger ? number->valueint + 1 : count;
    }
    return count;
}

/* Finds the entry of each token number. */
static car_status find_origins(reading *r, const cJSON *vocabulary, const cJSON *added) {
    const cJSON *item = NULL;
    int size = cJSON_IsObject(vocabulary) ? cJSON_GetArraySize(vocabulary) : 0;
    car_status status = CAR_OK;
    if (size == 0) {
        return malformed(r, "has no vocabulary, which is an object of tokens and their numbers");
    }
    int count = count_tokens(added, size);
    CAR_TRY(car_context_allocate(r->context, (size_t)count, sizeof *r->origins, &r->origins));
    r->count = count;
    cJSON_ArrayForEach(item, vocabulary) {
        CAR_TRY(place_origin(r, item->string, item, item, false));
    }
    cJSON_ArrayForEach(item, added) {
        CAR_TRY(check_added(r, item));
        CAR_TRY(place_origin(r, cJSON_GetObjectItemCaseSensitive(item, "content")->valuestring,
                             cJSON_GetObjectItemCaseSensitive(item, "id"), item, true));
    }
    for (int n = 0; n < r->count; n++) {
        if (!r->origins[n].item) {
            return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s: no token has the number %d", r->path, n);
        }
    }
done:
    return status;
}

/* Adds a token to the tokenizer and, if merges may use it, to the words. */
static car_status take_token(reading *r, const origin *from) {
    const char *text = from->item->string;
    int length = 0, word = 0, before = r->words.count;
    car_status status = CAR_OK;
    if (from->added) { /* written literally, not in the alphabet */
        text = cJSON_GetObjectItemCaseSensitive(from->item, "content")->valuestring;
        return car_tokenizer_add_token(r->tokenizer, (const unsigned char *)text, (int)strlen(text), true);
    }
    CAR_TRY(to_bytes(r, 0, text, strlen(text), &length));
    if (length <= 0) {
        return car_context_fail(
            r->context, CAR_ERROR_FORMAT,
            "%s: token '%.60s' has a character that does not represent a byte: is this a byte-level BPE?", r->path,
            text);
    }
    CAR_TRY(car_tokenizer_add_token(r->tokenizer, r->scratch[0], length, false));
    /* The name in the JSON stays valid, and equal names mean equal bytes. */
    CAR_TRY(car_words_add(&r->words, (const unsigned char *)text, (int)strlen(text), &word));
    if (word < before) {
        return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s: token '%.60s' occurs twice", r->path, text);
    }
    CAR_TRY(car_context_grow(r->context, &r->word_token, &r->word_token_capacity, word + 1, sizeof *r->word_token));
    r->word_token[word] = r->tokenizer->count - 1;
done:
    return status;
}

static car_status take_tokens(reading *r, const cJSON *vocabulary, const cJSON *added) {
    car_status status = CAR_OK;
    CAR_TRY(find_origins(r, vocabulary, added));
    for (int n = 0; n < r->count; n++) {
        CAR_TRY(take_token(r, &r->origins[n]));
    }
done:
    return status;
}

/* ---- merges ---------------------------------------------------------------------------------- */

static car_status find_token(const reading *r, const char *text, size_t bytes, int *token) {
    int word = bytes <= MOST_TOKEN_BYTES ? car_words_find(&r->words, (const unsigned char *)text, (int)bytes) : -1;
    if (word < 0) {
        return car_context_fail(r->context, CAR_ERROR_FORMAT,
                                "%s: merge %d uses '%.*s', which is not in the vocabulary", r->path,
                                r->tokenizer->merges.count + 1, (int)(bytes < 60 ? bytes : 60), text);
    }
    *token = r->word_token[word];
    return CAR_OK;
}

static car_status take_merge(reading *r, const char *left, size_t left_bytes, const char *right, size_t right_bytes) {
    car_pair pair = {0};
    int made = 0;
    car_status status = CAR_OK;
    CAR_TRY(find_token(r, left, left_bytes, &pair.left));
    CAR_TRY(find_token(r, right, right_bytes, &pair.right));
    /* The result of the merge is their concatenation. */
    CAR_TRY(car_context_grow(r->context, &r->scratch[1], &r->scratch_capacity[1], (int)(left_bytes + right_bytes), 1));
    memcpy(r->scratch[1], left, left_bytes);
    memcpy(r->scratch[1] + left_bytes, right, right_bytes);
    CAR_TRY(find_token(r, (const char *)r->scratch[1], left_bytes + right_bytes, &made));
    CAR_TRY(car_tokenizer_add_merge(r->tokenizer, pair, made));
done:
    return status;
}

/* Reads a merge written as "LEFT RIGHT". */
static car_status take_merge_line(reading *r, const char *line, size_t bytes) {
    const char *space = memchr(line, ' ', bytes);
    size_t left = space ? (size_t)(space - line) : 0, right = space ? bytes - left - 1 : 0;
    if (left == 0 || right == 0 || memchr(space + 1, ' ', right)) {
        return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s: merge %d is not two tokens separated by a space",
                                r->path, r->tokenizer->merges.count + 1);
    }
    return take_merge(r, line, left, space + 1, right);
}

/* Older files have a text for each merge, newer ones an array of two. */
static car_status take_merges(reading *r, const cJSON *merges) {
    const cJSON *item = NULL;
    car_status status = CAR_OK;
    if (!cJSON_IsArray(merges)) {
        return malformed(r, "has no list of merges");
    }
    cJSON_ArrayForEach(item, merges) {
        const char *line = cJSON_GetStringValue(item);
        const char *left = cJSON_GetStringValue(item->child);
        const char *right = left ? cJSON_GetStringValue(item->child->next) : NULL;
        if (line) {
            CAR_TRY(take_merge_line(r, line, strlen(line)));
        } else if (cJSON_IsArray(item) && right && !item->child->next->next) {
            CAR_TRY(take_merge(r, left, strlen(left), right, strlen(right)));
        } else {
            return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s: merge %d is neither a string nor two strings",
                                    r->path, r->tokenizer->merges.count + 1);
        }
    }
done:
    return status;
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static bool has_type(const cJSON *object, const char *type) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "type"));
    return text && strcmp(text, type) == 0;
}

static car_status unsupported(const reading *r, const char *what) {
    return car_context_fail(r->context, CAR_ERROR_UNSUPPORTED,
                            "%s: %s; only byte-level BPE that splits words like GPT-2 is supported", r->path, what);
}

/* Refuses all settings that would lead to other tokens than ours. */
static car_status check_kind(const reading *r, const cJSON *root) {
    static const char *const plain[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    const cJSON *splits = cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer");
    const cJSON *normalizer = cJSON_GetObjectItemCaseSensitive(root, "normalizer");
    const cJSON *after = cJSON_GetObjectItemCaseSensitive(root, "post_processor");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(model, "type");
    if (!cJSON_IsObject(model) || (type && !has_type(model, "BPE"))) {
        return unsupported(r, "its model is not a BPE");
    }
    if (!has_type(splits, "ByteLevel") || cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(splits, "use_regex"))) {
        return unsupported(r, "its pre_tokenizer is not ByteLevel with GPT-2's regular expression");
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(splits, "add_prefix_space"))) {
        return unsupported(r, "its pre_tokenizer adds a space before the text");
    }
    if (normalizer && !cJSON_IsNull(normalizer)) {
        return unsupported(r, "it has a normalizer");
    }
    if (after && !cJSON_IsNull(after) && !has_type(after, "ByteLevel")) {
        return unsupported(r, "its post_processor adds tokens");
    }
    for (size_t p = 0; p < sizeof plain / sizeof *plain; p++) {
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(model, plain[p]));
        if (text && *text) {
            return unsupported(r, "it has a continuing_subword_prefix or end_of_word_suffix");
        }
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(model, "ignore_merges")) ||
        cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(model, "byte_fallback")) ||
        cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(model, "dropout"))) {
        return unsupported(r, "it has ignore_merges, byte_fallback or dropout");
    }
    return CAR_OK;
}

/* Parses the file, which must be a JSON object. */
static car_status parse(reading *r, cJSON **root) {
    car_mapped file = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_mapped_open(r->context, r->path, &file));
    *root = file.size > 0 ? cJSON_ParseWithLength((const char *)file.data, file.size) : NULL;
    if (!cJSON_IsObject(*root)) {
        status = malformed(r, "not a JSON object");
    }
done:
    car_mapped_close(&file);
    return status;
}

static car_status finish(reading *r, car_tokenizer **out) {
    car_status status = car_tokenizer_settle(r->tokenizer, r->path);
    if (status == CAR_OK) {
        *out = r->tokenizer;
        r->tokenizer = NULL;
    }
    return status;
}

car_status car_tokenizer_read(car_context *context, const char *path, car_tokenizer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    reading r = {.context = context, .path = path, .words = {.context = context}};
    cJSON *root = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_tokenizer_create(context, &r.tokenizer));
    CAR_TRY(parse(&r, &root));
    CAR_TRY(check_kind(&r, root));
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    CAR_TRY(take_tokens(&r, cJSON_GetObjectItemCaseSensitive(model, "vocab"),
                        cJSON_GetObjectItemCaseSensitive(root, "added_tokens")));
    CAR_TRY(take_merges(&r, cJSON_GetObjectItemCaseSensitive(model, "merges")));
    CAR_TRY(finish(&r, out));
done:
    release(&r);
    cJSON_Delete(root);
    return status;
}

/* ---- GPT-2's two files ----------------------------------------------------------------------- */

static car_status take_merge_lines(reading *r, const car_mapped *file) {
    const char *at = file->size > 0 ? (const char *)file->data : "", *end = at + file->size;
    car_status status = CAR_OK;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        size_t bytes = (size_t)(stop - at);
        bytes -= bytes > 0 && at[bytes - 1] == '\r';
        bool heading = at == (const char *)file->data && bytes >= 8 && memcmp(at, "#version", 8) == 0;
        if (bytes > 0 && !heading) {
            CAR_TRY(take_merge_line(r, at, bytes));
        }
        at = newline ? newline + 1 : end;
    }
done:
    return status;
}

/* Marks the tokens of several bytes that no merge makes, such as "<|endoftext|>". */
static car_status mark_added(reading *r) {
    car_tokenizer *t = r->tokenizer;
    bool *is_made = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(r->context, (size_t)t->count, sizeof *is_made, &is_made));
    for (int m = 0; m < t->merges.count; m++) {
        is_made[t->made[m]] = true;
    }
    for (int i = 0; i < t->count; i++) {
        t->tokens[i].added = t->tokens[i].length > 1 && !is_made[i];
    }
done:
    car_context_release(r->context, is_made, (size_t)t->count, sizeof *is_made);
    return status;
}

car_status car_tokenizer_read_gpt2(car_context *context, const char *vocabulary, const char *merges,
                                   car_tokenizer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, vocabulary);
    CAR_REQUIRE(context, merges);
    CAR_REQUIRE(context, out);
    reading r = {.context = context, .path = vocabulary, .words = {.context = context}};
    cJSON *root = NULL;
    car_mapped file = {0};
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_tokenizer_create(context, &r.tokenizer));
    CAR_TRY(parse(&r, &root));
    CAR_TRY(take_tokens(&r, root, NULL));
    r.path = merges;
    CAR_TRY(car_mapped_open(context, merges, &file));
    CAR_TRY(take_merge_lines(&r, &file));
    CAR_TRY(mark_added(&r));
    r.path = vocabulary;
    CAR_TRY(finish(&r, out));
done:
    car_mapped_close(&file);
    release(&r);
    cJSON_Delete(root);
    return status;
}

/* ---- a directory ----------------------------------------------------------------------------- */

car_status car_tokenizer_find(car_context *context, const char *directory, car_tokenizer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, directory);
    CAR_REQUIRE(context, out);
    enum { WHOLE, VOCABULARY, MERGES, FILES };
    static const char *const names[FILES] = {"tokenizer.json", "vocab.json", "merges.txt"};
    char paths[FILES][4096];
    *out = NULL;
    for (int f = 0; f < FILES; f++) {
        if (snprintf(paths[f], sizeof paths[f], "%s/%s", directory, names[f]) >= (int)sizeof paths[f]) {
            return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", directory);
        }
    }
    if (access(paths[WHOLE], F_OK) == 0) {
        return car_tokenizer_read(context, paths[WHOLE], out);
    }
    if (access(paths[VOCABULARY], F_OK) == 0 && access(paths[MERGES], F_OK) == 0) {
        return car_tokenizer_read_gpt2(context, paths[VOCABULARY], paths[MERGES], out);
    }
    return CAR_OK;
}
