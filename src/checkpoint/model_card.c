/* The card of a weights file: see carousel/card.h. */
#include "carousel/card.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "carousel/safetensors.h"
#include "checkpoint/card_pairs.h"

static const char prefix[] = "carousel.";

struct car_card {
    car_context *context;
    cJSON *texts; /* an object of texts */
    cJSON *lists; /* an object of arrays of texts; a key is in one of the two, or in both if the card was read */
};

/* ---- creating and reading -------------------------------------------------------------------- */

static car_status fail_memory(car_context *context) {
    return car_context_fail(context, CAR_ERROR_MEMORY, "out of memory for the model card");
}

car_status car_card_create(car_context *context, car_card **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_card *card = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *card, &card));
    card->context = context;
    card->texts = cJSON_CreateObject();
    card->lists = cJSON_CreateObject();
    CAR_TRY(card->texts && card->lists ? CAR_OK : fail_memory(context));
    *out = card;
    card = NULL;
done:
    car_card_destroy(card);
    return status;
}

void car_card_destroy(car_card *card) {
    if (card != NULL) {
        cJSON_Delete(card->texts);
        cJSON_Delete(card->lists);
        car_context_release(card->context, card, 1, sizeof *card);
    }
}

/* Parses a value as a list of texts; NULL if it is not one. */
static cJSON *parse_list(const char *value) {
    cJSON *list = value[0] == '[' ? cJSON_ParseWithOpts(value, NULL, true) : NULL;
    const cJSON *item = NULL;
    bool texts = cJSON_IsArray(list);
    cJSON_ArrayForEach(item, list) {
        texts = texts && cJSON_IsString(item);
    }
    if (!texts) {
        cJSON_Delete(list);
        list = NULL;
    }
    return list;
}

static car_status take_pair(car_card *card, const char *key, const char *value) {
    cJSON *list = parse_list(value);
    car_status status = car_card_set(card, key, "%s", value);
    if (list != NULL && (status != CAR_OK || !cJSON_AddItemToObject(card->lists, key, list))) {
        cJSON_Delete(list);
        status = status == CAR_OK ? fail_memory(card->context) : status;
    }
    return status;
}

car_status car_card_read(car_context *context, const char *path, car_card **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    car_safetensors *file = NULL;
    car_card *card = NULL;
    const char *key = NULL, *value = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_safetensors_open(context, path, &file));
    CAR_TRY(car_card_create(context, &card));
    for (int i = 0; car_safetensors_metadata_at(file, i, &key, &value); i++) {
        if (strncmp(key, prefix, sizeof prefix - 1) == 0) {
            CAR_TRY(take_pair(card, key + sizeof prefix - 1, value));
        }
    }
    *out = card;
    card = NULL;
done:
    car_card_destroy(card);
    car_safetensors_close(file);
    return status;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

car_status car_card_set(car_card *card, const char *key, const char *format, ...) {
    CAR_REQUIRE(NULL, card);
    CAR_REQUIRE(card->context, key);
    CAR_REQUIRE(card->context, format);
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) {
        return fail_memory(card->context);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(card->lists, key);
    cJSON_DeleteItemFromObjectCaseSensitive(card->texts, key);
    bool added = cJSON_AddStringToObject(card->texts, key, text) != NULL;
    free(text);
    return added ? CAR_OK : fail_memory(card->context);
}

const char *car_card_get(const car_card *card, const char *key) {
    return card != NULL ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(card->texts, key)) : NULL;
}

car_status car_card_add_to_list(car_card *card, const char *key, const char *text) {
    CAR_REQUIRE(NULL, card);
    CAR_REQUIRE(card->context, key);
    cJSON *list = cJSON_GetObjectItemCaseSensitive(card->lists, key);
    cJSON_DeleteItemFromObjectCaseSensitive(card->texts, key); /* the text that the list was read from */
    list = list != NULL ? list : cJSON_AddArrayToObject(card->lists, key);
    cJSON *item = cJSON_CreateString(text != NULL ? text : "");
    if (list == NULL || !cJSON_AddItemToArray(list, item)) {
        cJSON_Delete(item);
        return fail_memory(card->context);
    }
    return CAR_OK;
}

static const cJSON *list_of(const car_card *card, const char *key) {
    return card != NULL ? cJSON_GetObjectItemCaseSensitive(card->lists, key) : NULL;
}

int car_card_list_count(const car_card *card, const char *key) {
    return cJSON_GetArraySize(list_of(card, key));
}

bool car_card_list_item(const car_card *card, const char *key, int index, char *text, size_t capacity) {
    const char *item = cJSON_GetStringValue(cJSON_GetArrayItem(list_of(card, key), index));
    snprintf(text, capacity, "%s", item != NULL ? item : "");
    return item != NULL;
}

/* ---- as metadata ----------------------------------------------------------------------------- */

static car_status add_pair(car_context *context, car_card_pairs *pairs, int *count, const char *key,
                           const char *value) {
    car_text name = {.context = context};
    car_status status = CAR_OK;
    car_text_add(&name, "%s%s", prefix, key);
    CAR_TRY(car_text_finish(&name, &pairs->owned[*count]));
    pairs->texts[*count] = pairs->owned[*count];
    CAR_TRY(car_context_copy_text(context, value, &pairs->owned[*count + 1]));
    pairs->texts[*count + 1] = pairs->owned[*count + 1];
    *count += 2;
done:
    return status;
}

static car_status add_list(car_context *context, car_card_pairs *pairs, int *count, const cJSON *list) {
    char *text = cJSON_PrintUnformatted(list);
    car_status status = text != NULL ? add_pair(context, pairs, count, list->string, text) : fail_memory(context);
    cJSON_free(text);
    return status;
}

car_status car_card_list_pairs(car_context *context, const car_card *card, car_card_pairs *out) {
    const cJSON *texts = card != NULL ? card->texts : NULL, *lists = card != NULL ? card->lists : NULL, *item = NULL;
    int items = cJSON_GetArraySize(texts) + cJSON_GetArraySize(lists), count = 2;
    car_status status = CAR_OK;
    *out = (car_card_pairs){.capacity = 2 * items + 3};
    CAR_TRY(car_context_allocate(context, (size_t)out->capacity, sizeof *out->texts, &out->texts));
    CAR_TRY(car_context_allocate(context, (size_t)out->capacity, sizeof *out->owned, &out->owned));
    out->texts[0] = "format";
    out->texts[1] = "pt";
    cJSON_ArrayForEach(item, texts) {
        CAR_TRY(add_pair(context, out, &count, item->string, item->valuestring));
    }
    cJSON_ArrayForEach(item, lists) {
        if (car_card_get(card, item->string) == NULL) {
            CAR_TRY(add_list(context, out, &count, item));
        }
    }
done:
    return status;
}

void car_card_release_pairs(car_context *context, car_card_pairs *pairs) {
    for (int i = 0; pairs->owned != NULL && i < pairs->capacity; i++) {
        car_context_release_text(context, pairs->owned[i]);
    }
    car_context_release(context, pairs->owned, pairs->owned ? (size_t)pairs->capacity : 0, sizeof *pairs->owned);
    car_context_release(context, pairs->texts, pairs->texts ? (size_t)pairs->capacity : 0, sizeof *pairs->texts);
}

/* ---- model and recipe ------------------------------------------------------------------------ */

/* The model settings that its weights depend on. */
static const struct {
    const char *key;
    size_t offset;
} settings[] = {
    {"classes", offsetof(car_model_config, classes)},   {"image_size", offsetof(car_model_config, image_size)},
    {"channels", offsetof(car_model_config, channels)}, {"seq_len", offsetof(car_model_config, seq_len)},
    {"width", offsetof(car_model_config, width)},       {"vocabulary", offsetof(car_model_config, vocabulary)},
    {"depth", offsetof(car_model_config, depth)},       {"heads", offsetof(car_model_config, heads)},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

car_status car_card_set_model(car_card *card, const char *name, const car_model_config *config) {
    CAR_REQUIRE(NULL, card);
    CAR_REQUIRE(card->context, name);
    CAR_REQUIRE(card->context, config);
    car_status status = CAR_OK;
    CAR_TRY(car_card_set(card, "model", "%s", name));
    for (int s = 0; s < SETTINGS; s++) {
        int value = *(const int *)((const char *)config + settings[s].offset);
        if (value != 0) {
            CAR_TRY(car_card_set(card, settings[s].key, "%d", value));
        }
    }
done:
    return status;
}

const char *car_card_model(const car_card *card, car_model_config *config) {
    for (int s = 0; s < SETTINGS; s++) {
        const char *text = car_card_get(card, settings[s].key);
        int *value = (int *)((char *)config + settings[s].offset);
        long number = text != NULL ? strtol(text, NULL, 10) : 0;
        /* Building the model rejects values that are impossible for it. */
        *value = *value == 0 && number >= -1 && number <= 1 << 30 ? (int)number : *value;
    }
    return car_card_get(card, "model");
}

car_status car_card_set_recipe(car_card *card, const car_image_recipe *recipe) {
    CAR_REQUIRE(NULL, card);
    CAR_REQUIRE(card->context, recipe);
    const car_image_recipe *r = recipe;
    car_status status = CAR_OK;
    CAR_TRY(car_card_set(card, "resize", "%d", r->resize));
    CAR_TRY(car_card_set(card, "mean", "%.7g,%.7g,%.7g", (double)r->mean[0], (double)r->mean[1], (double)r->mean[2]));
    CAR_TRY(car_card_set(card, "deviation", "%.7g,%.7g,%.7g", (double)r->deviation[0], (double)r->deviation[1],
                         (double)r->deviation[2]));
done:
    return status;
}

static bool read_three(const car_card *card, const char *key, float *out) {
    const char *text = car_card_get(card, key);
    float found[3];
    char end = 0;
    if (text == NULL) {
        return true;
    }
    if (sscanf(text, "%f,%f,%f%c", &found[0], &found[1], &found[2], &end) != 3 || !isfinite(found[0]) ||
        !isfinite(found[1]) || !isfinite(found[2])) {
        return false;
    }
    memcpy(out, found, sizeof found);
    return true;
}

car_status car_card_recipe(const car_card *card, car_image_recipe *recipe) {
    CAR_REQUIRE(NULL, card);
    CAR_REQUIRE(card->context, recipe);
    car_image_recipe r = *recipe;
    const char *resize = car_card_get(card, "resize");
    r.resize = resize != NULL ? (int)strtol(resize, NULL, 10) : r.resize;
    bool sound = r.resize >= r.size && r.resize <= 1 << 16 && read_three(card, "mean", r.mean) &&
                 read_three(card, "deviation", r.deviation) && r.deviation[0] > 0 && r.deviation[1] > 0 &&
                 r.deviation[2] > 0;
    if (!sound) {
        return car_context_fail(
            card->context, CAR_ERROR_FORMAT,
            "the metadata of the weights has invalid values: carousel.resize must be at least %d, and carousel.mean "
            "and carousel.deviation must be three numbers each, 'A,B,C', with positive deviations",
            r.size);
    }
    *recipe = r;
    return CAR_OK;
}
