/* Datasets: opening by name, checking against the model, and information about them. */
#include "data/dataset.h"

#include <string.h>

#include "base/shown.h"
#include "base/text.h"

/* ---- the kinds ------------------------------------------------------------------------------- */

static const struct {
    const char *name, *path;
} kinds[] = {
#define KIND(code, name, path) {name, path},
    CAR_DATASET_LIST(KIND)
#undef KIND
};

static const car_source_methods *const methods[CAR_DATASET_KINDS] = {
    [CAR_DATASET_SYNTHETIC] = &car_source_synthetic,     [CAR_DATASET_CIFAR10] = &car_source_cifar10,
    [CAR_DATASET_IMAGEFOLDER] = &car_source_imagefolder, [CAR_DATASET_TOKENS] = &car_source_tokens,
    [CAR_DATASET_PACKED] = &car_source_packed,
};

static car_status fail_with_kinds(car_context *context, const char *name) {
    car_text list = {.context = context};
    char *text = NULL;
    for (int k = 0; k < CAR_DATASET_KINDS; k++) {
        car_text_add(&list, "%s%s%s%s", k ? ", " : "", kinds[k].name, *kinds[k].path ? ":" : "", kinds[k].path);
    }
    car_status status = car_text_finish(&list, &text);
    if (status == CAR_OK) {
        status = car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "there is no data '%s'; use one of %s", name, text);
    }
    car_context_release_text(context, text);
    return status;
}

/* Splits KIND:PATH. */
static car_status parse_name(car_context *context, const char *name, car_dataset_kind *kind, const char **path) {
    size_t length = strcspn(name, ":");
    *path = name[length] ? name + length + 1 : name + length;
    for (int k = 0; k < CAR_DATASET_KINDS; k++) {
        if (strlen(kinds[k].name) == length && memcmp(kinds[k].name, name, length) == 0) {
            *kind = (car_dataset_kind)k;
            if (*kinds[k].path && !**path) {
                return car_context_fail(context, CAR_ERROR_ARGUMENT, "data '%s' has no path: write %s:%s", name,
                                        kinds[k].name, kinds[k].path);
            }
            if (!*kinds[k].path && **path) {
                return car_context_fail(context, CAR_ERROR_ARGUMENT, "data '%s': %s takes no path", name,
                                        kinds[k].name);
            }
            return CAR_OK;
        }
    }
    return fail_with_kinds(context, name);
}

/* ---- opening --------------------------------------------------------------------------------- */

static car_status check_fit(const car_dataset *dataset) {
    car_context *context = dataset->context;
    const car_dataset_info *info = &dataset->info;
    const car_model_config *model = &dataset->config.model;
    const char *name = dataset->name;
    if (info->domain != dataset->config.domain) {
        return car_context_fail(context, CAR_ERROR_SHAPE, "data %s: it has %s, but the model needs %s", name,
                                info->domain == CAR_DOMAIN_IMAGES ? "images" : "tokens",
                                info->domain == CAR_DOMAIN_IMAGES ? "tokens" : "images");
    }
    if (info->domain == CAR_DOMAIN_TOKENS) {
        if (info->classes > model->vocabulary) {
            return car_context_fail(context, CAR_ERROR_SHAPE,
                                    "data %s: it may have tokens up to %d, but the model's vocabulary has only %d",
                                    name, info->classes - 1, model->vocabulary);
        }
        return CAR_OK;
    }
    if (info->classes > model->classes) {
        return car_context_fail(context, CAR_ERROR_SHAPE,
                                "data %s: it has %d classes, but the model only %d; give the model at least as many",
                                name, info->classes, model->classes);
    }
    if (dataset->methods->image && (model->channels != 3 || model->image_size < 1)) {
        return car_context_fail(
            context, CAR_ERROR_SHAPE,
            "data %s: its images have 3 channels, but the model needs %d channels of %d x %d pixels", name,
            model->channels, model->image_size, model->image_size);
    }
    return CAR_OK;
}

/* Class names end up in JSON, in weight files and on terminals, so they must be safe to show. */
static car_status check_class_names(const car_dataset *dataset) {
    for (int c = 0; c < dataset->info.classes; c++) {
        const char *name = car_dataset_class_name(dataset, c);
        if (name && !car_shown_is_plain(name)) {
            return car_context_fail(
                dataset->context, CAR_ERROR_FORMAT,
                "data %s: class %d is named '%s', but a class name must be UTF-8 without control characters; rename it",
                dataset->name, c, car_shown_of(name).text);
        }
    }
    return CAR_OK;
}

static car_status create(car_context *context, const char *name, const car_source_methods *kind, car_dataset **out) {
    car_dataset *dataset = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *dataset, &dataset));
    if (pthread_mutex_init(&dataset->lock, NULL) != 0) {
        car_context_release(context, dataset, 1, sizeof *dataset);
        car_context_fail(context, CAR_ERROR_MEMORY, "could not create a mutex");
        return CAR_ERROR_MEMORY;
    }
    dataset->context = context;
    dataset->methods = kind;
    *out = dataset;
    CAR_TRY(car_context_copy_text(context, name, &dataset->name));
done:
    return status;
}

/* Sizes of a sample, from the model's. */
static void find_sizes(car_dataset *dataset) {
    const car_model_config *model = &dataset->config.model;
    bool images = dataset->config.domain == CAR_DOMAIN_IMAGES;
    size_t pixels = (size_t)model->channels * (size_t)model->image_size * (size_t)model->image_size;
    dataset->input_bytes = images ? pixels * sizeof(float) : (size_t)model->seq_len * sizeof(int32_t);
    dataset->label_count = images ? 1 : model->seq_len;
    dataset->input_name = images ? "images" : "tokens";
    dataset->labels_name = "labels";
}

car_status car_dataset_open(car_context *context, const char *name, const car_dataset_config *config,
                            car_dataset **out) {
    CAR_REQUIRE(context, out);
    *out = NULL;
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    car_status status = CAR_OK;
    car_dataset *dataset = NULL;
    car_dataset_kind kind = CAR_DATASET_SYNTHETIC;
    const char *path = NULL;
    CAR_TRY(parse_name(context, name, &kind, &path));
    CAR_TRY(create(context, name, methods[kind], &dataset));
    dataset->info.kind = kind;
    CAR_TRY(dataset->methods->open(context, path, config, &dataset->info, &dataset->state));
    CAR_TRY(check_class_names(dataset));
    if (config) {
        dataset->config = *config;
        dataset->readable = true;
        CAR_TRY(check_fit(dataset));
        find_sizes(dataset);
    }
    *out = dataset;
    dataset = NULL;
done:
    car_dataset_close(dataset);
    return status;
}

car_status car_dataset_create(car_context *context, const car_dataset_class *own, car_dataset **out) {
    CAR_REQUIRE(context, out);
    *out = NULL;
    CAR_REQUIRE(NULL, context);
    car_status status = CAR_OK;
    car_dataset *dataset = NULL;
    CAR_TRY(car_source_check_own(context, own));
    CAR_TRY(create(context, own->name, &car_source_own, &dataset));
    CAR_TRY(car_source_open_own(context, own, &dataset->state));
    dataset->info = (car_dataset_info){.kind = CAR_DATASET_KINDS,
                                       .samples = {own->samples[CAR_SPLIT_TRAIN], own->samples[CAR_SPLIT_EVALUATION]},
                                       .classes = own->classes};
    dataset->readable = true;
    dataset->input_bytes = own->input_bytes;
    dataset->label_count = own->label_count;
    dataset->input_name = own->input ? own->input : "images";
    dataset->labels_name = own->labels ? own->labels : "labels";
    *out = dataset;
    dataset = NULL;
done:
    car_dataset_close(dataset);
    return status;
}

static size_t bits_of(const car_dataset *dataset, int split) {
    return ((size_t)dataset->info.samples[split] + 7) / 8;
}

void car_dataset_close(car_dataset *dataset) {
    if (!dataset) {
        return;
    }
    for (int s = 0; s < CAR_SPLITS; s++) {
        car_context_release(dataset->context, dataset->noted[s], bits_of(dataset, s), 1);
    }
    if (dataset->state) {
        dataset->methods->close(dataset->state);
    }
    car_context_release_text(dataset->context, dataset->name);
    pthread_mutex_destroy(&dataset->lock);
    car_context_release(dataset->context, dataset, 1, sizeof *dataset);
}

/* ---- information ----------------------------------------------------------------------------- */

const char *car_dataset_name(const car_dataset *dataset) {
    return dataset->name;
}

const char *car_dataset_input_name(const car_dataset *dataset) {
    return dataset->input_name;
}

const char *car_dataset_labels_name(const car_dataset *dataset) {
    return dataset->label_count > 0 ? dataset->labels_name : NULL;
}

size_t car_dataset_input_bytes(const car_dataset *dataset) {
    return dataset->input_bytes;
}

int car_dataset_label_count(const car_dataset *dataset) {
    return dataset->label_count;
}

car_dataset_info car_dataset_get_info(const car_dataset *dataset) {
    return dataset->info;
}

const char *car_dataset_class_name(const car_dataset *dataset, int index) {
    if (!dataset->methods->class_name || index < 0 || index >= dataset->info.classes) {
        return NULL;
    }
    return dataset->methods->class_name(dataset->state, index);
}

void car_dataset_get_unused(const car_dataset *dataset, car_dataset_unused *out) {
    *out = (car_dataset_unused){0};
    if (dataset->methods->unused) {
        dataset->methods->unused(dataset->state, out);
    }
}

const char *car_unused_name(car_unused reason) {
    static const char *const names[] = {
#define NAME(code, name, text) name,
        CAR_UNUSED_LIST(NAME)
#undef NAME
    };
    return reason >= 0 && reason < CAR_UNUSED_REASONS ? names[reason] : "unknown";
}

const char *car_unused_text(car_unused reason) {
    static const char *const texts[] = {
#define TEXT(code, name, text) text,
        CAR_UNUSED_LIST(TEXT)
#undef TEXT
    };
    return reason >= 0 && reason < CAR_UNUSED_REASONS ? texts[reason] : "unknown";
}

car_status car_dataset_digest(const car_dataset *dataset, char *text) {
    CAR_REQUIRE(NULL, dataset);
    CAR_REQUIRE(NULL, text);
    car_sha256 sha = car_sha256_begin();
    const char *kind = dataset->info.kind < CAR_DATASET_KINDS ? kinds[dataset->info.kind].name : "own";
    car_sha256_add(&sha, kind, strlen(kind) + 1);
    car_status status = dataset->methods->digest(dataset->state, &sha);
    car_sha256_end(&sha, text);
    return status;
}

/* ---- problems -------------------------------------------------------------------------------- */

car_status car_dataset_note(car_dataset *dataset, car_split split, int64_t sample, const car_source_image *image) {
    car_status status = CAR_OK;
    car_dataset_problems *problems = &dataset->problems;
    pthread_mutex_lock(&dataset->lock);
    if (!dataset->noted[split]) {
        CAR_TRY(car_context_allocate(dataset->context, bits_of(dataset, split), 1, &dataset->noted[split]));
    }
    uint8_t *byte = &dataset->noted[split][sample / 8], bit = (uint8_t)(1 << sample % 8);
    if (!(*byte & bit)) {
        *byte |= bit;
        *(image->state == CAR_SOURCE_UNREADABLE ? &problems->unreadable : &problems->damaged) += 1;
        if (problems->name_count < (int)(sizeof problems->names / sizeof *problems->names)) {
            char *problem = problems->names[problems->name_count++];
            car_utf8_show(image->problem, false, problem, sizeof *problems->names);
        }
    }
done:
    pthread_mutex_unlock(&dataset->lock);
    return status;
}

void car_dataset_get_problems(const car_dataset *dataset, car_dataset_problems *out) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&dataset->lock;
    pthread_mutex_lock(lock);
    *out = dataset->problems;
    pthread_mutex_unlock(lock);
}
