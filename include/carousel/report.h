/* Reports: what is known of plans and runs, as figures and pages. */
#ifndef CAROUSEL_REPORT_H
#define CAROUSEL_REPORT_H

#include "carousel/plan.h"
#include "carousel/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A figure as SVG: data parallelism on the left, the plan's cyclic rule on the right; above, who computes what in
 * which slot; below, the activation bytes of every worker and their sum over the same two steps, from the partition's
 * curve with workers aligned (dp) and evenly spaced (the cycle). `title` is what the figure says it is of.
 *
 * CAR_ERROR_ARGUMENT if the rule is not cyclic, or if there are more than 32 workers or 128 stages, which nobody
 * could read. To be released with car_plan_release_text. */
car_status car_report_plan_svg(const car_plan *plan, const char *title, char **out);

/* A page about runs, beside one another: their curves, memory over time, executed schedule, traffic, partition and
 * summaries, out of the directories that `carousel train --out` wrote. One HTML file that needs nothing else; it
 * replaces `path` when it is whole. `title` may be NULL: the names of the runs.
 *
 * Files that a directory lacks are left out, with a note in the page and a warning in the log. CAR_ERROR_FORMAT with
 * the place if a file is malformed, CAR_ERROR_ARGUMENT if a directory holds no run at all, CAR_ERROR_IO if something
 * cannot be read or written. */
car_status car_report_page(car_context *context, const char *const *directories, int count, const char *title,
                           const char *path);

/* The same for runs that go on: the page loads itself again every `seconds`, to show what has been written since,
 * unless its reader has zoomed or paused it. 0: it does not. */
car_status car_report_live_page(car_context *context, const char *const *directories, int count, const char *title,
                                double seconds, const char *path);

/* What a run did, in Chrome's trace format, which Perfetto opens: a row for each thread and for each worker, counters
 * of memory by category and of messages in flight. The recorder is one that noted the categories, and over ranks has
 * gathered all records; the plan is the run's. The file appears when it is whole. */
car_status car_report_trace(const car_recorder *recorder, const car_plan *plan, const char *path);

/* The same in the form that `carousel report` draws: tasks, what every worker held, messages, the partition. At most
 * `steps` of the steps that were recorded. */
typedef struct car_timeline_config {
    const char *model;
    int steps;
} car_timeline_config;
car_status car_report_timeline(const car_recorder *recorder, const car_plan *plan, const car_timeline_config *config,
                               const char *path);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
