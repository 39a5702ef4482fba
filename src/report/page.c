/* Writes the report page: reads the run directories, puts their content into the template as one JSON object, and
 * writes the file.
 *
 * The template has two placeholders, {{title}} and {{data}}. The data is in a script element that browsers do not
 * execute. Only text that begins with '<' could end such an element, so that character is written as a JSON escape. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/output.h"
#include "base/text.h"
#include "carousel/report.h"
#include "carousel/version.h"
#include "report/page.h"

enum { PAGE_VERSION = 1 };

/* ---- one run --------------------------------------------------------------------------------- */

typedef struct run_reader {
    car_context *context;
    const char *directory;
    cJSON *run, *notes;
    int found; /* number of files found */
} run_reader;

/* Adds a note to the page, and logs it as a warning. */
static car_status note(run_reader *r, const char *file, const char *what) {
    char line[512];
    snprintf(line, sizeof line, "%s %s", file, what);
    car_context_log(r->context, CAR_LOG_WARNING, "%s: %s", r->directory, line);
    return car_run_append(r->context, r->notes, cJSON_CreateString(line));
}

/* `without`: the note to add if the file is missing; NULL: none. */
static car_status read_object(run_reader *r, const char *file, const char *key, const char *without) {
    bool timeline = strcmp(key, "timeline") == 0;
    char *path = NULL;
    cJSON *object = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_run_path(r->context, r->directory, file, &path));
    CAR_TRY(car_run_read_object(r->context, path, &object));
    r->found += object != NULL;
    if (!object) {
        CAR_TRY(without ? note(r, file, without) : CAR_OK);
    } else if (timeline && car_run_timeline_is_foreign(object)) {
        CAR_TRY(note(r, file, "has a version that this program does not know, so it was left out"));
    } else {
        if (timeline) {
            CAR_TRY(car_run_check_timeline(r->context, path, object));
        }
        cJSON *item = object;
        object = NULL;
        CAR_TRY(car_run_add(r->context, r->run, key, item));
    }
done:
    cJSON_Delete(object);
    car_context_release_text(r->context, path);
    return status;
}

/* Damaged lines do not keep the others from being shown. */
static car_status note_damage(run_reader *r, const char *file, const car_run_lines *lines) {
    char what[160];
    snprintf(what, sizeof what, "has %lld damaged %s, left out; the first is line %lld", (long long)lines->damaged,
             lines->damaged == 1 ? "line" : "lines", (long long)lines->first_damaged);
    return note(r, file, what);
}

typedef car_status (*lines_function)(car_context *context, const char *path, car_run_lines *lines, cJSON **out);

/* `without`: the note to add if the file is missing; NULL: none. */
static car_status read_lines(run_reader *r, const char *file, const char *key, lines_function read,
                             const char *without) {
    char *path = NULL;
    cJSON *item = NULL;
    car_run_lines lines = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_run_path(r->context, r->directory, file, &path));
    CAR_TRY(read(r->context, path, &lines, &item));
    r->found += lines.found;
    if (lines.cut) {
        CAR_TRY(note(r, file, "ends in the middle of a line, which was left out"));
    }
    if (lines.damaged > 0) {
        CAR_TRY(note_damage(r, file, &lines));
    }
    if (!item && without) {
        const char *why =
            lines.damaged > 0 ? "has no valid line, so there are no curves" : "is empty, so there are no curves";
        CAR_TRY(note(r, file, lines.found ? why : without));
    }
    if (item) {
        cJSON *added = item;
        item = NULL;
        CAR_TRY(car_run_add(r->context, r->run, key, added));
    }
done:
    cJSON_Delete(item);
    car_context_release_text(r->context, path);
    return status;
}

static car_status check_directory(car_context *context, const char *directory) {
    struct stat entry;
    if (stat(directory, &entry) != 0) {
        return car_context_fail(context, CAR_ERROR_IO, "%s: cannot open: %s", directory, strerror(errno));
    }
    if (!S_ISDIR(entry.st_mode)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "%s is not a directory; give a directory that `carousel train --out` wrote", directory);
    }
    return CAR_OK;
}

static car_status read_files(run_reader *r) {
    car_status status = CAR_OK;
    CAR_TRY(read_object(r, "config.json", "config", "is missing, so the settings are those of the summary"));
    CAR_TRY(read_object(r, "summary.json", "summary", "is missing: the run has not ended yet, or was killed"));
    CAR_TRY(read_lines(r, "metrics.jsonl", "metrics", car_run_read_metrics, "is missing, so there are no curves"));
    CAR_TRY(read_lines(r, "evaluations.jsonl", "evaluations", car_run_read_evaluations, NULL));
    CAR_TRY(read_object(r, "confusion.json", "confusion", NULL)); /* only evaluated image models have it */
    CAR_TRY(read_object(r, "timeline.json", "timeline",
                        "is missing, so there is no schedule, memory over time, bytes per slot or partition"));
    if (r->found == 0) {
        status = car_context_fail(r->context, CAR_ERROR_ARGUMENT,
                                  "%s is not a run: it has none of config.json, summary.json, metrics.jsonl and "
                                  "timeline.json, which `carousel train --out` writes",
                                  r->directory);
    }
done:
    return status;
}

static car_status read_run(car_context *context, const char *directory, const char *name, cJSON *runs) {
    run_reader r = {.context = context, .directory = directory, .run = cJSON_CreateObject()};
    car_status status = CAR_OK;
    CAR_TRY(check_directory(context, directory));
    CAR_TRY(car_run_add(context, r.run, "name", cJSON_CreateString(name)));
    CAR_TRY(car_run_add(context, r.run, "directory", cJSON_CreateString(directory)));
    CAR_TRY(car_run_add(context, r.run, "notes", cJSON_CreateArray()));
    r.notes = cJSON_GetObjectItemCaseSensitive(r.run, "notes");
    CAR_TRY(read_files(&r));
    cJSON *run = r.run;
    r.run = NULL;
    CAR_TRY(car_run_append(context, runs, run));
done:
    cJSON_Delete(r.run);
    return status;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The last part of a path, without trailing slashes. For paths like ".." it says nothing. */
static const char *last_part(const char *path, int *length) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    *length = (int)(end - begin);
    return path + begin;
}

/* True if the last parts tell all directories apart. Otherwise runs are named by their paths. */
static bool last_parts_differ(const char *const *directories, int count) {
    for (int a = 0; a < count; a++) {
        int length = 0;
        const char *name = last_part(directories[a], &length);
        if (length == 0 || (name[0] == '.' && length <= 2)) {
            return false;
        }
        for (int b = 0; b < a; b++) {
            int other_length = 0;
            const char *other = last_part(directories[b], &other_length);
            if (other_length == length && memcmp(name, other, (size_t)length) == 0) {
                return false;
            }
        }
    }
    return true;
}

static car_status read_runs(car_context *context, const char *const *directories, int count, cJSON *runs,
                            car_text *names) {
    bool short_names = last_parts_differ(directories, count);
    car_status status = CAR_OK;
    for (int d = 0; d < count; d++) {
        int length = (int)strlen(directories[d]);
        const char *part = short_names ? last_part(directories[d], &length) : directories[d];
        car_text text = {.context = context};
        char *name = NULL;
        car_text_add(&text, "%.*s", length, part);
        car_text_add(names, "%s%.*s", d > 0 ? ", " : "", length, part);
        CAR_TRY(car_text_finish(&text, &name));
        status = read_run(context, directories[d], name, runs);
        car_context_release_text(context, name);
        CAR_TRY(status);
    }
done:
    return status;
}

/* ---- filling the template -------------------------------------------------------------------- */

typedef struct escape {
    char character;
    const char *as;
} escape;

static car_status write_escaped(car_output *output, const char *text, const escape *escapes, int count) {
    car_status status = CAR_OK;
    const char *from = text;
    for (const char *c = text; *c; c++) {
        for (int e = 0; e < count; e++) {
            if (*c == escapes[e].character) {
                CAR_TRY(car_output_write(output, from, (size_t)(c - from)));
                CAR_TRY(car_output_write(output, escapes[e].as, strlen(escapes[e].as)));
                from = c + 1;
            }
        }
    }
    CAR_TRY(car_output_write(output, from, strlen(from)));
done:
    return status;
}

static car_status write_title(car_output *output, const char *title) {
    static const escape escapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}};
    return write_escaped(output, title, escapes, 3);
}

static car_status write_data(car_output *output, const char *json) {
    static const escape escapes[] = {{'<', "\\u003c"}};
    return write_escaped(output, json, escapes, 1);
}

static car_status fill_template(car_output *output, const char *title, const char *json) {
    static const struct {
        const char *mark;
        bool data;
    } marks[] = {{"{{title}}", false}, {"{{data}}", true}};
    const char *from = (const char *)car_report_template, *end = from + car_report_template_bytes;
    car_status status = CAR_OK;
    for (int m = 0; m < 2; m++) {
        const char *at = memmem(from, (size_t)(end - from), marks[m].mark, strlen(marks[m].mark));
        if (!at) {
            return car_context_fail(output->context, CAR_ERROR_INTERNAL, "the template has no %s", marks[m].mark);
        }
        CAR_TRY(car_output_write(output, from, (size_t)(at - from)));
        CAR_TRY(marks[m].data ? write_data(output, json) : write_title(output, title));
        from = at + strlen(marks[m].mark);
    }
    CAR_TRY(car_output_write(output, from, (size_t)(end - from)));
done:
    return status;
}

static car_status write_page(car_context *context, const char *path, const char *title, const char *json) {
    car_output output = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_output_open(context, path, &output));
    CAR_TRY(fill_template(&output, title, json));
    CAR_TRY(car_output_finish(&output, NULL));
done:
    car_output_close(&output);
    return status;
}

car_status car_report_page(car_context *context, const char *const *directories, int count, const char *title,
                           const char *path) {
    return car_report_live_page(context, directories, count, title, 0, path);
}

car_status car_report_live_page(car_context *context, const char *const *directories, int count, const char *title,
                                double seconds, const char *path) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    if (count > 0) {
        CAR_REQUIRE(context, directories);
    }
    cJSON *root = cJSON_CreateObject(), *runs = cJSON_CreateArray();
    car_text names = {.context = context};
    char *all_names = NULL, *json = NULL;
    car_status status = CAR_OK;
    if (count < 1) {
        status = car_context_fail(context, CAR_ERROR_ARGUMENT, "a report needs at least one run");
        goto done;
    }
    status = read_runs(context, directories, count, runs, &names);
    car_status named = car_text_finish(&names, &all_names); /* always, because it also releases */
    CAR_TRY(status);
    CAR_TRY(named);
    CAR_TRY(car_run_add(context, root, "carousel_report", cJSON_CreateNumber(PAGE_VERSION)));
    CAR_TRY(car_run_add(context, root, "carousel", cJSON_CreateString(car_version())));
    CAR_TRY(car_run_add(context, root, "title", cJSON_CreateString(title ? title : all_names)));
    if (seconds > 0) {
        CAR_TRY(car_run_add(context, root, "reload_seconds", cJSON_CreateNumber(seconds)));
    }
    cJSON *added = runs;
    runs = NULL;
    CAR_TRY(car_run_add(context, root, "runs", added));
    json = cJSON_PrintUnformatted(root);
    if (!json) {
        status = car_context_fail(context, CAR_ERROR_MEMORY, "out of memory for the report");
        goto done;
    }
    CAR_TRY(write_page(context, path, title ? title : all_names, json));
done:
    cJSON_free(json);
    car_context_release_text(context, all_names);
    cJSON_Delete(runs);
    cJSON_Delete(root);
    return status;
}
