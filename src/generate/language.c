/* Opens a language model, wherever it is stored: see carousel/language.h. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mapped.h"
#include "carousel/model.h"
#include "carousel/safetensors.h"
#include "generate/language.h"

enum { PATH = CAR_LANGUAGE_PATH };

typedef struct place {
    char folder[PATH]; /* folder of settings and tokenizer */
    char weights[PATH];
    int heads;  /* 0: unknown */
    double eps; /* 0: unknown */
    int trained;
} place;

static car_status join(car_context *context, const char *folder, const char *name, char path[PATH]) {
    if (snprintf(path, PATH, "%s/%s", folder, name) >= PATH) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", folder);
    }
    return CAR_OK;
}

/* ---- settings -------------------------------------------------------------------------------- */

static double number_or(const cJSON *json, const char *name, double otherwise) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

static bool says(const cJSON *json, const char *name, const char *text, bool otherwise) {
    const char *found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
    return found ? strcmp(found, text) == 0 : otherwise;
}

/* Refuses settings that would compute something else with the same tensors. */
static car_status read_theirs(car_context *context, const char *path, const cJSON *json, place *out) {
    if (!says(json, "model_type", "gpt2", false)) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED, "%s: its model_type is not gpt2", path);
    }
    if (!says(json, "activation_function", "gelu_new", true) ||
        cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "scale_attn_by_inverse_layer_idx")) ||
        cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(json, "scale_attn_weights"))) {
        return car_context_fail(
            context, CAR_ERROR_UNSUPPORTED,
            "%s: only GPT-2 with gelu_new, scale_attn_weights and without scale_attn_by_inverse_layer_idx is supported",
            path);
    }
    out->heads = (int)number_or(json, "n_head", 12);
    out->eps = number_or(json, "layer_norm_epsilon", 1e-5);
    return CAR_OK;
}

static car_status read_ours(car_context *context, const char *path, const cJSON *json, place *out) {
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "model"));
    const car_model_info *info = name ? car_model_find(name) : NULL;
    if (!info || info->domain != CAR_DOMAIN_TOKENS) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED, "%s: %s is not a language model; use gpt2 or gpt2-nano",
                                path, name ? name : "the model that it describes");
    }
    out->heads = (int)number_or(json, "heads", info->defaults.heads);
    out->trained = (int)number_or(json, "seq-len", info->defaults.seq_len);
    return CAR_OK;
}

static car_status read_settings(car_context *context, const char *path, place *out) {
    car_mapped file = {0};
    cJSON *json = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_mapped_open(context, path, &file));
    json = file.size > 0 ? cJSON_ParseWithLength((const char *)file.data, file.size) : NULL;
    if (!cJSON_IsObject(json)) {
        status = car_context_fail(context, CAR_ERROR_FORMAT, "%s: not a JSON object", path);
    } else if (cJSON_GetObjectItemCaseSensitive(json, "model_type")) {
        status = read_theirs(context, path, json, out);
    } else {
        status = read_ours(context, path, json, out);
    }
done:
    cJSON_Delete(json);
    car_mapped_close(&file);
    return status;
}

/* Reads the settings from the weights file's card, if nothing else had them. */
static car_status read_card(car_context *context, place *out) {
    car_safetensors *file = NULL;
    car_status status = CAR_OK;
    if (out->heads > 0) {
        return CAR_OK;
    }
    CAR_TRY(car_safetensors_open(context, out->weights, &file));
    const char *heads = car_safetensors_metadata(file, "carousel.heads");
    const char *trained = car_safetensors_metadata(file, "carousel.seq_len");
    out->heads = heads ? (int)strtol(heads, NULL, 10) : 0;
    out->trained = trained ? (int)strtol(trained, NULL, 10) : 0;
done:
    car_safetensors_close(file);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

static car_status find_weights(car_context *context, const char *typed, bool is_folder, place *out) {
    const char *slash = strrchr(typed, '/');
    car_status status = CAR_OK;
    if (!is_folder) {
        int length = slash ? (int)(slash - typed) : 1;
        snprintf(out->weights, sizeof out->weights, "%s", typed);
        snprintf(out->folder, sizeof out->folder, "%.*s", length > 0 ? length : 1, slash ? typed : ".");
        return CAR_OK;
    }
    /* Of a run the best weights, as `eval` and `predict` do. */
    static const char *const names[] = {"model.safetensors", "best.safetensors", "average.safetensors",
                                        "weights.safetensors"};
    snprintf(out->folder, sizeof out->folder, "%s", typed);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        CAR_TRY(join(context, typed, names[n], out->weights));
        if (access(out->weights, F_OK) == 0) {
            return CAR_OK;
        }
    }
    status = car_context_fail(context, CAR_ERROR_IO,
                              "%s has neither weights.safetensors nor model.safetensors; for a run that has not "
                              "ended, give one of its checkpoints: RUN/checkpoints/step-T",
                              typed);
done:
    return status;
}

/* config.json beside the weights or, for a checkpoint, in its run's folder. */
static car_status find_settings(car_context *context, place *out) {
    char path[PATH], above[PATH], mark[PATH];
    car_status status = CAR_OK;
    CAR_TRY(join(context, out->folder, "config.json", path));
    if (access(path, F_OK) == 0) {
        return read_settings(context, path, out);
    }
    CAR_TRY(join(context, out->folder, "../..", above));
    CAR_TRY(join(context, above, "config.json", path));
    CAR_TRY(join(context, out->folder, "run.json", mark)); /* every checkpoint has one */
    if (access(mark, F_OK) == 0 && access(path, F_OK) == 0) {
        memcpy(out->folder, above, sizeof above);
        CAR_TRY(read_settings(context, path, out));
    }
done:
    return status;
}

static car_status find_place(car_context *context, const char *typed, const car_language_config *config, place *out) {
    struct stat entry;
    car_status status = CAR_OK;
    if (stat(typed, &entry) != 0) {
        return car_context_fail(context, CAR_ERROR_IO, "%s: %s", typed, strerror(errno));
    }
    if (strlen(typed) >= PATH) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", typed);
    }
    CAR_TRY(find_weights(context, typed, S_ISDIR(entry.st_mode), out));
    CAR_TRY(find_settings(context, out));
    out->heads = config->heads ? config->heads : out->heads;
    CAR_TRY(read_card(context, out));
    if (out->heads == 0) {
        status = car_context_fail(context, CAR_ERROR_ARGUMENT,
                                  "%s: found no number of attention heads, neither in the file nor in a config.json "
                                  "next to it",
                                  out->weights);
    }
done:
    return status;
}

static car_status find_tokenizer(car_language *language, const char *path) {
    int vocabulary = car_generator_sizes(language->generator).vocabulary;
    car_tokenizer **tokenizer = &language->tokenizer;
    car_status status = CAR_OK;
    if (path) {
        CAR_TRY(car_tokenizer_read(language->context, path, tokenizer));
    } else {
        CAR_TRY(car_tokenizer_find(language->context, language->folder, tokenizer));
    }
    if (!*tokenizer && vocabulary == CAR_TOKENIZER_LEAST) {
        CAR_TRY(car_tokenizer_create_bytes(language->context, tokenizer));
    }
    if (*tokenizer && car_tokenizer_size(*tokenizer) > vocabulary) {
        status =
            car_context_fail(language->context, CAR_ERROR_SHAPE,
                             "the tokenizer has %d tokens, but the model only %d; is it the tokenizer of this model?",
                             car_tokenizer_size(*tokenizer), vocabulary);
    }
done:
    return status;
}

/* ---- the handle ------------------------------------------------------------------------------ */

static car_status open_place(car_language *language, const char *typed, const car_language_config *config) {
    car_generator_config generator = car_generator_config_default();
    place found = {0};
    car_status status = CAR_OK;
    CAR_TRY(find_place(language->context, typed, config, &found));
    CAR_TRY(car_context_copy_text(language->context, found.folder, &language->folder));
    CAR_TRY(car_context_copy_text(language->context, found.weights, &language->path));
    generator.heads = found.heads;
    generator.eps = found.eps > 0 ? found.eps : generator.eps;
    generator.threads = config->threads ? config->threads : generator.threads;
    language->sequence = found.trained;
    CAR_TRY(car_generator_open(language->context, found.weights, &generator, &language->generator));
    CAR_TRY(find_tokenizer(language, config->tokenizer));
done:
    return status;
}

car_status car_language_open(car_context *context, const char *place, const car_language_config *config,
                             car_language **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, place);
    CAR_REQUIRE(context, out);
    const car_language_config none = {0};
    car_language *language = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *language, &language));
    language->context = context;
    CAR_TRY(open_place(language, place, config ? config : &none));
    *out = language;
    language = NULL;
done:
    car_language_close(language);
    return status;
}

void car_language_close(car_language *language) {
    if (language) {
        car_tokenizer_destroy(language->tokenizer);
        car_generator_close(language->generator);
        car_context_release_text(language->context, language->path);
        car_context_release_text(language->context, language->folder);
        car_context_release(language->context, language, 1, sizeof *language);
    }
}

car_generator *car_language_generator(car_language *language) {
    return language ? language->generator : NULL;
}

const car_tokenizer *car_language_tokenizer(const car_language *language) {
    return language ? language->tokenizer : NULL;
}

const char *car_language_folder(const car_language *language) {
    return language ? language->folder : NULL;
}

const char *car_language_path(const car_language *language) {
    return language ? language->path : NULL;
}

int car_language_sequence(const car_language *language) {
    return language ? language->sequence : 0;
}
