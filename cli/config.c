/* Reads and writes options as JSON. It uses the same table as the command line, so values are checked the same way. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST_FILE = 1 << 20 };

static const double exact_integers = 9007199254740992.0; /* 2^53: a JSON number is exact up to here */

/* False for options of a single call, which a configuration does not keep. */
static bool is_kept(const car_cli_option *option) {
    static const char *const passing[] = {"config", "resume", "resume-step", "force"};
    for (size_t p = 0; p < sizeof passing / sizeof passing[0]; p++) {
        if (strcmp(option->name, passing[p]) == 0) {
            return false;
        }
    }
    return true;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int refuse(const car_cli_command *command, const char *source, const char *key, const char *why) {
    return car_cli_fail(CAR_CLI_USAGE, "%s: %s: \"%s\" %s", command->name, source, key, why);
}

/* Formats a number as a user would type it. */
static const char *number_text(double number, char *text, size_t capacity) {
    bool whole = fabs(number) < exact_integers && floor(number) == number;
    snprintf(text, capacity, whole ? "%.0f" : "%.17g", number);
    return text;
}

static int apply_list(const car_cli_command *command, const car_cli_option *option, const char *source,
                      const cJSON *list) {
    const cJSON *item = NULL;
    if (!cJSON_IsArray(list)) {
        return refuse(command, source, list->string, "must be an array of strings");
    }
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsString(item)) {
            return refuse(command, source, list->string, "must be an array of strings");
        }
        if (!car_cli_store(command, option, item->valuestring)) {
            return CAR_CLI_USAGE;
        }
    }
    return CAR_CLI_GO_ON;
}

static int apply_item(const car_cli_command *command, const car_cli_option *option, const char *source,
                      const cJSON *item) {
    char text[64];
    if (cJSON_IsNull(item)) {
        return CAR_CLI_GO_ON; /* not given */
    }
    if (option->kind == CAR_CLI_FLAG) {
        if (!cJSON_IsBool(item)) {
            return refuse(command, source, item->string, "must be true or false");
        }
        *(bool *)option->target = cJSON_IsTrue(item);
        return CAR_CLI_GO_ON;
    }
    if (option->kind == CAR_CLI_LIST) {
        return apply_list(command, option, source, item);
    }
    bool is_number = cJSON_IsNumber(item), is_text = cJSON_IsString(item) && item->valuestring;
    if (!is_text && (!is_number || option->kind == CAR_CLI_TEXT)) {
        return refuse(command, source, item->string,
                      option->kind == CAR_CLI_TEXT ? "must be a string" : "must be a number");
    }
    const char *value = is_text ? item->valuestring : number_text(item->valuedouble, text, sizeof text);
    return car_cli_store(command, option, value) ? CAR_CLI_GO_ON : CAR_CLI_USAGE;
}

/* True if an earlier key has the same name; one of the two would be ignored. */
static bool is_repeated(const cJSON *object, const cJSON *item) {
    const cJSON *first = object->child;
    while (strcmp(first->string, item->string) != 0) {
        first = first->next;
    }
    return first != item;
}

int car_cli_apply_config(const car_cli_command *command, const car_cli_option *options, int count, const char *source,
                         const char *text, size_t length, car_cli_config **out) {
    cJSON *object = cJSON_ParseWithLength(text, length);
    int code = CAR_CLI_GO_ON;
    *out = NULL;
    if (!cJSON_IsObject(object)) {
        cJSON_Delete(object);
        return car_cli_fail(CAR_CLI_USAGE,
                            "%s: %s is not a JSON object, such as {\"model\": \"resnet20\", \"lr\": 0.1}",
                            command->name, source);
    }
    for (const cJSON *item = object->child; item && code == CAR_CLI_GO_ON; item = item->next) {
        const car_cli_option *option = car_cli_find_option(options, count, item->string, strlen(item->string));
        if (!option || !is_kept(option)) {
            code = refuse(command, source, item->string, "is not an option that a configuration can have");
        } else if (is_repeated(object, item)) {
            code = refuse(command, source, item->string, "is given twice; remove one of them");
        } else {
            code = apply_item(command, option, source, item);
        }
    }
    if (code == CAR_CLI_GO_ON) {
        *out = object;
    } else {
        cJSON_Delete(object);
    }
    return code;
}

/* Opens a regular file, or returns NULL with errno (EINVAL for others). Reading a pipe could block, and works only
 * once. */
static FILE *open_regular(const char *path) {
    struct stat found;
    int handle = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), error = 0;
    if (handle < 0) {
        return NULL;
    }
    if (fstat(handle, &found) != 0) {
        error = errno;
    } else if (!S_ISREG(found.st_mode)) {
        error = EINVAL;
    }
    FILE *file = error ? NULL : fdopen(handle, "rb");
    if (!file) {
        error = error ? error : errno;
        close(handle);
        errno = error;
    }
    return file;
}

int car_cli_read_config(const car_cli_command *command, const car_cli_option *options, int count, const char *path,
                        car_cli_config **out) {
    *out = NULL;
    FILE *file = open_regular(path);
    if (!file) {
        const char *why = errno == EINVAL ? "it is not a regular file" : strerror(errno);
        return car_cli_fail(CAR_CLI_FAILED, "%s: could not read %s: %s", command->name, path, why);
    }
    char *text = malloc(LARGEST_FILE + 1);
    size_t length = text ? fread(text, 1, LARGEST_FILE + 1, file) : 0;
    bool failed = ferror(file) != 0;
    int error = errno;
    fclose(file);
    int code = CAR_CLI_FAILED;
    if (!text) {
        car_cli_fail(code, "%s: out of memory for %s", command->name, path);
    } else if (failed) {
        car_cli_fail(code, "%s: could not read %s: %s", command->name, path, strerror(error));
    } else if (length > LARGEST_FILE) {
        car_cli_fail(code, "%s: %s is larger than 1 MiB, too large for a configuration", command->name, path);
    } else {
        code = car_cli_apply_config(command, options, count, path, text, length, out);
    }
    free(text);
    return code;
}

void car_cli_release_config(car_cli_config *config) {
    cJSON_Delete(config);
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool add_seed(cJSON *object, const char *name, uint64_t seed) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    return (double)seed < exact_integers ? cJSON_AddNumberToObject(object, name, (double)seed) != NULL
                                         : cJSON_AddStringToObject(object, name, text) != NULL;
}

static bool add_list(cJSON *object, const char *name, const car_cli_list *list) {
    cJSON *array = list->count > 0 ? cJSON_AddArrayToObject(object, name) : NULL;
    bool ok = list->count == 0 || array;
    for (int i = 0; ok && i < list->count; i++) {
        ok = cJSON_AddItemToArray(array, cJSON_CreateString(list->items[i]));
    }
    return ok;
}

/* Adds an option unless it has no value: a text that is NULL, or a number out of its bounds. */
static bool add_option(cJSON *object, const car_cli_option *o) {
    switch (o->kind) {
    case CAR_CLI_FLAG:
        return cJSON_AddBoolToObject(object, o->name, *(const bool *)o->target) != NULL;
    case CAR_CLI_AUTO:
    case CAR_CLI_INT: {
        int value = *(const int *)o->target;
        return value < o->least || value > o->most || cJSON_AddNumberToObject(object, o->name, value) != NULL;
    }
    case CAR_CLI_REAL:
        return cJSON_AddNumberToObject(object, o->name, *(const double *)o->target) != NULL;
    case CAR_CLI_SEED:
        return add_seed(object, o->name, *(const uint64_t *)o->target);
    case CAR_CLI_TEXT: {
        const char *text = *(const char *const *)o->target;
        return !text || cJSON_AddStringToObject(object, o->name, text) != NULL;
    }
    case CAR_CLI_LIST:
        return add_list(object, o->name, o->target);
    }
    return false;
}

cJSON *car_cli_config_of(const car_cli_option *options, int count) {
    cJSON *object = cJSON_CreateObject();
    for (int o = 0; object && o < count; o++) {
        if (is_kept(&options[o]) && (options[o].help || options[o].kind != CAR_CLI_FLAG) &&
            !add_option(object, &options[o])) {
            cJSON_Delete(object);
            object = NULL;
        }
    }
    return object;
}
