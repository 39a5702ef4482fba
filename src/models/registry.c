/* The table of models: finds one by name, completes and checks its configuration, and builds its graph. */
#include "models/models.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

static const car_model_entry *const entries[] = {
    &car_model_mlp,      &car_model_resnet20, &car_model_resnet18,  &car_model_resnet50,
    &car_model_vit_tiny, &car_model_vit_b16,  &car_model_gpt2_nano, &car_model_gpt2,
};
enum { ENTRY_COUNT = sizeof entries / sizeof entries[0] };

/* The integer fields of a configuration. The limits are far above any use; they keep multiples of a width, which
 * builders compute as int, in range. Models check products of several fields themselves. */
typedef struct field {
    const char *text;
    size_t offset;
    int limit;
} field;

static const field fields[] = {
    {"batch", offsetof(car_model_config, batch), 1 << 20},
    {"classes", offsetof(car_model_config, classes), CAR_MODEL_MOST_CLASSES},
    {"image size", offsetof(car_model_config, image_size), 1 << 14},
    {"channels", offsetof(car_model_config, channels), 1 << 12},
    {"sequence length", offsetof(car_model_config, seq_len), 1 << 20},
    {"vocabulary", offsetof(car_model_config, vocabulary), 1 << 24},
    {"width", offsetof(car_model_config, width), 1 << 15},
    {"depth", offsetof(car_model_config, depth), 1 << 10},
    {"heads", offsetof(car_model_config, heads), 1 << 12},
};
enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

static int *field_of(car_model_config *config, const field *f) {
    return (int *)((char *)config + f->offset);
}

car_model_config car_model_config_default(void) {
    return (car_model_config){.batch = 1};
}

int car_model_count(void) {
    return ENTRY_COUNT;
}

const car_model_info *car_model_info_at(int index) {
    return index >= 0 && index < ENTRY_COUNT ? &entries[index]->info : NULL;
}

int car_model_paper_count(void) {
    return CAR_MODELS_ON_PAPER;
}

const car_model_info *car_model_paper_at(int index) {
    return index >= 0 && index < CAR_MODELS_ON_PAPER ? &car_models_on_paper[index].info : NULL;
}

static const car_model_entry *find(const char *name) {
    for (int i = 0; name != NULL && i < ENTRY_COUNT; i++) {
        if (strcmp(entries[i]->info.name, name) == 0) {
            return entries[i];
        }
    }
    for (int i = 0; name != NULL && i < CAR_MODELS_ON_PAPER; i++) {
        if (strcmp(car_models_on_paper[i].info.name, name) == 0) {
            return &car_models_on_paper[i];
        }
    }
    return NULL;
}

const car_model_info *car_model_find(const char *name) {
    const car_model_entry *entry = find(name);
    return entry != NULL ? &entry->info : NULL;
}

static car_status find_or_fail(car_context *context, const char *name, const car_model_entry **out) {
    *out = find(name);
    if (*out != NULL) {
        return CAR_OK;
    }
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < ENTRY_COUNT && used < sizeof known; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", entries[i]->info.name);
    }
    return car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "there is no model '%.64s'; the models are %s",
                            name != NULL ? name : "(null)", known);
}

/* Resolves one integer field: replaces zero by the model's default, and checks the limits. */
static car_status resolve_field(car_context *context, const car_model_entry *entry, const field *f,
                                car_model_config *config) {
    const char *name = entry->info.name;
    car_model_config defaults = entry->info.defaults;
    int own = *field_of(&defaults, f);
    int *value = field_of(config, f);
    if (*value == 0) {
        *value = own;
        return CAR_OK;
    }
    if (own == 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "model %s: %s cannot be set (%d was given); leave it out",
                                name, f->text, *value);
    }
    if (*value < 0 || *value > f->limit) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "model %s: %s %d is out of range; use 1 to %d", name,
                                f->text, *value, f->limit);
    }
    return CAR_OK;
}

static car_status check_rates(car_context *context, const car_model_entry *entry, const car_model_config *config) {
    const char *name = entry->info.name;
    /* Written so that NaN fails too. */
    if (!(config->dropout >= 0 && config->dropout < 1)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "model %s: dropout %g is out of range; use at least 0 and less than 1", name,
                                config->dropout);
    }
    if (config->dropout > 0 && !entry->takes_dropout) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "model %s: dropout is not supported (%g was given); leave it out", name,
                                config->dropout);
    }
    if (!(config->label_smoothing >= 0 && config->label_smoothing < 1)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "model %s: label smoothing %g is out of range; use at least 0 and less than 1", name,
                                config->label_smoothing);
    }
    return CAR_OK;
}

static car_status resolve(car_context *context, const car_model_entry *entry, const car_model_config *config,
                          car_model_config *out) {
    car_status status = CAR_OK;
    car_model_config resolved = config != NULL ? *config : car_model_config_default();
    for (int i = 0; i < FIELD_COUNT; i++) {
        CAR_TRY(resolve_field(context, entry, &fields[i], &resolved));
    }
    CAR_TRY(check_rates(context, entry, &resolved));
    CAR_TRY(entry->check(context, entry->info.name, &resolved));
    *out = resolved;
done:
    return status;
}

car_status car_model_resolve(car_context *context, const char *name, const car_model_config *config,
                             car_model_config *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_status status = CAR_OK;
    const car_model_entry *entry = NULL;
    CAR_TRY(find_or_fail(context, name, &entry));
    CAR_TRY(resolve(context, entry, config, out));
done:
    return status;
}

car_status car_model_build(car_context *context, const char *name, const car_model_config *config, car_graph **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_status status = CAR_OK;
    const car_model_entry *entry = NULL;
    car_model_config resolved;
    car_graph *graph = NULL;
    *out = NULL;
    CAR_TRY(find_or_fail(context, name, &entry));
    CAR_TRY(resolve(context, entry, config, &resolved));
    CAR_TRY(car_graph_create(context, &graph));
    car_graph_set_precision(graph, resolved.precision);
    CAR_TRY(car_graph_finish(graph, entry->build(graph, &resolved)));
    *out = graph;
    graph = NULL;
done:
    car_graph_destroy(graph);
    return status;
}

/* ---- helpers for the families ------------------------------------------------------------------ */

car_model_name car_model_label(const char *format, ...) {
    car_model_name name;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name.text, sizeof name.text, format, arguments);
    va_end(arguments);
    return name;
}

void car_model_init(car_graph *graph, const char *owner, const char *member, car_init_kind kind, double a) {
    car_graph_set_init(graph, car_model_label("%s.%s", owner, member).text, (car_init){kind, a});
}

car_status car_model_check_elements(car_context *context, const char *name, const char *what, double elements) {
    if (elements > 0x1p40) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "model %s: %s would have %.3g elements, which is too many; reduce the batch or the model's sizes", name,
            what, elements);
    }
    return CAR_OK;
}

car_status car_model_check_heads(car_context *context, const char *name, const car_model_config *config) {
    if (config->width % config->heads != 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "model %s: width %d is not a multiple of the number of heads, %d; change one of them",
                                name, config->width, config->heads);
    }
    return CAR_OK;
}

int car_model_dropout(car_graph *graph, const car_model_config *config, const char *name, int x) {
    return config->dropout > 0 ? car_graph_dropout(graph, name, x, config->dropout) : x;
}

int car_model_images(car_graph *graph, const car_model_config *config) {
    car_shape shape = {4, {config->batch, config->channels, config->image_size, config->image_size}};
    return car_graph_input(graph, "images", shape, CAR_F32);
}

int car_model_classify(car_graph *graph, const car_model_config *config, int logits) {
    int labels = car_graph_input(graph, "labels", (car_shape){1, {config->batch}}, CAR_I32);
    return car_graph_cross_entropy(graph, "loss", logits, labels, config->label_smoothing);
}
