/* Exports a language model as a folder that other libraries can open: see carousel/language.h. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/folder.h"
#include "base/output.h"
#include "generate/language.h"

/* Hugging Face's class for GPT-2 would add tokens of its own; this one uses tokenizer.json as it is. */
static car_status write_tokenizer(const car_language *language, const char *folder) {
    enum { WHOLE, VOCABULARY, MERGES, SETTINGS, FILES };
    static const char *const names[FILES] = {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"};
    char paths[FILES][CAR_LANGUAGE_PATH + 32], settings[256];
    const car_tokenizer *tokenizer = language->tokenizer;
    bool ends = car_tokenizer_end_of_text(tokenizer) >= 0;
    car_status status = CAR_OK;
    for (int f = 0; f < FILES; f++) {
        snprintf(paths[f], sizeof paths[f], "%.*s/%s", CAR_LANGUAGE_PATH, folder, names[f]);
    }
    snprintf(settings, sizeof settings,
             "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"model_max_length\": %d%s}\n",
             car_generator_sizes(language->generator).positions,
             ends ? ", \"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<|endoftext|>\"" : "");
    CAR_TRY(car_tokenizer_write(tokenizer, paths[WHOLE]));
    CAR_TRY(car_tokenizer_write_gpt2(tokenizer, paths[VOCABULARY], paths[MERGES]));
    CAR_TRY(car_output_write_text(language->context, paths[SETTINGS], settings));
done:
    return status;
}

/* An empty directory is replaced. Anything else is an error. */
static car_status check_output(car_context *context, const char *path) {
    struct stat found;
    DIR *folder = opendir(path);
    bool empty = folder != NULL;
    for (const struct dirent *entry; empty && (entry = readdir(folder)) != NULL;) {
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    }
    if (folder) {
        closedir(folder);
    }
    if (empty || stat(path, &found) != 0) {
        return CAR_OK;
    }
    return car_context_fail(context, CAR_ERROR_IO, "%s already exists; choose another folder, or remove it", path);
}

static car_status write_folder(const car_language *language, const char *path, const char *parent,
                               const char *temporary) {
    car_context *context = language->context;
    car_status status = CAR_OK;
    if (strlen(temporary) >= CAR_LANGUAGE_PATH) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", path);
    }
    CAR_TRY(car_folder_make(context, temporary));
    CAR_TRY(write_tokenizer(language, temporary));
    CAR_TRY(car_generator_export(language->generator, temporary, car_tokenizer_end_of_text(language->tokenizer)));
    if (rename(temporary, path) != 0) {
        status = car_context_fail(context, CAR_ERROR_IO, "cannot rename the temporary folder to %s: %s", path,
                                  strerror(errno));
        goto done;
    }
    CAR_TRY(car_folder_sync(context, parent));
done:
    if (status != CAR_OK) {
        car_folder_remove(temporary);
    }
    return status;
}

car_status car_language_export(const car_language *language, const char *directory) {
    CAR_REQUIRE(NULL, language);
    CAR_REQUIRE(language->context, directory);
    car_context *context = language->context;
    char *path = NULL, *parent = NULL, *temporary = NULL;
    size_t length = strlen(directory);
    car_status status = CAR_OK;
    if (!language->tokenizer || length == 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "an export needs the name of a folder, and a model with its tokenizer");
    }
    while (length > 1 && directory[length - 1] == '/') {
        length--;
    }
    CAR_TRY(car_context_allocate(context, length + 1, 1, &path));
    memcpy(path, directory, length);
    path[length] = 0;
    CAR_TRY(check_output(context, path));
    CAR_TRY(car_folder_of(context, path, &parent));
    CAR_TRY(car_folder_make(context, parent));
    const char *slash = strrchr(path, '/');
    CAR_TRY(car_folder_temporary(context, parent, slash ? slash + 1 : path, &temporary));
    CAR_TRY(write_folder(language, path, parent, temporary));
done:
    car_context_release_text(context, temporary);
    car_context_release_text(context, parent);
    car_context_release(context, path, path ? length + 1 : 0, 1);
    return status;
}
