/* Tokenizers: the first byte chooses tokenizer.json, or vocab.json with merges.txt (cut at the first NUL); bit 1 puts the
 * 256 bytes into the vocabulary, which few inputs would have. Whatever is read encodes a text and gives it back. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/tokenizer.h"
#include "fuzz.h"

static const char sample[] = "the cat's  hat \xC3\xA9 \xFF<|endoftext|>\n\n12";

typedef struct check {
    const car_tokenizer *tokenizer;
    size_t at;
} check;

static car_status compare(void *user, const int32_t *tokens, int count) {
    check *c = user;
    for (int i = 0; i < count; i++) {
        int length = 0;
        const unsigned char *bytes = car_tokenizer_decode(c->tokenizer, tokens[i], &length);
        if (!bytes || c->at + (size_t)length > sizeof sample - 1 ||
            memcmp(bytes, sample + c->at, (size_t)length) != 0) {
            abort();
        }
        c->at += (size_t)length;
    }
    return CAR_OK;
}

static void use(const car_tokenizer *tokenizer) {
    check c = {.tokenizer = tokenizer};
    if (car_tokenizer_encode(tokenizer, sample, sizeof sample - 1, compare, &c) != CAR_OK ||
        c.at != sizeof sample - 1) {
        abort();
    }
    if (car_tokenizer_write(tokenizer, car_fuzz_path("again.json")) != CAR_OK) {
        abort();
    }
    car_fuzz_remove("again.json");
}

/* The bytes as a vocabulary without its closing brace, then what is left. */
static void write_with_bytes(car_context *context, const char *name, const char *before, const uint8_t *rest,
                             size_t size) {
    car_tokenizer *bytes = NULL;
    char path[600], *text = NULL;
    size_t length = strlen(before), capacity = length + 8192 + size, read = 0;
    snprintf(path, sizeof path, "%s", car_fuzz_path("bytes.json"));
    if (car_tokenizer_create_bytes(context, &bytes) != CAR_OK ||
        car_tokenizer_write_gpt2(bytes, path, car_fuzz_path("none.txt")) != CAR_OK) {
        abort();
    }
    car_tokenizer_destroy(bytes);
    FILE *file = fopen(path, "rb");
    text = malloc(capacity);
    if (!file || !text) {
        abort();
    }
    memcpy(text, before, length);
    read = fread(text + length, 1, 8192, file);
    fclose(file);
    length += read - 2; /* without "\n}" */
    memcpy(text + length, rest, size);
    car_fuzz_write(name, text, length + size);
    free(text);
    car_fuzz_remove("bytes.json");
    car_fuzz_remove("none.txt");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    static const char head[] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": ";
    bool whole = (data[0] & 1) != 0, filled = (data[0] & 2) != 0;
    const uint8_t *rest = data + 1, *zero = memchr(rest, 0, size - 1);
    size_t first = whole || !zero ? size - 1 : (size_t)(zero - rest), behind = size - 1 - first;
    car_context *context = car_fuzz_context(64 * size + (1 << 20));
    car_tokenizer *tokenizer = NULL;
    const char *name = whole ? "tokenizer.json" : "vocab.json";
    if (filled) {
        write_with_bytes(context, name, whole ? head : "", rest, first);
    } else {
        car_fuzz_write(name, rest, first);
    }
    if (!whole) {
        car_fuzz_write("merges.txt", rest + first + (behind > 0), behind > 0 ? behind - 1 : 0);
    }
    if (car_tokenizer_find(context, car_fuzz_path(""), &tokenizer) == CAR_OK && tokenizer) {
        use(tokenizer);
    }
    car_tokenizer_destroy(tokenizer);
    car_fuzz_remove(name);
    car_fuzz_remove("merges.txt");
    car_fuzz_end(context);
    return 0;
}
