/* Checks that the page can draw a timeline.json: see page.h.
 *
 * The page's script trusts its data. So everything that it uses as an index or loops over is checked here, where an
 * error can be reported. Missing fields are fine, because the page leaves out what it cannot draw; fields of the
 * wrong type are not. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "report/page.h"

enum { KNOWN_VERSION = 1 };

/* Indices in a task and in a message. */
enum { TASK_START, TASK_END, TASK_LANE, TASK_KIND, TASK_WORKER, TASK_STAGE, TASK_STEP, TASK_VERSION, TASK_FIELDS = 9 };
enum { MESSAGE_FIELDS = 7, POINT_FIELDS = 2 };

/* Limits the size, so that a mistake in a file cannot make a page that no browser opens. */
static const double most_lanes = 4096;

typedef struct checker {
    car_context *context;
    const char *path;
    double lanes, kinds, workers, stages;
} checker;

static car_status refuse(const checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static car_status refuse(const checker *c, const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return car_context_fail(c->context, CAR_ERROR_FORMAT,
                            "%s: %s; remove the file to get the report without the schedule", c->path, what);
}

static const cJSON *get(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool is_finite(const cJSON *item) {
    return cJSON_IsNumber(item) && isfinite(item->valuedouble);
}

/* Reads an array of at least `fields` numbers; puts the first eight into `values`. */
static bool read_row(const cJSON *row, int fields, double values[8]) {
    int f = 0;
    const cJSON *item = NULL;
    if (!cJSON_IsArray(row)) {
        return false;
    }
    cJSON_ArrayForEach(item, row) {
        if (!is_finite(item)) {
            return false;
        }
        if (f < 8) {
            values[f] = item->valuedouble;
        }
        f++;
    }
    return f >= fields;
}

static bool is_index(double value, double least, double end) {
    return value >= least && value < end && value == floor(value);
}

/* ---- the parts ------------------------------------------------------------------------------- */

static car_status check_count(const checker *c, const cJSON *timeline, const char *name, double *out) {
    const cJSON *item = get(timeline, name);
    if (!is_finite(item) || !is_index(item->valuedouble, 1, 1 << 20)) {
        return refuse(c, "%s is not a positive whole number", name);
    }
    *out = item->valuedouble;
    return CAR_OK;
}

static car_status check_names(const checker *c, const cJSON *timeline, const char *name, double *count) {
    const cJSON *array = get(timeline, name), *item = NULL;
    bool good = cJSON_IsArray(array) && cJSON_GetArraySize(array) <= most_lanes;
    if (good) {
        cJSON_ArrayForEach(item, array) {
            good = good && cJSON_IsString(item);
        }
    }
    *count = good ? cJSON_GetArraySize(array) : 0;
    return good ? CAR_OK : refuse(c, "%s is not a list of at most %g names", name, most_lanes);
}

static car_status check_tasks(const checker *c, const cJSON *tasks) {
    const cJSON *row = NULL;
    double v[8];
    int64_t number = 0;
    if (!cJSON_IsArray(tasks)) {
        return refuse(c, "tasks is not a list");
    }
    cJSON_ArrayForEach(row, tasks) {
        if (!read_row(row, TASK_FIELDS, v)) {
            return refuse(c, "tasks[%lld] is not a list of %d numbers", (long long)number, TASK_FIELDS);
        }
        if (v[TASK_END] < v[TASK_START]) {
            return refuse(c, "tasks[%lld] ends before it starts", (long long)number);
        }
        if (!is_index(v[TASK_LANE], 0, c->lanes) || !is_index(v[TASK_KIND], 0, c->kinds)) {
            return refuse(c, "tasks[%lld] has a lane or a kind that is not in the lists", (long long)number);
        }
        if (!is_index(v[TASK_WORKER], -1, c->workers) || !is_index(v[TASK_STAGE], -1, c->stages)) {
            return refuse(c, "tasks[%lld] has a worker or a stage that the run does not have", (long long)number);
        }
        number++;
    }
    return CAR_OK;
}

/* Checks a list of rows of `fields` numbers (`depth` 1), or a list of such lists. */
static car_status check_rows(const checker *c, const cJSON *list, const char *name, int depth, int fields) {
    const cJSON *item = NULL;
    double values[8];
    int64_t number = 0;
    if (!cJSON_IsArray(list)) {
        return refuse(c, "%s is not a list", name);
    }
    cJSON_ArrayForEach(item, list) {
        char inner[128];
        snprintf(inner, sizeof inner, "%s[%lld]", name, (long long)number++);
        if (depth > 1) {
            car_status status = check_rows(c, item, inner, depth - 1, fields);
            if (status != CAR_OK) {
                return status;
            }
        } else if (!read_row(item, fields, values)) {
            return refuse(c, "%s is not a list of %d numbers", inner, fields);
        }
    }
    return CAR_OK;
}

static car_status check_memory(const checker *c, const cJSON *memory) {
    const char *const levels[] = {"dp_peak_bytes", "limit_bytes", "limit_without_recomputation_bytes",
                                  "predicted_peak_bytes", "measured_peak_bytes"};
    car_status status = CAR_OK;
    if (!cJSON_IsObject(memory)) {
        return refuse(c, "memory is not an object");
    }
    CAR_TRY(check_rows(c, get(memory, "workers"), "memory.workers", 2, POINT_FIELDS));
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        const cJSON *level = get(memory, levels[l]);
        if (level && !cJSON_IsNull(level) && !is_finite(level)) {
            return refuse(c, "memory.%s is not a number", levels[l]);
        }
    }
done:
    return status;
}

static car_status check_slots(const checker *c, const cJSON *slots) {
    const char *const names[] = {"plan", "measured"};
    double values[8];
    if (!cJSON_IsObject(slots)) {
        return refuse(c, "bytes_per_slot is not an object");
    }
    for (int n = 0; n < 2; n++) {
        const cJSON *list = get(slots, names[n]);
        if (list && !cJSON_IsNull(list) && !read_row(list, 0, values)) {
            return refuse(c, "bytes_per_slot.%s is not a list of numbers", names[n]);
        }
    }
    return CAR_OK;
}

static car_status check_partition(const checker *c, const cJSON *partition) {
    const cJSON *stage = NULL;
    bool good = cJSON_IsArray(partition);
    if (good) {
        cJSON_ArrayForEach(stage, partition) {
            good = good && cJSON_IsObject(stage);
        }
    }
    return good ? CAR_OK : refuse(c, "partition is not a list of objects");
}

/* ---- the whole ------------------------------------------------------------------------------- */

bool car_run_timeline_is_foreign(const cJSON *timeline) {
    const cJSON *version = get(timeline, "carousel_timeline");
    return !cJSON_IsNumber(version) || version->valuedouble != KNOWN_VERSION;
}

car_status car_run_check_timeline(car_context *context, const char *path, const cJSON *timeline) {
    checker c = {.context = context, .path = path};
    car_status status = CAR_OK;
    CAR_TRY(check_count(&c, timeline, "workers", &c.workers));
    CAR_TRY(check_count(&c, timeline, "stages", &c.stages));
    CAR_TRY(check_names(&c, timeline, "lanes", &c.lanes));
    CAR_TRY(check_names(&c, timeline, "kinds", &c.kinds));
    CAR_TRY(check_tasks(&c, get(timeline, "tasks")));
    if (get(timeline, "memory")) {
        CAR_TRY(check_memory(&c, get(timeline, "memory")));
    }
    if (get(timeline, "messages")) {
        CAR_TRY(check_rows(&c, get(timeline, "messages"), "messages", 1, MESSAGE_FIELDS));
    }
    if (get(timeline, "bytes_per_slot")) {
        CAR_TRY(check_slots(&c, get(timeline, "bytes_per_slot")));
    }
    if (get(timeline, "partition")) {
        CAR_TRY(check_partition(&c, get(timeline, "partition")));
    }
done:
    return status;
}
