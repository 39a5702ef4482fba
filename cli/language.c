/* The tokenizer of data to train on: see language.h. */
#include "language.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

static bool is_token_file(const char *path) {
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".bin") == 0;
}

car_status car_language_beside(car_context *context, const char *tokens, char path[CAR_LANGUAGE_PATH]) {
    int stem = (int)strlen(tokens) - (is_token_file(tokens) ? 4 : 0);
    if (snprintf(path, CAR_LANGUAGE_PATH, "%.*s.tokenizer.json", stem, tokens) >= CAR_LANGUAGE_PATH) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", tokens);
    }
    return CAR_OK;
}

/* The FILE of tokens:FILE; NULL for other data. */
static const char *file_of(const char *data) {
    static const char kind[] = "tokens:";
    return strncmp(data, kind, sizeof kind - 1) == 0 ? data + sizeof kind - 1 : NULL;
}

/* That of a file of tokens; *out is NULL if it has none. */
static car_status read_beside(car_context *context, const char *file, car_tokenizer **out) {
    char path[CAR_LANGUAGE_PATH];
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_language_beside(context, file, path));
    if (access(path, F_OK) == 0) {
        CAR_TRY(car_tokenizer_read(context, path, out));
    }
done:
    return status;
}

car_status car_language_find_vocabulary(car_context *context, const char *data, int *vocabulary) {
    const char *file = file_of(data);
    car_tokenizer *tokenizer = NULL;
    car_status status = CAR_OK;
    *vocabulary = 0;
    if (!file || !is_token_file(file)) {
        return CAR_OK;
    }
    CAR_TRY(read_beside(context, file, &tokenizer));
    *vocabulary = tokenizer ? car_tokenizer_size(tokenizer) : 0;
done:
    car_tokenizer_destroy(tokenizer);
    return status;
}

car_status car_language_keep(car_context *context, const char *data, const char *directory, bool resumed) {
    const char *file = file_of(data);
    char path[CAR_LANGUAGE_PATH];
    car_tokenizer *tokenizer = NULL;
    car_status status = CAR_OK;
    if (snprintf(path, sizeof path, "%s/tokenizer.json", directory) >= (int)sizeof path) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", directory);
    }
    if (resumed && access(path, F_OK) == 0) {
        return CAR_OK;
    }
    if (file) {
        CAR_TRY(is_token_file(file) ? read_beside(context, file, &tokenizer)
                                    : car_tokenizer_create_bytes(context, &tokenizer));
    }
    if (tokenizer) {
        CAR_TRY(car_tokenizer_write(tokenizer, path));
    } else if (unlink(path) != 0 && errno != ENOENT) { /* an earlier run's would be taken for this one's */
        status = car_context_fail(context, CAR_ERROR_IO, "could not remove %s: %s", path, strerror(errno));
    }
done:
    car_tokenizer_destroy(tokenizer);
    return status;
}
