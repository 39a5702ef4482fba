/* Reads JSON files of a run directory, with errors that say where the mistake is: see page.h. */
#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mapped.h"
#include "base/text.h"
#include "report/page.h"

car_status car_run_path(car_context *context, const char *directory, const char *name, char **out) {
    size_t length = strlen(directory);
    car_text text = {.context = context};
    car_text_add(&text, "%s%s%s", directory, length > 0 && directory[length - 1] == '/' ? "" : "/", name);
    return car_text_finish(&text, out);
}

/* Maps a file. If it is missing, `out` is all zero. */
static car_status open_if_there(car_context *context, const char *path, car_mapped *out) {
    *out = (car_mapped){0};
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        return CAR_OK;
    }
    return car_mapped_open(context, path, out);
}

/* ---- finding the mistake in JSON ---------------------------------------------------------------- */

typedef struct place {
    int64_t line, column; /* from 1 */
} place;

static place place_of(const char *text, size_t offset) {
    place at = {1, 1};
    for (size_t i = 0; i < offset; i++) {
        at.line += text[i] == '\n';
        at.column = text[i] == '\n' ? 1 : at.column + 1;
    }
    return at;
}

/* Fails with the position of a mistake near `offset` in the text. cJSON stops in the middle of an unknown word, and
 * at the last character of a text that ends too early, so the offset is corrected for both. */
static car_status fail_at(car_context *context, const char *path, const char *text, size_t size, size_t offset) {
    char near[24] = "";
    bool end = offset + 1 >= size;
    while (offset > 0 && offset < size && isalnum((unsigned char)text[offset]) &&
           isalnum((unsigned char)text[offset - 1])) {
        offset--;
    }
    place at = place_of(text, offset);
    for (size_t i = 0; i < sizeof near - 1 && offset + i < size && text[offset + i] != '\n'; i++) {
        unsigned char c = (unsigned char)text[offset + i];
        near[i] = (char)(c < 0x20 || c >= 0x7f ? '.' : c);
    }
    return car_context_fail(context, CAR_ERROR_FORMAT, "%s:%lld:%lld: %s: '%s'", path, (long long)at.line,
                            (long long)at.column, end ? "not valid JSON, or cut short" : "not valid JSON", near);
}

static size_t skip_blanks(const char *text, size_t size, size_t offset) {
    while (offset < size && strchr(" \t\r\n", text[offset]) && text[offset]) {
        offset++;
    }
    return offset;
}

/* Parses a value that only blanks may follow. Returns NULL and the offset of the mistake if it cannot. */
static cJSON *parse(const char *text, size_t size, size_t *mistake) {
    const char *end = NULL;
    cJSON *value = cJSON_ParseWithLengthOpts(text, size, &end, false);
    size_t offset = end && end >= text && (size_t)(end - text) <= size ? (size_t)(end - text) : 0;
    *mistake = value ? skip_blanks(text, size, offset) : offset;
    if (value && *mistake != size) {
        cJSON_Delete(value);
        value = NULL;
    }
    return value;
}

/* ---- files and lines -------------------------------------------------------------------------- */

car_status car_run_read_object(car_context *context, const char *path, cJSON **out) {
    car_mapped file = {0};
    size_t mistake = 0;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(open_if_there(context, path, &file));
    if (!file.path) {
        goto done;
    }
    const char *text = file.data ? (const char *)file.data : "";
    *out = parse(text, file.size, &mistake);
    if (!*out) {
        status = fail_at(context, path, text, file.size, mistake);
    } else if (!cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        status = car_context_fail(context, CAR_ERROR_FORMAT, "%s: not a JSON object", path);
    }
done:
    car_mapped_close(&file);
    return status;
}

typedef struct line_reader {
    car_run_line_function function;
    void *user;
    car_run_lines *result;
} line_reader;

/* `whole`: the line ends with a newline. */
static car_status read_line(line_reader *reader, const char *text, size_t size, int64_t number, bool whole) {
    size_t mistake = 0;
    if (skip_blanks(text, size, 0) == size) {
        return CAR_OK;
    }
    cJSON *object = parse(text, size, &mistake);
    if (!object && !whole) {
        reader->result->cut = true;
        return CAR_OK;
    }
    bool sound = cJSON_IsObject(object);
    car_status status = sound ? reader->function(reader->user, object, &sound) : CAR_OK;
    reader->result->count += sound;
    if (!sound) {
        reader->result->first_damaged = reader->result->damaged++ ? reader->result->first_damaged : number;
    }
    cJSON_Delete(object);
    return status;
}

static int64_t count_lines(const char *text, size_t size) {
    int64_t lines = size > 0 && text[size - 1] != '\n';
    for (const char *at = text; (at = memchr(at, '\n', size - (size_t)(at - text))); at++) {
        lines++;
    }
    return lines;
}

car_status car_run_read_lines(car_context *context, const char *path, void (*begin)(void *user, int64_t lines),
                              car_run_line_function line, void *user, car_run_lines *out) {
    line_reader reader = {line, user, out};
    car_mapped file = {0};
    car_status status = CAR_OK;
    *out = (car_run_lines){0};
    CAR_TRY(open_if_there(context, path, &file));
    out->found = file.path != NULL;
    const char *text = (const char *)file.data;
    if (!text) {
        goto done;
    }
    if (begin) {
        begin(user, count_lines(text, file.size));
    }
    int64_t number = 1;
    for (size_t at = 0; at < file.size; number++) {
        const char *end = memchr(text + at, '\n', file.size - at);
        size_t length = end ? (size_t)(end - text) - at : file.size - at;
        CAR_TRY(read_line(&reader, text + at, length, number, end != NULL));
        at += length + 1;
    }
done:
    car_mapped_close(&file);
    return status;
}

/* ---- building the result ---------------------------------------------------------------------- */

static car_status settle(car_context *context, bool taken, cJSON *item) {
    if (taken) {
        return CAR_OK;
    }
    cJSON_Delete(item);
    return car_context_fail(context, CAR_ERROR_MEMORY, "out of memory for the report");
}

car_status car_run_append(car_context *context, cJSON *array, cJSON *item) {
    return settle(context, item && cJSON_AddItemToArray(array, item), item);
}

car_status car_run_add(car_context *context, cJSON *object, const char *name, cJSON *item) {
    return settle(context, item && cJSON_AddItemToObject(object, name, item), item);
}
