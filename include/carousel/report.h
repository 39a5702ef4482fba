/* Reports about plans and runs: figures, pages and traces. */
#ifndef CAROUSEL_REPORT_H
#define CAROUSEL_REPORT_H

#include "carousel/plan.h"
#include "carousel/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Draws a figure as SVG: data parallelism on the left, the plan's cyclic rule on the right. Above: who computes what
 * in which slot. Below: the activation bytes of each worker and their sum over the same two steps, from the
 * partition's curve, with workers aligned (dp) and evenly spaced (the cycle). `title` names the model in the figure.
 *
 * CAR_ERROR_ARGUMENT if the rule is not cyclic, or if there are more than 32 workers or 128 stages, which would be
 * unreadable. Release *out with car_plan_release_text. */
car_status car_report_plan_svg(const car_plan *plan, const char *title, char **out);

/* Writes an HTML page that compares runs: curves, memory over time, executed schedule, traffic, partition and
 * summaries. It reads the directories that `carousel train --out` wrote. The page is one self-contained file and
 * replaces `path` only when complete. `title` may be NULL for the names of the runs.
 *
 * Files missing from a directory are left out, with a remark in the page and a warning in the log. CAR_ERROR_FORMAT,
 * with the position, if a file is malformed; CAR_ERROR_ARGUMENT if a directory contains no run; CAR_ERROR_IO if
 * something cannot be read or written. */
car_status car_report_page(car_context *context, const char *const *directories, int count, const char *title,
                           const char *path);

/* The same for runs in progress: the page reloads itself every `seconds`, unless its reader has zoomed or paused it.
 * 0: never. */
car_status car_report_live_page(car_context *context, const char *const *directories, int count, const char *title,
                                double seconds, const char *path);

/* Writes what a run did in Chrome's trace format, for Perfetto: a row for each thread and each worker, counters for
 * memory by category and for messages in flight. The recorder must have recorded categories and, over ranks,
 * gathered all records; `plan` is the run's. The file appears only when complete. */
car_status car_report_trace(const car_recorder *recorder, const car_plan *plan, const char *path);

/* Settings of car_report_timeline. At most `steps` of the recorded steps are written. */
typedef struct car_timeline_config {
    const char *model;
    int steps;
} car_timeline_config;
/* The same as car_report_trace in the form that `carousel report` reads: tasks, what each worker held, messages, the
 * partition. */
car_status car_report_timeline(const car_recorder *recorder, const car_plan *plan, const car_timeline_config *config,
                               const char *path);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
