/* run.json: describes a checkpoint, its files, and the caller's own JSON.
 *
 * It ends with the caller's object, verbatim, and the SHA-256 of everything before that digest. So the file is
 * ordinary JSON, any change is detected, and the caller's numbers are not reformatted. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"

enum { VERSION = 1, MAX_BYTES = 100000000 };
static const char before_run[] = "\n\"run\": ", after_run[] = ",\n\"checksum\": \"", ending[] = "\"\n}\n";

/* ---- writing --------------------------------------------------------------------------------- */

car_status car_manifest_check_run(car_context *context, const char *run) {
    cJSON *parsed = cJSON_ParseWithOpts(run, NULL, true);
    bool object = cJSON_IsObject(parsed);
    cJSON_Delete(parsed);
    if (!object) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "the text that a run stores in its checkpoints must be one JSON object");
    }
    return CAR_OK;
}

/* The bits of a double, since decimals would need care to be exact. */
static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void add_numbers(car_text *text, const car_snapshot_numbers *numbers) {
    car_text_add(text, "\"step\": %lld,\n\"updates\": %lld,\n", (long long)numbers->step, (long long)numbers->updates);
    if (isnan(numbers->norm)) {
        car_text_add(text, "\"norm_bits\": null,\n");
    } else {
        car_text_add(text, "\"norm_bits\": \"%016llx\",\n", (unsigned long long)bits_of(numbers->norm));
    }
}

static void add_files(car_text *text, const car_manifest *manifest) {
    car_text_add(text, "\"files\": {");
    for (int f = 0; f < CAR_CHECKPOINT_FILES; f++) {
        car_text_add(text, "%s\n  \"%s\": {\"bytes\": %llu, \"sha256\": \"%s\"}", f > 0 ? "," : "",
                     car_checkpoint_file_names[f], (unsigned long long)manifest->files[f].bytes,
                     manifest->files[f].digest);
    }
    car_text_add(text, "\n},");
}

car_status car_manifest_write(car_context *context, const char *path, const car_manifest *manifest, const char *run) {
    car_text text = {.context = context};
    car_output output = {0};
    car_sha256 sha = car_sha256_begin();
    char *body = NULL, digest[CAR_SHA256_TEXT];
    car_status status = CAR_OK;
    car_text_add(&text, "{\n\"format\": \"carousel-checkpoint\",\n\"version\": %d,\n", VERSION);
    add_numbers(&text, &manifest->numbers);
    car_text_add(&text, "\"model\": \"%s\",\n", manifest->model);
    add_files(&text, manifest);
    car_text_add(&text, "%s%s%s", before_run, run, after_run);
    CAR_TRY(car_text_finish(&text, &body));
    car_sha256_add(&sha, body, strlen(body));
    car_sha256_end(&sha, digest);
    CAR_TRY(car_output_open(context, path, &output));
    CAR_TRY(car_output_write(&output, body, strlen(body)));
    CAR_TRY(car_output_write(&output, digest, strlen(digest)));
    CAR_TRY(car_output_write(&output, ending, strlen(ending)));
    CAR_TRY(car_output_finish(&output, NULL));
done:
    car_output_close(&output);
    car_context_release_text(context, body);
    return status;
}

/* ---- reading run.json ------------------------------------------------------------------------ */

static car_status refuse(car_manifest_reason *why, car_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static car_status refuse(car_manifest_reason *why, car_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    return status;
}

static car_status open_file(const char *path, const char *name, car_manifest_reason *why, int *descriptor,
                            uint64_t *bytes) {
    struct stat info;
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0 && errno == ENOENT) {
        return refuse(why, CAR_ERROR_FORMAT, "%s is missing", name);
    }
    if (*descriptor < 0 || fstat(*descriptor, &info) != 0) {
        return refuse(why, CAR_ERROR_IO, "%s cannot be opened: %s", name, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return refuse(why, CAR_ERROR_FORMAT, "%s is not a regular file", name);
    }
    *bytes = (uint64_t)info.st_size;
    return CAR_OK;
}

/* Reads up to `bytes` bytes: fewer only at the end of the file, -1 on an error. */
static ssize_t read_bytes(int descriptor, char *to, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t count = read(descriptor, to + done, bytes - done);
        if (count == 0 || (count < 0 && errno != EINTR)) {
            return count < 0 ? -1 : (ssize_t)done;
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return (ssize_t)done;
}

/* Reads all of run.json and adds a terminating zero. The caller releases *bytes + 1 bytes. */
static car_status read_run_file(car_context *context, const char *path, car_manifest_reason *why, char **text,
                                size_t *bytes) {
    int descriptor = -1;
    uint64_t size = 0;
    car_status status = CAR_OK;
    CAR_TRY(open_file(path, CAR_CHECKPOINT_RUN, why, &descriptor, &size));
    if (size > MAX_BYTES) {
        status = refuse(why, CAR_ERROR_FORMAT, "%s is too large, with %llu bytes", CAR_CHECKPOINT_RUN,
                        (unsigned long long)size);
        goto done;
    }
    *bytes = (size_t)size;
    CAR_TRY(car_context_allocate(context, *bytes + 1, 1, text));
    if (read_bytes(descriptor, *text, *bytes) != (ssize_t)*bytes) {
        status = refuse(why, CAR_ERROR_IO, "%s cannot be read", CAR_CHECKPOINT_RUN);
    }
done:
    if (descriptor >= 0) {
        close(descriptor);
    }
    return status;
}

/* Checks the text's own digest and finds the caller's part: *run_bytes bytes at *run. */
static car_status check_text(const char *text, size_t bytes, car_manifest_reason *why, const char **run,
                             size_t *run_bytes) {
    size_t digest_bytes = CAR_SHA256_TEXT - 1, tail = digest_bytes + strlen(ending);
    char digest[CAR_SHA256_TEXT];
    if (text == NULL || strlen(text) != bytes || bytes < tail + strlen(before_run) + strlen(after_run) ||
        strcmp(text + bytes - strlen(ending), ending) != 0) {
        return refuse(why, CAR_ERROR_FORMAT, "%s does not end as it should: it was cut short or changed",
                      CAR_CHECKPOINT_RUN);
    }
    car_sha256 sha = car_sha256_begin();
    car_sha256_add(&sha, text, bytes - tail);
    car_sha256_end(&sha, digest);
    if (memcmp(digest, text + bytes - tail, digest_bytes) != 0) {
        return refuse(why, CAR_ERROR_FORMAT, "%s was changed: its own checksum is %.16s... instead of %.16s...",
                      CAR_CHECKPOINT_RUN, digest, text + bytes - tail);
    }
    const char *begin = strstr(text, before_run), *end = text + bytes - tail - strlen(after_run);
    if (begin == NULL || begin + strlen(before_run) > end || strncmp(end, after_run, strlen(after_run)) != 0) {
        return refuse(why, CAR_ERROR_FORMAT, "%s has no \"run\"", CAR_CHECKPOINT_RUN);
    }
    *run = begin + strlen(before_run);
    *run_bytes = (size_t)(end - *run);
    return CAR_OK;
}

/* Reads a non-negative integer from JSON. */
static bool read_count(const cJSON *object, const char *name, int64_t *out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= (double)car_checkpoint_max_step) ||
        item->valuedouble != floor(item->valuedouble)) {
        return false;
    }
    *out = (int64_t)item->valuedouble;
    return true;
}

static bool read_digest(const cJSON *object, const char *name, char *out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsString(item) || strlen(item->valuestring) != CAR_SHA256_TEXT - 1) {
        return false;
    }
    memcpy(out, item->valuestring, CAR_SHA256_TEXT);
    return true;
}

static bool read_norm(const cJSON *json, double *norm) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "norm_bits");
    if (cJSON_IsNull(item)) {
        *norm = NAN;
        return true;
    }
    char *end = NULL;
    uint64_t bits = cJSON_IsString(item) ? strtoull(item->valuestring, &end, 16) : 0;
    memcpy(norm, &bits, sizeof bits);
    return end != NULL && end != item->valuestring && *end == '\0';
}

static car_status parse(const char *text, car_manifest_reason *why, car_manifest *out) {
    cJSON *json = cJSON_ParseWithOpts(text, NULL, true);
    int64_t version = 0, bytes = 0;
    car_status status = CAR_OK;
    bool sound = read_count(json, "version", &version);
    if (sound && version != VERSION) {
        status = refuse(why, CAR_ERROR_UNSUPPORTED, "it has format version %lld, and this program reads version %d",
                        (long long)version, VERSION);
        goto done;
    }
    sound = sound && read_count(json, "step", &out->numbers.step) &&
            read_count(json, "updates", &out->numbers.updates) && read_norm(json, &out->numbers.norm) &&
            read_digest(json, "model", out->model);
    for (int f = 0; f < CAR_CHECKPOINT_FILES; f++) {
        const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files");
        const cJSON *file = cJSON_GetObjectItemCaseSensitive(files, car_checkpoint_file_names[f]);
        sound = sound && read_count(file, "bytes", &bytes) && read_digest(file, "sha256", out->files[f].digest);
        out->files[f].bytes = (uint64_t)bytes;
    }
    if (!sound) {
        status =
            refuse(why, CAR_ERROR_FORMAT, "%s lacks required fields, or they have wrong values", CAR_CHECKPOINT_RUN);
    }
done:
    cJSON_Delete(json);
    return status;
}

/* ---- the other files ------------------------------------------------------------------------- */

static car_status check_file(const char *path, const char *name, uint64_t bytes, const char *digest,
                             car_manifest_reason *why) {
    enum { PIECE = 1 << 16 };
    char piece[PIECE], found[CAR_SHA256_TEXT];
    int descriptor = -1;
    uint64_t size = 0;
    ssize_t count = 0;
    car_sha256 sha = car_sha256_begin();
    car_status status = CAR_OK;
    CAR_TRY(open_file(path, name, why, &descriptor, &size));
    if (size != bytes) {
        status = refuse(why, CAR_ERROR_FORMAT, "%s has %llu bytes instead of %llu", name, (unsigned long long)size,
                        (unsigned long long)bytes);
        goto done;
    }
    while ((count = read_bytes(descriptor, piece, sizeof piece)) > 0) {
        car_sha256_add(&sha, piece, (size_t)count);
    }
    if (count < 0) {
        status = refuse(why, CAR_ERROR_IO, "%s cannot be read: %s", name, strerror(errno));
        goto done;
    }
    car_sha256_end(&sha, found);
    if (strcmp(found, digest) != 0) {
        status = refuse(why, CAR_ERROR_FORMAT, "%s was changed: its checksum is %.16s... instead of %.16s...", name,
                        found, digest);
    }
done:
    if (descriptor >= 0) {
        close(descriptor);
    }
    return status;
}

car_status car_manifest_verify(car_context *context, const char *directory, car_manifest *out, char **run,
                               car_manifest_reason *why) {
    char *path = NULL, *text = NULL;
    const char *found = NULL;
    size_t bytes = 0, found_bytes = 0;
    car_status status = CAR_OK;
    *why = (car_manifest_reason){"out of memory"};
    CAR_TRY(car_checkpoint_join(context, directory, CAR_CHECKPOINT_RUN, &path));
    CAR_TRY(read_run_file(context, path, why, &text, &bytes));
    CAR_TRY(check_text(text, bytes, why, &found, &found_bytes));
    CAR_TRY(parse(text, why, out));
    for (int f = 0; f < CAR_CHECKPOINT_FILES; f++) {
        const char *name = car_checkpoint_file_names[f];
        car_context_release_text(context, path);
        CAR_TRY(car_checkpoint_join(context, directory, name, &path));
        CAR_TRY(check_file(path, name, out->files[f].bytes, out->files[f].digest, why));
    }
    if (run != NULL) {
        car_text copy = {.context = context};
        car_text_add(&copy, "%.*s", (int)found_bytes, found);
        CAR_TRY(car_text_finish(&copy, run));
    }
done:
    car_context_release(context, text, bytes + 1, 1);
    car_context_release_text(context, path);
    return status;
}
