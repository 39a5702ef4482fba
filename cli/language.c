/* The tokenizer of training data: see language.h. */
#include "language.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "cli.h"
#include "weights.h"

static bool is_token_file(const char *path) {
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".bin") == 0;
}

/* The FILE of tokens:FILE; NULL for other data. */
static const char *file_of(const char *data) {
    static const char kind[] = "tokens:";
    return strncmp(data, kind, sizeof kind - 1) == 0 ? data + sizeof kind - 1 : NULL;
}

car_status car_cli_keep_tokenizer(car_context *context, const char *data, const char *directory, bool resumed) {
    const char *file = file_of(data);
    char path[CAR_CLI_LANGUAGE_PATH];
    car_tokenizer *tokenizer = NULL;
    car_status status = CAR_OK;
    if (snprintf(path, sizeof path, "%s/tokenizer.json", directory) >= (int)sizeof path) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", directory);
    }
    if (resumed && access(path, F_OK) == 0) {
        return CAR_OK;
    }
    if (file) {
        CAR_TRY(is_token_file(file) ? car_tokenizer_find_beside(context, file, &tokenizer)
                                    : car_tokenizer_create_bytes(context, &tokenizer));
    }
    if (tokenizer) {
        CAR_TRY(car_tokenizer_write(tokenizer, path));
    } else if (unlink(path) != 0 && errno != ENOENT) { /* else an earlier run's would be used with this run */
        status = car_context_fail(context, CAR_ERROR_IO, "could not remove %s: %s", path, strerror(errno));
    }
done:
    car_tokenizer_destroy(tokenizer);
    return status;
}

/* ---- models for text generation -------------------------------------------------------------- */

int car_cli_language_threads(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 && cores < 64 ? (int)cores : 1;
}

car_status car_cli_open_language(car_cli_language *model) {
    car_status status = car_language_open(model->context, model->place, &model->config, &model->language);
    if (status == CAR_ERROR_ARGUMENT && model->config.heads == 0) {
        return car_cli_add_hint(model->context, status, "give --heads N");
    }
    if (status == CAR_OK) {
        car_cli_say_weights(model->place, car_language_path(model->language));
    }
    if (status == CAR_OK && !car_language_tokenizer(model->language)) {
        status = car_context_fail(model->context, CAR_ERROR_IO,
                                  "%s has no tokenizer.json, nor vocab.json with merges.txt; give --tokenizer FILE",
                                  car_language_folder(model->language));
    }
    return status;
}
