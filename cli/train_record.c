/* Records some steps of a run, for --trace and for timeline.json in the run directory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "carousel/report.h"
#include "train.h"

enum { SKIPPED_STEPS = 4, RECORDED_STEPS = 4 }; /* skips steps in which the cycle fills and the machine warms up */

/* ---- before the run -------------------------------------------------------------------------- */

static bool read_steps(const char *text, int64_t *first, int64_t *end) {
    char *rest = NULL;
    *first = strtoll(text, &rest, 10);
    if (rest == text || *rest != ':' || *first < 0) {
        return false;
    }
    const char *second = rest + 1;
    *end = strtoll(second, &rest, 10);
    return rest != second && *rest == '\0' && *end > *first;
}

static car_status check_folder(car_context *context, const char *path) {
    char folder[CAR_TRAIN_PATH] = ".";
    const char *slash = strrchr(path, '/');
    struct stat entry;
    size_t length = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof folder) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "--trace: the path is too long");
    }
    if (length > 0) {
        memcpy(folder, path, length);
        folder[length] = '\0';
    }
    if (stat(path, &entry) == 0 && S_ISDIR(entry.st_mode)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "--trace %s: it is a directory; name a file", path);
    }
    if (access(folder, W_OK) != 0) {
        return car_context_fail(context, CAR_ERROR_IO, "--trace %s: cannot write to %s: %s", path, folder,
                                strerror(errno));
    }
    return CAR_OK;
}

car_status car_train_check_trace(const car_train_run *t) {
    const car_train_options *o = &t->options;
    int64_t first = 0, end = 0;
    if (o->trace_steps && !o->trace) {
        return car_context_fail(t->context, CAR_ERROR_ARGUMENT, "--trace-steps requires --trace FILE");
    }
    if (o->trace_steps && !read_steps(o->trace_steps, &first, &end)) {
        return car_context_fail(t->context, CAR_ERROR_ARGUMENT,
                                "--trace-steps %s: it must be A:B with A below B, e.g. 4:8", o->trace_steps);
    }
    return CAR_OK;
}

/* Steps before the first evaluation, which would disturb the record: in one process it drains the cycle, over ranks it
 * takes time. */
static int64_t undisturbed_steps(const car_train_run *t) {
    const car_train_options *o = &t->options;
    int64_t begin = car_run_first_step(t->run), left = o->steps - begin;
    int64_t next = o->eval_every ? o->eval_every - begin % o->eval_every : left;
    return next < left ? next : left;
}

/* Checks before the run that the trace can be written. */
static car_status check_files(car_train_run *t, bool empty) {
    const car_train_options *o = &t->options;
    if (empty) {
        car_context_log(t->context, CAR_LOG_WARNING, "--trace-steps %s: the run has none of these steps",
                        o->trace_steps);
    }
    car_status status = o->trace ? check_folder(t->context, o->trace) : CAR_OK;
    t->alone = status != CAR_OK;
    return status;
}

car_status car_train_start_recorder(car_train_run *t) {
    const car_train_options *o = &t->options;
    int64_t begin = car_run_first_step(t->run), left = undisturbed_steps(t), first = 0, end = 0;
    car_status status = CAR_OK;
    if (left <= 0) {
        return CAR_OK;
    }
    if (o->trace_steps && read_steps(o->trace_steps, &first, &end)) {
        first = first > begin ? first : begin;
        end = end < o->steps ? end : o->steps;
    } else {
        int64_t count = left < RECORDED_STEPS ? left : RECORDED_STEPS;
        first = begin + (left - count < SKIPPED_STEPS ? left - count : SKIPPED_STEPS);
        end = first + count;
    }
    if (car_train_is_first(t)) {
        CAR_TRY(check_files(t, first >= end));
    }
    CAR_TRY(car_run_record(t->run, first, end));
done:
    return status;
}

/* ---- after the run --------------------------------------------------------------------------- */

car_status car_train_write_records(car_train_run *t) {
    const car_train_options *o = &t->options;
    const car_timeline_config timeline = {.model = o->model, .steps = RECORDED_STEPS};
    const car_plan *plan = car_run_plan(t->run);
    char path[CAR_TRAIN_PATH];
    car_recorder *recorder = NULL;
    car_status status = CAR_OK;
    if (car_run_steps(t->run) == car_run_first_step(t->run)) { /* keep what an earlier start has written */
        return CAR_OK;
    }
    CAR_TRY(car_run_gather_record(t->run, &recorder));
    if (!recorder) {
        return CAR_OK;
    }
    if (car_recorder_lost(recorder) > 0) {
        car_context_log(t->context, CAR_LOG_WARNING,
                        "the recording was full before its last step; use fewer --trace-steps");
    }
    if (o->out && car_train_remember(t, car_train_path(t->context, o->out, "timeline.json", path))) {
        car_train_remember(t, car_report_timeline(recorder, plan, &timeline, path));
    }
    if (o->trace) {
        car_train_remember(t, car_report_trace(recorder, plan, o->trace));
    }
done:
    return status;
}
