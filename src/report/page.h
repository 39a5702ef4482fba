/* The page of `carousel report`: what is read of run directories, and the template that it is put into. */
#ifndef CAR_REPORT_PAGE_H
#define CAR_REPORT_PAGE_H

#include <cjson/cJSON.h>

#include "base/base.h"

/* ---- template, made by the build out of src/report/page/ ------------------------------------- */

extern const unsigned char car_report_template[];
extern const size_t car_report_template_bytes;

/* ---- run_files.c ----------------------------------------------------------------------------- */

/* DIRECTORY/NAME, to be released with car_context_release_text. */
car_status car_run_path(car_context *context, const char *directory, const char *name, char **out);

/* The object in a file; *out is NULL if there is no such file. Malformed text is CAR_ERROR_FORMAT with the line and
 * the column where it ceases to be JSON. To be released with cJSON_Delete. */
car_status car_run_read_object(car_context *context, const char *path, cJSON **out);

/* What is done with each line; the object is the reader's. Clears *sound where the line has not got what it must have:
 * it is then counted as damaged. */
typedef car_status (*car_run_line_function)(void *user, const cJSON *object, bool *sound);

typedef struct car_run_lines {
    bool found; /* there is such a file */
    bool cut;   /* its last line was not whole, and was left out: a run that was killed, or goes on */
    int64_t count;
    int64_t damaged, first_damaged; /* whole lines that cannot be read, which were left out; the number of the first */
} car_run_lines;

/* A file of objects, one to a line. Looks at the whole file first: `begin` (may be NULL) is told how many lines there
 * are at most. A line that cannot be read is left out and counted: what the others say is worth showing. */
car_status car_run_read_lines(car_context *context, const char *path, void (*begin)(void *user, int64_t lines),
                              car_run_line_function line, void *user, car_run_lines *out);

/* Appends or adds the item, or deletes it and fails for lack of memory; `item` may be NULL for the same reason. */
car_status car_run_append(car_context *context, cJSON *array, cJSON *item);
car_status car_run_add(car_context *context, cJSON *object, const char *name, cJSON *item);

/* ---- run_metrics.c --------------------------------------------------------------------------- */

/* At most this many points of a curve are put into the page; between, steps are averaged. */
enum { CAR_RUN_POINTS = 2000 };

/* metrics.jsonl as columns; *out is NULL if there is no such file, or no step in it. */
car_status car_run_read_metrics(car_context *context, const char *path, car_run_lines *lines, cJSON **out);
/* evaluations.jsonl, as an array; *out is NULL likewise. */
car_status car_run_read_evaluations(car_context *context, const char *path, car_run_lines *lines, cJSON **out);

/* ---- run_timeline.c -------------------------------------------------------------------------- */

/* Whether it is a timeline that the page can draw: CAR_ERROR_FORMAT names the first thing that is not. `path` is for
 * messages. */
car_status car_run_check_timeline(car_context *context, const char *path, const cJSON *timeline);
/* Of a version that this program does not know. */
bool car_run_timeline_is_foreign(const cJSON *timeline);

#endif
