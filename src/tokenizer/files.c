/* Text files and token files: training a tokenizer, and encoding text to train on. */
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mapped.h"
#include "base/text.h"
#include "tokenizer/internal.h"

enum { BUFFER_TOKENS = 32768, HEADER_BYTES = 1024 };

/* ---- a tokenizer and its tokens ---------------------------------------------------------------- */

car_status car_tokenizer_name_beside(car_context *context, const char *tokens, char **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, tokens);
    CAR_REQUIRE(context, out);
    static const char ending[] = ".bin";
    size_t length = strlen(tokens), end = sizeof ending - 1;
    bool named = length > end && strcmp(tokens + length - end, ending) == 0;
    car_text text = {.context = context};
    car_text_add(&text, "%.*s.tokenizer.json", (int)(named ? length - end : length), tokens);
    return car_text_finish(&text, out);
}

car_status car_tokenizer_find_beside(car_context *context, const char *tokens, car_tokenizer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, tokens);
    CAR_REQUIRE(context, out);
    char *path = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_tokenizer_name_beside(context, tokens, &path));
    if (access(path, F_OK) == 0) {
        CAR_TRY(car_tokenizer_read(context, path, out));
    }
done:
    car_context_release_text(context, path);
    return status;
}

/* ---- learning ---------------------------------------------------------------------------------- */

static car_status open_text(car_context *context, const char *path, car_mapped *out) {
    car_status status = car_mapped_open(context, path, out);
    return status == CAR_OK && out->size == 0
               ? car_context_fail(context, CAR_ERROR_FORMAT, "%s: the file is empty", path)
               : status;
}

car_status car_tokenizer_train_file(car_context *context, const char *path, int vocabulary, car_tokenizer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    car_mapped file = {0};
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(open_text(context, path, &file));
    CAR_TRY(car_tokenizer_train(context, file.data, file.size, vocabulary, out));
done:
    car_mapped_close(&file);
    return status;
}

/* ---- encoding ---------------------------------------------------------------------------------- */

typedef struct encoding {
    car_output output;
    int64_t count;
    int buffered;
    unsigned char buffer[2 * BUFFER_TOKENS];
} encoding;

static car_status flush(encoding *e) {
    car_status status = car_output_write(&e->output, e->buffer, 2 * (size_t)e->buffered);
    e->buffered = 0;
    return status;
}

static car_status take_tokens(void *user, const int32_t *tokens, int count) {
    encoding *e = user;
    car_status status = CAR_OK;
    for (int i = 0; i < count; i++) {
        if (e->buffered == BUFFER_TOKENS) {
            CAR_TRY(flush(e));
        }
        e->buffer[2 * e->buffered] = (unsigned char)tokens[i];
        e->buffer[2 * e->buffered++ + 1] = (unsigned char)(tokens[i] >> 8);
    }
    e->count += count;
done:
    return status;
}

/* Written last, as it contains the number of tokens. */
static car_status write_header(encoding *e) {
    static const uint32_t magic = 20240520, version = 1;
    unsigned char header[HEADER_BYTES] = {0};
    if (e->count > UINT32_MAX) {
        return car_context_fail(e->output.context, CAR_ERROR_UNSUPPORTED,
                                "%lld tokens are too many for the header of llm.c; leave the header out",
                                (long long)e->count);
    }
    car_bytes_put_u32(header, magic);
    car_bytes_put_u32(header + 4, version);
    car_bytes_put_u32(header + 8, (uint32_t)e->count);
    return car_output_write_at(&e->output, 0, header, sizeof header);
}

static car_status encode(const car_tokenizer *tokenizer, const car_mapped *file, const char *path, bool header,
                         encoding *e) {
    static const unsigned char nothing[HEADER_BYTES] = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_output_open(tokenizer->context, path, &e->output));
    if (header) {
        CAR_TRY(car_output_write(&e->output, nothing, sizeof nothing));
    }
    CAR_TRY(car_tokenizer_encode(tokenizer, file->data, file->size, take_tokens, e));
    CAR_TRY(flush(e));
    if (header) {
        CAR_TRY(write_header(e));
    }
done:
    return status;
}

/* The token file gets its name last, so that whoever finds it also finds its tokenizer. */
car_status car_tokenizer_encode_file(const car_tokenizer *tokenizer, const char *text, const char *tokens, bool header,
                                     car_token_counts *out) {
    CAR_REQUIRE(NULL, tokenizer);
    CAR_REQUIRE(tokenizer->context, text);
    CAR_REQUIRE(tokenizer->context, tokens);
    CAR_REQUIRE(tokenizer->context, out);
    car_context *context = tokenizer->context;
    car_mapped file = {0};
    encoding *e = NULL;
    char *beside = NULL;
    car_status status = CAR_OK;
    *out = (car_token_counts){0};
    if (car_tokenizer_size(tokenizer) > CAR_TOKENIZER_FILE_MOST) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                                "the tokenizer has %d tokens, but a file of 16-bit tokens supports at most %d",
                                car_tokenizer_size(tokenizer), CAR_TOKENIZER_FILE_MOST);
    }
    CAR_TRY(open_text(context, text, &file));
    CAR_TRY(car_tokenizer_name_beside(context, tokens, &beside));
    CAR_TRY(car_context_allocate(context, 1, sizeof *e, &e));
    CAR_TRY(encode(tokenizer, &file, tokens, header, e));
    CAR_TRY(car_tokenizer_write(tokenizer, beside));
    CAR_TRY(car_output_finish(&e->output, NULL));
    *out = (car_token_counts){.bytes = (int64_t)file.size, .tokens = e->count};
done:
    if (e) {
        car_output_close(&e->output);
    }
    car_context_release(context, e, e ? 1 : 0, sizeof *e);
    car_context_release_text(context, beside);
    car_mapped_close(&file);
    return status;
}
